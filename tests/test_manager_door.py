"What somebody can do to a manager from outside: with a token, with a wrong one, and with none."
import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

import psutil
import pytest
from fastapi.testclient import TestClient

from tests.bench.bench_manager import serving
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.kinds import KINDS, SimulatedHost, host_class
from uitars_nb.sandbox.ledger import Ledger
from uitars_nb.sandbox.manager_api import DoorConfig, make_app
from uitars_nb.sandbox.workforce import KindConfig, ManagerConfig, Workforce

pytestmark = pytest.mark.timeout(180)


# -- which options a client may set

BROWSER = {'size', 'window', 'scale', 'scroll_px', 'clock.mode', 'clock.speed', 'clock.step_ms', 'clock.start'}
DESKTOP = {'size', 'looking.quiet', 'looking.most'}
within = lambda part, names: {f'{part}.{o}' for o in names}
MAY = dict(simulated={'size', 'open_s', 'reset_s', 'failing'}, browser=BROWSER, desktop=DESKTOP, windows=DESKTOP, tools={'size'},
           android=within('phone', {'settle', 'swipe_ms', 'hold_ms', 'scroll'}), browser_tools=within('screen', BROWSER), desktop_tools=within('screen', DESKTOP))


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
    from uitars_nb.sandbox.android import AndroidConfig
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
    config = DoorConfig(ManagerConfig(str(tmp_path_factory.mktemp('m')), {kind: KindConfig(warm=0, most=0) for kind in KINDS}), tokens=dict(s3cret='ann'))
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
