"What goes wrong around an episode: a full disk, traces of the episode before, and what piles up over many."
import asyncio, http.server, os, subprocess, threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil, pytest

from uitars_nb.agent.loop import Reply, run_episode
from uitars_nb.agent.rollout import Rollout, play
from uitars_nb.agent.loop import OracleAgent
from uitars_nb.core.types import Action, EventKind, StopReason, TaskSpec
from uitars_nb.sandbox.browser.session import BrowserConfig
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import Outcome, suite
from uitars_nb.tasks.miniwob.task import BROWSER

pytestmark = pytest.mark.timeout(200)
SIZE = 160, 210
PAGE = '''<!doctype html><title>Served</title><style>a { position: absolute; top: 30px; left: 20px; font: 40px serif } a:hover { background: red }</style><body style="margin:0"><a id=a href=/file>get</a>'''


@pytest.fixture(scope='module')
def address():
    "A local web server: a page with a link, four megabytes behind it, and a service worker."
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind, body = {'/file': ('application/octet-stream', bytes(4 << 20)), '/sw.js': ('text/javascript', b'onfetch = e => 0')}.get(self.path, ('text/html', PAGE.encode()))
            self.send_response(200)
            self.send_header('Content-Type', kind)
            self.send_header('Content-Length', str(len(body)))
            if self.path == '/file': self.send_header('Content-Disposition', 'attachment; filename="file.bin"')
            self.end_headers()
            try: self.wfile.write(body)
            except ConnectionError: pass
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()


@contextmanager
def small_disk(folder):
    "A disk of two megabytes under `folder`, most of it taken."
    done = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=2m', 'none', folder], capture_output=True, text=True)
    if done.returncode: pytest.skip(f'no file system can be mounted here: {done.stderr.strip()}')
    try: yield Path(folder, 'taken').write_bytes(bytes(1500 << 10))
    finally: subprocess.run(['umount', '-l', folder], check=True)


class Fetch:
    "Click the link until its file is there."
    name, max_steps = 'faults/fetch', 30
    def __init__(self, address): self.address = address

    async def setup(self, session, spec):
        await session.goto(self.address)
        return spec

    async def verify(self, session, spec):
        got = Path(session.folder, 'file.bin').exists()
        return Outcome(float(got), got, got)


class Clicker:
    def __init__(self, session, task, spec): pass

    async def act(self, steps, obs):
        if not steps: return Reply(actions=(Action('click', dict(point=(250, 250))),))
        await asyncio.sleep(.1)
        return Reply(actions=(Action('wait', dict(time=.1)),))


async def test_a_full_disk_ends_the_episode_as_the_environments_and_no_other(address):
    async with BrowserPool(BrowserConfig(size=SIZE), browsers=1, pages=2) as pool:
        poor, rich = await pool.acquire(), await pool.acquire()
        assert poor.browser is rich.browser
        with small_disk(poor.folder):
            trajs = await asyncio.gather(*[run_episode(s, Fetch(address), TaskSpec('faults/fetch', 0, max_steps=30), Clicker) for s in (poor, rich)])
            await pool.release(poor)
        await pool.release(rich)
        assert [t.stop for t in trajs] == [StopReason.ENV_RESOURCE, StopReason.TERMINATED], [(t.stop, t.info) for t in trajs]
        assert (trajs[0].reward, trajs[1].success) == (None, True)
        async with pool.session() as a, pool.session() as b:
            again = await asyncio.gather(*[run_episode(s, Fetch(address), TaskSpec('faults/fetch', 0, max_steps=30), Clicker) for s in (a, b)])
        assert all(t.success for t in again), [(t.stop, t.info) for t in again]


LEAVE = '''(async () => { await new Promise((r, no) => { const q = indexedDB.open('db'); q.onsuccess = r; q.onerror = no }); await navigator.serviceWorker.register('/sw.js');
  await navigator.serviceWorker.ready; await (await caches.open('c')).put('/x', new Response('x')) })()'''
FOUND = '''(async () => [(await indexedDB.databases()).length, (await navigator.serviceWorker.getRegistrations()).length, (await caches.keys()).length,
  document.querySelectorAll('a:hover').length, getComputedStyle(document.querySelector('#a')).backgroundColor])()'''
CLEAN = [0, 0, 0, 0, 'rgba(0, 0, 0, 0)']


async def leave_traces(session, address):
    "Open the page, rest the mouse on its link, store something everywhere; the screen before."
    await session.goto(address)
    before = (await session.observe()).screenshot
    assert await session.evaluate(FOUND) == CLEAN
    await session.evaluate(LEAVE)
    await session.act(Action('move_to', dict(point=(250, 250))))
    found = await session.evaluate(FOUND)
    assert found[:3] == [1, 1, 1] and found[3] > 0 and found[4] == 'rgb(255, 0, 0)'
    return before


async def reset(pool, session, address):
    await session.reset()
    await session.goto(address)
    return session

async def start(pool, session, address):
    await session.start(address)
    return session

async def lease(pool, session, address):
    await pool.release(session)
    session = await pool.acquire()
    await session.goto(address)
    return session


@pytest.mark.parametrize('begin', [reset, start, lease])
async def test_stores_workers_and_hover_do_not_outlive_an_episode(address, begin):
    async with BrowserPool(BrowserConfig(size=SIZE), browsers=1, pages=1) as pool:
        session = await pool.acquire()
        before = await leave_traces(session, address)
        session = await begin(pool, session, address)
        assert await session.evaluate(FOUND) == CLEAN
        assert np.array_equal((await session.observe()).screenshot, before)
        await pool.release(session)


async def test_a_page_begun_again_has_no_hover(tmp_path):
    (tmp_path/'a.html').write_text(PAGE)
    async with BrowserPool(BrowserConfig(size=SIZE), browsers=1, pages=1) as pool, pool.session() as session:
        url = (tmp_path/'a.html').as_uri()
        await session.start(url, again=True)
        before = (await session.observe()).screenshot
        await session.act(Action('move_to', dict(point=(250, 250))))
        assert not np.array_equal((await session.observe()).screenshot, before)
        loads = session.page.loads
        await session.start(url, again=True)
        assert session.page.loads == loads, 'the page was loaded, not begun again'
        assert np.array_equal((await session.observe()).screenshot, before)


def use(pool):
    "Chromium processes, our file descriptors, and bytes of all processes."
    browsers = [p.browser for p in pool.places]
    return sum(len(b.processes()) for b in browsers), len(os.listdir('/proc/self/fd')), psutil.Process().memory_info().rss + sum(b.memory() for b in browsers)


@pytest.mark.parametrize('episodes', [160, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
async def test_nothing_piles_up(episodes):
    "Episodes of real tasks, one in forty with a browser killed under it: afterwards as many processes, descriptors and bytes as before, and every episode accounted for."
    tasks = ['click-test-2', 'click-dialog', 'enter-text', 'click-tab']
    async with BrowserPool(BROWSER, browsers=2, pages=2) as pool:
        async def roll(n, kill):
            specs = [s for o in tasks for s in suite(f'miniwob/{o}', 'validation', n // len(tasks))]
            rollout, ended = Rollout(pool, specs, OracleAgent, retries=8), 0
            async for traj in rollout:
                ended += 1
                if kill and ended % 40 == 20: pool.places[ended // 40 % len(pool.places)].browser.kill()
            assert (rollout.done, rollout.lost) == (len(specs), 0)
            while not pool.whole: await asyncio.sleep(.05)
            return rollout
        await roll(80, kill=True)
        before = use(pool)
        rollout = await roll(episodes, kill=True)
        after = use(pool)
    assert rollout.failures > 0, 'no episode was under way in a killed browser'
    assert after[0] <= before[0] + 6 and after[1] <= before[1] + 4 and after[2] < 1.3 * before[2], (before, after)
