"Reinforcement learning as a run: killed, resumed, on two processes; and what a trainer may never do."
import asyncio, contextlib, itertools, os, subprocess, sys
from pathlib import Path

import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st

from tests import reinforce_run
from uitars_nb.agent.actor import Actor, ActorFailed
from uitars_nb.agent.curriculum import Curriculum
from uitars_nb.agent.streaming import Allowance, Failing, StreamingRollout, Watch
from uitars_nb.core.types import StopReason, TaskSpec, Trajectory
from uitars_nb.core.runs import read_jsonl
from uitars_nb.core.store import Store
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.train.reinforce import last_update
from uitars_nb.train.sft import read_metrics

pytestmark = pytest.mark.timeout(300)


def script(home, *args):
    env = os.environ | dict(PYTHONPATH=str(Path(__file__).parents[1]), HF_HUB_OFFLINE='1')
    return subprocess.run([sys.executable, '-m', 'tests.reinforce_run', str(home), *map(str, args)], capture_output=True, text=True, env=env, timeout=280)


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
    assert script(tmp_path, '--die', 3).returncode == -9
    run = tmp_path/'run'
    assert last_update(run/'last.ckpt') == 2     # the third update came after the last checkpoint
    before = read_jsonl(run/'rank-0'/'batches.jsonl')
    assert len(before) >= 3
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    journal = accounted(run, 5)
    assert journal[:len(before)] == before
    assert last_update(run/'last.ckpt') == 5
    assert [*read_metrics(run).index] == [1, 2, 3, 4, 5]
    assert script(tmp_path).returncode == 0      # nothing is left to do
    assert read_jsonl(run/'rank-0'/'batches.jsonl') == journal


def test_a_killed_actor_costs_no_trajectory_and_doubles_none(tmp_path):
    done = script(tmp_path, '--die-actor', 2)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(tmp_path/'run', 5)


def test_synchronous_training_is_never_stale(tmp_path):
    done = script(tmp_path, '--staleness', 0, '--updates', 3)
    assert done.returncode == 0, done.stderr[-3000:]
    accounted(tmp_path/'run', 3)
    assert read_metrics(tmp_path/'run').staleness_max.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_two_processes_share_an_update(tmp_path):
    done = script(tmp_path, '--devices', 2, '--updates', 2)
    assert done.returncode == 0, done.stderr[-3000:]
    ids = [id for rank in (0, 1) for o in read_jsonl(tmp_path/'run'/f'rank-{rank}'/'batches.jsonl')[:2] for id in o['ids']]
    assert len({*ids}) == len(ids) == 16


def test_an_actor_that_cannot_play_says_why(tmp_path):
    from dataclasses import replace
    config = replace(reinforce_run.ACTOR, policy=str(tmp_path/'nowhere'))
    with Actor(config) as actor, pytest.raises(ActorFailed, match='nowhere'): next(iter(actor))


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
    stream = StreamingRollout(Pool(3, 1.), lambda: TaskSpec('miniwob/click-test', next(numbers)), None, 'r', Allowance(4, 1), watch=Watch(.5, 20))
    with pytest.raises(Failing, match='env_crash.*gone'): await take(stream, 1000)


async def test_retries_come_before_a_sample_is_given_up():
    numbers = itertools.count()
    stream = StreamingRollout(Pool(1, 1.), lambda: TaskSpec('miniwob/click-test', next(numbers)), None, 'r', Allowance(4, 1), retries=2, watch=Watch(1., 20))
    got = await take(stream, 6)
    assert sorted(o.id for o in got) == [f'r/{i:06}-0.{k}' for i in (0, 1) for k in range(3)]
    assert stream.lost == 2 or stream.lost == 1   # the last attempt may not have been settled yet


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
