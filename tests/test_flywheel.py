"Everything that was played lands in exactly one pool, with the verdict that sent it there; nothing held out lands anywhere; and what a failure teaches is true."
import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st
from test_datasets import episode, small_policy

from uitars_nb.pipelines import flywheel as fly
from uitars_nb.pipelines.flywheel import FlywheelJob, resolve_flywheel, run_flywheel
from uitars_nb.cli.main import main
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, StopReason
from uitars_nb.flywheel.datasets import names_points, snap_action
from uitars_nb.flywheel.inverse_dynamics import WHAT, inverse_dynamics_example, visible_steps
from uitars_nb.flywheel.outcome_model import outcome_examples, judge_memory
from uitars_nb.flywheel.rewards import Reward, TaskVerifier
from uitars_nb.flywheel.routing import pools, route, pass_rates
from uitars_nb.tasks.base import seeds

SEEDS = seeds('train', 40)


def ended(k, stop, success):
    stop = StopReason(stop)
    return replace(episode(1 + k % 3, SEEDS[k], id=f'{k}'), stop=stop, success=success and not stop.is_environment, reward=None if stop.is_environment else float(success))


def where(path, cycle=0): return [{o.id for o in store} for store in pools(path, cycle)]


def stored(path, trajs):
    store = Store(path)
    store.extend(trajs)
    return store


class Contrary:
    "Says the opposite of the task, and breaks at the episodes that it is told to."
    def __init__(self, *broken): self.broken, self.asked = broken, []

    async def __call__(self, traj):
        self.asked.append(traj.id)
        await asyncio.sleep(0)
        if traj.id in self.broken: raise OSError('out of order')
        return Reward(float(not traj.success), not traj.success, 'contrary')


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(['terminated', 'step_limit', 'loop', 'env_crash']), st.booleans()), max_size=20))
async def test_every_episode_lands_in_one_pool(ends):
    trajs = [ended(k, *o) for k, o in enumerate(ends)]
    with TemporaryDirectory() as path:
        done = await route(stored(f'{path}/played', trajs), TaskVerifier(), path)
        ct, sft = where(path)
        assert sft == {o.id for o in trajs if o.success} and ct == {o.id for o in trajs if not o.success and not o.stop.is_environment}
        assert done.total() == len(trajs) and done['broken'] == sum(o.stop.is_environment for o in trajs)


async def test_a_judge_that_breaks_loses_no_verdict_and_is_asked_again(tmp_path, monkeypatch):
    "Seven times, within about a minute, for the episode at which it breaks, and once for any other."
    pauses, sleep = [], asyncio.sleep
    async def brief(seconds):
        pauses.append(seconds)
        await sleep(0)
    monkeypatch.setattr('uitars_nb.flywheel.rewards.asyncio.sleep', brief)
    trajs = [ended(k, 'terminated', k % 2 == 0) for k in range(20)]
    breaks, played = Contrary('11'), stored(tmp_path/'played', trajs)
    with pytest.raises(RuntimeError, match='Contrary, of 11: OSError: out of order'): await route(played, breaks, tmp_path)
    ct, sft = where(tmp_path)
    assert ct | sft == {*breaks.asked} - {'11'} and not ct & sft and len(breaks.asked) == 15 + 7
    assert 60 <= sum(pauses) <= 70
    whole = Contrary()
    done = await route(played, whole, tmp_path)
    assert done['known'] == 15 and sorted(whole.asked) == sorted({o.id for o in trajs} - ct - sft)
    assert where(tmp_path) == [{o.id for o in trajs if o.success}, {o.id for o in trajs if not o.success}]


async def test_who_learns_from_a_pool_learns_what_the_judge_said(tmp_path):
    "The task's own word is kept apart: it would otherwise leak into lessons of a policy whose tasks have no verifier."
    await route(stored(tmp_path/'played', [ended(0, 'terminated', True), ended(1, 'terminated', False)]), Contrary(), tmp_path, cycle=3)
    ct, sft = pools(tmp_path, 3)
    assert [o.success for o in ct] == [False] and [o.success for o in sft] == [True]
    policy = small_policy()
    assert [r.task for store in (ct, sft) for r in outcome_examples(store, policy, judge_memory(policy))] == ['outcome/no', 'outcome/yes']
    assert pass_rates(tmp_path).to_dict('records') == [dict(cycle=3, task='miniwob/demo', n=2, passed=1, solved=1)]
    assert [o.info['routed']['solved'] for store in (ct, sft) for o in store] == [True, False]


@pytest.mark.parametrize('split', ['validation', 'test'])
async def test_nothing_held_out_gets_into_a_pool(split, tmp_path):
    held = episode(2, seeds(split, 1)[0], split, 'held')
    judge = Contrary()
    for k, one in enumerate((held, replace(held, task=replace(held.task, split='train')))):
        with pytest.raises(ValueError, match=f"split '{split}'"): await route(stored(tmp_path/f'{k}', [ended(0, 'terminated', True), one]), judge, tmp_path/'pools')
    assert not judge.asked and where(tmp_path/'pools') == [set(), set()]


# deeds

@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=10))
def test_the_answer_is_what_was_done(x, y, content):
    policy, traj = small_policy(), episode(3, SEEDS[0])
    steps = tuple(replace(s, actions=(o,)) for s, o in zip(traj.steps, (Action('drag', dict(start_point=(x, y), end_point=(y, x))), Action('type', dict(content=content)), Action('click', dict(point=(1, 1))))))
    traj = replace(traj, steps=steps)
    assert names_points(policy) and visible_steps(traj) == [0, 1]
    for k in (0, 1):
        record = inverse_dynamics_example(traj, k, policy)
        shown = record.example.prompt.images
        assert [(a == b.observation.screenshot).all() for a, b in zip(shown, (traj.steps[k + 1], traj.steps[k]))] == [True, True]
        said = policy.dialect.parse(policy.decode(record.example.reply[:-1]), shown[-1].shape[1::-1])
        assert said.actions == tuple(map(snap_action, steps[k].actions)) and not said.thought
        asked = policy.decode(record.example.prompt.ids)
        assert any(o in asked for o in WHAT) and traj.task.instruction not in asked


def test_steps_that_show_nothing_are_no_lesson():
    traj = episode(4, SEEDS[1])
    a, b, c, d = traj.steps
    assert visible_steps(traj) == [0, 1, 2]
    assert visible_steps(replace(traj, steps=(replace(a, error='no such key'), b, c, d))) == [1, 2]
    assert visible_steps(replace(traj, steps=(a, replace(b, observation=a.observation), c, d))) == [1, 2]
    assert visible_steps(replace(traj, steps=(a, replace(b, actions=()), c, d))) == [0, 2]
    assert visible_steps(replace(traj, steps=(a,))) == []


def test_inverse_dynamics_by_the_command(tmp_path, capsys):
    store = Store(tmp_path/'seen')
    store.append(replace(episode(1, SEEDS[2]), success=False))
    small_policy().save(tmp_path/'start')
    command = ['--start', str(tmp_path/'start'), '--inverse_dynamics', str(tmp_path/'seen'), '--steps', '2', '--batch', '2']
    assert main(['train', str(tmp_path/'none'), *command]) == 1 and 'no step in' in capsys.readouterr().err
    store.append(replace(episode(4, SEEDS[3], id='more'), success=False))
    assert main(['train', str(tmp_path/'run'), *command]) == 0
    assert 'inverse_dynamics: 3 examples' in capsys.readouterr().out and (tmp_path/'run/policy').exists()


# the wheel

class Fakes:
    "Stand in for playing and training: the start solves two of ten instances, every policy behind it five. Killed at the call whose name they are told."
    def __init__(self, monkeypatch, kill=''):
        self.calls, self.kill = [], kill
        for name in ('play_recipe', 'run_sft'): monkeypatch.setattr(fly, name, getattr(self, name))
        monkeypatch.setattr('uitars_nb.evaluation.evaluate.compare_results', lambda *o: None)
        monkeypatch.setattr(fly, 'comparison_line', str)

    def play_recipe(self, recipe, out, browsers, sessions, manager=''):
        name = f'{out.parent.name}/{out.name}' if recipe.split == 'train' else out.name
        self.calls.append((name, recipe.policy, recipe.skip))
        store, skill = Store(out/'store'), recipe.policy.count('sft') * 3 + 2
        trajs = [replace(ended(k, 'terminated', k < skill), id=f'{recipe.policy}/{k}', task=replace(ended(k, 'terminated', True).task, seed=SEEDS[0] + recipe.skip + k)) for k in range(10)]
        store.extend(o for o in trajs if o.id not in {*store.index().id})
        if name == self.kill: raise KeyboardInterrupt
        return name

    def run_sft(self, job, out):
        start, outcomes, deeds, demos = job.start, job.sources.outcomes, job.sources.inverse_dynamics, job.sources.demonstrations
        name = f'{out.parent.name}/{out.name}'
        learned = {k: [o.parts[-2] + '/' + o.parts[-1] for o in v] for k, v in dict(outcomes=outcomes, deeds=deeds, demos=demos).items() if v}
        self.calls.append((name, start, {k: sum(len(Store(o)) for o in v) for k, v in dict(outcomes=outcomes, demos=demos).items() if v}, learned))
        out.mkdir(parents=True, exist_ok=True)
        (out/'config.json').write_text('{}')
        if name == self.kill: raise KeyboardInterrupt
        (out/'policy').mkdir(exist_ok=True)


WHEEL = FlywheelJob('miniwob/click-test', cycles=2, instances=10, skip=5, ct_every=2)


def test_what_a_cycle_learns_from(tmp_path, monkeypatch, capsys):
    fakes = Fakes(monkeypatch)
    monkeypatch.setattr(fly, 'resolve_flywheel', lambda wheel, stores: wheel)
    run_flywheel(WHEEL, tmp_path)
    start, first, second = str(WHEEL.start.relative_to(Path.cwd())), str(tmp_path/'1/sft/policy'), str(tmp_path/'2/sft/policy')
    assert fakes.calls == [('before', start, 0), ('1/played', start, 5), ('1/sft', start, dict(demos=2), dict(demos=['1/sft'])), ('2/played', first, 15),
                           ('2/ct', first, dict(outcomes=20), dict(outcomes=['1/ct', '2/ct', '1/sft', '2/sft'], deeds=['1/ct', '2/ct'])),
                           ('2/sft', str(tmp_path/'2/ct/policy'), dict(demos=7), dict(demos=['1/sft', '2/sft'])), ('3/played', second, 25), ('after-2', second, 0)]
    said = capsys.readouterr().out
    assert all(f'cycle {k}: {n} of 10 episodes pass' in said for k, n in ((1, 2), (2, 5), (3, 5)))


@pytest.mark.parametrize('kill', ['1/played', '1/sft', '2/played', '2/ct', '2/sft', '3/played', 'after-2'])
def test_a_wheel_that_was_killed_learns_from_the_same(kill, tmp_path, monkeypatch):
    monkeypatch.setattr(fly, 'resolve_flywheel', lambda wheel, stores: wheel)
    calm = Fakes(monkeypatch)
    run_flywheel(WHEEL, tmp_path/'calm')
    broken = Fakes(monkeypatch, kill)
    with pytest.raises(KeyboardInterrupt): run_flywheel(WHEEL, tmp_path/'run')
    again = Fakes(monkeypatch)
    for _ in range(2): run_flywheel(WHEEL, tmp_path/'run')
    trained = lambda fakes: {o[0]: o[2:] for o in fakes.calls if len(o) == 4}
    assert trained(calm) == trained(again) and trained(broken).items() <= trained(calm).items()
    assert (tmp_path/'run/yields.csv').read_text() == (tmp_path/'calm/yields.csv').read_text()
    run_flywheel(replace(WHEEL, cycles=3), tmp_path/'run')   # more cycles go on
    assert trained(again).items() >= trained(calm).items() and '3/sft' in trained(again)
    with pytest.raises(ValueError, match='reward'): run_flywheel(replace(WHEEL, reward='scored'), tmp_path/'run')


def test_any_task_and_only_what_can_be(tmp_path):
    assert resolve_flywheel(FlywheelJob('corridor/all'), []).suite == 'corridor/all'
    for change in (dict(cycles=0), dict(ct_every=0), dict(temperature=-1.), dict(sessions=0)):
        with pytest.raises(ValueError): resolve_flywheel(replace(FlywheelJob(), **change), [])
