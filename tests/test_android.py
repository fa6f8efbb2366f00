"Phones: the real adb client over the wire against a simulated device; episodes, text, faults."
import asyncio
import io
import os
import shutil
import time
import zipfile

import numpy as np
import psutil
import pytest

from tests.adb_device import HOME, IME, NOTES, SETTINGS, AdbServer, Phone
from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.android.adb import Adb, AdbConfig, AdbFailure, AdbTrouble, call, devices, classify_trouble
from uitars_nb.sandbox.android.device import install, pull, push, ready, snapshot, uninstall
from uitars_nb.sandbox.android.session import AndroidConfig, AndroidSession
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure, Session, Sync
from uitars_nb.sandbox.android.text import type_commands

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(not shutil.which('adb'), reason='no adb here: sudo apt-get install adb')]


@pytest.fixture
async def server():
    async with AdbServer() as server: yield server


@pytest.fixture
async def phone(server):
    async with Phone() as phone: yield phone


def session_on(phone, server, serial=None, timeout=20, ready=20, **kw):
    return AndroidSession(serial or phone.address, AndroidConfig(AdbConfig(port=server.port, timeout=timeout), settle=0, ready=ready, **kw))


@pytest.fixture
async def session(phone, server):
    session = session_on(phone, server)
    await session.reset()
    yield session
    await session.close()


async def do(session, name, **args):
    await session.act(Action(name, args))
    return await session.observe()


def apk(path, package='org.example.maps', label='Maps'):
    with zipfile.ZipFile(path, 'w') as z: z.writestr('AndroidManifest.xml', f'{package}\n{label}\n')
    return path


# -- several displays

WARNING = b"""[Warning] Multiple displays were found, but no display id was specified! Defaulting to the first display found, however this default is not guaranteed to be consistent across captures. A display id should be specified.
A display ID can be specified with the [-d display-id] option.
See "dumpsys SurfaceFlinger --display-id" for valid display IDs.
"""


@pytest.mark.parametrize('pixel_format', [1, 43])   # the second is read as a PNG
@pytest.mark.parametrize('end', [b'', b'\n'])
async def test_a_warning_before_the_pixels_is_read_past(session, phone, pixel_format, end):
    plain = (await session.observe()).screenshot
    phone.warning, phone.pixel_format = WARNING + end, pixel_format
    assert np.array_equal((await session.observe()).screenshot, plain)


async def test_words_without_pixels_are_told(session, phone, monkeypatch):
    phone.warning, phone.header = b'Error: the display is off\n', 0
    monkeypatch.setattr('tests.adb_device.commands.picture', lambda *_: b'')
    with pytest.raises(EnvironmentFailure, match='the display is off'): await session.observe()


async def test_another_display_is_seen_and_touched(phone, server):
    second = np.full((300, 500, 3), (10, 120, 200), np.uint8)
    phone.warning, phone.displays = WARNING, {'4619827259835644672': None, '4619827259835644673': second}
    session = session_on(phone, server, display='4619827259835644673', touch=2)
    await session.reset()
    try:
        assert np.array_equal((await session.observe()).screenshot, second)
        await do(session, 'click', point=(500, 500))
        await do(session, 'type', content='input tap 1 1\n')
        await do(session, 'open_app', app_name='notes')
        assert [o[:3] for o in phone.elsewhere] == [['input', '2', 'tap'], ['input', '2', 'keyevent'], ['am', '2', phone.elsewhere[-1][2]]]
        assert phone.elsewhere[0][3:] == ['250', '150'] and phone.elsewhere[-1][2].startswith(NOTES)
        assert (await session.observe()).url == f'android-app://{HOME}', 'the main display is left alone'
    finally: await session.close()


async def test_a_display_that_is_not_there_is_told(phone, server):
    phone.displays = {'1': None}
    session = session_on(phone, server, display='7')
    with pytest.raises(EnvironmentFailure, match='--display-id` lists the displays'): await session.reset()
    await session.close()


# -- episodes

async def test_an_episode(session, phone):
    obs = await session.observe()
    assert isinstance(session, Session) and obs.screenshot.shape == (640, 360, 3) and obs.url == f'android-app://{HOME}'
    assert (await do(session, 'open_app', app_name='Notes')).url == f'android-app://{NOTES}'
    assert (await do(session, 'click', point=(500, 150))).title == '.EditActivity'
    before = await session.observe()
    after = await do(session, 'type', content='Grüße, 世界 🎈\nline two')
    assert phone.state.data[NOTES]['notes'] == ['Grüße, 世界 🎈\nline two']
    assert (before.screenshot != after.screenshot).any()
    await do(session, 'press_back')                                     # the keyboard
    assert (await do(session, 'press_back')).title == '.MainActivity'   # the page
    assert (await do(session, 'press_home')).url == f'android-app://{HOME}'
    assert (await do(session, 'click', point=(170, 200))).url == f'android-app://{NOTES}'  # by its icon
    await do(session, 'long_press', point=(500, 250))                   # deletes the note
    assert phone.state.data[NOTES]['notes'] == []


async def test_scroll_reaches_what_is_below(session, phone):
    await do(session, 'open_app', app_name='settings')
    for _ in range(6): obs = await do(session, 'scroll', direction='down')
    bottom = await do(session, 'scroll', direction='down', point=(500, 990))
    assert np.array_equal(obs.screenshot, bottom.screenshot) and phone.state.page.offset > 500
    assert (await do(session, 'click', point=(500, 960))).title == '.AboutActivity'
    await do(session, 'press_back')
    for _ in range(7): await do(session, 'scroll', direction='up')
    assert phone.state.page.offset == 0


async def test_turned_on_its_side_points_follow(session, phone):
    await do(session, 'open_app', app_name='settings')
    await do(session, 'click', point=(500, 770))
    obs = await do(session, 'click', point=(900, 150))
    assert obs.screenshot.shape == (360, 640, 3) and session.size == (640, 360)
    assert (await session.facts()).rotation == 1 and (await session.facts()).size == (360, 640)
    await do(session, 'drag', start_point=(100, 430), end_point=(750, 430))   # the brightness
    assert abs(int(phone.state.settings['system', 'screen_brightness']) / 255 - .75) < .01
    await session.reset()
    assert session.size == (360, 640)


async def test_reset_leaves_nothing(session, phone, server, tmp_path):
    await install(session.adb, apk(tmp_path/'maps.apk'))
    (tmp_path/'secret.txt').write_text('secret')
    await push(session.adb, tmp_path/'secret.txt', '/sdcard/Download/secret.txt')
    await do(session, 'open_app', app_name='Notes')
    await do(session, 'click', point=(500, 150))
    await do(session, 'type', content='secret')
    await session.reset()
    assert 'secret' not in repr(phone.state.data) and not phone.state.files and phone.state.front == HOME and NOTES not in phone.state.stacks
    await do(session, 'open_app', app_name='maps')   # programs stay


async def test_the_keyboard_is_given_back(phone, server):
    session = session_on(phone, server)
    await session.reset()
    await session.reset()
    assert phone.state.settings['secure', 'default_input_method'] == IME
    await session.close()
    assert phone.state.settings['secure', 'default_input_method'] == 'org.example.latin/.Latin'
    with pytest.raises(EnvironmentFailure): await session.observe()


async def test_a_synchronous_face(phone, server):
    face = Sync(session_on(phone, server))
    def play():
        with face:
            face.reset()
            face.act(Action('open_app', dict(app_name='Notes')))
            return face.observe().url
    assert await asyncio.to_thread(play) == f'android-app://{NOTES}'


# -- text

NASTY = ['a b', '%s', '100%sure', "it's \"q\" `id` $(id) $HOME \\n ; rm -rf / & | > < * ? [a] {b} ~ # !", ' lead and trail ', '%', '-n', '--', "'"]

@pytest.mark.parametrize('keyboard', [True, False])
async def test_text_arrives_as_it_is(server, keyboard):
    async with Phone(keyboard=keyboard) as phone:
        session = session_on(phone, server)
        await session.reset()
        assert session.unicode == keyboard
        await do(session, 'open_app', app_name='Notes')
        await do(session, 'click', point=(500, 150))
        for text in NASTY: await session.act(Action('type', dict(content=text + '\n')))
        assert phone.state.data[NOTES]['notes'] == [''.join(t + '\n' for t in NASTY)]
        long = ''.join(chr(33 + i % 90) for i in range(1800))
        await session.act(Action('type', dict(content=long)))
        assert phone.state.data[NOTES]['notes'][0].endswith(long)


async def test_a_phone_without_the_keyboard_says_so(server):
    async with Phone(keyboard=False) as phone:
        session = session_on(phone, server)
        await session.reset()
        with pytest.raises(ActionError, match='cannot type'): await session.act(Action('type', dict(content='世界')))


def test_only_text_beyond_ascii_needs_the_keyboard():
    assert type_commands('', False) == []
    with pytest.raises(ActionError): type_commands('ok\x07', False)


# -- the policy's errors

@pytest.mark.parametrize('name, args', [
    ('open_app', dict(app_name='Teleport')), ('open_app', dict(app_name='$(reboot)')), ('navigate', dict(content='a')), ('click', {}),
    ('click', dict(point=(0, 1001))), ('finished', {}), ('hotkey', dict(key='ctrl a'))])
async def test_what_the_policy_got_wrong(session, name, args):
    with pytest.raises(ActionError): await session.act(Action(name, args))


async def test_a_long_wait_ends(phone, server):
    session = session_on(phone, server, longest_wait=.05)
    await session.reset()
    start = time.perf_counter()
    await session.act(Action('wait', dict(time=10 ** 6)))
    assert time.perf_counter() - start < 5


# -- devices

async def test_many_phones_by_serial(server):
    async with Phone((320, 480)) as a, Phone((360, 640)) as b:
        one, two = session_on(a, server), session_on(b, server)
        await asyncio.gather(one.reset(), two.reset())
        await asyncio.gather(do(one, 'open_app', app_name='Notes'), do(two, 'open_app', app_name='Settings'))
        assert (a.state.front, b.state.front) == (NOTES, SETTINGS) and (one.size, two.size) == ((320, 480), (360, 640))
        assert {d.serial for d in await devices(one.adb.config)} >= {a.address, b.address}


async def test_programs_and_files(session, phone, tmp_path):
    await install(session.adb, apk(tmp_path/'maps.apk'))
    assert (await do(session, 'open_app', app_name='maps')).url == 'android-app://org.example.maps'
    await uninstall(session.adb, 'org.example.maps')
    with pytest.raises(AdbFailure) as e: await uninstall(session.adb, 'org.example.maps')
    assert e.value.trouble == AdbTrouble.REFUSED
    data = os.urandom(300_000)
    (tmp_path/'a b.bin').write_bytes(data)
    await push(session.adb, tmp_path/'a b.bin', '/sdcard/Download/a b.bin')
    await pull(session.adb, '/sdcard/Download/a b.bin', tmp_path/'back.bin')
    assert phone.state.files['/sdcard/Download/a b.bin'] == data == (tmp_path/'back.bin').read_bytes()
    (tmp_path/'bad.apk').write_bytes(b'no zip')
    for full, trouble, reason in ((False, AdbTrouble.REFUSED, StopReason.ENV_CRASH), (True, AdbTrouble.FULL, StopReason.ENV_RESOURCE)):
        phone.full = full
        with pytest.raises(AdbFailure) as e: await install(session.adb, tmp_path/'bad.apk')
        assert (e.value.trouble, e.value.reason) == (trouble, reason)
    with pytest.raises(AdbFailure) as e: await push(session.adb, tmp_path/'a b.bin', '/sdcard/full.bin')
    assert e.value.trouble == AdbTrouble.FULL
    with pytest.raises(FileNotFoundError): await install(session.adb, tmp_path/'none.apk')


async def test_programs_of_an_old_phone(server, tmp_path):
    "No shell v2, no streamed install, no colour space in the screenshot."
    async with Phone(features='') as phone:
        phone.header = 12
        session = session_on(phone, server)
        await session.reset()
        await install(session.adb, apk(tmp_path/'maps.apk'))
        assert (await do(session, 'open_app', app_name='maps')).url == 'android-app://org.example.maps'
        with pytest.raises(AdbFailure) as e: await session.adb.shell('am start -n a.b/.C')
        assert e.value.trouble == AdbTrouble.REFUSED and 'does not exist' in str(e.value)


async def test_an_emulator_goes_back_to_its_snapshot(phone, server):
    session = session_on(phone, server, serial=await phone.register(server.port), snapshot='clean')
    await ready(session.adb)
    with pytest.raises(EnvironmentFailure) as e: await session.reset()
    assert e.value.reason == StopReason.ENV_RESET and 'no snapshot clean' in str(e.value)
    await snapshot(session.adb, 'save', 'clean')
    await session.reset()
    await do(session, 'open_app', app_name='settings')
    await do(session, 'click', point=(500, 770))
    await do(session, 'drag', start_point=(100, 250), end_point=(900, 250))
    assert phone.state.settings['system', 'screen_brightness'] != '100'
    await session.reset()
    assert phone.state.settings['system', 'screen_brightness'] == '100' and phone.state.front == HOME
    await snapshot(session.adb, 'delete', 'clean')
    with pytest.raises(ValueError, match='emulator'): await snapshot(Adb(phone.address, session.adb.config), 'save', 'x')


async def test_png_where_raw_pixels_are_unknown(phone, server):
    phone.pixel_format = 22   # RGBA_FP16
    session = session_on(phone, server)
    await session.reset()
    assert session.png and (await session.observe()).screenshot.shape == (640, 360, 3)


async def test_both_forms_show_the_same(session):
    raw = (await session.observe()).screenshot
    session.png = True
    assert np.array_equal(raw, (await session.observe()).screenshot)


# -- keys

async def test_a_phone_that_asks_lets_us_in_and_remembers(server):
    async with Phone(auth=True) as phone:
        await session_on(phone, server).reset()
        assert len(phone.keys) == 1
        phone.pull_out()
        phone.trusting = False
        await phone.plug_in()
        await session_on(phone, server).reset()   # by the key it knows


async def test_a_phone_that_does_not_let_us_in(server):
    async with Phone(auth=True, trusting=False) as phone:
        session = session_on(phone, server, ready=1)
        with pytest.raises(EnvironmentFailure, match='allow this machine') as e: await session.reset()
        assert e.value.reason == StopReason.ENV_RESET and e.value.__cause__.trouble == AdbTrouble.UNAUTHORIZED
        with pytest.raises(AdbFailure) as e: await session.adb.shell('true')
        assert e.value.trouble == AdbTrouble.UNAUTHORIZED


# -- faults

@pytest.mark.parametrize('service', ['input tap', 'screencap', 'dumpsys'])
async def test_the_cable_is_pulled_in_mid_command(session, phone, service):
    session.config = AndroidConfig(session.adb.config, settle=0, ready=1)
    phone.vanish = service
    with pytest.raises(EnvironmentFailure) as e:
        await session.act(Action('click', dict(point=(500, 500))))
        await session.observe()
    assert e.value.reason == StopReason.ENV_CRASH
    phone.vanish = None
    await phone.plug_in()
    await session.reset()
    assert (await session.observe()).url == f'android-app://{HOME}'


async def test_a_look_survives_a_loose_contact(session, phone):
    await do(session, 'open_app', app_name='Notes')
    phone.vanish = 'screencap'
    look = asyncio.create_task(session.observe())
    while phone.server.is_serving(): await asyncio.sleep(.01)
    phone.vanish = None
    await phone.plug_in()
    assert (await look).url == f'android-app://{NOTES}'


async def test_an_action_is_never_done_twice(session, phone):
    await do(session, 'open_app', app_name='Notes')
    await session.act(Action('click', dict(point=(500, 150))))
    phone.cut = 'broadcast'   # it arrives, its answer does not
    with pytest.raises(AdbFailure) as e: await session.act(Action('type', dict(content='once')))
    assert e.value.trouble == AdbTrouble.CUT and phone.state.data[NOTES]['notes'] == ['once']


async def test_the_adb_server_is_killed(session, phone, server, monkeypatch):
    monkeypatch.setenv('HOME', server.home.name)   # where the next server keeps its key
    phone.delay = 1
    acting = asyncio.create_task(session.act(Action('click', dict(point=(500, 500)))))
    await asyncio.sleep(.3)
    for p in psutil.process_iter(['name', 'cmdline']):
        if p.info['name'] == 'adb' and f'tcp:{server.port}' in (p.info['cmdline'] or []): p.kill()
    with pytest.raises(EnvironmentFailure) as e: await acting
    assert e.value.reason == StopReason.ENV_CRASH
    phone.delay = 0
    assert (await session.observe()).url == f'android-app://{HOME}'   # a new server, connected again


async def test_a_server_that_cannot_start(phone):
    import socket
    with socket.create_server(('127.0.0.1', 0)) as taken:   # something else listens there, and hangs up
        async def hang_up(reader, writer): writer.close()
        other = await asyncio.start_server(hang_up, sock=taken.dup())
        adb = Adb(phone.address, AdbConfig(port=taken.getsockname()[1], timeout=5))
        with pytest.raises(AdbFailure) as e: await adb.shell('true')
        assert e.value.trouble in (AdbTrouble.SERVER, AdbTrouble.TIMEOUT, AdbTrouble.CUT)
        other.close()


async def test_no_client():
    with pytest.raises(AdbFailure, match='apt-get install adb') as e: await call('devices', config=AdbConfig('no-such-adb'))
    assert e.value.trouble == AdbTrouble.MISSING


async def test_a_slow_phone(phone, server):
    session = session_on(phone, server, timeout=1)
    await session.reset()
    phone.delay = 30
    before = len(psutil.Process().children())
    start = time.perf_counter()
    with pytest.raises(EnvironmentFailure) as e: await session.observe()
    assert e.value.reason == StopReason.ENV_TIMEOUT and time.perf_counter() - start < 10
    with pytest.raises(EnvironmentFailure) as e: await session.act(Action('press_home'))
    assert e.value.reason == StopReason.ENV_TIMEOUT
    assert len(psutil.Process().children()) <= before   # no client is left


async def test_a_caller_that_gives_up_leaves_no_client(session, phone):
    phone.delay = 30
    before = len(psutil.Process().children())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(.3): await session.observe()
    phone.delay = 0
    assert len(psutil.Process().children()) <= before


@pytest.mark.parametrize('where', ['screencap', 'input', 'ime list'])
async def test_noise(session, phone, where):
    phone.garbage = where
    with pytest.raises(EnvironmentFailure):
        await session.observe()
        await session.act(Action('press_home'))
        await session.reset()


async def test_a_device_that_speaks_no_adb(server):
    async with Phone() as phone:
        phone.garbled = True
        with pytest.raises(EnvironmentFailure) as e: await session_on(phone, server, ready=1, timeout=5).reset()
        assert e.value.reason == StopReason.ENV_RESET


async def test_nothing_there(server):
    session = AndroidSession('127.0.0.1:1', AndroidConfig(AdbConfig(port=server.port, timeout=5), ready=.5))
    with pytest.raises(EnvironmentFailure, match='plug it in'): await session.reset()
    with pytest.raises(AdbFailure) as e: await AndroidSession('nobody', session.config).adb.shell('true')
    assert e.value.trouble == AdbTrouble.GONE


async def test_acting_before_the_first_look(phone, server):
    with pytest.raises(EnvironmentFailure): await session_on(phone, server).act(Action('click', dict(point=(1, 1))))


@pytest.mark.parametrize('words, trouble', [
    ("error: device '1' not found", AdbTrouble.GONE), ('error: device offline', AdbTrouble.GONE), ('adb: no devices/emulators found', AdbTrouble.GONE),
    ('error: device unauthorized.\nThis adb server\'s $ADB_VENDOR_KEYS is not set', AdbTrouble.UNAUTHORIZED), ('error: closed', AdbTrouble.CUT),
    ('error: cannot connect to daemon at tcp:5037: Connection refused', AdbTrouble.SERVER),
    ('adb: error: failed to copy: No space left on device', AdbTrouble.FULL), ('whatever', AdbTrouble.REFUSED)])
def test_words_of_the_client(words, trouble): assert classify_trouble(words) == trouble
