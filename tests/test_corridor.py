"The corridor: decided in the first room, judged behind the last door, seen on every screen between."
import pytest
import pytest_asyncio

from uitars_nb.agent.demonstrate import SkipFirstActionExpert
from uitars_nb.agent.loop import OracleAgent, RandomAgent, run_episode
from uitars_nb.core.types import StopReason, TaskSpec
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks import base, corridor
from uitars_nb.tasks.base import SUITES, TASKS, Task, split_of, suite
from uitars_nb.tasks.corridor import SPOTS, rooms
from uitars_nb.tasks.miniwob.task import BROWSER

pytestmark = pytest.mark.asyncio(loop_scope='module')
STRIP, HELD = 22, (230, 184, 0)   # height in pixels; the key's colour in it


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def pool():
    async with BrowserPool(BROWSER, browsers=1, pages=1) as pool: yield pool


@pytest_asyncio.fixture(loop_scope='module')
async def session(pool):
    async with pool.session() as session: yield session


def held(step): return (step.observation.screenshot[:STRIP] == HELD).all(-1).sum() > 100


async def test_buttons_lie_apart_and_on_the_screen():
    assert all(0 <= x <= 160 - 52 and STRIP < y <= 210 - 22 for x, y in SPOTS)
    for seed in range(200):
        first, *rest = rooms(seed, 5)
        assert first['key'] != first['door'] and {first['key'], first['door'], *(r['door'] for r in rest)} <= set(SPOTS)
        assert all(r['key'] is None for r in rest)


async def test_seeds_and_lengths_have_rooms_of_their_own():
    assert rooms(3, 5) == rooms(3, 5)
    assert len({repr(rooms(seed, n)[:3]) for n in corridor.LENGTHS for seed in range(50)}) == 50 * len(corridor.LENGTHS)
    assert all(isinstance(TASKS[n], Task) for n in SUITES['corridor/all'])
    assert all(split_of(s.seed) == 'test' for s in suite('corridor/all', 'test', 3))
    with pytest.raises(ValueError, match='two rooms at least'): rooms(0, 1)


@pytest.mark.parametrize('name', SUITES['corridor/all'])
async def test_who_takes_the_key_gets_through(session, name):
    for spec in suite(name, 'validation', 2):
        traj = await run_episode(session, TASKS[name], spec, OracleAgent)
        assert traj.success and traj.reward == 1 and traj.stop is StopReason.TERMINATED and len(traj.steps) == TASKS[name].rooms + 1 < TASKS[name].max_steps
        assert [held(s) for s in traj.steps] == [False] + [True] * TASKS[name].rooms


async def test_who_leaves_it_does_not_and_sees_so_all_the_way(session):
    task, ends = TASKS['corridor/key-5'], []
    for spec in suite(task.name, 'train', 12):
        traj = await run_episode(session, task, spec, SkipFirstActionExpert)
        ends.append(traj.success)
        assert traj.reward == float(traj.success) and traj.stop is StopReason.TERMINATED
        if not traj.success: assert len(traj.steps) == 5 and not any(map(held, traj.steps))
    assert 2 <= sum(ends) <= 10


async def test_a_lapse_belongs_to_the_instance(session):
    task, spec = TASKS['corridor/key-3'], TaskSpec('corridor/key-3', 7)
    ends = [(await run_episode(session, task, spec, lambda *of: SkipFirstActionExpert(*of, rate=rate))).success for rate in (.5, .5, 0., 1.)]
    assert ends[0] == ends[1] and ends[2:] == [True, False]


async def test_chance_seldom_gets_through_and_never_without_the_key(session):
    for spec in suite('corridor/key-3', 'train', 10):
        traj = await run_episode(session, TASKS[spec.name], spec, RandomAgent)
        assert not traj.success or held(traj.steps[-1])


async def test_leaving_the_page_ends_it(session):
    task = TASKS['corridor/key-3']
    spec = await task.setup(session, TaskSpec(task.name, 0))
    assert not (await task.verify(session, spec)).done
    await session.start('about:blank')
    verdict = await task.verify(session, spec)
    assert verdict.done and not verdict.success and verdict.info == dict(reason='left the page')


async def test_outside_a_checkout_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(base, 'SANDBOXES', tmp_path)
    with pytest.raises(FileNotFoundError, match='sandboxes/corridor'): base.own_page('corridor')
