"The guest as a program: who may ask, what it answers, and that a session through it is like one beside it."
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure, Session
from uitars_nb.sandbox.desktop.session import DesktopConfig, DesktopSession
from uitars_nb.sandbox.desktop.guest import make_app
from uitars_nb.sandbox.desktop.remote import LookTiming, RemoteGuest, duration
from uitars_nb.sandbox.desktop.screens import Receiver, Sender

missing = [o for o in ('Xvfb', 'openbox', 'xclip', 'xterm') if not shutil.which(o)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f'the desktop needs {", ".join(missing)}: make setup installs them')
PATIENT = LookTiming(quiet=.15, most=3, timeout=60)
ROUTES = [('GET', o) for o in ('/', '/screen', '/windows', '/ready', '/clipboard')] + [('POST', o) for o in ('/act', '/reset', '/launch', '/sweep', '/recording')]
ROUTES += [('PUT', '/clipboard'), ('DELETE', '/recording')]


@pytest.fixture(scope='module')
def guest():
    "A guest with a display of its own; what it said when it started."
    command = [sys.executable, '-m', 'uitars_nb.sandbox.desktop.guest', '--desktop', '640x480', '--with-stdin']
    env = os.environ | dict(UITARS_GUEST_TOKEN='the-token', SECRET_OF_THE_HOST='x')
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    yield json.loads(process.stdout.readline()) | dict(pid=process.pid)
    process.stdin.close()
    assert process.wait(30) == 0


def url(guest): return f'http://127.0.0.1:{guest["port"]}'


@pytest.fixture
async def session(guest):
    session = await RemoteGuest(url(guest), 'the-token', PATIENT).start()
    yield session
    await session.reset()
    await session.close()


@pytest.mark.parametrize('token', ['', 'guess', 'the-toke', 'the-token2', 'é'])
async def test_nobody_gets_in_without_the_token(guest, token):
    async with httpx.AsyncClient(base_url=url(guest), timeout=30) as client:
        for method, path in ROUTES:
            answer = await client.request(method, path, headers={b'Authorization': b'Bearer ' + token.encode()} if token else {})
            assert answer.status_code == 401 and 'token' in answer.text, (method, path)
        assert {(await client.get(o)).status_code for o in ('/docs', '/openapi.json')} == {404}


def test_an_empty_token_lets_nobody_in():
    with pytest.raises(ValueError, match='needs a token'): make_app(None, '')


def test_recordings_leave_no_descriptor_open(monkeypatch):
    class Film:
        def __init__(self, path, size, fps): self.path = Path(path)
        def stop(self): return self.path
    monkeypatch.setattr('uitars_nb.sandbox.desktop.guest.Recording', Film)
    with TestClient(make_app(SimpleNamespace(recording=None, size=(4, 3)), 't'), headers=dict(Authorization='Bearer t')) as client:
        def film(): return [client.request(o, '/recording', json=dict(fps=8)).status_code for o in ('POST', 'DELETE')], len(os.listdir('/proc/self/fd'))
        film()
        assert film() == film()


def test_a_recording_that_cannot_begin_leaves_no_file(monkeypatch, tmp_path):
    def fail(*_): raise FileNotFoundError('recording needs ffmpeg')
    monkeypatch.setattr('uitars_nb.sandbox.desktop.guest.Recording', fail)
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    with TestClient(make_app(SimpleNamespace(recording=None, size=(4, 3)), 't'), headers=dict(Authorization='Bearer t'), raise_server_exceptions=False) as client:
        assert client.post('/recording', json=dict(fps=8)).status_code >= 400 and not [*tmp_path.iterdir()]


async def test_a_wrong_token_is_told_as_such(guest):
    with pytest.raises(PermissionError, match='refused the token'): await RemoteGuest(url(guest), 'guess', PATIENT).start()


def test_it_listens_on_loopback_only(guest):
    own = {a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {'127.0.0.1', '127.0.1.1'}
    for address in own:
        with pytest.raises(OSError): socket.create_connection((address, guest['port']), timeout=2)
    socket.create_connection(('127.0.0.1', guest['port']), timeout=10).close()


async def test_its_programs_know_nothing_of_the_host_or_the_token(session):
    await session.ask('POST', '/launch', json=dict(argv=['sh', '-c', 'env > /tmp/uitars-env-of-a-program']))
    out = Path('/tmp/uitars-env-of-a-program')
    for _ in range(200):
        if out.exists() and 'DISPLAY' in out.read_text(): break
        await asyncio.sleep(.05)
    said = out.read_text()
    out.unlink()
    assert 'DISPLAY=' in said and 'SECRET_OF_THE_HOST' not in said and 'the-token' not in said


BAD = [('/act', {}), ('/act', dict(name='click')), ('/act', dict(name=3, args=[])), ('/act', dict(name='click', args=dict(point='here'))),
       ('/act', dict(name='type', args=dict(content=None))), ('/launch', dict(argv=[])), ('/launch', dict(argv=['a\0b'])), ('/launch', dict(argv=['no-such-program'])),
       ('/launch', dict(argv='xterm')), ('/launch', dict(argv=['xterm'], cwd='/no/such/folder')),
       ('/recording', dict(fps=0)), ('/recording', dict(fps=1e9))]


@pytest.mark.parametrize('path,body', BAD, ids=str)
async def test_nonsense_is_refused_and_harms_nothing(session, path, body):
    with pytest.raises(ActionError) as e: await session.ask('POST', path, json=body)
    assert str(e.value)
    assert (await session.observe()).screenshot.shape == (480, 640, 3)


async def test_a_screen_is_what_is_there(session, guest):
    "Two looks at a still screen are equal, and one after a change differs where it changed."
    a, b = await session.observe(), await session.observe()
    assert np.array_equal(a.screenshot, b.screenshot) and b.clock_ms > a.clock_ms
    await session.begin(['xterm', '-geometry', '20x5+100+50', '-bg', '#ff0000'])
    for _ in range(100):
        c = await session.observe()
        if (c.screenshot == [255, 0, 0]).all(-1).sum() > 1000: break
    ys, xs = np.nonzero((c.screenshot != a.screenshot).any(-1))
    assert (xs.min(), ys.min()) == (100, 50), 'without a window manager a window stands where it says'


async def test_nothing_answers():
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); free = s.getsockname()[1]
    with pytest.raises(EnvironmentFailure) as e: await RemoteGuest(f'http://127.0.0.1:{free}', 'x', PATIENT).start()
    assert e.value.reason is StopReason.ENV_CRASH


async def test_something_else_answers():
    async def serve(reader, writer):
        await reader.readuntil(b'\r\n\r\n')
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}')
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    with pytest.raises(ValueError, match='no guest'): await RemoteGuest(f'http://127.0.0.1:{server.sockets[0].getsockname()[1]}', 'x', PATIENT).start()
    server.close()


def test_how_long_an_action_may_take():
    assert duration(Action('wait', dict(time=30))) == 30 and duration(Action('wait', {})) == 5
    assert duration(Action('type', dict(content='x' * 500))) == 10 and duration(Action('wait', dict(time='long'))) == 0


async def test_a_remote_session_equals_a_local_one():
    "The same actions on a desktop and through a second connection to its guest give the same screens."
    local = await DesktopSession(DesktopConfig(size=(640, 480), looking=PATIENT, start_timeout=90)).start()
    remote = await RemoteGuest(str(local.client.base_url), local.token, PATIENT).start()
    try:
        assert isinstance(remote, Session) and remote.size == local.size
        await local.launch('terminal', '-T', 'shared')
        script = [('type', dict(content='echo one\n')), ('click', dict(point=(500, 500))), ('hotkey', dict(key='ctrl l')), ('scroll', dict(direction='up'))]
        shots = []
        for session in (local, remote):
            await local.reset()
            window = await local.launch('terminal', '-T', 'shared')
            await local.observe()
            for name, args in script: await session.act(Action(name, args))
            seen = await session.observe()
            shots.append(seen.screenshot)
            assert seen.title == window.title == 'shared' and await remote.windows() == await local.windows()
        assert np.array_equal(*shots)
        await remote.copy('from the remote')
        assert await local.clipboard() == 'from the remote'
    finally:
        await remote.close()
        await local.close()


def test_a_wrong_command_line_says_so():
    done = subprocess.run([sys.executable, '-m', 'uitars_nb.sandbox.desktop.guest', '--desktop', 'large'], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and 'such as 1024x768' in done.stderr


def test_a_guest_without_a_display_says_so():
    env = {k: v for k, v in os.environ.items() if k != 'DISPLAY'}
    done = subprocess.run([sys.executable, '-m', 'uitars_nb.sandbox.desktop.guest'], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and '--desktop' in done.stderr and 'Traceback' not in done.stderr


async def test_a_furnished_guest_is_a_desktop_by_itself(tmp_path):
    "What the images run: window manager, panel and home without a session that brings them."
    home = tmp_path/'home'
    command = [sys.executable, '-m', 'uitars_nb.sandbox.desktop.guest', '--desktop', '640x480', '--furnish', str(home), '--with-stdin']
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    facts = json.loads(process.stdout.readline())
    session = await RemoteGuest(url(facts), facts['token'], PATIENT).start()
    try:
        await session.reset()
        blank = (await session.observe()).screenshot
        assert (home/'.config'/'openbox'/'rc.xml').exists() and len(np.unique(blank.reshape(-1, 3), axis=0)) > 10, 'the panel is there'
        (home/'left.txt').write_text('left')
        await session.launch('terminal')
        await session.reset()
        assert not (home/'left.txt').exists() and np.array_equal((await session.observe()).screenshot, blank)
    finally:
        await session.close()
        process.stdin.close()
        assert process.wait(30) == 0


ELSEWHERE = """
import sys
import asyncio, cattrs, fastapi, httpx, lz4.block, multiprocessing, numpy, PIL.Image, psutil, subprocess, uvicorn
for name in ('fcntl', 'resource', 'termios', 'pty', 'grp', 'pwd', 'Xlib'): sys.modules[name] = None
sys.platform = sys.argv[1]
from uitars_nb.sandbox.desktop import gestures
from uitars_nb.sandbox.desktop import guest
from uitars_nb.sandbox.desktop import recording
assert not gestures.is_x11() and (gestures.NOTCH, recording.source((1, 1), 8)[1]) == dict(win32=(120, 'gdigrab'), darwin=(1, 'avfoundation'))[sys.argv[1]]
"""


@pytest.mark.parametrize('system', ['win32', 'darwin'])
def test_it_imports_without_what_other_systems_lack(system):
    "No Windows or Mac runs this; that nothing of X11 or POSIX is imported at the top can be seen here."
    done = subprocess.run([sys.executable, '-c', ELSEWHERE, system], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1500:]


def test_what_arrives_is_the_screen_whatever_was_lost_between():
    "Two receivers, answers that get lost, screens that change in part, not at all or in size, a server that starts anew."
    rng, sender, receivers, partial = np.random.default_rng(0), Sender(), [Receiver(), Receiver()], 0
    pixels = rng.integers(0, 256, (30, 40, 4), dtype=np.uint8)
    for _ in range(400):
        pixels = pixels.copy()
        if rng.random() < .7: pixels[tuple(rng.integers(pixels.shape[:2]))] = rng.integers(0, 256, 4)
        if rng.random() < .05: pixels = rng.integers(0, 256, (*rng.choice([20, 30, 40], 2), 4), dtype=np.uint8)
        if rng.random() < .02: sender = Sender()
        size, to = pixels.shape[1::-1], receivers[int(rng.random() < .2)]
        data, rows, frame = sender.pack(pixels.tobytes(), size, to.frame)
        if rng.random() < .1: continue   # lost on its way
        partial += rows != (0, size[1])
        before = to.screen.copy() if to.screen is not None else None
        kept, seen = to.screen, to.unpack(data, size, rows, frame)
        assert np.array_equal(seen, pixels[..., 2::-1]) and not seen.flags.writeable
        assert before is None or np.array_equal(kept, before), 'a screen that was given away has changed'
    assert partial > 100
