"The pool: turns, faults, and nothing left behind."
import asyncio, itertools, os, signal, subprocess, sys, time
from pathlib import Path

import psutil, pytest

from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.browser import pool as pools
from uitars_nb.sandbox.base import EnvironmentFailure, Sync, run
from uitars_nb.sandbox.browser.session import BrowserConfig
from uitars_nb.sandbox.browser.pool import BrowserPool

pytestmark = pytest.mark.timeout(90)

def chromiums(pid=None):
    "Chromium processes below a process."
    return [p for p in psutil.Process(pid or os.getpid()).children(recursive=True) if 'chrom' in _name(p)]

def _name(p):
    try: return p.name()
    except psutil.Error: return ''

async def whole(pool, timeout=20):
    start = time.perf_counter()
    while not pool.whole:
        assert time.perf_counter() - start < timeout
        await asyncio.sleep(.01)
    return time.perf_counter() - start

async def test_turns_are_fair():
    async with BrowserPool(browsers=1, pages=1) as pool:
        first, order = await pool.acquire(), []
        async def wait(n):
            async with pool.session(): order.append(n)
        waiting = [asyncio.create_task(wait(n)) for n in range(3)]
        await asyncio.sleep(.05)
        waiting[1].cancel()
        await pool.release(first)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert order == [0, 2]

async def test_a_killed_browser_ends_one_episode():
    async with BrowserPool(browsers=2, pages=1) as pool:
        one, two = await pool.acquire(), await pool.acquire()
        assert one.browser is not two.browser
        pending = asyncio.create_task(one.evaluate('new Promise(() => 0)'))
        await asyncio.sleep(.1)
        one.browser.kill()
        with pytest.raises(EnvironmentFailure) as e: await pending
        assert e.value.reason == StopReason.ENV_CRASH
        await two.goto('data:text/html,<title>still here</title>')
        assert (await two.observe()).title == 'still here'
        await pool.release(one)
        await pool.release(two)
        await whole(pool)
        assert pool.restarts == 1
        sessions = [await pool.acquire() for _ in range(2)]
        assert all([(await s.observe()).url == 'about:blank' for s in sessions])

async def test_a_waiter_gets_the_session_of_the_new_browser():
    async with BrowserPool(browsers=1, pages=1) as pool:
        session = await pool.acquire()
        waiting = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        session.browser.kill()
        assert (await asyncio.wait_for(waiting, 20)).browser is not session.browser

async def test_a_start_that_fails_leaves_nothing(monkeypatch):
    real, calls = pools.launch, itertools.count()
    async def launch():
        if next(calls) == 0: return await real()
        await asyncio.sleep(.1)
        raise RuntimeError('did not come up, twice')
    monkeypatch.setattr(pools, 'launch', launch)
    with pytest.raises(RuntimeError, match='twice'): await BrowserPool(browsers=2, pages=1).start()
    assert asyncio.all_tasks() == {asyncio.current_task()}, 'one still starts'
    assert psutil.wait_procs(chromiums(), timeout=30)[1] == []

async def test_where_no_browser_starts_those_who_wait_are_told_until_one_does(monkeypatch):
    async def launch(): raise RuntimeError('no room on the disk')
    async with BrowserPool(browsers=1, pages=1) as pool:
        with monkeypatch.context() as m:
            m.setattr(pools, 'launch', launch)
            pool.places[0].browser.kill()
            while not pool.restarts: await asyncio.sleep(.01)
            with pytest.raises(EnvironmentFailure, match='no room on the disk') as e: await asyncio.wait_for(pool.acquire(), 20)
            assert e.value.reason is StopReason.ENV_RESOURCE
        async with asyncio.timeout(60), pool.session() as session: assert (await session.observe()).url == 'about:blank'

async def test_where_no_session_can_be_reset_those_who_wait_are_told_until_one_can(monkeypatch):
    async def reset(session): raise EnvironmentFailure(StopReason.ENV_RESET, 'a page that nobody can open')
    with monkeypatch.context() as m:
        m.setattr(pools.BrowserSession, 'reset', reset)
        pool = await BrowserPool(browsers=1, pages=2).start()
        with pytest.raises(EnvironmentFailure, match='a page that nobody can open') as e: await asyncio.wait_for(pool.acquire(), 60)
        assert e.value.reason is StopReason.ENV_RESOURCE and pool.restarts >= 2
    async with asyncio.timeout(60), pool.session() as session: assert (await session.observe()).url == 'about:blank'
    await pool.close()

async def test_where_one_of_two_browsers_does_not_start_the_other_serves(monkeypatch):
    async def launch(): raise RuntimeError('no room on the disk')
    async with BrowserPool(browsers=2, pages=1) as pool:
        monkeypatch.setattr(pools, 'launch', launch)
        monkeypatch.setattr(pools, 'FAILURES', 1)
        one, two = await pool.acquire(), await pool.acquire()
        one.browser.kill()
        waiting = asyncio.create_task(pool.acquire())
        await asyncio.sleep(1)
        await pool.release(two)
        assert await asyncio.wait_for(waiting, 20) is two

async def test_a_hung_page_does_not_stop_its_place():
    async with BrowserPool(BrowserConfig(timeout=1), browsers=1, pages=1) as pool:
        async with pool.session() as session:
            with pytest.raises(EnvironmentFailure) as e: await session.evaluate('(() => { for (;;); })()')
            assert e.value.reason == StopReason.ENV_TIMEOUT
        async with pool.session() as session: assert (await session.observe()).url == 'about:blank'

async def test_browsers_retire():
    async with BrowserPool(browsers=1, pages=2, recycle=4) as pool:
        pids = set()
        for _ in range(10):
            async with pool.session() as session: pids.add(session.browser.process.pid)
        assert 2 <= len(pids) <= 5 and pool.restarts == 0
        await whole(pool)
        both = await asyncio.wait_for(asyncio.gather(pool.acquire(), pool.acquire()), 60)
        assert both[0].browser is both[1].browser and both[0] is not both[1]

async def test_close_leaves_nothing():
    before = len(os.listdir('/proc/self/fd'))
    async with BrowserPool(browsers=2, pages=1) as pool:
        folders = [p.browser.folder for p in pool.places]
        processes = chromiums()
        waiting = asyncio.gather(*[pool.acquire() for _ in range(3)])
        await asyncio.sleep(.1)
    with pytest.raises(RuntimeError): await waiting
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    assert not any(map(os.path.exists, folders))
    assert len(os.listdir('/proc/self/fd')) <= before + 1

ORPHAN = '''
import asyncio
from uitars_nb.sandbox.browser.pool import BrowserPool
async def main():
    pool = await BrowserPool(browsers=1, pages=1).start()
    print(pool.places[0].browser.folder, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())'''

def test_nothing_outlives_a_killed_python():
    child = subprocess.Popen([sys.executable, '-c', ORPHAN], stdout=subprocess.PIPE, text=True)
    folder = child.stdout.readline().strip()
    processes = chromiums(child.pid)
    assert processes and os.path.isdir(folder)
    child.kill()
    child.wait()
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    for _ in range(600):
        if not os.path.exists(folder): break
        time.sleep(.05)
    assert not os.path.exists(folder)

def test_synchronous_face():
    pool = BrowserPool(browsers=1, pages=1)
    run(pool.start())
    session = Sync(run(pool.acquire()))
    session.goto('data:text/html,<title>sync</title>')
    session.act(Action('click', dict(point=(500, 500))))
    assert session.observe().title == 'sync'
    run(pool.close())

@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_soak():
    "2,000 episodes: processes, descriptors and memory stay flat."
    page = Path(__file__).parents[1]/'sandboxes'/'pages'/'click.html'
    async with BrowserPool(browsers=2, pages=2) as pool:
        async def episodes(n):
            async def one(_):
                async with pool.session() as s:
                    await s.goto(page.as_uri())
                    await s.act(Action('click', dict(point=(500, 500))))
                    assert 'clicked' in (await s.observe()).title
            for _ in range(n // 20): await asyncio.gather(*map(one, range(20)))
            await whole(pool)
            return len(chromiums()), len(os.listdir('/proc/self/fd')), psutil.Process().memory_info().rss + sum(p.browser.memory() for p in pool.places)
        await episodes(100)
        before = await episodes(100)
        after = await episodes(1800)
    assert after[0] <= before[0] + 4 and after[1] <= before[1] + 4 and after[2] < 1.5 * before[2]


async def test_a_session_given_back_unused_keeps_the_next_page():
    async with BrowserPool(browsers=1, pages=1) as pool:
        await pool.release(await pool.acquire())
        session = await pool.acquire()
        await session.goto('data:text/html,<title>mine</title>')
        assert (await session.observe()).title == 'mine'
        await pool.release(session)
