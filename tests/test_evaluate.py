"Evaluations that are interrupted, robbed of samples, or continued with something else than they began with."
import contextlib
import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from uitars_nb.agent.loop import EpisodeLimits
from uitars_nb.cli.main import explain
from uitars_nb.pipelines.sft import split_by_task
from uitars_nb.core.runs import read_json, write_json
from uitars_nb.core.types import Action, Observation, StopReason, TaskSpec
from uitars_nb.evaluation.evaluate import Recipe, by_task, compare_results, evaluate, read_result
from uitars_nb.evaluation.statistics import pass_at_k
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.tasks.base import TASKS, Outcome, suite

SCREEN = np.zeros((16, 16, 3), np.uint8)


class Parity:
    "The oracle is right on even seeds; some instances break as often as they are told to."
    name, max_steps, breaks = 'tests/parity', 2, {}

    async def setup(self, session, spec):
        if self.breaks.get(spec.seed, 0):
            self.breaks[spec.seed] -= 1
            raise EnvironmentFailure(StopReason.ENV_CRASH, 'the lights went out')
        return spec

    async def verify(self, session, spec): return Outcome(float(spec.seed % 2 == 0), spec.seed % 2 == 0, True)
    async def oracle(self, session, spec): yield Action('wait', dict(time=0))


class Session:
    id, size, waited = 'still', (16, 16), False
    async def reset(self): pass
    async def observe(self): return Observation(SCREEN)
    async def act(self, action): self.waited = action.name == 'wait'
    async def close(self): pass


class Killed(BaseException): "As ctrl-c."


class Pool:
    size = 3
    def __init__(self, leases=10**9): self.leases = leases

    @contextlib.asynccontextmanager
    async def session(self):
        self.leases -= 1
        if self.leases < 0: raise Killed
        yield Session()


@pytest.fixture
def parity(monkeypatch):
    task = Parity()
    task.breaks = {}
    monkeypatch.setitem(TASKS, task.name, task)
    return task


RECIPE = Recipe('tests/parity', 'oracle', episodes=12)
async def play(recipe, path, pool=None, **kwargs): return await evaluate(recipe, path, pool or Pool(), progress=False, **kwargs)


async def test_what_an_interrupted_evaluation_has_played_is_not_played_again(parity, tmp_path):
    with pytest.raises(BaseExceptionGroup, match='unhandled'): await play(RECIPE, tmp_path/'a', Pool(5))
    kept = {*read_result(tmp_path/'a')[1].id}
    assert len(kept) <= 5
    pool = Pool()
    table = await play(RECIPE, tmp_path/'a', pool)
    assert 10**9 - pool.leases == 12 - len(kept)
    whole = await play(RECIPE, tmp_path/'b')
    assert table.equals(whole) and {*read_result(tmp_path/'a')[1].id} == {*read_result(tmp_path/'b')[1].id}


async def test_samples_lost_to_the_environment_leave_the_others_comparable(parity, tmp_path):
    seeds = [o.seed for o in suite('tests/parity', 'test', 12)]
    parity.breaks = {seeds[0]: 3}
    await play(RECIPE, tmp_path/'a')
    parity.breaks = {seeds[5]: 3}
    table = await play(RECIPE, tmp_path/'b')
    assert table.n.tolist() == [11] and table.env_failures.tolist() == [3]
    c = compare_results(tmp_path/'a', tmp_path/'b')
    assert (c.better, c.worse, c.difference.value) == (0, 0, 0)     # the same policy on the same ten instances


async def test_what_an_outage_broke_is_played_when_it_is_over(parity, tmp_path):
    seeds = [o.seed for o in suite('tests/parity', 'test', 12)]
    parity.breaks = {o: 3 for o in seeds[3:]}
    await play(RECIPE, tmp_path/'a')
    assert read_json(tmp_path/'a'/'summary.json')['given_up'] == 9
    pool = Pool()
    table = await play(RECIPE, tmp_path/'a', pool)
    assert 10**9 - pool.leases == 9 and table.n.tolist() == [12]
    assert read_json(tmp_path/'a'/'summary.json')['given_up'] == 0


async def test_a_result_that_was_cut_short_is_not_compared_with(parity, tmp_path):
    for name in 'ab': await play(RECIPE, tmp_path/name)
    (tmp_path/'a'/'summary.json').unlink()
    for pair in ('ab', 'ba'):
        with pytest.raises(ValueError, match='not played to its end'): compare_results(*(tmp_path/o for o in pair))


async def test_samples_of_the_random_player_differ():
    from uitars_nb.agent.loop import EPISODE, RandomAgent
    spec, said = TaskSpec('tests/parity', seed=3, instruction='Do it.'), []
    for id in ('', 'random/tests/parity:3/0.0', 'random/tests/parity:3/0.1', 'random/tests/parity:3/1.0', 'run/000007-2.0'):
        EPISODE.set(id)
        agent = RandomAgent(None, None, spec)
        said.append([agent.point() for _ in range(3)])
    assert said[0] == said[1] == said[2]   # the first sample, and its retries, as ever
    assert said[1] != said[3] != said[4]


async def test_samples_that_finish_falsely_count_once_an_instance():
    from uitars_nb.evaluation.evaluate import claims
    rows = [dict(task='t', seed=k, success=False, stop='finished', env_failure=False) for k in range(5) for _ in range(8)]
    one, eight = (claims(pd.DataFrame(o)) for o in (rows[::8], rows))
    assert eight['finished'] == 40 and eight['false_completes'] == one['false_completes']


async def test_a_task_that_never_worked_is_not_scored(parity, tmp_path):
    parity.breaks = Always()
    with pytest.raises(RuntimeError, match='broke every one of 36 episodes: the lights went out'): await play(RECIPE, tmp_path/'a')
    assert by_task(read_result(tmp_path/'a')[1]).success.isna().all()


class Always(dict):
    def get(self, seed, default=0): return 1
    def __missing__(self, seed): return 1


async def test_a_result_is_of_one_checkpoint_and_of_one_browser(parity, tmp_path):
    await play(RECIPE, tmp_path/'a', env=dict(chromium='1'))
    with pytest.raises(ValueError, match='screens'): await play(RECIPE, tmp_path/'a', env=dict(chromium='2'))
    with pytest.raises(ValueError, match='limits'): await play(replace(RECIPE, limits=EpisodeLimits(repeats=9)), tmp_path/'a', env=dict(chromium='1'))


async def test_results_of_two_browsers_are_not_compared(parity, tmp_path):
    for name in '12': await play(RECIPE, tmp_path/name, env=dict(chromium=name))
    with pytest.raises(ValueError, match='screens'): compare_results(tmp_path/'1', tmp_path/'2')
    await play(RECIPE, tmp_path/'3', env=dict(chromium='1'))
    assert compare_results(tmp_path/'1', tmp_path/'3').difference.value == 0


async def test_samples_of_an_instance_count_once(parity, tmp_path):
    "Four samples that are all alike say no more than one."
    await play(RECIPE, tmp_path/'once')
    await play(replace(RECIPE, samples=4), tmp_path/'often')
    once, often = (json.loads((tmp_path/o/'summary.json').read_text())['success'] for o in ('once', 'often'))
    assert once == often and once['low'] < once['value'] < once['high']


async def test_weights_that_change_in_place_are_noticed(parity, tmp_path):
    from tests import sft_run
    policy = sft_run.small_policy()
    policy.save(tmp_path/'p')
    recipe = replace(RECIPE, policy=str(tmp_path/'p'), episodes=1, max_tokens=4)
    await play(recipe, tmp_path/'a')
    next(policy.model.parameters()).data.add_(1)
    policy.save(tmp_path/'p')
    with pytest.raises(ValueError, match='weights'): await play(recipe, tmp_path/'a')


async def test_another_memory_is_another_result(parity, tmp_path):
    from tests import sft_run
    sft_run.small_policy().save(tmp_path/'p')
    recipe = replace(RECIPE, policy=str(tmp_path/'p'), episodes=1, max_tokens=4, images=2, summaries='none')
    await play(recipe, tmp_path/'a')
    memory = read_result(tmp_path/'a')[0]['parameters']['agent']['memory']
    assert memory['images'] == 2 and not memory['episodic']
    assert read_result(tmp_path/'a')[0]['parameters']['agent']['dtype'] == 'float32'
    with pytest.raises(ValueError, match='images'): await play(replace(recipe, images=0), tmp_path/'a')


@pytest.mark.parametrize('memory, error', [(dict(images=1), 'script'), (dict(summaries='lines'), 'script'), (dict(policy='runs/x', images=-1), 'images is -1'), (dict(policy='runs/x', summaries='long'), 'lines, written, none')])
def test_a_memory_that_nobody_has(memory, error):
    with pytest.raises(ValueError, match=error): replace(RECIPE, **memory)


class Patience(Parity):
    "Solved by waiting, of which a random policy never thinks."
    name, max_steps = 'tests/patience', 6
    async def verify(self, session, spec): return Outcome(float(session.waited), session.waited, session.waited)


async def test_an_expert_takes_over(monkeypatch, tmp_path):
    monkeypatch.setitem(TASKS, Patience.name, Patience())
    recipe = Recipe(Patience.name, 'random', 'train', episodes=12, expert='oracle', lead=3)
    await play(recipe, tmp_path/'helped')
    await play(replace(recipe, expert=''), tmp_path/'alone')
    helped, alone = (read_result(tmp_path/o)[1] for o in ('helped', 'alone'))
    assert helped.success.all() and {*helped.n_steps} == {2, 3, 4} and not alone.success.any()
    with pytest.raises(ValueError, match='lead'): await play(replace(recipe, lead=2), tmp_path/'helped')
    for a, b in (('helped', 'alone'), ('alone', 'helped')):
        with pytest.raises(ValueError, match='measure nobody'): compare_results(tmp_path/a, tmp_path/b)
    with pytest.raises(ValueError, match='without --expert'): split_by_task(dict(demos=None), None, .5, tmp_path/'helped')


async def test_an_expert_acts_at_a_share_of_the_steps(monkeypatch, tmp_path):
    "Parity's clicks never end an episode of patience; the expert's wait does, so its length is geometric."
    monkeypatch.setitem(TASKS, Patience.name, Patience())
    recipe = Recipe(Patience.name, 'random', 'train', episodes=60, expert='oracle', expert_share=.3)
    for name in 'ab': await play(recipe, tmp_path/name)
    a, b = (read_result(tmp_path/o)[1].sort_values('seed') for o in 'ab')
    assert a.n_steps.tolist() == b.n_steps.tolist(), 'the same in every run'
    assert .15 < (a.n_steps == 1).mean() < .45 and a.n_steps.max() > 3
    with pytest.raises(ValueError, match='expert_share'): replace(recipe, expert_share=1.2)
    with pytest.raises(ValueError, match='name one too, such as demonstrator'): replace(recipe, expert='')


async def test_an_evaluation_of_before_a_field_goes_on(parity, tmp_path):
    await play(RECIPE, tmp_path/'a')
    config = read_json(tmp_path/'a'/'config.json')
    del config['parameters']['lead'], config['parameters']['limits']['tokens']
    write_json(tmp_path/'a'/'config.json', config)
    await play(RECIPE, tmp_path/'a')
    with pytest.raises(ValueError, match='lead: 4 there, 2 now'): await play(replace(RECIPE, lead=2), tmp_path/'a')


@pytest.mark.parametrize('help, error', [(dict(), 'no measurement'), (dict(split='train', expert='somebody'), 'oracle, demonstrator'), (dict(split='train', lead=0), 'lead is 0')])
async def test_an_expert_that_cannot_help(parity, help, error, tmp_path):
    with pytest.raises(ValueError, match=error): await play(replace(RECIPE, **dict(expert='oracle') | help), tmp_path/'a')


async def test_samples_give_pass_at_k(parity, tmp_path):
    await play(replace(RECIPE, samples=4), tmp_path/'a')
    found = json.loads((tmp_path/'a'/'summary.json').read_text())['pass_at']
    share = np.mean([o % 2 == 0 for o in read_result(tmp_path/'a')[1].seed])
    assert found == {'1': share, '2': share, '4': share}        # an oracle is right always or never
    with pytest.raises(ValueError, match='temperature'): replace(RECIPE, policy='runs/x', samples=2)
    assert pass_at_k(4, 1, 2) == .5


async def test_a_longer_result_is_compared_on_the_instances_that_both_have(parity, tmp_path):
    await play(RECIPE, tmp_path/'long')
    await play(replace(RECIPE, episodes=5), tmp_path/'short')
    for a, b in (('long', 'short'), ('short', 'long')): assert compare_results(tmp_path/a, tmp_path/b).instances == 5
    await play(replace(RECIPE, episodes=5, skip=3), tmp_path/'later')
    with pytest.raises(ValueError, match='skip'): compare_results(tmp_path/'long', tmp_path/'later')


@pytest.mark.parametrize('changed', ['tests_own', 'tests_own_base'])
async def test_tasks_that_have_changed_are_not_continued_nor_compared(tmp_path, monkeypatch, changed):
    (tmp_path/'tests_own_base.py').write_text('class Base: pass\n')
    (tmp_path/'tests_own.py').write_text('from tests_own_base import Base\n\nclass Own(Base): pass\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    for o in ('tests_own', 'tests_own_base'): monkeypatch.delitem(sys.modules, o, raising=False)
    from tests_own import Own
    own = type('Mine', (Own, Parity), dict(name='tests/own', __module__='tests_own'))()
    monkeypatch.setitem(TASKS, own.name, own)
    recipe = replace(RECIPE, suite='tests/own', episodes=2)
    for _ in range(2): await play(recipe, tmp_path/'a')
    (tmp_path/f'{changed}.py').write_text((tmp_path/f'{changed}.py').read_text() + '# mended\n')
    with pytest.raises(ValueError, match='tasks: '): await play(recipe, tmp_path/'a')
    await play(recipe, tmp_path/'b')
    with pytest.raises(ValueError, match='tasks'): compare_results(tmp_path/'a', tmp_path/'b')


async def test_a_policy_of_ones_own_plays_by_its_name(parity, tmp_path, monkeypatch):
    (tmp_path/'tests_agents.py').write_text("""
from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action

class Patient:
    def __init__(self, session, task, spec): pass
    async def act(self, steps, obs): return Reply('wait', (Action('wait', dict(time=0)),))

class Mute(Patient):
    async def act(self, steps, obs): pass
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = await play(replace(RECIPE, policy='tests_agents:Patient'), tmp_path/'a')
    assert table.n.tolist() == [12]
    with pytest.raises(ExceptionGroup) as e: await play(replace(RECIPE, policy='tests_agents:Mute'), tmp_path/'b')
    assert 'act of Mute returned NoneType, expected Reply' in explain(e.value)
    with pytest.raises(ValueError, match='has no Loud'): await play(replace(RECIPE, policy='tests_agents:Loud'), tmp_path/'c')


@pytest.mark.parametrize('said', [None, True, 1., (1., True)])
async def test_a_verdict_of_another_kind_breaks_its_own_task_alone(parity, tmp_path, monkeypatch, said):
    odd = type('Odd', (Parity,), dict(name='tests/odd', verify=lambda *_: answer()))()
    async def answer(): return said
    monkeypatch.setitem(TASKS, odd.name, odd)
    table = await play(replace(RECIPE, suite='tests/parity,tests/odd', episodes=2), tmp_path/'a')
    assert table.n['tests/parity'] == 2 and table.n['tests/odd'] == 0
    index = read_result(tmp_path/'a')[1]
    assert f'verify of tests/odd returned {type(said).__name__}, expected Outcome' in json.loads(index[index.task == 'tests/odd'].iloc[0]['info'])['error']


async def test_numbers_of_numpy_are_kept(parity, tmp_path, monkeypatch):
    async def oracle(session, spec): yield Action('click', dict(point=tuple(np.array([5, 7]))))
    monkeypatch.setattr(parity, 'oracle', oracle)
    monkeypatch.setattr(parity, 'verify', lambda *_: verdict())
    async def verdict(): return Outcome(np.float32(1.), np.bool_(True), np.bool_(True), dict(cell=np.int64(3), row=np.arange(2)))
    await play(replace(RECIPE, episodes=2), tmp_path/'a')
    kept = read_result(tmp_path/'a')[1]
    assert kept.success.all() and json.loads(kept.iloc[0]['info'])['row'] == [0, 1]


async def test_two_evaluations_at_once_do_not_store_instances_twice(tmp_path, parity):
    "The second is refused by name while the first plays, and plays what is left after it."
    import asyncio
    class Slow(Pool):
        @contextlib.asynccontextmanager
        async def session(self):
            await asyncio.sleep(.05)
            yield Session()
    first = asyncio.create_task(play(RECIPE, tmp_path/'a', Slow()))
    while not (tmp_path/'a'/'store').exists(): await asyncio.sleep(.005)
    with pytest.raises(BlockingIOError, match='a is in use by another run'): await play(RECIPE, tmp_path/'a')
    await first
    await play(RECIPE, tmp_path/'a')
    assert len(read_result(tmp_path/'a')[1]) == 12


async def test_a_context_that_holds_no_screen_is_the_configurations(tmp_path, parity, monkeypatch):
    "Told at the first episode, and none is booked as broken by the environment."
    from uitars_nb.core.types import ContextTooSmall
    monkeypatch.setattr(sys.modules[__name__], 'SCREEN', np.zeros((210, 160, 3), np.uint8))
    with pytest.raises(ExceptionGroup) as told:
        await play(Recipe('tests/parity', 'uitars_nb/checkpoints/pix2act59', episodes=12, context=160, max_tokens=48), tmp_path/'a')
    assert told.group_contains(ContextTooSmall, match='a context of 160 tokens, 48 of them for the reply, does not hold one screen of 160x210') and 'does not hold' in explain(told.value)
    assert not len(read_result(tmp_path/'a')[1])


@pytest.mark.parametrize('name', ['config.json', 'summary.json'])
async def test_a_file_that_was_cut_off_is_named(tmp_path, parity, name):
    await play(RECIPE, tmp_path/'a')
    (tmp_path/'a'/name).write_text((tmp_path/'a'/name).read_text()[:40])
    with pytest.raises(ValueError, match=f'a/{name} holds no whole JSON'): await play(RECIPE, tmp_path/'a')


async def test_places_where_no_run_can_be(tmp_path, parity):
    (tmp_path/'file').write_text('')
    for place in ('file', 'file/below/it'):
        with pytest.raises(OSError) as told: await play(RECIPE, tmp_path/place)
        assert f'{tmp_path}/file is no directory' in explain(told.value) and 'Errno' not in explain(told.value)
    with pytest.raises(OSError) as told: await play(RECIPE, '/proc/nothing/here')
    assert 'nothing can be made in /proc' in explain(told.value) and 'Errno' not in explain(told.value)


async def test_a_task_without_an_oracle_is_named(tmp_path, monkeypatch):
    class Riddle(Parity): name, oracle = 'tests/riddle', None
    monkeypatch.setitem(TASKS, 'tests/riddle', Riddle())
    with pytest.raises(ExceptionGroup) as told: await play(Recipe('tests/riddle', 'oracle', episodes=2), tmp_path/'a')
    assert 'tests/riddle has no oracle' in explain(told.value)


async def test_one_task_whose_screen_does_not_fit_does_not_end_a_run_that_plays(parity):
    "What was played shows that the context holds other screens."
    from uitars_nb.agent.loop import OracleAgent
    from uitars_nb.agent.rollout import Rollout, play as roll
    from uitars_nb.core.types import ContextTooSmall
    specs = suite('tests/parity', 'test', 6)
    class Small(OracleAgent):
        def __init__(self, session, task, spec): super().__init__(session, task, spec); self.big = spec.seed == specs[-1].seed
        async def act(self, steps, obs):
            if self.big: raise ContextTooSmall('no screen fits')
            return await super().act(steps, obs)
    one = Pool()
    one.size = 1
    trajs = await roll(Rollout(one, specs, Small, retries=0), progress=False)
    assert [o.stop is StopReason.ENV_RESOURCE for o in trajs] == [False] * 5 + [True]
    with pytest.raises(ExceptionGroup): await roll(Rollout(one, specs[-1:], Small, retries=0), progress=False)
