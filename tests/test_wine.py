"Windows programs under Wine, on real displays."
import asyncio
import shutil
import time

import numpy as np
import pytest

from tests.waiting import until
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.desktop.hosts import drop_sockets, jail_for_desktop
from uitars_nb.sandbox.desktop.session import DesktopConfig
from uitars_nb.sandbox.jail.jail import Jail
from uitars_nb.sandbox.desktop.remote import LookTiming
from uitars_nb.sandbox.desktop.wine import WINDOWS, WindowsSession, link_libraries, own_folders, prefix_archive

wine = pytest.mark.skipif(not shutil.which('wine') or not shutil.which('Xvfb'), reason='Wine or the desktop is not installed: make windows')
PATIENT = LookTiming(quiet=.1, most=3, timeout=60)


@pytest.fixture(params=['jail', 'guest'])
async def session(request):
    "A session whose programs run in a jail, and one whose programs do not."
    config = jail_for_desktop()
    jail = await Jail(config).start() if request.param == 'jail' else None
    session = await WindowsSession(DesktopConfig(size=(800, 600), looking=PATIENT, start_timeout=120, jail=None), jail).start()
    session.read = jail.read if jail else (lambda name: asyncio.to_thread((session.place.home/name).read_bytes))
    session.names = (lambda: jail.listing()) if jail else (lambda: asyncio.to_thread(lambda: [p.name for p in session.place.home.iterdir()]))
    yield session
    await session.close()
    if jail: await jail.close()
    drop_sockets(config)


async def do(session, name, **args):
    await session.act(Action(name, args))
    return await session.observe()


@wine
async def test_notepad_writes_the_file(session):
    await session.launch('notepad', wait=60)
    await session.observe()
    for line in ('plain <ascii> "quotes" \\ {}', '\n', 'Grüße é'): await do(session, 'type', content=line)
    await do(session, 'hotkey', key='ctrl s')
    await do(session, 'type', content='H:\\note.txt\n')
    async def saved(): return 'note.txt' in await session.names() and await session.read('note.txt')
    assert (await until(saved)).decode('cp1252') == 'plain <ascii> "quotes" \\ {}\r\nGrüße é'
    blank_names = await session.names()
    await session.reset()
    assert 'note.txt' in blank_names and 'note.txt' not in await session.names() and await session.windows() == []


@wine
@pytest.mark.slow
@pytest.mark.parametrize('session', ['jail'], indirect=True)
async def test_programs_of_windows_come_up(session):
    blank = (await session.observe()).screenshot
    for program, title in dict(winemine='WineMine', regedit='Registry Editor', wordpad='Wordpad', explorer='', notepad='Notepad').items():
        window = await session.launch(program, wait=60)
        assert program in WINDOWS and title in window.title
        await session.reset()
    assert np.array_equal((await session.observe()).screenshot, blank)


@wine
@pytest.mark.parametrize('session', ['jail'], indirect=True)
async def test_a_click_opens_a_mine_field(session):
    window = await session.launch('winemine', wait=60)
    before = (await session.observe()).screenshot
    left, top, width, height = window.box
    x, y = left + width // 2, top + height * 2 // 3
    after = await do(session, 'click', point=(round(1000 * (x + .5) / 800), round(1000 * (y + .5) / 600)))
    changed = np.argwhere((before != after.screenshot).any(-1))
    assert len(changed) and (changed >= [top, left]).all() and (changed <= [top + height, left + width]).all()


@wine
@pytest.mark.parametrize('session', ['guest'], indirect=True)
async def test_linux_programs_are_there_too(session):
    assert (await session.launch('terminal', '-T', 'both')).title == 'both'
    with pytest.raises(ActionError, match='there is no program'): await session.launch('wordperfect')


@wine
def test_the_prefix_is_small_and_holds_no_path_of_its_maker():
    archive = prefix_archive()
    assert archive.stat().st_size < 20e6 and prefix_archive() == archive
    assert b'uitars-wine-' not in archive.read_bytes()


def test_without_wine_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(FileNotFoundError, match='make windows'): WindowsSession()


def test_only_equal_files_become_links(tmp_path):
    lib, prefix = tmp_path/'lib', tmp_path/'prefix'
    (prefix/'drive_c'/'users'/'me'/'deep').mkdir(parents=True)
    (prefix/'dosdevices').mkdir()
    lib.mkdir()
    for place, text in ((lib, 'a'), (prefix, 'a')): (place/'same.dll').write_text(text)
    for place, text in ((lib, 'a'), (prefix, 'b')): (place/'other.dll').write_text(text)
    (prefix/'only.dll').write_text('a')
    (prefix/'drive_c'/'users'/'me'/'deep'/'out').symlink_to('/etc')
    assert link_libraries(prefix, (str(lib), '/no/such/folder')) == 1
    own_folders(prefix)
    assert [(p.name, p.is_symlink()) for p in sorted(prefix.glob('*.dll'))] == [('only.dll', False), ('other.dll', False), ('same.dll', True)]
    assert not (prefix/'drive_c/users/me/deep/out').is_symlink()


@wine
@pytest.mark.parametrize('session', ['guest'], indirect=True)
async def test_only_clicks_on_one_spot_wait(session):
    "Wine takes two clicks for a double click, which selects the word, where they are less than two pixels apart."
    left, top, _, height = (await session.launch('notepad', wait=60)).box
    await session.observe()
    await do(session, 'type', content='onelongword')
    async def clicks(*xs):
        start = time.monotonic()
        for x in xs: await session.act(Action('click', dict(point=(round((left + x + .5) / .8), round((top + 30 + .5) / .6)))))
        return time.monotonic() - start
    assert await clicks(20, 20) > .5
    assert await clicks(*range(30, 70, 4)) < 9 * .5
    await do(session, 'type', content='!')
    await do(session, 'hotkey', key='ctrl s')
    await do(session, 'type', content='H:\\note.txt\n')
    async def saved(): return 'note.txt' in await session.names() and await session.read('note.txt')
    assert (await until(saved)).decode().replace('!', '') == 'onelongword'
