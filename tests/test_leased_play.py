"Episodes on leased sessions: as with browsers of one's own, and each once although workers are killed."
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace

import pytest

from tests.bench.bench_manager import serving
from uitars_nb.core.store import Store
from uitars_nb.pipelines.main_job import MAIN_SFT, MainJob
from uitars_nb.sandbox.browser.context import BrowserConfig
from uitars_nb.tasks.session_pools import browser_of, leased_options, pool_for

pytestmark = pytest.mark.timeout(240)


def eval_command(out, *more):
    return [sys.executable, '-m', 'uitars_nb.cli.main', 'eval', '--suite', 'miniwob/click-checkboxes,games/2048', '--policy', 'demonstrator', '--episodes', '12', '--max_steps', '8',
            '--browsers', '1', '--sessions', '4', '--out', str(out), *more]


def kill_workers_after(server, released):
    "Kill all workers with their browsers once so many leases have been given back."
    until = time.monotonic() + 120
    while (server.folder/'manager.log').read_text().count('"reason": "released"') < released:
        if time.monotonic() > until: return
        time.sleep(.05)
    for worker in server.workers():
        for o in [worker, *worker.children(recursive=True)]: o.kill()


def stored(out):
    "Sample -> actions of each stored attempt that the environment did not break; and the number of broken attempts."
    attempts, broken = defaultdict(list), 0
    for o in Store(out/'store'):
        if o.stop.is_environment: broken += 1
        else: attempts[o.task.name, o.task.seed].append([s.actions for s in o.steps])
    return attempts, broken


def test_an_evaluation_on_leased_sessions_equals_a_local_one_although_workers_are_killed(tmp_path):
    "No episode is lost or stored twice, and the leased browsers have played: the client has none."
    with serving(kinds=dict(browser=dict(slots=2, warm=0, most=2))) as server:
        killer = threading.Thread(target=kill_workers_after, args=(server, 4))
        killer.start()
        done = subprocess.run(eval_command(tmp_path/'leased', '--manager', str(server.folder)), env=os.environ | dict(UITARS_CHROMIUM='/nowhere'), capture_output=True, text=True)
        killer.join()
        assert not done.returncode, done.stderr[-2000:]
    subprocess.run(eval_command(tmp_path/'local'), check=True, capture_output=True)
    (leased, broken), (local, _) = stored(tmp_path/'leased'), stored(tmp_path/'local')
    assert leased == local and len(local) == 24 and {len(o) for o in leased.values()} == {1}
    assert broken >= 1, 'nothing played on the workers that were killed'
    screens = [json.loads((tmp_path/o/'config.json').read_text())['parameters']['screens'] for o in ('leased', 'local')]
    assert screens[0] == screens[1] and screens[0]['chromium']


def test_what_leased_sessions_cannot_play(tmp_path):
    for name in ('files/rename-sdk', 'miniwob/flight.Alaska'):
        with pytest.raises(ValueError, match='play it without one'): pool_for([name], manager='http://cluster:8765')
    with pytest.raises(ValueError, match='may not set'): leased_options('mine/page', BrowserConfig(allow=('example.org',)))
    with pytest.raises(ValueError, match='play_every'): MainJob(manager='http://cluster:8765', sft=replace(MAIN_SFT, play_every=10))
    done = subprocess.run(eval_command(tmp_path/'x', '--manager', 'http://cluster:8765'), capture_output=True, text=True)
    assert done.returncode and 'UITARS_MANAGER_TOKEN' in done.stderr and 'Traceback' not in done.stderr
    done = subprocess.run(eval_command(tmp_path/'x', '--manager', str(tmp_path)), capture_output=True, text=True)
    assert done.returncode and 'no manager has run' in done.stderr and 'Traceback' not in done.stderr
    done = subprocess.run(eval_command(tmp_path/'x', '--manager', str(tmp_path), '--size', '200', '200'), capture_output=True, text=True)
    assert done.returncode and '--size is for browsers of this machine' in done.stderr


def test_equal_sessions_share_warm_workers():
    "The default written out is the default: a client that sends all options gets a warm worker."
    options = leased_options('miniwob/click-test', browser_of('miniwob/click-test'))
    with serving(kinds=dict(browser=dict(slots=1, warm=1, most=1, options=dict(window=[500, 320])))) as server:
        assert pools_after(server, options) == 1


def pools_after(server, options):
    "Pools of the manager after a lease with these options."
    async def lease():
        async with server.client() as client, client.session('browser', options): return len(await asyncio.to_thread(server.get, '/pools'))
    return asyncio.run(lease())
