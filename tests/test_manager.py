"The manager: leases, turns, deadlines, crashes, its door, and what is left behind."
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from fastapi.testclient import TestClient
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.bench.bench_manager import Server, faults, serving
from tests.waiting import until
from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure, Sync, run
from uitars_nb.sandbox.manager.client import LeasedPool, ManagerClient, RemoteSession
from uitars_nb.sandbox.manager.fleet import WorkerLink, WorkerSettings, alive, process_start_time
from uitars_nb.sandbox.manager.ledger import Ledger, WorkerRow
from uitars_nb.sandbox.manager.manager import Manager
from uitars_nb.sandbox.manager.api import ManagerServerConfig, make_app, tokens_of
from uitars_nb.sandbox.manager.messages import Lease, LeaseLost, Refused, lease_key
from uitars_nb.sandbox.manager.workforce import KindConfig, ManagerConfig, pool_key

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def managers(tmp_path):
    "Makes managers on one folder; at the end nothing of them is left."
    made = []
    async def make(kinds=None, watch=lambda event, **facts: None, **config):
        kinds = kinds or dict(simulated=KindConfig(slots=2, most=1))
        manager = Manager(ManagerConfig(str(tmp_path/'m'), kinds, **config), watch)
        await manager.start()
        made.append(manager)
        return manager
    yield make
    for manager in made:
        if is_open(manager): await manager.drain(0); await manager.stop()
    assert workers_of(tmp_path/'m') == []


def is_open(manager):
    try: manager.ledger.workers()
    except sqlite3.ProgrammingError: return False
    return True


def workers_of(folder): return Server(folder).workers()


def sessions(manager):
    "An unconnected client's end: sessions straight from the workers."
    class Nobody:
        tls, sessions = {}, {}
    return lambda lease: RemoteSession(Nobody(), lease)


def only_pool(manager): return next(iter(manager.pools.values()))
def only_link(manager): return next(iter(only_pool(manager).links.values()))


async def test_orders_go_over_the_new_line_when_one_was_cut(tmp_path):
    lines, orders = [], []
    async def worker(ws):
        lines.append(ws)
        async for text in ws: orders.append((len(lines), json.loads(text)['release']))
    async with serve(worker, '127.0.0.1', 0) as server:
        url = f'ws://127.0.0.1:{server.sockets[0].getsockname()[1]}'
        process = SimpleNamespace(row=WorkerRow('w', 'pool', 'simulated', {}, 1, 'secret'), settings=WorkerSettings(str(tmp_path)), url=lambda: url, alive=lambda: True)
        link = WorkerLink(process, lambda link, news: None, lambda link, words: None)
        link.run()
        for n in (1, 2, 3):
            await until(lambda: len(lines) == n)
            link.order(release=[(0, n)])
            await until(lambda: len(orders) == n)
            await lines[-1].close()
        link.leave()
    assert orders == [(n, [[0, n]]) for n in (1, 2, 3)]


# -- asking

async def test_a_place_has_one_owner(managers):
    manager = await managers(dict(simulated=KindConfig(slots=8, most=1)))
    leases = await asyncio.gather(*[manager.acquire('ann', 'simulated') for _ in range(8)])
    assert len({o.place for o in leases}) == len({o.number for o in leases}) == len({o.key for o in leases}) == 8
    with pytest.raises(Refused) as e: await manager.acquire('ann', 'simulated', wait=.1)
    assert e.value.status == 503 and e.value.retry_after


async def test_users_take_turns(managers):
    manager, order = await managers(dict(simulated=KindConfig(slots=1, most=1))), []
    first = await manager.acquire('ann', 'simulated')
    async def use(user):
        lease = await manager.acquire(user, 'simulated')
        order.append(user)
        manager.release(user, lease.id)
    tasks = [asyncio.create_task(use(user)) for user in ('ann', 'ann', 'ann', 'bob', 'cem')]
    await asyncio.sleep(.05)
    manager.release('ann', first.id)
    await asyncio.gather(*tasks)
    assert order == ['ann', 'bob', 'cem', 'ann', 'ann']


async def test_quota_and_full_queue(managers):
    manager = await managers(quota=3, queue=2)
    for _ in range(2): await manager.acquire('ann', 'simulated')
    waiting = [asyncio.create_task(manager.acquire(user, 'simulated', wait=5)) for user in ('ann', 'bob')]
    await asyncio.sleep(.05)
    with pytest.raises(Refused, match='may have no more') as e: await manager.acquire('ann', 'simulated')
    assert (e.value.status, e.value.retry_after) == (429, 5) and '`quota`' in str(e.value)
    with pytest.raises(Refused, match='wait already') as e: await manager.acquire('cem', 'simulated')
    assert e.value.status == 429
    for task in waiting: task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(only_pool(manager).queue) == 0 and manager.held['ann'] == 2


async def test_who_gives_up_waiting_leaves_nothing(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    lease = await manager.acquire('ann', 'simulated')
    waiting, offer = asyncio.create_task(manager.acquire('bob', 'simulated')), manager.offer
    def offer_and_cancel(*args):   # granted, not yet heard
        offer(*args)
        waiting.cancel()
    await asyncio.sleep(.05)
    manager.offer = offer_and_cancel
    manager.release('ann', lease.id)
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled() and manager.ledger.last_number() == lease.number + 1
    manager.offer = offer
    assert (await manager.acquire('cem', 'simulated', wait=5)).number == lease.number + 2


@pytest.mark.parametrize('kind, options, status', [('teapot', {}, 404), ('simulated', dict(sise=3), 422), ('simulated', dict(size='big'), 422),
    ('simulated', dict(size=[10 ** 9, 10 ** 9]), 422), ('simulated', dict(reset_s=-1), 422), ('browser', dict(clock=dict(mode=[])), 422)])
async def test_what_cannot_be_had(managers, kind, options, status):
    manager = await managers(dict(simulated=KindConfig(warm=0), browser=KindConfig(warm=0)))
    with pytest.raises(Refused) as e: await manager.acquire('ann', kind, options)
    assert e.value.status == status and not manager.leases


async def test_a_request_repeated_gets_the_same_lease(managers):
    manager = await managers()
    one = await manager.acquire('ann', 'simulated', request='r')
    assert (await manager.acquire('ann', 'simulated', request='r')).id == one.id
    assert (await manager.acquire('bob', 'simulated', request='r')).id != one.id
    manager.release('ann', one.id)
    assert (await manager.acquire('ann', 'simulated', request='r')).id != one.id


async def test_who_hangs_up_takes_nothing_from_who_asked_again(managers):
    manager = await managers()
    one = await manager.acquire('ann', 'simulated', request='r')
    await manager.acquire('ann', 'simulated', request='r')
    manager.hang_up('bob', one.id)
    manager.hang_up('ann', one.id)
    assert manager.lease('ann', one.id).id == one.id
    manager.hang_up('ann', one.id)
    with pytest.raises(Refused, match='its owner left'): manager.lease('ann', one.id)
    manager.hang_up('ann', one.id)   # again is fine


async def test_a_request_repeated_while_it_waits_gets_the_same_lease(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    lease, link = await manager.acquire('ann', 'simulated'), only_link(manager)
    asking = [asyncio.create_task(manager.acquire('bob', 'simulated', request='r')) for _ in range(3)]
    await asyncio.sleep(.05)
    assert len(only_pool(manager).queue) == 1
    with pytest.raises(Refused, match='no session became free'): await manager.acquire('bob', 'simulated', request='r', wait=.05)
    asking.pop(0).cancel()   # nor does it stop the others
    await asyncio.sleep(.05)
    manager.release('ann', lease.id)
    one, two = await asyncio.gather(*asking)
    assert one.id == two.id and only_link(manager) is link and not manager.asking
    assert (await manager.acquire('bob', 'simulated', request='r')).id == one.id


async def test_a_lease_that_cannot_be_written_down_harms_nobody(managers, monkeypatch):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    lease, link, grant = await manager.acquire('ann', 'simulated'), only_link(manager), manager.ledger.grant
    def full(**facts): raise sqlite3.OperationalError('database or disk is full')
    waiting = asyncio.create_task(manager.acquire('bob', 'simulated'))
    await asyncio.sleep(.05)
    monkeypatch.setattr(manager.ledger, 'grant', full)
    manager.release('ann', lease.id)
    for asked in (waiting, manager.acquire('bob', 'simulated')):
        with pytest.raises(Refused, match='disk is full') as e: await asked
        assert e.value.status == 503
    monkeypatch.setattr(manager.ledger, 'grant', grant)
    await manager.acquire('bob', 'simulated')
    assert only_link(manager) is link


async def test_an_end_that_cannot_be_written_down_is_tried_again(managers, monkeypatch):
    manager = await managers(dict(simulated=KindConfig(slots=2, most=1)), ttl=.6)
    lease, other = [await manager.acquire('ann', 'simulated') for _ in range(2)]
    end = manager.ledger.end
    def full(*args): raise sqlite3.OperationalError('database or disk is full')
    monkeypatch.setattr(manager.ledger, 'end', full)
    with pytest.raises(sqlite3.OperationalError): manager.release('ann', lease.id)
    await asyncio.sleep(1.2)   # both are overdue
    assert {o.id for o in manager.leases_of('ann')} == {lease.id, other.id}
    monkeypatch.setattr(manager.ledger, 'end', end)
    for _ in range(2): await manager.acquire('bob', 'simulated', wait=10)
    assert not manager.leases_of('ann')


async def test_a_worker_dies_and_the_disk_is_full(managers, monkeypatch):
    manager, told = await managers(dict(simulated=KindConfig(slots=2, most=1))), []
    manager.listeners['ann'].add(lambda *news: told.append(news))
    lease, link = await manager.acquire('ann', 'simulated'), only_link(manager)
    def full(*args): raise sqlite3.OperationalError('database or disk is full')
    for name in ('end', 'remove_worker'): monkeypatch.setattr(manager.ledger, name, full)
    link.process.kill()
    await until(lambda: told)
    await until(lambda: only_pool(manager).idle)
    assert told == [(lease.id, 'its worker died')] and not manager.leases and only_link(manager) is not link
    monkeypatch.undo()


async def test_other_options_make_room_for_themselves(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    await until(lambda: only_pool(manager).idle)
    small = await manager.acquire('ann', 'simulated', dict(size=[8, 8]))
    assert small.options == dict(size=[8, 8])
    with pytest.raises(Refused): await manager.acquire('ann', 'simulated', wait=.2)   # no room while it is in use
    manager.release('ann', small.id)
    assert (await manager.acquire('ann', 'simulated')).options == {}
    await until(lambda: (manager.sweep(), len(manager.pools) == 1)[1])


async def test_a_worker_that_nobody_needs_goes(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=3)), idle=.2)
    leases = [await manager.acquire('ann', 'simulated') for _ in range(3)]
    for o in leases: manager.release('ann', o.id)
    await until(lambda: len(only_pool(manager).links) == 1)
    assert (await manager.acquire('ann', 'simulated')).number == 4


async def test_a_worker_that_was_asked_to_go_offers_nothing(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    await until(lambda: only_pool(manager).idle)
    pool, link = only_pool(manager), only_link(manager)
    pool.dismiss(link)
    manager._hear(link, dict(ready=[[0, manager.ledger.last_number()]]))   # it was on its way
    assert not pool.idle
    lease = await manager.acquire('ann', 'simulated')
    assert lease.url != link.url and (await sessions(manager)(lease).observe()).title == ''


# -- keeping and ending

async def test_what_is_overdue_is_taken_back(managers):
    manager, told = await managers(dict(simulated=KindConfig(slots=1, most=1)), ttl=.6), []
    manager.listeners['ann'].add(lambda *news: told.append(news))
    lease = await manager.acquire('ann', 'simulated')
    session = sessions(manager)(lease)
    await session.act(Action('type', dict(content='secret')))
    for _ in range(4): await asyncio.sleep(.3); manager.beat('ann', lease.id)
    assert (await session.observe()).title == 'secret'
    other = await manager.acquire('bob', 'simulated', wait=20)
    assert told == [(lease.id, 'its deadline passed')]
    with pytest.raises(LeaseLost): await session.observe()
    with pytest.raises(LeaseLost): await sessions(manager)(lease).observe()   # nor by a new line
    assert (await sessions(manager)(other).observe()).title == ''
    with pytest.raises(Refused, match='its deadline passed') as e: manager.beat('ann', lease.id)
    assert e.value.status == 404


async def test_a_call_under_way_is_cut(managers):
    manager = await managers(dict(simulated=KindConfig(slots=1, most=1)))
    lease = await manager.acquire('ann', 'simulated')
    session = sessions(manager)(lease)
    waiting = asyncio.create_task(session.act(Action('wait', dict(time=60))))
    await asyncio.sleep(.2)
    manager.release('ann', lease.id)
    with pytest.raises(LeaseLost): await asyncio.wait_for(waiting, 10)
    other = sessions(manager)(await manager.acquire('ann', 'simulated'))
    assert (await other.observe()).screenshot.max() == 0


async def test_keys_open_one_place_for_one_lease(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    secret = only_link(manager).row.secret
    for path, key in ((f'session/{lease.place}/{lease.number}', 'x'), (f'session/{1 - lease.place}/{lease.number}', lease.key), (f'session/{lease.place}/{lease.number + 1}', lease.key),
                      ('manager', lease.key), ('session/99/1', lease_key(secret, 99, 1)), ('', secret), ('session/-1/1', secret), ('session/0/0', lease_key(secret, 0, 0))):
        ws = await connect(f'{lease.url}/{path}', additional_headers={'Authorization': f'Bearer {key}'})
        with pytest.raises(ConnectionClosed): await ws.recv()
    assert (await sessions(manager)(lease).observe()).title == ''


async def test_garbage_on_the_line_is_answered(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    ws = await connect(f'{lease.url}/session/{lease.place}/{lease.number}', additional_headers={'Authorization': f'Bearer {lease.key}'})
    await ws.recv()
    for junk in (b'', b'\xff' * 50, 'text', b'\x02\0\0\0[]', b'\x13\0\0\0{"call": "__init__"}'[:4] + b'{"call":"__init__"}'):
        await ws.send(junk)
        assert b'"error": "other"' in await ws.recv()
    with pytest.raises(Refused): manager.release('bob', lease.id)   # not bob's


async def test_a_reset_that_fails_brings_a_new_session(managers):
    manager = await managers(dict(simulated=KindConfig(dict(failing=.5), slots=1, most=1)))
    ids = set()
    for _ in range(6):
        lease = await manager.acquire('ann', 'simulated', wait=30)
        session = sessions(manager)(lease)
        await session.act(Action('type', dict(content='secret')))
        ids.add(session.id)
        manager.release('ann', lease.id)
    lease = await manager.acquire('ann', 'simulated', wait=30)
    assert (await sessions(manager)(lease).observe()).title == '' and len(ids) > 1


async def test_errors_cross_the_wire(managers):
    manager = await managers()
    session = sessions(manager)(await manager.acquire('ann', 'simulated'))
    with pytest.raises(ActionError, match='nowhere to go'): await session.act(Action('navigate', dict(content='x')))
    with pytest.raises(EnvironmentFailure) as e: await session.act(Action('call_user'))
    assert e.value.reason == StopReason.ENV_CRASH and not isinstance(e.value, LeaseLost)
    with pytest.raises(RuntimeError, match='no method'): await session.call('goto', 'file:///etc/passwd')
    with pytest.raises(AttributeError): session.goto


# -- crashes

async def test_one_manager_to_a_folder(managers):
    await managers()
    with pytest.raises(RuntimeError, match='another manager'): await managers()


async def test_the_next_manager_goes_on(managers):
    manager = await managers()
    lease, other = [await manager.acquire('ann', 'simulated', ttl=30) for _ in range(2)]
    session = sessions(manager)(lease)
    await session.act(Action('type', dict(content='mine')))
    pid = only_link(manager).process.pid
    await manager.stop()
    assert (await session.observe()).title == 'mine'   # without any manager
    manager = await managers()
    assert {o.id for o in manager.leases_of('ann')} == {lease.id, other.id} and only_link(manager).process.pid == pid
    await until(lambda: only_link(manager).url)
    await asyncio.sleep(.6)   # longer than between two looks at what is overdue
    now = manager.lease('ann', lease.id)
    assert now.url == lease.url and now.deadline > time.time() + 25
    assert (await session.observe()).title == 'mine'
    manager.release('ann', lease.id)
    again = await manager.acquire('bob', 'simulated')
    assert again.place == lease.place and (await sessions(manager)(again).observe()).title == ''
    with pytest.raises(LeaseLost): await session.observe()


async def test_the_next_manager_has_other_defaults(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated', ttl=30)
    session = sessions(manager)(lease)
    await manager.stop()
    manager = await managers(dict(simulated=KindConfig(dict(size=[8, 8]), slots=2, most=2)))
    assert [o.id for o in manager.leases_of('ann')] == [lease.id] and (await session.observe()).screenshot.shape == (48, 64, 3)
    assert (await manager.acquire('bob', 'simulated')).options == dict(size=[8, 8])
    manager.release('ann', lease.id)


async def test_a_release_that_was_written_and_not_sent(managers, tmp_path):
    "The manager died between the ledger and the word to the worker."
    manager = await managers(dict(simulated=KindConfig(slots=2, most=1)))
    used, unused = [await manager.acquire('ann', 'simulated') for _ in range(2)]
    session, late = sessions(manager)(used), sessions(manager)(unused)
    await session.act(Action('type', dict(content='secret')))
    await manager.stop()
    ledger = Ledger(tmp_path/'m'/'manager.db')
    for o in (used, unused): ledger.end(o.number, 'released', time.time())
    ledger.close()
    manager = await managers()
    new = [sessions(manager)(await manager.acquire('bob', 'simulated')) for _ in range(2)]
    for old in (session, late):   # before their new owners come
        with pytest.raises(LeaseLost): await old.observe()
    assert [(await o.observe()).title for o in new] == ['', '']


async def test_a_worker_that_died_while_nobody_looked(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    link = only_link(manager)
    await manager.stop()
    link.process.kill()
    manager = await managers()
    await until(lambda: not manager.leases)
    with pytest.raises(Refused, match='worker died'): manager.beat('ann', lease.id)
    assert (await manager.acquire('ann', 'simulated')).number > lease.number


async def test_a_worker_that_was_started_and_not_written_down(managers, tmp_path):
    manager = await managers()
    await until(lambda: only_pool(manager).idle)
    pid = only_link(manager).process.pid
    await manager.stop()
    with sqlite3.connect(tmp_path/'m'/'manager.db') as db: db.execute('update workers set pid = 0, born = 0')
    db.close()
    manager = await managers()
    assert (await manager.acquire('ann', 'simulated')).number == 1 and only_link(manager).process.pid == pid
    assert len(workers_of(tmp_path/'m')) == 1


def test_a_process_stays_the_same_when_the_clock_is_set(monkeypatch):
    born = process_start_time(os.getpid())
    monkeypatch.setattr('psutil._pslinux.boot_time', lambda real=psutil._pslinux.boot_time: real() + 1)   # the date of the boot moves with the clock
    assert alive(os.getpid(), born) and not alive(os.getpid(), '') and not alive(2 ** 22 + 1, process_start_time(2 ** 22 + 1))


async def test_a_worker_in_the_ledger_that_never_was(managers, tmp_path):
    (tmp_path/'m').mkdir()
    ledger = Ledger(tmp_path/'m'/'manager.db')
    ledger.add_worker(WorkerRow('ghost', pool_key('simulated', {}), 'simulated', {}, 2, 'secret'))
    ledger.add_worker(WorkerRow('other', pool_key('simulated', {}), 'simulated', {}, 2, 'secret', os.getpid(), 'another boot'))   # a pid that came again
    ledger.close()
    manager = await managers()
    await manager.acquire('ann', 'simulated')
    await until(lambda: len(manager.ledger.workers()) == 1)


async def test_a_killed_worker_is_replaced_and_its_owners_told(managers):
    manager, told = await managers(dict(simulated=KindConfig(slots=2, most=2, warm=2))), []
    manager.listeners['ann'].add(lambda *news: told.append(news))
    leases = [await manager.acquire('ann', 'simulated') for _ in range(4)]
    link = only_link(manager)
    mine = [o for o in leases if manager.leases[o.id].link is link]
    link.process.kill()
    await until(lambda: len(told) == 2)
    assert {o for o, _ in told} == {o.id for o in mine}
    for o in mine:
        with pytest.raises(EnvironmentFailure): await sessions(manager)(o).observe()
    for _ in range(2): await manager.acquire('ann', 'simulated')
    assert len(manager.leases) == 4


async def test_what_a_killed_worker_had_started_goes_with_it(managers):
    manager = await managers(dict(leaving=KindConfig(slots=1, most=1)), hosts=dict(leaving='tests.manager_kinds:LeavingHost'))
    await until(lambda: only_pool(manager).idle)
    link = only_link(manager)
    child, = psutil.Process(link.process.pid).children()
    os.kill(link.process.pid, signal.SIGKILL)
    await until(lambda: not process_start_time(child.pid))


async def test_a_hung_worker_is_killed(managers, monkeypatch):
    "Stopped, not dead: nothing is told before it is."
    from uitars_nb.sandbox.manager import fleet
    real = fleet.connect
    monkeypatch.setattr(fleet, 'connect', lambda *args, **kw: real(*args, **kw | dict(ping_interval=.3, ping_timeout=.5, open_timeout=1)))
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    link = only_link(manager)
    os.kill(link.process.pid, signal.SIGSTOP)
    assert (await manager.acquire('bob', 'simulated')) and (await manager.acquire('bob', 'simulated', wait=60)).number
    assert lease.id not in manager.leases and not process_start_time(link.process.pid)


async def test_no_worker_comes_up(managers):
    manager = await managers(dict(broken=KindConfig(warm=0)), hosts=dict(broken='tests.manager_kinds:BrokenHost'))
    with pytest.raises(Refused, match='the licence has expired') as e: await manager.acquire('ann', 'broken')
    assert e.value.status == 503


async def test_a_worker_that_dies_again_and_again_is_started_ever_more_slowly(managers):
    ends = []
    note = lambda event, **facts: ends.append(time.monotonic()) if event == 'worker gone' else None
    await managers(dict(fragile=KindConfig(slots=2, warm=1, most=1)), watch=note, hosts=dict(fragile='tests.manager_kinds:FragileHost'))
    await until(lambda: len(ends) >= 4)
    gaps = [b - a for a, b in zip(ends, ends[1:])]
    assert gaps[1] >= .4 and gaps[2] >= .8   # the second restart waits .4 s, the third .8 s


async def test_forgotten_workers_end_by_themselves(managers, tmp_path):
    manager = await managers(orphan=1.)
    await until(lambda: only_pool(manager).idle)
    await manager.stop()
    await until(lambda: not workers_of(tmp_path/'m'))


async def test_drain_waits_for_those_who_work(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    await manager.acquire('ann', 'simulated')
    waiting = asyncio.create_task(manager.acquire('bob', 'simulated'))
    await asyncio.sleep(.05)
    draining = asyncio.create_task(manager.drain(timeout=3))
    with pytest.raises(Refused, match='about to end'): await waiting
    with pytest.raises(Refused, match='about to end') as e: await manager.acquire('bob', 'simulated')
    assert e.value.status == 503
    assert (await sessions(manager)(lease).observe()).title == ''
    manager.release('ann', lease.id)
    assert await draining == 1 and not manager.leases


async def test_the_ledger_forbids_two_owners(tmp_path):
    ledger = Ledger(tmp_path/'l.db')
    facts = dict(user='a', kind='k', options={}, worker='w', ttl=1, task='', granted=0, request='')
    ledger.grant(id='1', place=0, **facts)
    with pytest.raises(sqlite3.IntegrityError): ledger.grant(id='2', place=0, **facts)
    ledger.end(1, 'x', 1)
    assert ledger.grant(id='3', place=0, **facts) > 1
    ledger.close()


def test_a_write_that_fails_leaves_no_transaction_open(tmp_path):
    ledger = Ledger(tmp_path/'l.db')
    ledger.add_worker(WorkerRow('w', 'p', 'k', {}, 1, 'secret'))
    ledger.db.execute("create trigger full before delete on workers begin select raise(abort, 'disk is full'); end")
    with pytest.raises(sqlite3.Error): ledger.remove_worker('w', 'x', 1)
    ledger.db.execute('drop trigger full')
    ledger.remove_worker('w', 'x', 1)
    assert ledger.workers() == []
    ledger.close()


# -- the client

@pytest.fixture
def server():
    with serving(ttl=3, kinds=dict(simulated=dict(slots=4, most=2))) as server: yield server


async def test_sessions_outlive_the_manager_that_gave_them(server):
    async with server.client() as client:
        session = await client.acquire('simulated')
        await session.act(Action('type', dict(content='mine')))
        server.kill()
        asking = asyncio.create_task(client.acquire('simulated'))
        assert (await session.observe()).title == 'mine'
        await asyncio.sleep(.3)
        server.start()
        await asking
        await asyncio.sleep(4)   # longer than its term: it is kept by heartbeats
        assert (await session.observe()).title == 'mine' and not session.lost


async def test_a_short_lease_beside_a_long_one_is_kept(server):
    async with server.client() as client:
        long = await client.acquire('simulated', ttl=3600)
        await asyncio.sleep(1.5)   # the heart beats by the long one
        short = await client.acquire('simulated', ttl=1)
        await asyncio.sleep(2.5)
        for session in (long, short): assert not session.lost and (await session.observe()).title == ''


async def test_a_lost_session_says_why(server):
    async with server.client() as client:
        session, other = await client.acquire('simulated'), await client.acquire('simulated')
        await session.observe()
        for p in server.workers(): p.kill()
        await until(lambda: session.lost and other.lost)
        for o in (session, other):
            with pytest.raises(LeaseLost, match='its worker died'): await o.observe()
            await o.close()
        async with client.session('simulated') as new: await new.observe()


async def test_a_cancelled_call_does_not_answer_the_next(server):
    async with server.client() as client, client.session('simulated') as session:
        with pytest.raises(TimeoutError): await asyncio.wait_for(session.act(Action('wait', dict(time=5))), .2)
        start = time.monotonic()
        assert (await session.observe()).title == '' and time.monotonic() - start < 4


async def test_a_cancelled_request_leaves_no_lease(server):
    async with server.client() as client:
        await (await client.acquire('simulated')).close()
        async def hasty(patience):
            try: await (await asyncio.wait_for(client.acquire('simulated'), patience)).close()
            except TimeoutError: return True
        given_up = await asyncio.gather(*[hasty(.0003 * i) for i in range(30)])
        await asyncio.sleep(.8)   # well within the term of a lease that nobody keeps
        assert any(given_up) and sum(p['leased'] + p['waiting'] for p in server.get('/pools')) == 0


async def test_clients_that_die_give_back(server):
    code = f'''import asyncio
from uitars_nb.sandbox.manager.client import ManagerClient
async def main():
    client = await ManagerClient.local({str(server.folder)!r}).start()
    for _ in range(3): await client.acquire('simulated')
    print('ready', flush=True)
    await asyncio.sleep(60)
asyncio.run(main())'''
    process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert sum(p['leased'] for p in server.get('/pools')) == 3
    process.kill()
    process.wait()
    await until(lambda: sum(p['leased'] for p in server.get('/pools')) == 0, 15)


async def test_a_wrong_token_and_no_manager(server):
    async with server.client(token='wrong') as client:
        with pytest.raises(Refused) as e: await client.acquire('simulated')
        assert e.value.status == 401
    async with ManagerClient('http://127.0.0.1:9', 'x', patience=.5) as client:
        with pytest.raises(Refused, match='no manager'): await client.acquire('simulated')
        with pytest.raises(EnvironmentFailure, match='no manager'): await LeasedPool(client, 'simulated').acquire()   # a rollout tries again
    with pytest.raises(FileNotFoundError): ManagerClient.local('/nowhere')


@pytest.mark.parametrize('url', ['localhost:8765', '127.0.0.1:8765', 'ftp://127.0.0.1', ''])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match='http://HOST:PORT'): ManagerClient(url, 'x')


async def test_a_client_that_does_not_run_says_so_at_once():
    client = ManagerClient('http://127.0.0.1:9', 'x')
    async def refused(asked):
        with pytest.raises(RuntimeError, match='not running'): await asyncio.wait_for(asked, 5)
    await refused(client.acquire('simulated'))
    async with client:
        waiting = asyncio.create_task(client.acquire('simulated'))
        await asyncio.sleep(.05)
    await refused(waiting)
    await refused(client.acquire('simulated'))


async def test_a_line_that_nobody_keeps_any_more(monkeypatch):
    def connect(*args, **kw): raise ZeroDivisionError('odd')
    monkeypatch.setattr('uitars_nb.sandbox.manager.client.connect', connect)
    async with ManagerClient('http://127.0.0.1:9', 'x') as client:
        for attempt in range(2):
            with pytest.raises(Refused, match='odd'): await asyncio.wait_for(client.acquire('simulated'), 5)


async def test_what_is_refused_for_now_is_asked_again_by_a_rollout():
    class Busy:
        async def acquire(self, kind, options): raise Refused(*self.words)
    pool = LeasedPool(client := Busy(), 'simulated')
    for words, error in {(429, 'may have no more', .1): EnvironmentFailure, (503, 'no manager'): EnvironmentFailure, (404, 'no kind'): Refused, (401, 'no token'): Refused}.items():
        client.words, start = words, time.monotonic()
        with pytest.raises(error, match=words[1]): await pool.acquire()
        assert time.monotonic() - start >= (words[2] if len(words) > 2 else 0)


async def test_an_episode_is_kept_where_the_manager_is_away_when_its_session_is_given_back():
    "The lease ends by itself; another refusal is told."
    class Away:
        sessions, error = {}, Refused(503, 'no manager')
        async def acquire(self, kind, options):
            self.sessions['1'] = session = RemoteSession(self, Lease('1', 1, kind, options, 'ws://127.0.0.1:9', 0, 'key', 1., 0.))
            return session
        async def ask(self, op, **kw): raise self.error
    client = Away()
    async with LeasedPool(client, 'simulated').session() as session: assert not session.lost
    assert session.lost and not client.sessions
    client.error = Refused(404, 'no lease')   # of a manager with another ledger: the session is gone all the same
    async with LeasedPool(client, 'simulated').session(): pass
    client.error = Refused(422, 'no lease')
    with pytest.raises(Refused, match='no lease'):
        async with LeasedPool(client, 'simulated').session(): pass


async def test_a_pool_of_leases_and_a_synchronous_face(server):
    async with server.client() as client:
        pool = LeasedPool(client, 'simulated', dict(size=[8, 6]), size=2)
        async def episode(i):
            async with pool.session() as session:
                await session.act(Action('type', dict(content=str(i))))
                return (await session.observe()).title
        assert await asyncio.gather(*map(episode, range(6))) == [*map(str, range(6))]
    def play():
        client = Sync(ManagerClient.local(server.folder))
        with client:
            client.start()
            session = Sync(client.acquire('simulated'))
            session.act(Action('type', dict(content='sync')))
            return session.observe().title, session.size
    assert await asyncio.to_thread(play) == ('sync', (64, 48))


async def test_sigterm_ends_in_order(server):
    async with server.client() as client:
        await client.acquire('simulated')
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: 'draining' in (server.folder/'manager.log').read_text())
        with pytest.raises(Refused): await client.acquire('simulated')
    assert await asyncio.to_thread(server.process.wait, 30) == 0 and server.workers() == []


async def test_logs_are_lines_of_json_without_secrets(server):
    async with server.client() as client:
        session = await client.acquire('simulated', task='a task')
        key = session.lease.key
        await session.close()
    text = (server.folder/'manager.log').read_text()
    events = [json.loads(line) for line in text.splitlines()]
    granted = next(o for o in events if o['event'] == 'granted')
    assert granted['task'] == 'a task' and granted['user'] == 'local' and 'ended' in [o['event'] for o in events]
    assert key not in text and (server.folder/'token').read_text() not in text
    assert all(oct(p.stat().st_mode)[-3:] == '600' for p in server.folder.iterdir() if p.name == 'token' or re.fullmatch(r'[0-9a-f]{12}\.json', p.name))


@pytest.mark.slow
def test_under_fire():
    seen = faults(600, seed=3)
    assert seen['leases'] >= 600 and seen['done'] > 400 and min(seen[f'{w}_killed'] for w in ('manager', 'worker', 'client')) > 0
    assert (seen['leaked'], seen['double'], seen['dirty'], seen['untold']) == (0, 0, 0, 0)


# -- the door

@contextlib.contextmanager
def door_at(folder):
    "A client of a manager with four slots."
    kinds = dict(simulated=KindConfig(slots=4, most=1))
    config = ManagerServerConfig(ManagerConfig(str(folder), kinds, max_wait=.2, quota=50, ttl=5), tokens=dict(s3cret='ann', other='bob'))
    app = make_app(config)
    with TestClient(app, headers=dict(Authorization='Bearer s3cret')) as client:
        while client.get('/pools').json()[0]['offered'] < 4: time.sleep(.02)
        yield client
        client.portal.call(app.state.manager.drain, 0)


@pytest.fixture
def door(tmp_path):
    with door_at(tmp_path/'m') as client: yield client


@pytest.fixture(scope='module')
def shared_door(tmp_path_factory):
    "One for tests that are refused and leave nothing."
    with door_at(tmp_path_factory.mktemp('door')/'m') as client: yield client


def test_http(door):
    lease = door.post('/leases', json=dict(kind='simulated', task='t')).json()
    assert [o['id'] for o in door.get('/leases').json()] == [lease['id']]
    assert door.post(f'/leases/{lease["id"]}/heartbeat').json()['deadline'] >= lease['deadline']
    bob = dict(Authorization='Bearer other')
    assert door.get('/leases', headers=bob).json() == [] and door.get(f'/leases/{lease["id"]}', headers=bob).status_code == 404
    assert door.delete(f'/leases/{lease["id"]}', headers=bob).status_code == 404
    assert [door.delete(f'/leases/{lease["id"]}').status_code for _ in range(2)] == [204, 204]
    gone = door.get(f'/leases/{lease["id"]}')
    assert gone.status_code == 404 and 'released' in gone.json()['detail']
    assert door.get('/health', headers=dict(Authorization='')).json() == dict(status='ok')
    for _ in range(4): door.post('/leases', json=dict(kind='simulated'))
    full = door.post('/leases', json=dict(kind='simulated'))
    assert full.status_code == 503 and full.headers['Retry-After'] == '5'
    text = door.get('/metrics').text
    assert 'uitars_leases_granted_total{kind="simulated"} 5.0' in text and 'uitars_leases_refused_total{status="503"} 1.0' in text


@pytest.mark.parametrize('body', ['{"kind": NaN}', '{"kind": "simulated", "options": {"a": %s}}' % ('[' * 900 + ']' * 900), '{"kind": "simulated", "options": {"size": [NaN, 1]}}',
    '{"kind": %s}' % ('[' * 900 + ']' * 900), '{"kind": "\\ud800"}', '{"kind": "simulated", "task": "\\ud800"}', '{"kind": "simulated", "options": {"\\ud800": 1}}', '{"kind": "simulated", "ttl": 1e400}',
    '{"kind": "simulated", "options": {"a": "%s"}}' % ('x' * 10 ** 6), '{"kind": "simulated", "options": {"size": [1e400, 1]}}', '{"kind": "simulated", "options": {"failing": -Infinity}}',
    '{"kind": "simulated", "options": {"size": [%s, 1]}}' % ('9' * 4000)])
def test_what_json_parsers_let_through(shared_door, body):
    answer = shared_door.post('/leases', content=body, headers={'Content-Type': 'application/json'})
    assert answer.status_code == 422 and answer.json()['detail'] and len(answer.content) < 5000


@pytest.mark.parametrize('path', ['/leases', '/leases/x', '/pools', '/metrics'])
@pytest.mark.parametrize('token', ['', 'Bearer', 'Bearer wrong', 'Basic s3cret', 'Bearer s3cre', 'Bearer \u00e4'])
def test_no_token_no_entry(shared_door, path, token): assert shared_door.get(path, headers={'Authorization': token.encode()}).status_code == 401


def test_a_websocket_wants_a_token(shared_door):
    with pytest.raises(Exception):
        with shared_door.websocket_connect('/ws', headers=dict(Authorization='Bearer wrong')): pass


@pytest.mark.parametrize('text', ['{', '[1]', '"x"', '{}', '[]', '{"id": 1, "op": "acquire"}', '{"id": 1, "op": "acquire", "kind": 3}', '{"op": "beat", "leases": 3}',
    '{"op": "release"}', '{"op": ["x"]}', '{"id": {}, "op": "acquire", "kind": "simulated", "ttl": 1e400}', '{"op":"acquire","kind":"\\ud800"}', '[' * 100_000])
def test_garbage_on_the_websocket(shared_door, text):
    with shared_door.websocket_connect('/ws') as ws: ws.send_text(text)
    assert shared_door.get('/health').json() == dict(status='ok')


@pytest.mark.parametrize('error', [OSError('no room for a process'), sqlite3.OperationalError('database is locked'), KeyError('oops')], ids=repr)
def test_trouble_of_the_manager_is_answered(door, monkeypatch, error):
    async def fail(*args, **kw): raise error
    with door.websocket_connect('/ws') as ws:
        with monkeypatch.context() as m:
            m.setattr(door.app.state.manager, 'acquire', fail)
            ws.send_text('{"id": 1, "op": "acquire", "kind": "simulated"}')
            ws.send_text('{"id": 2, "op": "release", "lease": "none"}')   # answered in any case
            answers = {}
            while 2 not in answers: answers |= {o['id']: o for o in ws.receive_json()}
            assert answers[1]['error']['status'] == 503 and str(error) in answers[1]['error']['message']
            if not isinstance(error, KeyError):
                answer = door.post('/leases', json=dict(kind='simulated'))
                assert answer.status_code == 503 and str(error) in answer.json()['detail'] and answer.headers['Retry-After']
        ws.send_text('{"id": 3, "op": "acquire", "kind": "simulated"}')
        assert 'ok' in ws.receive_json()[0]


def test_fuzzed_from_its_own_description():
    "Whatever fits the description, and what does not: every answer is one that is described, and none is an error of the server."
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, negative_data_rejection, response_schema_conformance, status_code_conformance
    checks = [not_a_server_error, status_code_conformance, response_schema_conformance, content_type_conformance, negative_data_rejection]
    with serving(kinds=dict(simulated=dict(slots=50, most=2)), max_wait=.05, ttl=5) as server:
        url = f"http://127.0.0.1:{server.config['port']}"
        schema, seen = schemathesis.openapi.from_url(f'{url}/openapi.json'), {}
        for operation in [o.ok() for o in schema.get_all_operations()]:
            for mode in schemathesis.GenerationMode:
                if mode is schemathesis.GenerationMode.NEGATIVE and not (operation.path_parameters or operation.body): continue
                @settings(max_examples=25, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True)
                @given(case=operation.as_strategy(generation_mode=mode))
                def fuzz(case):
                    bearer = {'Authorization': f'Bearer {(server.folder/"token").read_text()}'}
                    response = case.call_and_validate(base_url=url, headers=bearer, checks=checks)
                    seen.setdefault(operation.label, set()).add(response.status_code)
                fuzz()
        assert seen['GET /health'] == {200} and {201, 404, 422} & seen['POST /leases'] and len(seen) == 9, seen
        assert server.get('/health') == dict(status='ok')


def test_tokens_are_made_where_none_are_given(tmp_path):
    config = ManagerServerConfig(ManagerConfig(str(tmp_path/'m'), {}))
    made = tokens_of(config)
    assert made == tokens_of(config) and [*made.values()] == ['local'] and len([*made][0]) > 30
    assert oct((tmp_path/'m'/'token').stat().st_mode)[-3:] == '600'


def test_an_empty_token_lets_nobody_in(tmp_path):
    (tmp_path/'token').write_text('\n')
    (tmp_path/'door.json').write_text('{"url": "http://127.0.0.1:9"}')
    with pytest.raises(ValueError, match='holds no token'): make_app(ManagerServerConfig(ManagerConfig(str(tmp_path), {})))
    with pytest.raises(ValueError, match='holds no token'): ManagerClient.local(tmp_path)
    with pytest.raises(ValueError, match='a token is empty'): make_app(ManagerServerConfig(ManagerConfig(str(tmp_path), {}), tokens={'': 'ann', 's3cret': 'bob'}))


@pytest.mark.skipif(not shutil.which('openssl'), reason='no openssl to make a certificate with')
async def test_tls(tmp_path):
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', tmp_path/'key.pem', '-out', tmp_path/'cert.pem'],
                   check=True, capture_output=True)
    tls = dict(cert=str(tmp_path/'cert.pem'), key=str(tmp_path/'key.pem'), ca=str(tmp_path/'cert.pem'))
    with serving(kinds=dict(simulated=dict(slots=1, most=1)), **tls) as server:
        async with server.client(ca=tls['ca']) as client, client.session('simulated') as session:
            assert session.lease.url.startswith('wss:') and (await session.observe()).title == ''
        async with ManagerClient.local(server.folder, patience=.5) as client:   # a certificate that nobody vouches for
            with pytest.raises(Refused): await client.acquire('simulated')


# -- real sessions

async def test_browsers_by_lease(tmp_path):
    "A page, what is left of it for the next, and a Chromium that dies."
    with serving(kinds=dict(browser=dict(slots=2, most=1, options=dict(size=[120, 80])))) as server:
        async with server.client() as client:
            async with client.session('browser') as session:
                assert session.size == (120, 80) and session.config.size == (120, 80)
                await session.goto('data:text/html,<title>one</title><input autofocus>')
                await session.act(Action('type', dict(content='hi')))
                assert await session.evaluate('document.querySelector("input").value') == 'hi'
                obs = await session.observe()
                assert obs.title == 'one' and obs.screenshot.shape == (80, 120, 3) and obs.tabs[0].active
                with pytest.raises(RuntimeError, match='oops'): await session.evaluate('(() => { throw Error("oops") })()')
                with pytest.raises(ActionError): await session.act(Action('navigate', dict(content='https://example.org')))
            async with client.session('browser') as session:
                assert (await session.observe()).url == 'about:blank'
                for p in server.workers()[0].children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess): p.kill()   # one goes with the other
                with pytest.raises(EnvironmentFailure) as e: await session.observe()
                assert e.value.reason == StopReason.ENV_CRASH
            async with client.session('browser') as session, client.session('browser') as other:
                for o in (session, other): await o.goto('data:text/html,<title>again</title>')
            kept = [p.pid for p in server.workers()[0].children(recursive=True)]
            server.workers()[0].kill()
            await until(lambda: not any(map(process_start_time, kept)))   # its Chromium went with it


async def test_a_chromium_that_hangs_is_replaced(monkeypatch):
    from uitars_nb.sandbox.browser import session as browser
    from uitars_nb.sandbox.manager.kinds import BrowserHost
    host = BrowserHost(browser.BrowserConfig((120, 80)))
    session = await host.open(0)
    await session.reset()
    hung = host.browser
    session.configure()   # which takes a new context
    for p in hung.processes(): p.suspend()
    with monkeypatch.context() as m:
        m.setattr(browser, 'RESET_TIMEOUT', 1)
        with pytest.raises(EnvironmentFailure, match='no fresh context'): await session.reset()
    await session.close()
    session = await host.open(0)
    await session.reset()
    assert host.browser is not hung and hung.processes() == [] and host.alive(session)
    await host.close()


async def test_a_task_played_over_a_lease():
    "The loop cannot tell a leased browser from one of its own."
    from uitars_nb.agent.loop import OracleAgent, run_episode
    from uitars_nb.core.types import TaskSpec
    from uitars_nb.tasks.base import get_task
    import uitars_nb.tasks.miniwob.task
    with serving(kinds=dict(browser=dict(slots=1, most=1))) as server:
        async with server.client() as client, client.session('browser') as session:
            spec = TaskSpec('miniwob/click-test', seed=1)
            traj = await run_episode(session, get_task(spec.name), spec, OracleAgent)
            assert traj.success and traj.stop == StopReason.TERMINATED, (traj, traj.info)


@pytest.mark.skipif(not shutil.which('bwrap'), reason='no bubblewrap')
async def test_tools_by_lease():
    with serving(kinds=dict(tools=dict(slots=1, most=1))) as server:
        async with server.client() as client:
            for _ in range(2):
                async with client.session('tools', wait=60) as session:
                    await session.act(Action('execute_bash', dict(command='ls; echo "$((6 * 7))" > answer; cat answer')))
                    assert (await session.observe()).text.split()[:1] == ['42']   # and no file of the last lease
    assert server.workers() == []


@pytest.mark.skipif(not shutil.which('bwrap'), reason='no bubblewrap')
@pytest.mark.parametrize('kind', ['browser_tools', pytest.param('desktop_tools', marks=pytest.mark.skipif(not shutil.which('Xvfb'), reason='no X server'))])
async def test_a_screen_and_tools_by_lease(kind):
    with serving(kinds={kind: dict(slots=1, most=1, options=dict(screen=dict(size=[320, 240]), tools=dict(bash_seconds=10)))}) as server:
        async with server.client() as client:
            for _ in range(2):
                async with client.session(kind, wait=90) as session:
                    assert tuple(session.size) == (320, 240), 'before anything was asked'
                    assert (await session.observe()).screenshot.shape == (240, 320, 3)
                    await session.act(Action('execute_bash', dict(command='ls answer; echo "$((6 * 7))" > answer; cat answer')))
                    words = (await session.observe()).text
                    assert 'No such file' in words and '42' in words   # and no file of the last lease
                    await session.act(Action('click', dict(point=(500, 500))))
        kept = [p.pid for p in server.workers()[0].children(recursive=True)]
        server.workers()[0].kill()
        await until(lambda: not any(map(process_start_time, kept)))


@pytest.mark.skipif(not shutil.which('Xvfb'), reason='no X server')
async def test_desktops_by_lease():
    with serving(kinds=dict(desktop=dict(slots=1, most=1, options=dict(size=[640, 480])))) as server:
        async with server.client() as client, client.session('desktop', wait=90) as session:
            assert (await session.observe()).screenshot.shape == (480, 640, 3)
            await session.act(Action('click', dict(point=(500, 500))))
        kept = [p.pid for p in server.workers()[0].children(recursive=True)]
        server.workers()[0].kill()
        await until(lambda: not any(map(process_start_time, kept)))


async def test_the_live_page_in_a_browser():
    from uitars_nb.sandbox.browser.session import BrowserConfig
    from uitars_nb.sandbox.browser.clock import ClockConfig
    from uitars_nb.sandbox.browser.pool import BrowserPool
    task = '<img src=x onerror="document.title=1">'
    with serving(kinds=dict(simulated=dict(slots=4, most=1))) as server:
        async with server.client() as client, BrowserPool(BrowserConfig((900, 600), clock=ClockConfig('real')), 1, 1) as pool, pool.session() as page:
            session = await client.acquire('simulated', dict(size=[40, 30]), task=task)
            await session.act(Action('type', dict(content='a title')))
            await session.observe()
            await page.goto(f"http://127.0.0.1:{server.config['port']}/")
            async def enter(token):
                await page.evaluate('t => { document.getElementById("token").value = t; document.querySelector("button").click() }', token)
            async def text(): return await page.evaluate('document.body.innerText')
            await enter('wrong')
            await seen(text, 'does not know this token')
            await enter((server.folder/'token').read_text())
            await seen(text, 'a title')
            now = await text()
            assert task in now and 'simulated 1' in now and '1 leased' in now and await page.evaluate('document.title') == 'Sessions'
            assert await page.evaluate('document.querySelector("article img").naturalWidth') == 40
            await session.close()
            await seen(text, 'No leases.')


async def seen(text, words):
    end = time.monotonic() + 20
    while words not in (now := await text()):
        assert time.monotonic() < end, now
        await asyncio.sleep(.1)


async def test_a_glance_shows_what_the_owner_saw(managers):
    manager = await managers()
    lease = await manager.acquire('ann', 'simulated')
    assert await manager.look('ann', lease.id) == (dict(acts=0, title=''), b'')
    session = sessions(manager)(lease)
    await session.act(Action('type', dict(content='mine')))
    await session.observe()
    facts, png = await manager.look('ann', lease.id)
    assert (facts['acts'], facts['title'], png[:4]) == (1, 'mine', b'\x89PNG')
    with pytest.raises(Refused): await manager.look('bob', lease.id)
    manager.release('ann', lease.id)
    again = await manager.acquire('bob', 'simulated')
    again = again if again.place == lease.place else await manager.acquire('bob', 'simulated')
    assert again.place == lease.place and await manager.look('bob', again.id) == (dict(acts=0, title=''), b'')
    await sessions(manager)(again).act(Action('wait', dict(time=0)))   # in use, not looked at
    facts, png = await manager.look('bob', again.id)
    assert (facts['acts'], facts['title'], png) == (1, '', b'')


async def test_a_dead_browser_is_closed_once(monkeypatch):
    from uitars_nb.sandbox.browser import chromium
    from uitars_nb.sandbox.manager.kinds import BrowserHost
    closed, gone = [], asyncio.get_running_loop().create_future()
    gone.set_result(None)
    async def close(): closed.append(1)
    async def launch(): raise RuntimeError('no room')
    monkeypatch.setattr(chromium, 'launch', launch)
    host = BrowserHost(None)
    host.browser = SimpleNamespace(gone=gone, close=close)
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match='no room'): await host.open(0)
    await host.close()
    assert closed == [1]


def test_a_misspelt_kind_is_named(tmp_path):
    with pytest.raises(ValueError, match="no kind 'brwoser'"): Manager(ManagerConfig(str(tmp_path/'m'), dict(brwoser=KindConfig(1))))
