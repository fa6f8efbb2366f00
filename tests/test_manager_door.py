"What somebody can do to a manager from outside: with a token, with a wrong one, and with none."
import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import psutil

import pytest
from fastapi.testclient import TestClient

from tests.bench.bench_manager import serving
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.manager.kinds import KINDS, SimulatedHost, host_class
from uitars_nb.sandbox.manager.ledger import Ledger
from uitars_nb.sandbox.manager.api import ManagerServerConfig, make_app
from uitars_nb.sandbox.manager.workforce import KindConfig, ManagerConfig, Workforce

pytestmark = pytest.mark.timeout(180)


# -- which options a client may set

BROWSER = {'size', 'window', 'scale', 'scroll_px', 'clock.mode', 'clock.speed', 'clock.step_ms', 'clock.start'}
DESKTOP = {'size', 'looking.quiet', 'looking.most'}
within = lambda part, names: {f'{part}.{o}' for o in names}
MAY = dict(simulated={'size', 'open_s', 'reset_s', 'failing'}, browser=BROWSER, desktop=DESKTOP, windows=DESKTOP, tools={'size'},
           android=within('phone', {'settle', 'scroll'}), browser_tools=within('screen', BROWSER), desktop_tools=within('screen', DESKTOP))


def dataclass_of(hint):
    return next((o for o in (get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]) if is_dataclass(o)), None)


def options(config, path=()):
    "Every option of a dataclass, those of dataclasses in it too, and each such dataclass as a whole: path and default."
    hints = get_type_hints(config)
    for f in fields(config):
        here, inner = (*path, f.name), dataclass_of(hints[f.name])
        yield here, f.default if f.default is not MISSING else f.default_factory() if f.default_factory is not MISSING else 'x'
        if inner: yield from options(inner, here)


def all_options():
    from uitars_nb.sandbox.android.session import AndroidConfig
    for kind, address in KINDS.items():
        cls = host_class(address)
        config = cls._config() if hasattr(cls, '_config') else cls.config
        yield from ((kind, *o) for o in options(config))
        if kind == 'android': yield from ((kind, *o) for o in options(AndroidConfig, ('phone',)))


def as_json(value):
    "An option's default as a client could send it; of a dataclass, None."
    if is_dataclass(value): return None
    if isinstance(value, Mapping): return {str(k): as_json(v) for k, v in value.items()} or dict(a='b')
    return [as_json(o) for o in value] if isinstance(value, tuple) else value


def nested(path, value):
    for name in reversed(path): value = {name: value}
    return value


@pytest.fixture(scope='module')
def door(tmp_path_factory):
    "All kinds, and no worker of any: a request that may be made waits in vain."
    config = ManagerServerConfig(ManagerConfig(str(tmp_path_factory.mktemp('m')), {kind: KindConfig(warm=0, most=0) for kind in KINDS}), tokens=dict(s3cret='ann'))
    with TestClient(make_app(config), headers=dict(Authorization='Bearer s3cret')) as client: yield client


def asked(door, kind, options):
    answer = door.post('/leases', json=dict(kind=kind, options=options, wait=0))
    with door.websocket_connect('/ws') as ws:
        ws.send_json(dict(id=1, op='acquire', kind=kind, options=options, wait=0))
        error = ws.receive_json()[0]['error']
    assert (error['status'], error['message']) == (answer.status_code, answer.json()['detail']), 'one door is as narrow as the other'
    return answer


@pytest.mark.parametrize('kind', KINDS)
def test_every_option_is_on_the_list_or_refused(door, kind):
    seen = set()
    for path, default in [o[1:] for o in all_options() if o[0] == kind]:
        name, answer = '.'.join(path), asked(door, kind, nested(path, as_json(default)))
        if name in MAY[kind]: assert answer.status_code == 503 and 'no session became free' in answer.json()['detail'], (name, answer.text)
        else: assert answer.status_code == 422 and f"'{name}" in answer.json()['detail'] and 'clients' in answer.json()['detail'], (name, answer.text)
        seen.add(name)
    assert MAY[kind] <= seen and len(seen) > 3, 'the list names nothing that does not exist'


ATTACKS = [('tools', dict(servers=[dict(name='a', command=['/bin/sh', '-c', 'id'], jailed=False)])), ('tools', dict(jail=dict(readonly={'/etc2': '/etc'}))),
           ('tools', dict(files={'a': 10 ** 12})), ('tools', dict(network=['169.254.169.254'])), ('tools', dict(jail=dict(limits=dict(memory=1 << 50)))),
           ('desktop', dict(jail=None)), ('desktop', dict(env=dict(LD_PRELOAD='/x.so'))), ('desktop_tools', dict(tools=dict(servers=[]))), ('desktop_tools', dict(screen=None)),
           ('browser', dict(folders=['/'])), ('browser', dict(allow=['*'])), ('browser', dict(proxy='evil:1')), ('browser', dict(uploads=['/etc/shadow'])),
           ('android', dict(serials=['emulator-5554'])), ('android', dict(phone=dict(adb=dict(program='/bin/sh')))), ('tools', dict(servers={})), ('android', dict(phone=dict(clear={}))), ('browser', {'clock.mode': 'real'}), ('simulated', {'size.x': 1}), ('simulated', {'': 1})]


@pytest.mark.parametrize('kind, options', ATTACKS, ids=lambda o: o if isinstance(o, str) else json.dumps(o))
def test_what_would_reach_the_host_is_refused(door, kind, options): assert asked(door, kind, options).status_code == 422


BOUNDS = [('browser', dict(size=[100_000, 100_000])), ('browser', dict(size=['100000', '100000'])), ('browser', dict(size=[[100_000], 1])), ('browser', dict(scale=1e9)),
          ('browser', dict(scale=-1)), ('browser', dict(clock=dict(speed=1e9))), ('browser', dict(size=dict(a=1))), ('desktop', dict(size=[10 ** 6, 10 ** 6])), ('tools', dict(size=[10 ** 6, 1])),
          ('android', dict(phone=dict(settle=1e9))), ('browser', dict(clock='real')), ('browser', dict(scale=True))]


@pytest.mark.parametrize('kind, options', BOUNDS, ids=lambda o: o if isinstance(o, str) else json.dumps(o))
def test_sizes_and_times_are_bounded(door, kind, options): assert asked(door, kind, options).status_code == 422


def test_the_manager_says_what_more_there_is(tmp_path):
    kinds = dict(tools=KindConfig(dict(jail=dict(limits=dict(memory=1 << 28))), warm=0, most=0, clients={'most': [100, 500], 'jail.limits': [], 'network': []}), simulated=KindConfig(clients={}))
    force = Workforce(ManagerConfig(str(tmp_path), kinds))
    for options in (dict(most=500), dict(most=100, network=['example.org']), dict(jail=dict(limits=dict(disk=1)))): force.permit('tools', options)
    for options in (dict(most=501), dict(size=[9, 9]), dict(jail=dict(env={}, limits={}), most=200), dict(jail=dict(readonly=dict(a='/')))):
        with pytest.raises(Exception, match='tools') as e: force.permit('tools', options)
        assert e.value.status == 422
    with pytest.raises(Exception, match='none') as e: force.permit('simulated', dict(size=[9, 9]))
    for clients in ({'sise': []}, {'jail.limit.memory': []}, {'size': [1]}, {'size': [3, 1]}):
        with pytest.raises(ValueError, match='clients'): Workforce(ManagerConfig(str(tmp_path), dict(tools=KindConfig(clients=clients))))


def test_an_option_within_a_default_leaves_the_rest_of_it(tmp_path):
    "`screen.size` of a client does not bring the limits of `screen.jail` back to what the class has."
    limits = dict(jail=dict(limits=dict(memory=1 << 28)))
    force = Workforce(ManagerConfig(str(tmp_path), dict(desktop_tools=KindConfig(dict(screen=limits), warm=0))))
    for options in ({}, dict(screen=dict(size=[640, 480])), dict(screen={})):
        force.permit('desktop_tools', options)
        assert force.pool('desktop_tools', options).options['screen']['jail'] == limits['jail']


def test_a_kind_of_ones_own_allows_nothing_until_it_says_so(tmp_path):
    force = Workforce(ManagerConfig(str(tmp_path), dict(mine=KindConfig()), hosts=dict(mine='tests.test_manager_door:OwnHost')))
    with pytest.raises(Exception, match='none'): force.permit('mine', dict(size=[9, 9]))
    assert force.pool('mine', dict(size=[9, 9])).options == dict(size=[9, 9]), 'in Python everything stays free'


class OwnHost:
    config = SimulatedHost.config


# -- where a leased browser may go

async def test_a_leased_browser_opens_what_the_manager_allows(tmp_path):
    secret, page = tmp_path/'secret.html', tmp_path/'open'/'page.html'
    page.parent.mkdir()
    secret.write_text('<title>secret</title>')
    page.write_text('<title>page</title>')
    with serving(kinds=dict(browser=dict(slots=1, most=1, options=dict(size=[120, 80], folders=[str(page.parent)])))) as server:
        async with server.client() as client, client.session('browser') as session:
            for way in (session.goto, session.start):
                for url in (secret.as_uri(), 'file:///etc/passwd', f'{page.parent.as_uri()}/..\\secret.html', f'{page.parent.as_uri()}/%2e%2e/secret.html', f'  {secret.as_uri()}',
                            f"http://127.0.0.1:{server.config['port']}/docs", 'http://169.254.169.254/latest/meta-data', 'view-source:file:///etc/passwd', 'chrome://version', 'javascript:1', 'http://[', ''):
                    with pytest.raises(RuntimeError, match='PermissionError.*folders') as e: await way(url)
                with pytest.raises(RuntimeError): await way(url=secret.as_uri())
                assert (await session.observe()).title == ''
            for url, title in ((page.as_uri(), 'page'), ('data:text/html,<title>data</title>', 'data')):
                await session.goto(url)
                assert (await session.observe()).title == title
            for url in (f'{page.parent.as_uri()}/..\\secret.html', secret.as_uri()):   # as the policy
                with contextlib.suppress(ActionError): await session.act(Action('navigate', dict(content=url)))
                assert (await session.observe()).title != 'secret'


# -- bodies and connections

@pytest.fixture(scope='module')
def open_door():
    "A manager as a process, and its address."
    with serving(kinds=dict(simulated=dict(slots=1, most=1))) as server: yield server, ('127.0.0.1', server.config['port'])


def dial(address, *lines):
    "A connection on which some lines were sent."
    line = socket.create_connection(address, 5)
    line.sendall('\r\n'.join(lines).encode())
    return line


def answered(line, seconds=20):
    "What comes until the other side hangs up or falls silent."
    line.settimeout(seconds)
    text = b''
    with contextlib.suppress(ConnectionError, TimeoutError):
        while not text.endswith(b'}') and (data := line.recv(65536)): text += data
    return text.decode()


def post(token='wrong', *more): return 'POST /leases HTTP/1.1', 'Host: here', 'Content-Type: application/json', f'Authorization: Bearer {token}', *more, '', ''


def poured(address, mib, *head):
    "The answer to a body of zeros, poured out as long as anybody takes it."
    with dial(address, *head) as line:
        line.settimeout(5)
        with contextlib.suppress(OSError):
            for _ in range(mib): line.sendall(bytes(1 << 20))
        return answered(line, 5)


def test_a_strangers_body_is_not_kept(open_door):
    server, address = open_door
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    for _ in range(5): assert poured(address, 100, *post('wrong', f'Content-Length: {100 << 20}')).startswith('HTTP/1.1 401')
    assert process.memory_info().rss - before < 20 << 20


@pytest.mark.parametrize('length', ['Content-Length: 100000000', 'Transfer-Encoding: chunked'])
def test_a_body_is_bounded(open_door, length):
    server, address = open_door
    process, token = psutil.Process(server.process.pid), (server.folder/'token').read_text()
    before, line = process.memory_info().rss, dial(address, *post(token, length))
    with line, contextlib.suppress(OSError):
        for _ in range(20): line.sendall((b'100000\r\n' if 'chunked' in length else b'') + bytes(1 << 20) + (b'\r\n' if 'chunked' in length else b''))
    with dial(address, *post(token, length)) as line:
        line.sendall(b'200000\r\n' + bytes(1 << 21))
        assert '413' in (said := answered(line)).split('\r\n')[0] and 'too long' in said
    assert process.memory_info().rss - before < 20 << 20 and server.get('/health') == dict(status='ok')


def test_a_refusal_comes_before_the_body(open_door):
    "`curl` asks first; nothing is sent in vain."
    for token, status in (('wrong', '401'), ((open_door[0].folder/'token').read_text(), '413')):
        with dial(open_door[1], *post(token, 'Expect: 100-continue', f'Content-Length: {1 << 30}')) as line: assert status in answered(line).split('\r\n')[0]


SLOW = dict(nothing=[], head=['GET /health HTTP/1.1', 'X-Slow: '], body_refused=[*post('wrong', 'Content-Length: 1000')], second=['GET /health HTTP/1.1', 'Host: here', '', 'GET /health HT'])


def trickled(address, way):
    "Whether the connection was cut, and after how many seconds."
    line, start, cut = dial(address, *SLOW[way]), time.monotonic(), False
    line.settimeout(.5)
    while not cut and time.monotonic() - start < 40:
        try:
            if way != 'nothing': line.sendall(b'a')
            cut = not line.recv(65536)
        except TimeoutError: continue
        except OSError: cut = True
    seconds = time.monotonic() - start
    line.close()
    return cut, seconds


@pytest.fixture(scope='module')
def cut(open_door):
    "What became of each way, all at the same time."
    with ThreadPoolExecutor(len(SLOW)) as pool: return dict(zip(SLOW, pool.map(lambda way: trickled(open_door[1], way), SLOW)))


@pytest.mark.parametrize('way', SLOW)
def test_who_sends_byte_by_byte_is_cut(open_door, cut, way):
    "10 s for a head, whatever trickles in."
    was_cut, seconds = cut[way]
    assert was_cut and seconds < 30
    assert open_door[0].get('/health') == dict(status='ok')


def test_a_slow_body_is_cut(open_door, monkeypatch):
    "In process, where the time limit can be short: 408, and the connection is closed."
    import threading, uvicorn
    from uitars_nb.core import asgi
    async def app(scope, receive, send): await asgi.refuse(send, 200, (await receive())['body'].decode())
    server = uvicorn.Server(uvicorn.Config(asgi.RequestGuard(app, seconds=.5), port=0, http=asgi.HeadTimeLimit, log_level='error', lifespan='off'))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started: time.sleep(.01)
    address = server.servers[0].sockets[0].getsockname()
    with dial(address, *post('x', 'Content-Length: 5'), ) as line:
        for byte in b'hell': line.sendall(bytes([byte])); time.sleep(.05)
        said = answered(line)
        assert '408' in said.split('\r\n')[0] and 'within 0.5 s' in said
        line.settimeout(10)
        assert line.recv(10) == b''
    with dial(address, *post('x', 'Content-Length: 5')) as line:
        line.sendall(b'hello')
        assert 'hello' in answered(line)
    server.should_exit = True
    thread.join(20)


def test_a_websocket_and_a_long_answer_are_not_cut(open_door):
    "The time limit is for heads of requests only."
    from websockets.sync.client import connect
    server, (host, port) = open_door
    token = (server.folder/'token').read_text()
    with connect(f'ws://{host}:{port}/ws', additional_headers={'Authorization': f'Bearer {token}'}, proxy=None) as ws:
        ws.send(json.dumps([dict(id=1, op='acquire', kind='simulated')]))
        lease = json.loads(ws.recv(60))[0]['ok']['id']
        body = json.dumps(dict(kind='simulated', wait=13))   # the only session is taken
        with dial((host, port), *post(token, f'Content-Length: {len(body)}')) as line:
            line.sendall(body.encode())
            assert ' 503 ' in answered(line, 60)
        ws.send(json.dumps(dict(id=2, op='release', lease=lease)))
        assert json.loads(ws.recv(30))[0]['id'] == 2


def test_a_line_is_read_no_further_than_its_answers_are_taken(tmp_path):
    "Many requests in one message: no more are under way than the user may have leases, twice over."
    config = ManagerServerConfig(ManagerConfig(str(tmp_path), dict(simulated=KindConfig(warm=0, most=0)), quota=50, max_wait=1), tokens=dict(s3cret='ann'))
    with TestClient(app := make_app(config), headers=dict(Authorization='Bearer s3cret')) as client, client.websocket_connect('/ws') as ws:
        ws.send_json([dict(id=i, op='acquire', kind='simulated', wait=1) for i in range(5000)])
        seen, most = {}, 0
        while len(seen) < 5000:
            for o in ws.receive_json(): seen[o['id']] = o['error']['status']
            most = max(most, len(app.state.manager.asking) + sum(len(p.queue) for p in app.state.manager.pools.values()), client.portal.call(tasks))
        assert most < 400 and set(seen.values()) == {429, 503}


async def tasks(): return len(asyncio.all_tasks())


# -- what lies in the folder

@pytest.mark.parametrize('before', [False, True])
def test_the_ledger_is_its_owners_alone(tmp_path, before):
    path, mask = tmp_path/'manager.db', os.umask(0o022)
    try:
        if before:   # made by an earlier version, and open to all
            old = sqlite3.connect(path, isolation_level=None)
            old.execute('pragma journal_mode=wal')
            old.execute('create table x(y)')
            assert oct(path.stat().st_mode)[-3:] == '644' and len([*tmp_path.iterdir()]) == 3
        ledger = Ledger(path)
        ledger.forget(0)
        assert {o.name: oct(o.stat().st_mode)[-3:] for o in tmp_path.iterdir()} == {f'manager.db{o}': '600' for o in ('', '-wal', '-shm')}
        ledger.close()
    finally: os.umask(mask)


def test_no_secret_lies_open_in_a_folder_that_was_there(open_door):
    server, _ = open_door
    modes = {o.name: oct(o.stat().st_mode)[-3:] for o in server.folder.iterdir() if o.name not in ('config.json', 'manager.log', 'door.json') and o.suffix != '.address'}
    assert len(modes) > 5 and set(modes.values()) == {'600'}, modes


def test_help_says_what_a_token_allows():
    done = subprocess.run([sys.executable, '-m', 'uitars_nb.sandbox.manager.api', '--help'], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and 'Clients may set these options' in done.stdout and 'clock.mode' in done.stdout and 'servers' not in done.stdout


# -- what a token shows, and how much it may ask for

def test_a_client_is_shown_no_option_that_it_could_not_set(tmp_path):
    "The manager's own may hold tokens: of a tool server, say."
    secret = dict(tools=dict(servers=[dict(name='a', url='http://127.0.0.1:9', headers=dict(Authorization='hush'))], network=['inner.example']), screen=dict(size=[320, 240], env=dict(KEY='hush')))
    kinds = dict(desktop_tools=KindConfig(secret, warm=0, most=0), mine=KindConfig(dict(failing=.01, size=[9, 8]), slots=1, most=1, clients={'failing': []}))
    config = ManagerServerConfig(ManagerConfig(str(tmp_path), kinds, hosts=dict(mine='tests.test_manager_door:QuietHost')), tokens=dict(s3cret='ann'))
    with TestClient(app := make_app(config), headers=dict(Authorization='Bearer s3cret')) as client:
        force = app.state.manager
        assert force.shown('desktop_tools', secret) == dict(screen=dict(size=[320, 240]))
        lease = client.post('/leases', json=dict(kind='mine')).json()
        with client.websocket_connect('/ws') as ws:
            ws.send_json([dict(id=1, op='acquire', kind='mine', wait=0), dict(id=2, op='acquire', kind='desktop_tools', wait=5)])
            while 'desktop_tools' not in client.get('/pools').text: time.sleep(.02)
            said = [lease, client.get('/leases').json(), client.get(f'/leases/{lease["id"]}').json(), client.post(f'/leases/{lease["id"]}/heartbeat').json(), client.get('/pools').json(), ws.receive_json()]
        assert lease['options'] == dict(failing=.01) and 'hush' not in (text := json.dumps(said)) and 'inner' not in text and '[9, 8]' not in text and 'desktop_tools' in text
        client.portal.call(force.drain, 0)


class QuietHost(SimulatedHost):
    "Says of none of its options that it is harmless."
    clients = {}


def test_so_many_variants_of_a_kind_and_no_more(tmp_path):
    "Ten thousand requests, each for other options: the manager still answers at once."
    config = ManagerServerConfig(ManagerConfig(str(tmp_path), dict(simulated=KindConfig(warm=0, most=0))), tokens=dict(s3cret='ann'))
    with TestClient(app := make_app(config), headers=dict(Authorization='Bearer s3cret')) as client, client.websocket_connect('/ws') as ws:
        for part in range(10): ws.send_json([dict(id=i, op='acquire', kind='simulated', wait=60, options=dict(open_s=i / 1000)) for i in range(1000 * part, 1000 * part + 1000)])
        seen = []
        while len(seen) < 10_000 - 100: seen += [o['error']['status'] for o in ws.receive_json()]
        assert set(seen) == {429} and len(app.state.manager.pools) == 100
        client.portal.call(app.state.manager.drain, 0)


async def test_a_session_is_sized_by_what_is_shown(tmp_path):
    with serving(kinds=dict(simulated=dict(slots=1, most=1, options=dict(size=[30, 20]), clients={}))) as server:
        async with server.client() as client, client.session('simulated') as session:
            assert session.size == (30, 20) == session.config.size
