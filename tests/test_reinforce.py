"Reinforcement learning as a run: killed, resumed, on two processes; and what a trainer may never do."
import asyncio, contextlib, inspect, itertools, json, multiprocessing, os, queue, shutil, signal, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file

from tests import reinforce_run
from tests.scripts import OURS, ROOT, script
from tests.waiting import until
from uitars_nb.agent.actor import Actor, ActorFailed
from uitars_nb.agent.curriculum import Curriculum
from uitars_nb.agent.loop import EPISODE, EpisodeLimits, Reply
from uitars_nb.agent.playing import ActorConfig, _obey, initial_allowance
from uitars_nb.agent.streaming import Allowance, TooManyFailures, StreamingRollout, FailureMonitor
from uitars_nb.core.types import Action, Completion, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.core.runs import read_json, read_jsonl
from uitars_nb.core.store import Store
from uitars_nb.model.policy import Policy
from uitars_nb.pipelines.rl import RLJob
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.rl.shaping import Shaping
from uitars_nb.tasks.base import TASKS, Outcome, seeds
from uitars_nb.train.collector import Collector
from uitars_nb.train.ppo import PPOConfig
from uitars_nb.train.hardware import Hardware
from uitars_nb.train.reinforce import RolloutFeed, last_update, pretrain_value, reinforce
from uitars_nb.train.sft import read_metrics
from uitars_nb.train.value import ValueConfig

pytestmark = pytest.mark.timeout(300)


SAID = {'reward', 'return', 'shaping/format', 'shaping/overlong', 'shaping/signal', 'success', 'success/miniwob/click-test', 'entropy', 'kl', 'clip_high', 'clip_low', 'stale_tokens', 'explained_variance', 'value_return_correlation', 'think_words', 'rounds', 'repeats', 'tokens_per_s',
        'spent/environment', 'spent/agent', 'engine_share', 'sandbox_share', 'train_share', 'wait_seconds'}   # of each update; of failures and stop reasons, those that there were


def accounted(run, updates):
    "Every batch once, every trajectory once, and the store holds what the journal says."
    journal = read_jsonl(run/'rank-0'/'batches.jsonl')
    assert [o['number'] for o in journal][:updates] == list(range(updates))
    ids = [id for o in journal for id in o['ids']]
    assert len({*ids}) == len(ids)
    store = Store(run/'rank-0'/'store')
    assert {*store.index().id} == {*ids} and not store.index().env_failure.any()
    return journal


def test_a_killed_run_learns_from_the_same_batches_again(tmp_path):
    assert script('reinforce_run', tmp_path, '--die', 3).returncode == -9
    run = tmp_path/'run'
    assert last_update(run/'last.ckpt') == 2     # the third update came after the last checkpoint
    before = read_jsonl(run/'rank-0'/'batches.jsonl')
    assert len(before) >= 3
    done = script('reinforce_run', tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    journal = accounted(run, 5)
    assert journal[:len(before)] == before
    assert last_update(run/'last.ckpt') == 5
    assert [*read_metrics(run).index] == [1, 2, 3, 4, 5]
    told = read_metrics(run)
    assert told.chance.between(0, 1).all() and SAID <= {*told} and told.filter(like='stop/').sum(axis=1).tolist() == pytest.approx([1] * 5)
    times = read_metrics(run)[['update_seconds', 'wait_seconds', 'train_share']]   # of the update that was made again, those of the first time
    assert (times > 0).all(None) and (times.train_share < 1).all()
    assert script('reinforce_run', tmp_path).returncode == 0      # nothing is left to do
    assert read_jsonl(run/'rank-0'/'batches.jsonl') == journal


def test_a_run_that_is_asked_to_end_ends_within_seconds_and_loses_nothing(tmp_path):
    "SIGTERM in the middle of an update of a minute, while the actor plays for the next ones."
    run = tmp_path/'run'
    env = {k: v for k, v in os.environ.items() if k not in OURS} | dict(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE='1')
    with open(tmp_path/'said', 'w') as said: process = subprocess.Popen([sys.executable, '-m', 'tests.reinforce_run', tmp_path, '--updates', '3', '--slow', '60'], stdout=said, stderr=said, env=env, cwd=ROOT)
    try:
        while not (run/'updating').exists() and process.poll() is None: time.sleep(.1)
        time.sleep(5)   # an episode is played in less
        process.terminate()
        began = time.monotonic()
        assert process.wait(60) == 128 + signal.SIGTERM, (tmp_path/'said').read_text()[-3000:]
        assert time.monotonic() - began < 20
    finally: process.kill()
    before, kept = read_jsonl(run/'rank-0'/'batches.jsonl'), [o.id for o in Store(run/'rank-0'/'left')]
    assert len(before) == 1 and kept and not {*kept} & {*before[0]['ids']}
    done = script('reinforce_run', tmp_path, '--updates', 3)
    assert done.returncode == 0, done.stderr[-3000:]
    journal = accounted(run, 3)
    assert journal[:1] == before and {*kept} <= {id for o in journal for id in o['ids']}


def test_what_a_collector_leaves_is_what_no_batch_holds(tmp_path):
    "Also where it makes a batch already, for which an actor waits; of several samples of an instance two are enough."
    said = (Step(Observation(np.zeros((8, 8, 3), np.uint8)), completion=Completion('', np.int32([1]), np.int32([2]), np.zeros(1, np.float32), np.zeros(1, np.int32), (0,))),)
    sample = lambda i, k: Trajectory(f'run/{i:06}-{k}.0', TaskSpec('miniwob/click-test', i), said, StopReason.FINISHED, 1., True)
    ids = lambda batch: [o.id[-6:-2] for o in batch.trajs]
    first = Collector([sample(i, k) for i in range(3) for k in range(2)], tmp_path, 4, samples=2)
    assert [ids(o) for o in first] == [['00-0', '00-1', '01-0', '01-1']]
    first.leave([sample(3, 0), sample(3, 1), sample(4, 0)])
    again = Collector([], tmp_path, 4, samples=2)
    assert [ids(o) for o in again] == [['00-0', '00-1', '01-0', '01-1'], ['02-0', '02-1', '03-0', '03-1']] and len(Store(tmp_path/'store')) == 8
    assert [ids(o) for o in Collector([], tmp_path, 4, samples=2)] == [ids(o) for o in again]   # what was left is in the journal by now


@pytest.mark.slow
def test_a_killed_run_ends_in_the_bits_of_one_that_was_not(tmp_path):
    assert script('reinforce_run', tmp_path, '--updates', 4, '--die', 3).returncode == -9
    assert script('reinforce_run', tmp_path, '--updates', 4).returncode == 0
    run, other = tmp_path/'run', tmp_path/'other'     # another run, of the same batches, that nobody kills
    shutil.copytree(tmp_path/'start', other/'start')
    shutil.copytree(run/'rank-0'/'store', other/'run'/'rank-0'/'store')
    shutil.copy(run/'rank-0'/'batches.jsonl', other/'run'/'rank-0')
    done = script('reinforce_run', other, '--updates', 4)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = load_file(other/'run'/'policy'/'model.safetensors')
    assert all(torch.equal(v, whole[k]) for k, v in load_file(run/'policy'/'model.safetensors').items())


@pytest.mark.slow
def test_a_run_killed_after_its_last_update_still_leaves_a_policy(tmp_path):
    assert script('reinforce_run', tmp_path, '--updates', 2, '--die', 2).returncode == -9
    run = tmp_path/'run'
    assert last_update(run/'last.ckpt') == 2 and not (run/'policy').exists()
    done = script('reinforce_run', tmp_path, '--updates', 2)
    assert done.returncode == 0, done.stderr[-3000:]
    saved = load_file(run/'policy/model.safetensors')
    assert all(torch.equal(v, saved[k]) for k, v in published(tmp_path, 0, 2).items()) and (run/'critic').exists()
    accounted(run, 2)


@pytest.mark.slow
def test_an_adapter_practises_alone_and_goes_on_after_a_kill(tmp_path):
    "What is published, kept and saved is the adapter, and the actor plays with it."
    asked = '--lora', 2, '--updates', 4, '--frozen', 'model.layers.0.mlp'
    assert script('reinforce_run', tmp_path, *asked, '--die', 3).returncode == -9
    run = tmp_path/'run'
    kept = torch.load(run/'last.ckpt', weights_only=False)
    assert kept['version'] == 2 and any('lora' in k for k in kept['state_dict']) and not any(k.startswith('model.') and 'lora' not in k for k in kept['state_dict'])
    done = script('reinforce_run', tmp_path, *asked)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(run, 4)
    first, trained = (Policy.from_pretrained(o, dtype='float32').model.state_dict() for o in (run/'adapter', run/'policy'))
    assert {k for k, v in trained.items() if not torch.equal(v, first[k])} == {k for k in first if 'lora' in k and 'mlp' not in k} == {*published(tmp_path, 0, 4)}
    assert all(torch.equal(v, trained[k]) for k, v in published(tmp_path, 0, 4).items())


@pytest.mark.slow
def test_value_pretraining_that_was_killed_learns_from_what_was_played(tmp_path):
    "It keeps no checkpoint: its batches are there, and are gone through again."
    assert script('reinforce_run', tmp_path, '--value', '--die', 2).returncode == -9
    run = tmp_path/'value'
    before, told = read_jsonl(run/'rank-0'/'batches.jsonl'), read_metrics(run)
    assert len(before) >= 2 and len(told) == 2 and not (run/'critic').exists()
    done = script('reinforce_run', tmp_path, '--value')
    assert done.returncode == 0, done.stderr[-3000:]
    assert accounted(run, 4)[:len(before)] == before
    again = read_metrics(run)
    assert [*again.index] == [1, 2, 3, 4] and again.value_loss[:2].tolist() == pytest.approx(told.value_loss.tolist(), rel=1e-4) and (run/'critic').exists()
    assert read_json(run/'summary.json')['converged'] is False   # four batches are the limit, and fewer than the criterion asks for
    with pytest.raises(ValueError, match='batches is 0'): ValueConfig(batches=0)   # it would leave a critic that knows nothing


@pytest.mark.parametrize('start', [reinforce, pretrain_value])
def test_a_slope_behind_the_wall_is_refused_before_anything_is_played(start, tmp_path):
    config = PPOConfig if start is reinforce else ValueConfig
    with pytest.raises(ValueError, match='episodes end after 100 tokens.*full at 32768'): start('nowhere', tmp_path, ActorConfig('', ('miniwob/click-test',), limits=EpisodeLimits(tokens=100)), config())
    assert Shaping().max_tokens == EpisodeLimits().tokens and not [*tmp_path.iterdir()]


def test_what_the_environment_broke_for_good_is_told_by_task(tmp_path):
    "Two attempts at a sample, and none came to its end."
    def attempts():
        for k in itertools.count():
            spec = TaskSpec(('miniwob/click-test', 'miniwob/click-link')[k % 2], k)
            for n in range(2 if k % 2 else 1): yield Trajectory(f'run/{k:06}-0.{n}', spec, said_once, StopReason.ENV_CRASH if k % 2 else StopReason.FINISHED, None if k % 2 else 1., not k % 2)
    said_once = (Step(Observation(np.zeros((8, 8, 3), np.uint8)), completion=Completion('', np.int32([1]), np.int32([2]), np.zeros(1, np.float32), np.zeros(1, np.int32), (0,))),)
    batches = iter(Collector(attempts(), tmp_path, 3, retries=1))
    first, second = next(batches), next(batches)
    assert (first.lost, second.lost) == ({'miniwob/click-link': 2}, {'miniwob/click-link': 3}) and first.failures == {'env_crash': 4}
    again = next(iter(Collector(attempts(), tmp_path, 3, retries=1)))
    assert again.again and again.lost == first.lost


async def test_an_actor_that_is_behind_loads_the_newest_weights_alone():
    "The trainer writes into two files in turns, so older orders may name what has been written over; what was told in between still counts."
    ours, theirs = multiprocessing.Pipe()
    loaded, told, allowance, busy = [], [], Allowance(4, 1), asyncio.Event()
    class Slow:
        async def load_file(self, path, version):
            loaded.append((path, version))
            await busy.wait()
    course = SimpleNamespace(tell=lambda *o: told.append(o))
    life = asyncio.create_task(_obey(theirs, Slow(), allowance, course))
    ours.send(('a', 1, 0, None))
    await until(lambda: loaded)
    for order in ((None, 1, 0, ('t', True, 3)), ('b', 2, 0, None), ('a', 3, 0, None), (None, 3, 2, None)): ours.send(order)
    await until(lambda: not theirs.poll())   # all of them have arrived
    await asyncio.sleep(.3)
    busy.set()
    await until(lambda: allowance.version == 3)
    assert loaded == [('a', 1), ('a', 3)] and told == [('t', True, 3)] and allowance.begun == -2
    ours.close()
    await asyncio.wait_for(life, 20)


def test_scaled_gradients_are_refused():
    with pytest.raises(ValueError, match='bf16-mixed'): Hardware(precision='16-mixed')


BROKEN = '''
from uitars_nb.core.types import StopReason
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.tasks.base import register

class Page:
    name, max_steps = 'broken/page', 3
    async def setup(self, session, spec): raise EnvironmentFailure(StopReason.ENV_CRASH, 'the server is gone')
    async def verify(self, session, spec): raise AssertionError

register(Page())
'''


def test_environments_that_fail_end_the_run_by_name(tmp_path, monkeypatch):
    "From the actor's process to the trainer: nothing is learned from them, and the error says what broke."
    (tmp_path/'broken_page.py').write_text(BROKEN)
    monkeypatch.setenv('UITARS_TASKS', 'broken_page')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(reinforce_run.ACTOR, tasks=('broken/page',))
    with pytest.raises(ActorFailed, match='env_crash.*the server is gone'):
        reinforce(reinforce_run.start(tmp_path), tmp_path/'run', config, PPOConfig(updates=2), hardware=Hardware(accelerator='cpu'), progress=False)
    assert not (tmp_path/'run/policy').exists() and not read_jsonl(tmp_path/'run/rank-0/batches.jsonl')


@pytest.mark.parametrize('shared', [False, True])
def test_what_is_no_part_of_the_module_comes_to_its_device(shared, tmp_path):
    "`meta` stands for a GPU."
    from uitars_nb.model.value import Critic
    from uitars_nb.train.ppo import PPO, PPOConfig
    from uitars_nb.train.update import Objective
    from uitars_nb.train.value import ValueConfig, ValuePretraining
    policy, reference = (Policy.from_pretrained(reinforce_run.start(tmp_path)) for _ in range(2))
    early = ValuePretraining(policy, Critic.from_policy(policy, shared), ValueConfig(shared=shared)).to('meta')
    early.on_train_start()
    assert early.critic.model.device.type == 'meta' and (not shared or policy.model.device.type == 'meta')
    policy = Policy.from_pretrained(reinforce_run.start(tmp_path))
    module = PPO(policy, Critic.from_policy(policy, shared), PPOConfig(shared=shared, objective=Objective(kl=.1)), reference).to('meta')
    module.on_train_start()
    assert {o.device.type for o in (*module.networks, module.critic.model)} == {'meta'}


@pytest.mark.parametrize('who, staleness', [pytest.param('actor', 1, marks=pytest.mark.slow), ('browser', 0)])
def test_killed_actors_and_browsers_cost_no_trajectory_and_double_none(who, staleness, tmp_path):
    "Without staleness no other episode can take the place of one that a browser broke and nobody plays again."
    done = script('reinforce_run', tmp_path, '--die', 2, '--who', who, '--staleness', staleness)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(tmp_path/'run', 5)
    told = read_metrics(tmp_path/'run')
    assert told.dropped.sum() == 0
    assert who == 'actor' or told.filter(like='env_failures/').sum().sum() >= 1      # the trainer hears of what broke


@pytest.mark.slow
def test_synchronous_training_is_never_stale(tmp_path):
    done = script('reinforce_run', tmp_path, '--staleness', 0, '--updates', 3)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(tmp_path/'run', 3)
    assert read_metrics(tmp_path/'run').staleness_max.tolist() == [0, 0, 0]


def published(home, rank, version):
    return load_file(home/'run'/f'rank-{rank}'/f'weights-{version % 2}.safetensors')


@pytest.mark.parametrize('algorithm, strategy', [('ppo', 'ddp'), *(pytest.param(*o, marks=pytest.mark.slow) for o in (('grpo', 'ddp'), ('ppo', 'fsdp'), ('grpo', 'fsdp')))])
def test_two_processes_share_an_update(algorithm, strategy, tmp_path):
    "Each plays instances of its own; what they learn from both is the same."
    done = script('reinforce_run', tmp_path, '--devices', 2, '--updates', 2, '--algorithm', algorithm, '--samples', 2, '--strategy', strategy)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [tmp_path/'run'/f'rank-{k}' for k in (0, 1)]
    ids = [id for o in ranks for row in read_jsonl(o/'batches.jsonl')[:2] for id in row['ids']]
    assert len({*ids}) == len(ids) == 16
    tokens = [len(s.completion.ids) for o in ranks for id in read_jsonl(o/'batches.jsonl')[0]['ids'] for s in Store(o/'store')[id].steps if s.completion is not None]
    assert read_metrics(tmp_path/'run').response_tokens[1] == sum(tokens)     # the log is of both
    played = [{*Store(o/'store').index().seed} for o in ranks]
    assert not played[0] & played[1]
    one, two = (published(tmp_path, k, 2) for k in (0, 1))
    before, saved = (load_file(tmp_path/o/'model.safetensors') for o in ('start', 'run/policy'))
    assert all(torch.equal(v, two[k]) for k, v in one.items()) and all(torch.equal(v, one[k]) for k, v in saved.items())
    assert any(not torch.equal(v, before[k]) for k, v in one.items() if k in before)


def test_practice_begins_behind_what_demonstrations_show():
    "`eval --split train` plays the first instances, and the command practises on others unless it is told to."
    curriculum = Curriculum(['miniwob/click-test'], seed=RLJob.seed)
    assert not {curriculum.draw().seed for _ in range(200)} & {*seeds('train', 10_000, 'miniwob/click-test')}


@pytest.mark.slow
def test_two_processes_pretrain_one_critic(tmp_path):
    "What they log, and what they find flat, is of both."
    done = script('reinforce_run', tmp_path, '--devices', 2, '--value')
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [tmp_path/'value'/f'rank-{k}' for k in (0, 1)]
    batches = [[row['ids'] for row in read_jsonl(o/'batches.jsonl')] for o in ranks]
    assert [len(o) for o in batches] == [4, 4] and len({id for rows in batches for ids in rows for id in ids}) == 32
    won = [[np.mean([Store(o/'store')[id].success for id in ids]) for ids in rows] for o, rows in zip(ranks, batches)]
    assert read_metrics(tmp_path/'value').success.tolist() == pytest.approx(np.mean(won, axis=0).tolist())
    assert (tmp_path/'value'/'critic'/'value_head.safetensors').exists() and json.loads((tmp_path/'value'/'summary.json').read_text())['batches'] == 4


@pytest.mark.slow
@pytest.mark.parametrize('shared', [False, True])
def test_a_model_in_pieces_learns_what_a_whole_one_learns(shared, tmp_path):
    "Where one device makes more passes than the other, too."
    asked = ['--devices', 2, '--staleness', 0, '--minibatches', 1, '--updates', 3, *(['--shared'] if shared else [])]
    for name, more in dict(ddp=[], fsdp=['--uneven']).items():
        done = script('reinforce_run', tmp_path/name, *asked, '--strategy', name, *more)
        assert done.returncode == 0, done.stderr[-3000:]
    before = load_file(tmp_path/'ddp'/'start'/'model.safetensors')
    apart = lambda a, b: sum((v - b[k]).square().sum() for k, v in a.items()) ** .5
    whole, pieces = (load_file(tmp_path/o/'run'/'policy'/'model.safetensors') for o in ('ddp', 'fsdp'))
    assert apart(whole, pieces) < 1e-3 * apart(whole, before)
    whole, pieces = (load_file(tmp_path/o/'run'/'critic'/'value_head.safetensors') for o in ('ddp', 'fsdp'))
    assert apart(whole, pieces) < 1e-3 * apart(whole, {k: 0 * v for k, v in whole.items()})
    assert last_update(tmp_path/'fsdp'/'run'/'last.ckpt') == 3


@pytest.mark.slow
def test_a_killed_run_in_pieces_goes_on(tmp_path):
    asked = '--devices', 2, '--strategy', 'fsdp', '--updates', 4
    assert script('reinforce_run', tmp_path, *asked, '--die', 3).returncode
    assert last_update(tmp_path/'run'/'last.ckpt') == 2
    done = script('reinforce_run', tmp_path, *asked)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(tmp_path/'run', 4)


def test_groups_are_played_to_the_end(tmp_path):
    done = script('reinforce_run', tmp_path, '--staleness', 0, '--updates', 2, '--samples', 2, '--algorithm', 'grpo')
    assert done.returncode == 0, done.stderr[-3000:]
    for row in accounted(tmp_path/'run', 2): assert len({o.rpartition('-')[0] for o in row['ids']}) == 2


@pytest.mark.slow
def test_what_ended_differently_is_played_again_also_after_a_kill(tmp_path):
    args = '--staleness', 0, '--samples', 2, '--algorithm', 'grpo', '--revisit', .7, '--updates', 8
    assert script('reinforce_run', tmp_path, '--die', 3, *args).returncode == -9   # of each instance one sample is called a success
    before = read_jsonl(tmp_path/'run'/'rank-0'/'batches.jsonl')
    known = {tuple(o) for o in before[-1]['open']}
    done = script('reinforce_run', tmp_path, *args)
    assert done.returncode == 0, done.stderr[-3000:]
    journal = accounted(tmp_path/'run', 8)
    index = Store(tmp_path/'run'/'rank-0'/'store').index()
    assert 2 <= index.seed.nunique() < len(index) / 2   # an instance has two samples, and some have had their turn again
    later = {id for o in journal[len(before):] for id in o['ids']}
    assert known & {*zip(index.task[index.id.isin(later)], index.seed[index.id.isin(later)])}


class Mortal(Actor):
    "An actor whose process sends `few` trajectories and dies; it needs none."
    few, lives = 1, 0
    def start(self):
        self.lives, self.process, self.arrived = self.lives + 1, SimpleNamespace(exitcode=-9), queue.SimpleQueue()
        for o in [('trajectory', None, {}, {}, ())] * self.few + [None]: self.arrived.put(o)
    def close(self): pass


@pytest.mark.parametrize('few, ends', [(0, True), (1, True), (7, True), (8, False)])
def test_an_actor_that_dies_faster_than_it_works_is_given_up(few, ends):
    actor = Mortal(ActorConfig('nowhere', ('miniwob/click-test',), batch=8), restarts=3)
    actor.few = few
    actor.start()
    got = 0
    try:
        for got, _ in enumerate(itertools.islice(actor, 500), 1): pass
    except ActorFailed as e: assert ends and 'batch of 8' in str(e) and '-9' in str(e)
    else: assert not ends and got == 500
    assert got == few * actor.lives if ends else actor.lives == -(-500 // few)


class Instant(Actor):
    "An actor without a process: what may begin has ended at once. It dies after so many trajectories, and again after as many as come next; those that it has sent arrive."
    def __init__(self, deaths, **kwargs): super().__init__(ActorConfig('nowhere', ('miniwob/click-test',), **kwargs)); self.sent, self.left = 0, [*deaths]

    def start(self):
        config = self.next_config()
        self.group, self.allowance, self.process, self.way, self.arrived = config.skip, initial_allowance(config), SimpleNamespace(exitcode=-9), [], self

    def get(self, timeout):
        while self.process and self.allowance.left > 0: self.play()
        if self.way: return self.way.pop(0)
        assert not self.process, 'nothing may begin, and the trainer waits'

    def play(self):
        self.allowance.take()
        for k in range(self.config.samples):
            self.way.append(('trajectory', short(f'rl/{self.group:06}-{k}.0', self.version), dict(drawn=self.group + 1), {}, ()))
            self.sent += 1
            if self.sent in self.left: self.process = None; return
        self.group += 1

    def close(self): pass

    def _send(self, order):
        if not self.process: return
        self.allowance.give_back(order[2])
        self.allowance.advance(order[1])


def short(id, version):
    said = Completion('ok', np.arange(3, dtype=np.int32), np.int32([4, 5]), np.zeros(2, np.float32), np.full(2, version, np.int32))
    return Trajectory(id, TaskSpec('miniwob/click-test', int(id[3:9])), (Step(Observation(np.zeros((8, 8, 3), np.uint8)), completion=said),), StopReason.TERMINATED, 1., True)


@pytest.mark.parametrize('samples', [1, 2])
@pytest.mark.parametrize('staleness', [0, 1, 2])
def test_after_a_death_no_more_begin_than_the_trainer_lacks(staleness, samples, tmp_path):
    "Else each later trajectory waits longer than it may, and is dropped."
    actor = Instant((29, 72), batch=8, samples=samples, staleness=staleness)
    collector, batches = Collector(actor, tmp_path, 8, samples=samples, staleness=staleness), []
    for batch in collector:
        batches.append(batch)
        actor.publish(None, batch.number + 1)
        if batch.number == 14: break
    ids = [o.id for b in batches for o in b.trajs]
    assert sum(b.stale for b in batches) == 0 and len({*ids}) == len(ids) == 15 * 8 and actor.sent > 72
    assert not collector.groups.open   # nothing stays of the instances that an actor died over
    assert actor.sent <= len(ids) + 8 * staleness + 2 * (samples - 1)


def test_actors_play_on_the_gpus_of_their_devices(tmp_path, monkeypatch):
    from uitars_nb.agent.playing import run_actor
    feed, asked = RolloutFeed(tmp_path, reinforce_run.ACTOR), []
    feed.trainer = SimpleNamespace(global_rank=9, local_rank=1, world_size=16)      # the second of the second machine's eight
    feed.train_dataloader()
    monkeypatch.setattr(Policy, 'to_play', lambda *args: asked.append(args) or 1 / 0)
    run_actor(SimpleNamespace(send=asked.append), feed.actor.next_config())
    assert asked == [('', 'float32', 1), ('failed', 'ZeroDivisionError: division by zero')]
    feed.teardown('fit')   # gives the threads back


def test_an_actor_that_cannot_start_says_why(monkeypatch):
    def refuse(self): raise BlockingIOError(11, 'Resource temporarily unavailable')
    monkeypatch.setattr('multiprocessing.context.SpawnProcess.start', refuse)
    with pytest.raises(BlockingIOError), Actor(reinforce_run.ACTOR) as actor: next(iter(actor))


def test_an_actor_that_cannot_play_says_why(tmp_path):
    config = replace(reinforce_run.ACTOR, policy=str(tmp_path/'nowhere'))
    with Actor(config) as actor, pytest.raises(ActorFailed, match='nowhere'): next(iter(actor))


def test_an_actor_that_lives_and_says_nothing_is_not_waited_for_for_ever(tmp_path):
    with Actor(replace(reinforce_run.ACTOR, policy=str(reinforce_run.start(tmp_path)), staleness=0)) as actor:
        trajs = iter(actor)
        assert len([next(trajs) for _ in range(4)]) == 4
        actor.patience = 1      # the four of the first update have been played, and nobody learns from them
        with pytest.raises(ActorFailed, match='nothing for 1 s'): next(trajs)


# ---- streaming
class Pool:
    "Sessions that break with a chance."
    def __init__(self, size, broken, seed=0): self.size, self.broken, self.rng = size, broken, np.random.default_rng(seed)

    @contextlib.asynccontextmanager
    async def session(self):
        await asyncio.sleep(float(self.rng.random()) / 1000)
        raise EnvironmentFailure(StopReason.ENV_CRASH, 'gone')
        yield


async def take(stream, n):
    got = []
    async with contextlib.aclosing(aiter(stream)) as trajs:
        async for o in trajs:
            got.append(o)
            if len(got) == n: return got


async def test_a_broken_environment_stops_the_run_and_is_named():
    numbers = itertools.count()
    stream = StreamingRollout(Pool(3, 1.), lambda: TaskSpec('miniwob/click-test', next(numbers)), None, 'r', Allowance(4, 1), watch=FailureMonitor(.5, 20))
    with pytest.raises(TooManyFailures, match='env_crash.*gone'): await take(stream, 1000)


class Stills:
    size = 1
    @contextlib.asynccontextmanager
    async def session(self): yield Still()


class Still:
    id, size = 'still', (16, 16)
    async def reset(self): pass
    async def observe(self): return Observation(np.zeros((16, 16, 3), np.uint8))
    async def act(self, action): pass
    async def close(self): pass


class Any:
    name, max_steps = 'tests/any', 1
    async def setup(self, session, spec):
        if '/000000-0.' in EPISODE.get(): raise EnvironmentFailure(StopReason.ENV_CRASH, 'gone')   # the first sample of the first instance, always
        return spec
    async def verify(self, session, spec): return Outcome(1., True, True)


class Waits:
    def __init__(self, session, task, spec): pass
    async def act(self, steps, obs): return Reply(actions=(Action('wait', dict(time=0)),))


async def test_without_staleness_a_lost_sample_holds_nothing_up(monkeypatch):
    monkeypatch.setitem(TASKS, 'tests/any', Any())
    numbers, allowance = itertools.count(), Allowance(2, 0)     # two instances of two samples
    stream = StreamingRollout(Stills(), lambda: TaskSpec('tests/any', next(numbers)), Waits, 'r', allowance, samples=2, retries=2, watch=FailureMonitor(1., 20))
    got = await asyncio.wait_for(take(stream, 6), 20)
    assert stream.lost == 1 and sum(not o.stop.is_environment for o in got) == 3       # the group goes on with one sample, the next one with both
    assert allowance.left == 0
    allowance.advance(1)
    assert len(await asyncio.wait_for(take(stream, 4), 20)) == 4


async def test_retries_come_before_a_sample_is_given_up():
    numbers = itertools.count()
    stream = StreamingRollout(Pool(1, 1.), lambda: TaskSpec('miniwob/click-test', next(numbers)), None, 'r', Allowance(4, 1), retries=2, watch=FailureMonitor(1., 20))
    got = await take(stream, 6)
    assert sorted(o.id for o in got) == [f'r/{i:06}-0.{k}' for i in (0, 1) for k in range(3)]
    assert stream.lost in (1, 2)   # the last attempt may not have been settled yet


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), st.lists(st.sampled_from(['take', 'advance', 'back']), max_size=60))
def test_never_more_begin_than_an_update_at_the_allowed_age_can_use(batch, staleness, events):
    async def go():
        allowance, version = Allowance(batch, staleness), 0
        for o in events:
            if o == 'take' and allowance.left > 0: allowance.take()
            if o == 'advance': version += 1; allowance.advance(version)
            if o == 'back' and allowance.begun: allowance.give_back()
            assert allowance.begun <= (version + 1 + staleness) * batch
    asyncio.run(go())


def test_a_curriculum_prefers_what_is_open_and_forgets_nothing():
    course = Curriculum(['miniwob/click-test', 'miniwob/click-link', 'miniwob/click-button'], 'learnable', seed=3)
    for _ in range(300): course.tell('miniwob/click-test', True); course.tell('miniwob/click-link', False); course.tell('miniwob/click-button', bool(_ % 2))
    drawn = [course.draw().name for _ in range(400)]
    assert drawn.count('miniwob/click-button') > 300 and min(drawn.count(o) for o in course.drawn) > 0


def test_samples_of_one_instance_are_one_piece_of_news():
    one, eight = (Curriculum(['miniwob/click-test', 'miniwob/click-link'], samples=n) for n in (1, 8))
    for success in (True, False, True, True, False) * 40:
        one.tell('miniwob/click-test', success)
        for _ in range(8): eight.tell('miniwob/click-test', success)
        assert abs(one.estimates.chance['miniwob/click-test'] - eight.estimates.chance['miniwob/click-test']) < .05
    assert eight.estimates.mean == eight.estimates.chance['miniwob/click-test'] and eight.estimates.chance['miniwob/click-link'] == .5
