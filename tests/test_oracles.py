"Every oracle solves its task through the agent's own actions: two validation seeds each by default, a hundred with `-m slow`."
import asyncio

import pytest, pytest_asyncio

from uitars_nb.agent.loop import OracleAgent, run_episode
from uitars_nb.core.types import StopReason
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import TASKS, suite
from uitars_nb.tasks.miniwob.task import BROWSER, PIX2ACT, load_oracles
from uitars_nb.tasks.miniwob.oracles_games import best_move, moves, winner

pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.timeout(600)]
NAMES = sorted(load_oracles())

async def roll(names, n):
    "Trajectories of the oracles of `names` on `n` validation seeds each, by name."
    async with BrowserPool(BROWSER, browsers=2, pages=2) as pool:
        async def one(spec):
            async with pool.session() as s: return await run_episode(s, TASKS[spec.name], spec, OracleAgent)
        trajs = await asyncio.gather(*[one(s) for name in names for s in suite(f'miniwob/{name}', 'validation', n)])
    return {name: [t for t in trajs if t.task.name == f'miniwob/{name}'] for name in names}

def asked(request, test):
    "The oracles that this run asks `test` about."
    return [i.callspec.params['name'] for i in request.session.items if i.originalname == test]

@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def two(request): return await roll(asked(request, 'test_two_seeds'), 2)

@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def hundred(request): return await roll(asked(request, 'test_hundred_seeds'), 100)

def solved(traj):
    "The page was satisfied; tic-tac-toe may end in a draw."
    return traj.success or traj.task.name == 'miniwob/tic-tac-toe' and traj.reward == -.5

@pytest.mark.parametrize('name', NAMES)
async def test_two_seeds(two, name):
    assert all(map(solved, two[name])), [(t.task.id, t.stop, t.reward, t.info) for t in two[name] if not solved(t)]
    assert all(t.stop in (StopReason.TERMINATED, StopReason.FINISHED) for t in two[name])

@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
async def test_hundred_seeds(hundred, name):
    failed = [(t.task.seed, t.stop, t.reward, t.info) for t in hundred[name] if not solved(t)]
    assert len(failed) <= (0 if name == 'tic-tac-toe' else 2), failed

async def test_protocol_is_complete():
    assert set(PIX2ACT) <= set(NAMES)

def games(board):
    "Every board at the end of a game that `best_move` plays with X, O moving in all ways."
    if winner(board) or '.' not in board: yield board; return
    after = moves(board, 'X')[best_move(board)]
    if winner(after) or '.' not in after: yield after; return
    for b in moves(after, 'O').values(): yield from games(b)

async def test_tic_tac_toe_never_loses():
    starts = ['.' * 9, *moves('.' * 9, 'O').values()]
    ends = [end for start in starts for end in games(start)]
    assert len(ends) > 200 and min(map(winner, ends)) == 0
