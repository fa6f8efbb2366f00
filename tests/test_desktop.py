"Desktop sessions on real displays: where actions land, what programs receive, what a reset leaves, what a crash is called."
import asyncio
import gc
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.waiting import lives, until
from uitars_nb.core.coordinates import to_pixel
from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure, Session
from uitars_nb.sandbox.desktop.hosts import FONTS, SOCKETS, drop_sockets, jail_for_desktop
from uitars_nb.sandbox.desktop.session import DesktopConfig, DesktopSession
from uitars_nb.sandbox.jail.jail import Jail
from uitars_nb.sandbox.desktop.keysyms import keysym
from uitars_nb.sandbox.desktop.recording import find_ffmpeg
from uitars_nb.sandbox.desktop.remote import LookTiming
from uitars_nb.sandbox.tools.session import ToolSession
from uitars_nb.sandbox.desktop.xserver import MEMORY

missing = [o for o in ('Xvfb', 'openbox', 'tint2', 'xclip', 'mousepad', 'xterm', 'pcmanfm') if not shutil.which(o)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f'the desktop needs {", ".join(missing)}: make setup installs them')
WINDOW = Path(__file__).with_name('desktop_window.py')
PATIENT = LookTiming(quiet=.15, most=3, timeout=60)


def opened(size=(640, 480), **config): return DesktopSession(DesktopConfig(size=size, looking=PATIENT, start_timeout=90, **dict(jail=None) | config))


@pytest.fixture
async def desk():
    session = await opened().start()
    yield session
    await session.close()


class Recorder:
    "The window of `desktop_window.py` on a session."
    def __init__(self, session, path): self.session, self.path, self.seen = session, path, 0
    async def start(self):
        await self.session.ask('POST', '/launch', json=dict(argv=[sys.executable, str(WINDOW), str(self.path)]))
        await until(lambda: self.path.exists() and any(o['what'] == 'shown' for o in self.rows()))
        self.seen = len(self.rows())
        return self
    def rows(self): return [json.loads(line) for line in self.path.read_text().splitlines()]
    async def after(self, what, count=1):
        "Events since the last look, once `count` of kind `what` are among them."
        rows = await until(lambda: (new := self.rows()[self.seen:]) and sum(o['what'] == what for o in new) >= count and new)
        self.seen = len(self.rows())
        return rows


@pytest.fixture
async def recorder(desk, tmp_path): return await Recorder(desk, tmp_path/'events.jsonl').start()


async def act(session, name, **args): await session.act(Action(name, args))
async def do(session, name, **args):
    await act(session, name, **args)
    return await session.observe()


def test_it_is_a_session():
    session = opened()
    assert isinstance(session, Session)
    folder = session.folder
    del session
    gc.collect()
    assert not Path(folder).exists(), 'one that nobody starts leaves nothing'


@pytest.mark.parametrize('size', [(640, 480), (801, 603)])
async def test_a_click_lands_on_its_pixel(size, tmp_path):
    session = await opened(size).start()
    try:
        recorder = await Recorder(session, tmp_path/'events').start()
        for point in [(0, 0), (1000, 1000), (500, 500), (333, 667), (1, 999)]:
            await act(session, 'click', point=point)
            rows = await recorder.after('up')
            x, y = (int(v) for v in to_pixel(point, size))
            assert [(o['what'], o['at'], o['detail']) for o in rows if o['what'] in ('down', 'up')] == [('down', [x, y], 1), ('up', [x, y], 1)], point
    finally: await session.close()


async def test_buttons_wheel_and_drag(desk, recorder):
    await act(desk, 'right_single', point=(100, 100))
    assert {o['detail'] for o in await recorder.after('up') if o['what'] == 'down'} == {3}
    await act(desk, 'left_double', point=(300, 300))
    assert [o['what'] for o in await recorder.after('up', 2) if o['what'] != 'move'] == ['down', 'up'] * 2
    for direction, button in dict(up=4, down=5, left=6, right=7).items():
        await act(desk, 'scroll', direction=direction, point=(200, 800))
        rows = [o for o in await recorder.after('up', 5) if o['what'] == 'down']
        assert [o['detail'] for o in rows] == [button] * 5 and rows[0]['at'] == [128, 384]
    await act(desk, 'drag', start_point=(100, 100), end_point=(900, 500))
    rows = await recorder.after('up')
    down, up = (next(i for i, o in enumerate(rows) if o['what'] == w) for w in ('down', 'up'))
    assert (rows[down]['at'], rows[up]['at']) == ([64, 48], [576, 240])
    path = [o['at'] for o in rows[down:up] if o['what'] == 'move']
    assert len(path) >= 10 and path == sorted(path), 'a drag goes in steps'


async def test_held_button_and_keys(desk, recorder):
    await act(desk, 'mouse_down', point=(500, 500), button='left')
    await act(desk, 'move_to', point=(600, 500))
    await act(desk, 'mouse_up', button='left')
    assert any(o['what'] == 'move' and o['state'] & 256 for o in await recorder.after('up')), 'the button is held while the pointer moves'
    await act(desk, 'press', key='shift')
    await act(desk, 'hotkey', key='ctrl x')
    await act(desk, 'release', key='shift')
    rows = [(o['what'], o['keysym']) for o in await recorder.after('keyup', 3)]
    assert rows == [('key', 0xffe1), ('key', 0xffe3), ('key', ord('X')), ('keyup', ord('X')), ('keyup', 0xffe3), ('keyup', 0xffe1)]


async def seconds(session, *deeds):
    start = time.monotonic()
    for name, args in deeds: await act(session, name, **args)
    return time.monotonic() - start


def at(x, y, size=(640, 480)): return dict(point=(round((x + .5) / size[0] * 1000), round((y + .5) / size[1] * 1000)))


async def test_two_clicks_on_one_spot_are_no_double_click(desk, recorder):
    assert await seconds(desk, *[('click', at(320, 240))] * 2) > .5
    assert await seconds(desk, ('click', at(100, 100)), ('click', at(104, 97))) > .5, 'nearly one spot'
    wait = 10 * .5
    assert await seconds(desk, *[('click', at(100 + 6 * i, 50)) for i in range(10)]) < wait, 'a click beside the last one does not wait'
    assert await seconds(desk, *[('click', at(50, 300)), ('right_single', at(50, 300))] * 5) < wait, 'nor one with another button'


async def test_a_click_in_another_window_does_not_wait(desk, recorder):
    "The window that the first click brings up lies under the pointer."
    await act(desk, 'click', point=(500, 500))
    other = await Recorder(desk, recorder.path.with_name('other')).start()
    recorder.seen = len(recorder.rows())
    for _ in range(5):
        assert await seconds(desk, ('click', dict(point=(500, 500)))) < 5
        await other.after('up')
    assert not any(o['what'] == 'down' for o in recorder.rows()[recorder.seen:])


@pytest.mark.parametrize('apart', [0, 3, 6, 60])
async def test_programs_take_quick_clicks_for_single_ones(desk, apart):
    "A double click would select the word, and what is typed would replace it, or maximise the window by its title."
    window = await desk.launch('editor', 'note.txt')
    await desk.observe()
    await do(desk, 'type', content='onelongword')
    left, top, width, height = window.box
    for x in (30, 30 + apart): await act(desk, 'click', **at(left + x, top + 65))
    await do(desk, 'type', content='!')
    await do(desk, 'hotkey', key='ctrl s')
    note = desk.place.home/'note.txt'
    await until(lambda: note.exists() and '!' in note.read_text())
    assert note.read_text().strip().replace('!', '') == 'onelongword'
    for x in (width // 2, width // 2 + apart): await act(desk, 'click', **at(left + x, top - 8))
    await desk.observe()
    assert (await desk.windows())[0].box == window.box


TEXT = 'The <quick> "brown" fox: {jumps} over | ~/the\\lazy & dog; 1+1=2 @#$%^*()_?!`\tné Grüße ß ñ €5 “quoted” – 漢字かな Привет 😀 𝔘\n'


async def test_any_text_reaches_the_editor_and_the_disk(desk):
    many = ''.join(chr(c) for c in range(0x4e00, 0x4e00 + 60)) + '\n'  # more characters than there are free keys
    await desk.launch('editor', 'note.txt')
    await desk.observe()
    for text in (TEXT, many): await do(desk, 'type', content=text)
    await do(desk, 'hotkey', key='ctrl s')
    note = desk.place.home/'note.txt'
    await until(lambda: note.exists() and note.read_text().endswith('\n'))
    await desk.observe()
    assert note.read_text() == TEXT + many


SCRIPTS = ('e\u0301 ŵ ẞ ﬁ ½ № שלום مرحبا ไทย हिन्दी 한국어 𠮷 😀👍🏽👨\u200d👩\u200d👧 🇩🇪 ❤\ufe0f ' + 'a漢B字' * 30
           + ''.join(map(chr, range(0x4e00, 0x4e00 + 300))))  # more characters than keys, so keys are lent again


async def test_every_script_reaches_the_editor(desk):
    await desk.launch('editor', 'note.txt')
    await desk.observe()
    await do(desk, 'type', content=SCRIPTS)
    await do(desk, 'hotkey', key='ctrl s')
    note = desk.place.home/'note.txt'
    await until(lambda: note.exists() and len(note.read_text()) >= len(SCRIPTS))
    assert note.read_text().rstrip('\n') == SCRIPTS


async def test_gestures_after_a_text_are_heard(desk):
    "A text of characters without keys changes the keyboard mapping, at which the window manager lets go of all keys and buttons for a moment."
    texts = iter([''.join(map(chr, range(start, start + 40))) for start in range(0x4e00, 0x9000, 40)])
    async def box(): return (await desk.windows())[0].box
    for attempt in range(3):
        first = (await desk.launch('editor')).box
        await desk.observe()
        async def moved(): return (await box())[:2] != first[:2]
        async def grown(): return (await box())[2:] != first[2:]
        async def asked(): return not await _count(desk, 1)   # whether to save
        for deed, seen in (('drag', moved), ('left_double', grown), ('hotkey', asked)):
            await act(desk, 'type', content=next(texts))
            left, top, width, _ = await box()
            x, y = round((left + width / 2) / .64), round((top - 8) / .48)
            await act(desk, deed, **dict(drag=dict(start_point=(x, y), end_point=(x + 40, y + 60)), left_double=dict(point=(x, y)), hotkey=dict(key='alt f4'))[deed])
            await until(seen, 10)
        await desk.reset()


ASCII = [chr(c) for c in range(33, 127)]
UPPER = dict(zip("`1234567890-=[]\\;',./", '~!@#$%^&*()_+{}|:"<>?')) | {c: c.upper() for c in 'abcdefghijklmnopqrstuvwxyz'}
MASKS = dict(shift=1, ctrl=4, alt=8)
KEYSYMS = dict(enter=0xff0d, tab=0xff09, space=0x20, backspace=0xff08, escape=0xff1b, delete=0xffff, insert=0xff63, pageup=0xff55, pagedown=0xff56, end=0xff57, home=0xff50,
               arrowleft=0xff51, arrowup=0xff52, arrowright=0xff53, arrowdown=0xff54, contextmenu=0xff67, ctrl=0xffe3, shift=0xffe1, alt=0xffe9, meta=0xffeb) | {f'f{i}': 0xffbd + i for i in range(1, 13)}


@pytest.mark.parametrize('modifiers', ['', 'shift', 'ctrl', 'alt', 'ctrl shift'])
async def test_every_character_arrives_as_it_was_asked_for(desk, recorder, modifiers):
    "With shift a key gives its upper character, and one that needs shift anyway gives itself."
    held, others = modifiers.split(), {KEYSYMS[o] for o in MASKS}
    characters = [*ASCII, *'¡£§«µ¿Éßéÿ€漢']
    for c in characters: await act(desk, 'hotkey', key=' '.join([*held, c]))
    rows = [o for o in await recorder.after('keyup', len(characters) * (len(held) + 1)) if o['what'] == 'key' and o['keysym'] not in others]
    assert [(keysym(c), o['keysym']) for c, o in zip(characters, rows, strict=True) if o['keysym'] != keysym(UPPER.get(c, c) if 'shift' in held else c)] == []
    assert all(o['state'] & MASKS[m] for o in rows for m in held)


async def test_every_named_key_arrives(desk, recorder):
    for name in KEYSYMS: await act(desk, 'hotkey', key=name)
    rows = await recorder.after('keyup', len(KEYSYMS))
    assert [o['keysym'] for o in rows if o['what'] == 'key'] == [*KEYSYMS.values()]


async def test_shift_that_is_held_stays_held(desk, recorder):
    await act(desk, 'press', key='shift')
    await act(desk, 'hotkey', key='<')
    await act(desk, 'type', content='!?')
    await act(desk, 'hotkey', key='ctrl shift +')
    await recorder.after('keyup', 5)
    await act(desk, 'click', point=(500, 500))
    assert all(o['state'] & 1 for o in await recorder.after('up') if o['what'] in ('down', 'up'))
    await act(desk, 'release', key='shift')
    await recorder.after('keyup')
    await act(desk, 'click', point=(300, 300))
    assert not any(o['state'] & 1 for o in await recorder.after('up') if o['what'] in ('down', 'up'))


async def test_clipboard_between_program_and_task(desk):
    await desk.launch('editor', 'note.txt')
    await do(desk, 'type', content='to be copied')
    await do(desk, 'hotkey', key='ctrl a')
    await do(desk, 'hotkey', key='ctrl c')
    assert await until(desk.clipboard) == 'to be copied'
    await desk.copy('from outside: é漢')
    await do(desk, 'hotkey', key='ctrl v')
    await do(desk, 'hotkey', key='ctrl s')
    note = desk.place.home/'note.txt'
    await until(lambda: note.exists() and note.read_text().strip() == 'from outside: é漢')


async def test_windows_and_titles(desk):
    window = await desk.launch('terminal', '-T', 'first')
    await desk.launch('terminal', '-T', 'second')
    assert window.title == 'first' and [w.title for w in await desk.windows()] == ['first', 'second']
    seen = await desk.observe()
    assert seen.title == 'second' and [w.active for w in await desk.windows()] == [False, True]
    await do(desk, 'hotkey', key='alt f4')
    await until(lambda: _count(desk, 1))


async def _count(desk, n): return len(await desk.windows()) == n


async def test_the_panel_starts_programs(desk):
    before = await desk.observe()
    await act(desk, 'click', point=(27, 966))  # the first icon: files
    await until(lambda: _count(desk, 1))
    assert (await desk.windows())[0].program == 'Pcmanfm'
    assert (before.screenshot != (await desk.observe()).screenshot).any()


async def test_two_desktops_do_not_hear_each_other(tmp_path):
    a, b = opened(), opened((800, 600))
    try:
        await asyncio.gather(a.start(), b.start())
        ra, rb = await Recorder(a, tmp_path/'a').start(), await Recorder(b, tmp_path/'b').start()
        await asyncio.gather(*[act(s, 'type', content=t) for s, t in ((a, 'aaaa'), (b, 'bbbb'))])
        keys = [{chr(o['keysym']) for o in await r.after('keyup', 4) if o['what'] == 'key'} for r in (ra, rb)]
        assert keys == [{'a'}, {'b'}]
        await a.copy('only in a')
        assert (await a.clipboard(), await b.clipboard()) == ('only in a', '')
        assert a.place.home != b.place.home
        assert ((await a.observe()).screenshot.shape, (await b.observe()).screenshot.shape) == ((480, 640, 3), (600, 800, 3))
    finally: await asyncio.gather(a.close(), b.close())


async def test_reset_leaves_nothing_behind(desk):
    blank = (await desk.observe()).screenshot
    children = {p.pid for p in psutil.Process(desk.process.pid).children(recursive=True)}
    files = sorted(str(p) for p in desk.place.home.rglob('*'))
    await desk.launch('terminal')
    await desk.observe()
    await do(desk, 'type', content='mkdir deep; touch deep/file .hidden; rm -rf .config; (setsid sleep 1000 &); (sleep 1000 & disown)\n')
    await until(lambda: (desk.place.home/'deep'/'file').exists())
    await desk.launch('editor')
    await do(desk, 'type', content='é漢')
    await do(desk, 'press', key='ctrl')
    await act(desk, 'mouse_down', point=(500, 500), button='left')
    await act(desk, 'hotkey', key='capslock')
    await desk.copy('secret')
    await desk.reset()
    assert sorted(str(p) for p in desk.place.home.rglob('*')) == files
    assert {p.pid for p in psutil.Process(desk.process.pid).children(recursive=True)} == children
    assert (await desk.clipboard(), await desk.windows()) == ('', [])
    assert np.array_equal((await desk.observe()).screenshot, blank)
    await desk.launch('editor', 'after.txt')
    await do(desk, 'type', content='abc')
    await do(desk, 'hotkey', key='ctrl s')
    await until(lambda: (desk.place.home/'after.txt').exists() and (desk.place.home/'after.txt').read_text().strip() == 'abc')


async def test_an_open_menu_does_not_survive_a_reset(desk):
    await do(desk, 'right_single', point=(500, 300))
    await desk.reset()
    await desk.launch('terminal', '-T', 'works')
    assert (await desk.observe()).title == 'works'


@pytest.mark.parametrize('victim', ['Xvfb', 'openbox', 'tint2', 'guest'])
async def test_a_crash_is_the_environments(victim):
    session = await opened((320, 240)).start()
    guest = psutil.Process(session.process.pid)
    try:
        process = guest if victim == 'guest' else next(p for p in guest.children(recursive=True) if p.name() == victim)
        process.kill()
        await until(lambda: not lives(process))
        for call in (session.observe, lambda: act(session, 'click', point=(5, 5)), session.reset):
            with pytest.raises(EnvironmentFailure) as e: await call()
            assert e.value.reason is StopReason.ENV_CRASH
    finally: await session.close()
    assert not Path(session.folder).exists()


async def test_a_guest_that_hangs_is_a_time_out():
    session = DesktopSession(DesktopConfig(size=(320, 240), jail=None, start_timeout=90))
    session.looking = PATIENT
    await session.start()
    try:
        session.looking = LookTiming(timeout=1)
        os.kill(session.process.pid, signal.SIGSTOP)
        with pytest.raises(EnvironmentFailure) as e: await session.observe()
        assert e.value.reason is StopReason.ENV_TIMEOUT
    finally:
        os.kill(session.process.pid, signal.SIGCONT)
        await session.close()


async def test_nothing_stays_when_it_closes():
    session = await opened((320, 240)).start()
    await session.launch('terminal')
    processes = [psutil.Process(session.process.pid), *psutil.Process(session.process.pid).children(recursive=True)]
    await session.close()
    await session.close()
    assert not [*filter(lives, processes)]
    assert not Path(session.folder).exists()
    with pytest.raises(EnvironmentFailure): await session.observe()


OWNER = '''
import asyncio, sys
from uitars_nb.sandbox.desktop.session import DesktopConfig, DesktopSession
from uitars_nb.sandbox.jail.jail import JailConfig
async def main():
    session = await DesktopSession(DesktopConfig(size=(320, 240), jail=JailConfig() if sys.argv[1] == 'jail' else None)).start()
    await session.launch('terminal')
    print(session.folder, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
'''


@pytest.mark.parametrize('where', ['jail', 'guest'])
async def test_nothing_stays_when_its_owner_is_killed(where):
    if where == 'jail' and not shutil.which('bwrap'): pytest.skip('jails need bubblewrap: apt-get install bubblewrap')
    owner = await asyncio.create_subprocess_exec(sys.executable, '-c', OWNER, where, stdout=asyncio.subprocess.PIPE)
    folder = (await asyncio.wait_for(owner.stdout.readline(), 90)).decode().strip()
    processes = psutil.Process(owner.pid).children(recursive=True)
    assert {'Xvfb', 'openbox', 'tint2', 'xterm'} <= {p.name() for p in processes}
    owner.kill()
    await owner.wait()
    await until(lambda: not [*filter(lives, processes)])
    await until(lambda: not Path(folder).exists())


async def test_bad_requests_say_what_to_do(desk):
    bad = [('click', dict(point=(1, 1001)), 'off the screen'), ('hotkey', dict(key='ctrl hyper'), "no key 'hyper'"), ('wait', dict(time=9e9), 'at most 60'),
           ('type', dict(content='a\x07'), r'U\+0007'), ('tap', dict(point=(1, 1)), 'no function'), ('navigate', {}, 'missing')]
    for name, args, said in bad:
        with pytest.raises(ActionError, match=said): await desk.act(Action(name, args))
    with pytest.raises(ActionError, match='there is no program'): await desk.launch('wordperfect')


@pytest.mark.parametrize('make', [lambda p: (p/'thesis').touch(), lambda p: (p/'sub').mkdir()])
def test_a_home_that_is_somebodys_is_refused(make, tmp_path):
    make(tmp_path)
    with pytest.raises(ValueError, match='not empty'): opened(home=str(tmp_path))


def test_without_bubblewrap_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr('uitars_nb.sandbox.jail.bubblewrap.shutil.which', lambda name, **_: None if name == 'bwrap' else f'/usr/bin/{name}')
    with pytest.raises(RuntimeError, match='apt-get install bubblewrap.*jail=None'): DesktopSession()


async def test_an_own_home_is_kept_after_closing(tmp_path):
    session = await opened((320, 240), home=str(tmp_path/'home')).start()
    (tmp_path/'home'/'result.txt').write_text('kept')
    await session.close()
    assert (tmp_path/'home'/'result.txt').read_text() == 'kept'
    again = opened((320, 240), home=str(tmp_path/'home'))
    await again.close()


async def test_a_size_that_no_server_can_have():
    with pytest.raises(EnvironmentFailure) as e: await opened((0, 0)).start()
    assert e.value.reason is StopReason.ENV_RESET


async def test_recording_is_a_film(desk, tmp_path):
    try: find_ffmpeg()
    except FileNotFoundError as e: pytest.skip(str(e))
    await desk.record()
    with pytest.raises(ActionError, match='under way'): await desk.record()
    await desk.launch('terminal')
    await asyncio.sleep(2)
    film = tmp_path/'film.mp4'
    film.write_bytes(await desk.stop_recording())
    read = [find_ffmpeg(), '-loglevel', 'error', '-i', film, '-f', 'rawvideo', '-pix_fmt', 'rgb24', '-']
    out = await asyncio.create_subprocess_exec(*read, stdout=asyncio.subprocess.PIPE)
    frames = np.frombuffer((await out.communicate())[0], np.uint8).reshape(-1, 480, 640, 3)
    assert len(frames) >= 2
    assert np.abs(frames[-1].astype(int) - (await desk.observe()).screenshot).mean() < 12, 'the last frame is the screen'
    with pytest.raises(ActionError, match='no recording'): await desk.stop_recording()


@pytest.fixture
async def jailed():
    config = jail_for_desktop()
    jail = await Jail(config).start()
    session = await DesktopSession(DesktopConfig(size=(640, 480), looking=PATIENT, start_timeout=90), jail).start()
    yield session, jail
    await session.close()
    await jail.close()
    drop_sockets(config)


needs_jail = pytest.mark.skipif(not shutil.which('bwrap'), reason='jails need bubblewrap: apt-get install bubblewrap')


GRAB = 'import ctypes, time; x = ctypes.CDLL("libX11.so.6"); x.XOpenDisplay.restype = ctypes.c_void_p; d = ctypes.c_void_p(x.XOpenDisplay(None)); x.XGrabServer(d); x.XSync(d, 0); print("mine", flush=True); time.sleep(600)'


@needs_jail
async def test_who_keeps_the_display_to_himself_gains_nothing(jailed):
    session, jail = jailed
    session.looking = LookTiming(quiet=0, most=1, timeout=3)
    blank = (await session.observe()).screenshot
    for deed in (session.observe, lambda: act(session, 'click', point=(500, 500)), session.reset):
        await jail.write('note.txt', b'kept')
        process = await jail.spawn([sys.executable, '-c', GRAB], session.place.env, stdout='pipe')
        assert await process.stdout.readline() == b'mine\n'
        await deed()
        assert process.ended.done()
        assert ('note.txt' in await jail.listing()) == (deed != session.reset), 'the episode goes on'
    await session.reset()
    assert (await session.observe()).screenshot.tobytes() == blank.tobytes()


async def test_without_a_jail_a_kept_display_is_a_failure(desk):
    desk.looking = LookTiming(quiet=0, most=1, timeout=2)
    await desk.ask('POST', '/launch', json=dict(argv=[sys.executable, '-c', GRAB]))
    async def failed():
        try: await desk.observe()
        except EnvironmentFailure as e: return e
    assert (await until(failed)).reason is StopReason.ENV_TIMEOUT


@needs_jail
async def test_a_jailed_desktop_shares_its_home_with_the_jail(jailed):
    session, jail = jailed
    await jail.write('note.txt', b'from the shell\n')
    await session.launch('editor', 'note.txt')
    await session.observe()
    await do(session, 'hotkey', key='ctrl end')
    await do(session, 'type', content='and é from the desktop\n')
    await do(session, 'hotkey', key='ctrl s')
    async def saved(): return b'desktop' in await jail.read('note.txt')
    await until(saved)
    assert (await jail.read('note.txt')).decode() == 'from the shell\nand é from the desktop\n'


@needs_jail
async def test_a_jailed_terminal_sees_nothing_of_the_host(jailed):
    session, jail = jailed
    secret = Path('/tmp/uitars-secret-of-the-host')
    secret.write_text('secret')
    try:
        await session.launch('terminal')
        await session.observe()
        await do(session, 'type', content=f'(cat {secret}; id -u; ls /tmp/.X11-unix; echo -; ls -A /root; env; echo done) > out 2>&1\n')
        async def written(): return 'out' in await jail.listing() and b'done' in await jail.read('out')
        await until(written)
    finally: secret.unlink()
    out = (await jail.read('out')).decode()
    assert 'secret\n' not in out and '1000\n' in out and 'UITARS_GUEST_TOKEN' not in out
    assert out.split('-\n')[0].count('X') == 1, 'no display but its own'


@needs_jail
async def test_a_jailed_reset_ends_programs_and_spares_the_shell(jailed):
    session, jail = jailed
    shell = await jail.spawn(['sleep', '1000'])
    blank = (await session.observe()).screenshot
    await session.launch('terminal')
    await session.observe()
    await do(session, 'type', content='(setsid sleep 999 &); touch here /tmp/there\n')
    async def touched(): return 'here' in await jail.listing()
    await until(touched)
    await session.reset()
    assert 'here' not in await jail.listing() and 'there' not in await jail.listing('/tmp')
    assert b'sleep\x00999' not in (await jail.run(['sh', '-c', 'cat /proc/[0-9]*/cmdline']))[1]
    assert shell.code is None, 'what others run in the jail is theirs'
    assert np.array_equal((await session.observe()).screenshot, blank)


@needs_jail
async def test_by_default_it_has_a_jail_of_its_own():
    session = DesktopSession(DesktopConfig(size=(640, 480), looking=PATIENT, start_timeout=90))
    await session.reset()
    jail, sockets = session.jail, Path(session.jail.config.readonly[SOCKETS])
    try:
        await session.launch('terminal')
        await session.observe()
        await do(session, 'type', content='id -un > who\n')
        async def told(): return 'who' in await jail.listing() and await jail.read('who')
        assert await until(told) == b'user\n'
    finally: await session.close()
    assert not jail.alive and not sockets.exists() and not Path(session.folder).exists()


@needs_jail
async def test_tools_and_desktop_share_a_home(jailed):
    "Written in the shell, changed in the desktop's editor, read by the shell."
    screen, jail = jailed
    session = ToolSession(screen=screen, jail=jail)
    await session.reset()
    await session.act(Action('execute_bash', dict(command='echo from the shell > note.txt')))
    await screen.launch('editor', 'note.txt')
    await session.observe()
    await do(session, 'hotkey', key='ctrl end')
    await do(session, 'type', content='from the desktop\n')
    await do(session, 'hotkey', key='ctrl s')
    for _ in range(100):
        await session.act(Action('execute_bash', dict(command='cat note.txt')))
        if 'desktop' in (text := (await session.observe()).text): break
    assert 'from the shell' in text and 'from the desktop' in text
    await session.reset()
    await session.act(Action('execute_bash', dict(command='ls')))
    assert 'note' not in (await session.observe()).text and await screen.windows() == []
    await session.close()


@needs_jail
async def test_a_jail_that_ends_is_the_environments(jailed):
    session, jail = jailed
    await jail.close()
    for call in (session.observe, session.reset):
        with pytest.raises(EnvironmentFailure) as e: await call()
        assert e.value.reason is StopReason.ENV_CRASH


@needs_jail
@pytest.mark.slow
async def test_the_browser_opens_a_page_in_the_jail(jailed):
    session, jail = jailed
    await jail.write('page.html', '<title>A page of the home</title><body style="background:#00ff00">'.encode())
    await act(session, 'navigate', content='file:///home/user/page.html')
    async def shown():
        seen = await session.observe()
        return 'A page of the home' in seen.title and (seen.screenshot == [0, 255, 0]).all(-1).mean() > .2
    await until(shown, 60)


@needs_jail
async def test_a_display_that_ends_between_actions_is_named_at_once(jailed):
    "Window manager and panel end with it; they are not started again in vain."
    session, _ = jailed
    server = next(p for p in psutil.Process(session.process.pid).children() if p.name() == 'Xvfb')
    server.kill()
    await until(lambda: not lives(server))
    await asyncio.sleep(1)
    for call in (session.observe, lambda: act(session, 'click', point=(500, 500)), session.reset):
        start = time.monotonic()
        with pytest.raises(EnvironmentFailure, match='the display has ended') as e: await call()
        assert e.value.reason is StopReason.ENV_CRASH and time.monotonic() - start < 5


# --- agents that behave badly

PIXMAPS = """
import sys
from Xlib.display import Display
display, refused = Display(), []
display.set_error_handler(lambda error, request: refused.append(type(error).__name__))
for i in range(250):   # 4 GB
    pixmap = display.screen().root.create_pixmap(2000, 2000, display.screen().root_depth)
    pixmap.fill_rectangle(pixmap.create_gc(foreground=i), 0, 0, 2000, 2000)
    display.sync()
    if refused: break
print(refused[0] if refused else 'all taken', flush=True)
sys.stdin.read()
"""


async def test_the_display_has_a_limit_and_no_rights_of_root(desk):
    server = next(p for p in psutil.Process(desk.process.pid).children() if p.name() == 'Xvfb')
    assert os.geteuid() != 0 or 0 not in server.uids()
    env = os.environ | desk.place.env
    hog = await asyncio.create_subprocess_exec(sys.executable, '-c', PIXMAPS, stdin=-1, stdout=-1, env=env | dict(HOME=os.environ['HOME']))
    assert await asyncio.wait_for(hog.stdout.readline(), 60) == b'BadAlloc\n'
    assert server.memory_info().rss < 1.1 * MEMORY
    assert (await desk.observe()).screenshot.any(), 'the hog is refused, the display goes on'
    hog.stdin.close()
    await hog.wait()
    await until(lambda: server.memory_info().rss < .3 * MEMORY)
    await desk.launch('terminal')
    await desk.reset()


PROPERTIES = """
import ctypes, os
from ctypes import byref, c_char_p, c_int, c_ulong, c_void_p
x, refused = ctypes.CDLL('libX11.so.6'), []
x.XOpenDisplay.restype, x.XInternAtom.restype, x.XDefaultRootWindow.restype = c_void_p, c_ulong, c_ulong
x.XSetErrorHandler(handler := ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(lambda display, error: refused.append(error) or 0))
while len(refused) < 100:   # on the root window, where they outlive their program; to the last byte, and by ever more programs
    display = c_void_p(x.XOpenDisplay(None))
    if not display: break
    root = c_ulong(x.XDefaultRootWindow(display))
    for size in (200_000, 20_000, 2_000, 200, 20, 4):
        before = len(refused)
        while len(refused) == before:
            for k in range(50): x.XChangeProperty(display, root, c_ulong(x.XInternAtom(display, os.urandom(6).hex().encode(), 0)), c_ulong(31), 8, 0, c_char_p(bytes(size)), size)
            x.XSync(display, 0)
"""


@needs_jail
async def test_who_fills_the_memory_of_the_display_gains_nothing(jailed):
    session, jail = jailed
    await session.reset()
    blank = (await session.observe()).screenshot
    await jail.write('note.txt', b'kept')
    server = lambda: next(p for p in psutil.Process(session.process.pid).children() if p.name() == 'Xvfb')
    first = server()
    hog = await jail.spawn([sys.executable, '-c', PROPERTIES], session.place.env)
    await hog.wait(120)
    for _ in range(3): await session.observe()
    assert 'note.txt' in await jail.listing(), 'the episode goes on'
    await session.reset()
    assert not lives(first) and server().memory_info().rss < .3 * MEMORY, 'nothing of it is left'
    assert np.array_equal((await session.observe()).screenshot, blank)
    await session.launch('terminal')


@needs_jail
@pytest.mark.parametrize('deed', ['kill -9 -1', 'pkill -9 tint2', 'rm -f /tmp/.Xauthority; kill -9 -1', 'rm -rf ~/.config; touch ~/.config; kill -9 -1',
                                  'chmod -R 000 ~/.config; mkdir /tmp/x; mv /tmp/.Xauthority /tmp/x; ln -s x /tmp/.Xauthority; kill -9 -1', 'ln -sfn /tmp ~/.config/tint2; echo x > ~/.config/openbox/rc.xml; kill -9 -1',
                                  'head -c 2G /dev/zero > ~/full; head -c 1G /dev/zero > /tmp/full; rm -rf ~/.config /tmp/.Xauthority; kill -9 -1'])
async def test_furniture_that_is_ended_stands_again(jailed, deed):
    session, jail = jailed
    blank = (await session.observe()).screenshot
    await jail.run(['sh', '-c', deed])
    async def whole(): return np.array_equal((await session.observe()).screenshot, blank)
    await until(whole, 40)
    await session.launch('terminal')


@needs_jail
@pytest.mark.parametrize('deed', ['mkdir -p ~/a/b/c && touch ~/a/b/c/d && chmod -R 000 ~/a', 'chmod 000 ~', 'rm -rf /tmp/.Xauthority && mkdir -p /tmp/.Xauthority/x && chmod 000 /tmp/.Xauthority',
                                  'head -c 600M /dev/zero > ~/full', 'cd ~ && for i in $(seq 300); do mkdir d && cd d; done', ':(){ :|:& };:'])
async def test_a_reset_after_a_mess_leaves_nothing(jailed, deed):
    session, jail = jailed
    await session.reset()
    before, blank = await jail.listing(), (await session.observe()).screenshot
    shell = await jail.spawn(['bash', '-c', deed])
    try: await shell.wait(10)
    except TimeoutError: pass
    for attempt in range(3):
        try: await session.reset(); break
        except EnvironmentFailure: await jail.ask('kill', pid=-1, signal=9, group=False)   # what a pool does by a new jail
    else: pytest.fail('no reset in three attempts')
    assert [*await jail.listing()] == [*before]
    await session.launch('terminal')
    await session.reset()
    async def whole(): return np.array_equal((await session.observe()).screenshot, blank)
    await until(whole, 40)


@needs_jail
async def test_the_folder_of_the_display_is_read_only(jailed):
    session, jail = jailed
    for deed in ('rm -f /tmp/.X11-unix/*', 'touch /tmp/.X11-unix/X99', 'mv /tmp/.X11-unix/X* /tmp/x', 'chmod 777 /tmp/.X11-unix'):
        code, said = await jail.run(['sh', '-c', deed])
        assert code and b'Read-only' in said, deed
    await session.launch('terminal')


@pytest.mark.skipif(not os.path.isdir(FONTS) or not os.listdir(FONTS), reason='this machine keeps no cache of its fonts')
async def test_a_new_home_does_not_cost_a_reading_of_all_fonts():
    jail = await Jail(config := jail_for_desktop()).start()
    session = await DesktopSession(DesktopConfig(size=(640, 480), looking=PATIENT, start_timeout=90), jail).start()
    try:
        await session.launch('editor', wait=60)
        assert await jail.run(['find', '/home/user', '-name', '*.cache-*']) == (0, b'')
    finally: await session.close(); await jail.close(); drop_sockets(config)
