"Episodes on leased sessions: as with browsers of one's own, and each once although a worker is killed."
import asyncio
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from tests.bench.bench_manager import serving
from uitars_nb.agent.demonstrate import Demonstrator
from uitars_nb.agent.rollout import Rollout
from uitars_nb.core.store import Store
from uitars_nb.core.types import TaskSpec
from uitars_nb.sandbox.browser.context import BrowserConfig
from uitars_nb.tasks.base import suite
from uitars_nb.tasks.session_pools import LeasedPools, browser_of, leased_options, pool_for

pytestmark = pytest.mark.timeout(240)


async def test_every_episode_once_although_a_worker_dies():
    with serving(kinds=dict(browser=dict(slots=2, most=2))) as server:
        specs, seen, killed = suite('miniwob/click-test,games/gem-11', 'test', 8), [], False
        specs = [TaskSpec(o.name, seed=o.seed, max_steps=min(o.max_steps, 6), split=o.split) for o in specs]
        async with LeasedPools(str(server.folder), {o.name: browser_of(o.name) for o in specs}, 4) as pool:
            async for traj in Rollout(pool, specs, Demonstrator, 'leased', retries=8):
                seen.append(traj)
                if len(seen) < 4 or killed: continue
                killed, worker = True, server.workers()[0]
                for o in [worker, *worker.children(recursive=True)]: o.kill()
    played = Counter((o.task.name, o.task.seed) for o in seen if not o.stop.is_environment)
    assert played == Counter((o.name, o.seed) for o in specs)
    assert all(o.success for o in seen if o.task.name == 'miniwob/click-test' and not o.stop.is_environment)
    assert len({o.id for o in seen}) == len(seen)


def eval_command(out, *more):
    return [sys.executable, '-m', 'uitars_nb.cli.main', 'eval', '--suite', 'miniwob/click-link,games/2048', '--policy', 'demonstrator', '--episodes', '3', '--max_steps', '5',
            '--browsers', '1', '--sessions', '3', '--out', str(out), *more]


def test_an_evaluation_on_leased_sessions_equals_a_local_one(tmp_path):
    with serving(kinds=dict(browser=dict(slots=4, most=1))) as server:
        for out, more in (('leased', ('--manager', str(server.folder))), ('local', ())): subprocess.run(eval_command(tmp_path/out, *more), check=True, capture_output=True)
    leased, local = ({o.id: [s.actions for s in o.steps] for o in Store(tmp_path/out/'store')} for out in ('leased', 'local'))
    assert leased == local and len(local) == 6
    assert (tmp_path/'leased/by_task.csv').read_text() == (tmp_path/'local/by_task.csv').read_text()


def test_what_leased_sessions_cannot_play(tmp_path):
    with pytest.raises(ValueError, match='opens its own session'): pool_for(['files/rename-sdk'], manager='http://cluster:8765')
    with pytest.raises(ValueError, match='may not set'): leased_options('mine/page', BrowserConfig(allow=('example.org',)))
    done = subprocess.run(eval_command(tmp_path/'x', '--manager', 'http://cluster:8765'), capture_output=True, text=True)
    assert done.returncode and 'UITARS_MANAGER_TOKEN' in done.stderr and 'Traceback' not in done.stderr
    done = subprocess.run(eval_command(tmp_path/'x', '--manager', str(tmp_path)), capture_output=True, text=True)
    assert done.returncode and 'no manager has run' in done.stderr and 'Traceback' not in done.stderr
