"One browser session against pages that try its patience."
import contextlib
import asyncio, http.server, os, tempfile, threading, time
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image
import pytest, pytest_asyncio

from tests.waiting import until
from uitars_nb.core.coordinates import to_grid
from uitars_nb.core.types import Action, EventKind, StopReason
from uitars_nb.sandbox.base import ActionError, EnvironmentFailure
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.cdp import Connection
from uitars_nb.sandbox.browser.chromium import launch
from uitars_nb.sandbox.browser.dialogs import layout
from uitars_nb.sandbox.browser.downloads import Downloads
from uitars_nb.sandbox.manager.fleet import process_start_time

pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.timeout(60)]
PAGES = Path(__file__).parents[1]/'sandboxes'/'pages'
SIZE = (320, 240)

async def titled(session, title, seconds=20):
    "Look until the page has that title."
    end = time.monotonic() + seconds
    while (said := (await session.observe()).title) != title: assert time.monotonic() < end, f'the title is still {said!r}'

@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def browser():
    browser = await launch()
    yield browser
    await browser.close()

@pytest_asyncio.fixture(loop_scope='module')
async def session(browser, tmp_path):
    (tmp_path/'notes.txt').write_text('hello')
    session = BrowserSession(browser, BrowserConfig(size=SIZE, uploads=(str(tmp_path/'notes.txt'),), timeout=10))
    await session.reset()
    yield session
    await session.close()

@pytest.fixture(scope='module')
def server():
    "A local web server with a few answers of its own."
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'<!doctype html><title>Served</title>served'
            self.send_response(200)
            self.send_header('Content-Type', 'text/html')
            if self.path == '/file': self.send_header('Content-Disposition', 'attachment; filename="report.txt"')
            if self.path == '/big': self.send_header('Content-Disposition', 'attachment; filename="big.bin"'); body = bytes(8 << 20)
            if self.path == '/cookie': self.send_header('Set-Cookie', 'a=1')
            if self.path == '/sw.js': self.send_header('Content-Type', 'text/javascript'); body = b'onfetch = e => 0'
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()

def page(body, script='', title='Test'):
    return 'data:text/html;charset=utf-8,' + quote(f'<!doctype html><title>{title}</title><body style="margin:0">{body}<script>{script}</script>')

async def act(session, name, **args): await session.act(Action(name, args))

def grid(x, y): return (round(1000 * x / SIZE[0]), round(1000 * y / SIZE[1]))

async def point(session, css):
    x, y = await session.evaluate('s => { const r = document.querySelector(s).getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }', css)
    return grid(x, y)

async def click(session, css): await act(session, 'click', point=await point(session, css))

def kinds(obs): return [e.kind for e in obs.events]

LOG = "window.log = []; for (const t of ['mousedown','mouseup','click','dblclick','contextmenu','mousemove','keydown','keyup','wheel']) " \
      "addEventListener(t, e => { log.push([t, e.clientX, e.clientY, e.button, e.key, e.ctrlKey, e.shiftKey, e.isTrusted]); if (t == 'contextmenu') e.preventDefault() })"

async def log(session, *types): return [e for e in await session.evaluate('log') if e[0] in types]

async def test_clicks(session):
    await session.goto(page('', LOG))
    await act(session, 'click', point=(500, 500))
    await act(session, 'left_double', point=(250, 250))
    await act(session, 'right_single', point=(750, 750))
    seen = await log(session, 'click', 'dblclick', 'contextmenu')
    assert [e[0] for e in seen] == ['click', 'click', 'click', 'dblclick', 'contextmenu']
    assert seen[0][1:3] == [160, 120] and seen[-1][1:4] == [240, 180, 2]
    assert all(e[-1] for e in seen)

async def test_every_grid_point_lands_inside(session):
    await session.goto(page('', LOG))
    for p in [(0, 0), (1000, 1000), (1, 999)]: await act(session, 'click', point=p)
    assert all(0 <= e[1] < SIZE[0] and 0 <= e[2] < SIZE[1] for e in await log(session, 'click'))
    assert len(await log(session, 'click')) == 3

async def test_scale_and_window(browser):
    config = BrowserConfig(size=(200, 100), window=(400, 300), scale=2)
    session = BrowserSession(browser, config)
    await session.reset()
    await session.goto(page('<div style="position:absolute;left:150px;top:50px;width:50px;height:50px;background:red" onclick="document.title=\'hit\'"></div>'))
    obs = await session.observe()
    assert obs.screenshot.shape == (200, 400, 3) and session.size == (400, 200)
    assert obs.screenshot[150, 350].tolist() == [255, 0, 0] and obs.screenshot[50, 350].tolist() == [255, 255, 255]
    await act(session, 'click', point=(875, 750))
    assert (await session.observe()).title == 'hit' and await session.evaluate('innerWidth') == 400
    await session.close()

async def test_drag_moves_in_steps(session):
    await session.goto(page('', LOG))
    await act(session, 'drag', start_point=(100, 100), end_point=(900, 900))
    seen = await log(session, 'mousedown', 'mousemove', 'mouseup')
    pressed = [e[0] for e in seen].index('mousedown')
    assert seen[-1][0] == 'mouseup' and sum(e[0] == 'mousemove' for e in seen[pressed:]) >= 8
    assert seen[-1][1:3] == [288, 216]

async def test_html5_drag(session):
    await session.goto(page('<div id=a draggable=true style="width:60px;height:60px;background:red"></div><div id=b style="margin-top:60px;width:100px;height:80px;background:blue"></div>',
        'a.ondragstart = e => e.dataTransfer.setData("text/plain", "cargo"); b.ondragover = e => e.preventDefault(); b.ondrop = e => document.title = e.dataTransfer.getData("text/plain") + e.isTrusted;'
        'let ended = 0; a.ondragend = e => ended++'))
    await act(session, 'drag', start_point=await point(session, '#a'), end_point=await point(session, '#b'))
    assert (await session.observe()).title == 'cargotrue'
    assert await session.evaluate('ended') == 1
    await session.evaluate('addEventListener("click", () => document.title = "click")')
    await act(session, 'click', point=(900, 900))
    assert (await session.observe()).title == 'click'

async def test_mouse_held_across_steps(session):
    await session.goto(page('', LOG))
    await act(session, 'mouse_down', point=(100, 100), button='left')
    await act(session, 'move_to', point=(500, 500))
    await session.observe()
    await act(session, 'mouse_up', point=(500, 500), button='left')
    assert [e[0] for e in await log(session, 'mousedown', 'mouseup', 'click')][:2] == ['mousedown', 'mouseup']

async def test_scroll(session):
    await session.goto(page('<div style="width:2000px;height:3000px">long</div>', LOG))
    await act(session, 'scroll', direction='down', point=(500, 500))
    await act(session, 'scroll', direction='right')
    await session.observe()
    assert await session.evaluate('[scrollX, scrollY]') == [100, 100]
    await act(session, 'scroll', direction='up')
    await session.observe()
    assert await session.evaluate('scrollY') == 0

async def test_held_modifiers(session):
    await session.goto(page('', LOG))
    await act(session, 'press', key='shift')
    await act(session, 'click', point=(500, 500))
    await act(session, 'release', key='shift')
    await act(session, 'click', point=(500, 500))
    assert [e[6] for e in await log(session, 'click')] == [True, False]

@pytest.mark.parametrize('text', ['plain Text 123 !@#', 'naïve café', '日本語テキスト', 'emoji 👩‍👩‍👧 🇩🇪 ok', 'e\u0301a\u0308 combined', "quotes ' \" \\ `", 'עברית العربية'])
async def test_typing(session, text):
    await session.goto(page('<input id=i autofocus style="width:300px">'))
    await click(session, '#i')
    await act(session, 'type', content=text)
    assert await session.evaluate('i.value') == text

async def test_autofocus_before_the_first_look(session):
    "The first frames of a new renderer may pass without it: one in three did on a busy machine."
    for i in range(12):
        await session.reset()
        await session.goto(page('<input id=i autofocus>'))
        await act(session, 'type', content=f'{i}')
        assert await session.evaluate('i.value') == f'{i}'

async def test_frames_that_pass_without_the_renderer_are_asked_for_again(session, monkeypatch):
    await session.goto(page('<input id=i autofocus>'))
    draw, missed = session.page.draw, [1, 2]
    async def late(**frame): return dict(hasDamage=False) if missed and missed.pop() else await draw(**frame)
    monkeypatch.setattr(session.page, 'draw', late)
    await act(session, 'type', content='hi')
    assert await session.evaluate('i.value') == 'hi' and not missed

LATE = 'onload = () => {document.body.innerHTML = "<div id=d style=\'position:fixed; inset:0; background: url(dot.png)\'></div>"}'

async def hold_pictures(session, seconds):
    "Answer requests for pictures only after so many seconds, or never."
    cdp = session.page.cdp
    async def answer(paused):
        await asyncio.sleep(seconds)
        await cdp.send('Fetch.continueRequest', dict(requestId=paused['requestId']))
    cdp.on('Fetch.requestPaused', lambda paused: seconds and asyncio.ensure_future(answer(paused)))
    await cdp.send('Fetch.enable', dict(patterns=[dict(urlPattern='*.png')]))

@pytest.fixture
def dotted(tmp_path):
    "A page that a script paints red with a picture, after the load event."
    Image.new('RGB', (9, 9), 'red').save(tmp_path/'dot.png')
    (tmp_path/'late.html').write_text(f'<!doctype html><body><script>{LATE}</script>')
    return (tmp_path/'late.html').as_uri()

async def test_a_picture_that_a_script_asks_for_is_waited_for(session, dotted):
    for again in range(2):
        await hold_pictures(session, .3)
        await session.goto(dotted)
        assert ((await session.observe()).screenshot == (255, 0, 0)).all()
        await session.evaluate(f'd.style.background = "url(dot.png?{again})"')
        await act(session, 'move_to', point=(500, 500))
        assert ((await session.observe()).screenshot == (255, 0, 0)).all()
        await session.reset()

async def test_a_picture_that_never_comes_is_waited_for_once(session, dotted):
    await hold_pictures(session, None)
    await session.goto(dotted)
    began = time.monotonic()
    assert ((await session.observe()).screenshot == 255).all()
    assert 1.9 < time.monotonic() - began < 5
    await session.page.completed()
    assert session.page.complete.is_set() and time.monotonic() - began < 5

async def test_typing_submits_and_breaks_lines(session):
    await session.goto(page('<form onsubmit="document.title=i.value;return false"><input id=i></form><textarea id=t></textarea>'))
    await click(session, '#i')
    await act(session, 'type', content='hello\n')
    assert (await session.observe()).title == 'hello'
    await click(session, '#t')
    await act(session, 'type', content='a\nb')
    assert await session.evaluate('t.value') == 'a\nb'

async def test_typing_gives_keydowns(session):
    await session.goto(page('<input id=i>', LOG))
    await click(session, '#i')
    await act(session, 'type', content='aB')
    assert [(e[4], e[6]) for e in await log(session, 'keydown')] == [('a', False), ('B', True)]

@pytest.mark.parametrize('copy, paste', [('ctrl c', 'ctrl v'), ('ctrl+x', 'ctrl+v')])
async def test_clipboard(session, copy, paste):
    await session.goto(page('<input id=i value=word><input id=j>'))
    await click(session, '#i')
    await act(session, 'hotkey', key='ctrl a')
    await act(session, 'hotkey', key=copy)
    await click(session, '#j')
    await act(session, 'hotkey', key=paste)
    assert await session.evaluate('[i.value, j.value]') == ['' if 'x' in copy else 'word', 'word']
    if 'x' in copy:
        for _ in range(2): await act(session, 'hotkey', key='ctrl z')
        assert await session.evaluate('[i.value, j.value]') == ['word', '']

async def test_clipboard_is_private(browser, session):
    await session.goto(page('<input id=i value=secret>'))
    await click(session, '#i')
    await act(session, 'hotkey', key='ctrl a')
    await act(session, 'hotkey', key='ctrl c')
    other = BrowserSession(browser, session.config)
    await other.reset()
    await other.goto(page('<input id=i>'))
    await click(other, '#i')
    await act(other, 'hotkey', key='ctrl v')
    assert await other.evaluate('i.value') == ''
    await other.close()

async def test_select_from_pixels(session):
    await session.goto(page('<select id=s><option>one<option>two<option>three</select>', 's.onchange = e => document.title = s.value + e.isTrusted'))
    before = (await session.observe()).screenshot
    await click(session, '#s')
    assert not np.array_equal(before, (await session.observe()).screenshot)
    await act(session, 'click', point=await point(session, 'option:nth-child(3)'))
    assert (await session.observe()).title == 'threetrue'

async def test_select_by_keyboard(session):
    await session.goto(page('<select id=s><option>one<option>two</select>'))
    await click(session, '#s')
    await act(session, 'hotkey', key='down')
    await act(session, 'hotkey', key='enter')
    assert await session.evaluate('s.value') == 'two'

async def button(session, name):
    "The grid point of a button of the open dialog."
    a, b, c, d = layout(session.page.dialog, session.size).buttons[name]
    return grid((a + c) / 2, (b + d) / 2)

@pytest.mark.parametrize('script, press, value', [('alert(1)', 'ok', None), ('confirm(1)', 'ok', True), ('confirm(1)', 'cancel', False), ('prompt(1,"x")', 'ok', 'x'), ('prompt(1)', 'cancel', None)])
async def test_dialogs(session, script, press, value):
    await session.goto(page('<button id=b>b</button>', f'b.onclick = () => {{ window.result = {script}; window.done = 1 }}'))
    before = await session.observe()
    await click(session, '#b')
    obs = await session.observe()
    assert EventKind.DIALOG in kinds(obs) and not np.array_equal(obs.screenshot, before.screenshot)
    await act(session, 'click', point=(1, 1))
    assert session.page.dialog
    await act(session, 'click', point=await button(session, press))
    assert await session.evaluate('[window.done, window.result]') == [1, value]

async def test_dialogs_in_a_row_and_by_keys(session):
    await session.goto(page('<button id=b>b</button>', 'b.onclick = () => { alert(1); window.name2 = prompt("n", "old"); window.sure = confirm(2) }'))
    await click(session, '#b')
    await act(session, 'hotkey', key='enter')
    await session.observe()
    await act(session, 'type', content='new\n')
    await session.observe()
    await act(session, 'hotkey', key='escape')
    assert await session.evaluate('[name2, sure]') == ['new', False]

async def test_alert_while_loading_and_from_timer(session):
    await session.goto(page('', 'alert("early")'))
    obs = await session.observe()
    assert EventKind.DIALOG in kinds(obs)
    await act(session, 'hotkey', key='enter')
    await session.evaluate('setTimeout(() => alert("late"), 50), 1')
    await act(session, 'wait', time=.3)
    await session.observe()
    assert session.page.dialog.message == 'late'
    await act(session, 'hotkey', key='enter')
    assert (await session.observe()).screenshot.shape == (240, 320, 3)

async def test_beforeunload(session):
    await session.goto(page('<a id=a href="about:blank" style="font-size:40px">go</a>', 'onbeforeunload = e => { e.preventDefault(); return "x" }'))
    await click(session, '#a')
    await session.observe()
    assert session.page.dialog.kind == 'beforeunload'
    await act(session, 'click', point=await button(session, 'cancel'))
    assert (await session.observe()).url.startswith('data:')
    await click(session, '#a')
    await session.observe()
    await act(session, 'click', point=await button(session, 'ok'))
    assert (await session.observe()).url == 'about:blank'

async def test_file_chooser(session):
    await session.goto(page('<input type=file id=f style="font-size:30px">', 'f.onchange = async e => document.title = f.files[0].name + await f.files[0].text(); f.oncancel = () => document.title = "cancelled"'))
    await click(session, '#f')
    await until(lambda: session.page.dialog)
    obs = await session.observe()
    assert EventKind.FILE_CHOOSER in kinds(obs)
    await act(session, 'type', content='/etc/passwd\n')
    assert 'No such file' in session.page.dialog.message
    await act(session, 'hotkey', key='ctrl a')
    await act(session, 'type', content='notes.txt\n')
    await titled(session, 'notes.txthello')

async def test_popups_and_tabs(session):
    await session.goto(page('<button id=b>b</button>', 'b.onclick = () => window.open("data:text/html,<title>Pop</title>popped" && "about:blank")', 'First'))
    await click(session, '#b')
    obs = await session.observe()
    assert EventKind.NEW_TAB in kinds(obs) and [t.active for t in obs.tabs] == [False, True]
    await act(session, 'hotkey', key='ctrl 1')
    assert (await session.observe()).title == 'First'
    await act(session, 'hotkey', key='ctrl tab')
    assert (await session.observe()).url == 'about:blank'
    await act(session, 'hotkey', key='ctrl w')
    obs = await session.observe()
    assert obs.title == 'First' and EventKind.TAB_CLOSED in kinds(obs)

async def test_window_close(session):
    await session.goto(page('<button id=b>b</button>', 'b.onclick = () => { window.w = window.open("about:blank") }', 'First'))
    await click(session, '#b')
    await session.observe()
    await session.evaluate('setTimeout(() => window.close(), 10), 1')
    await act(session, 'wait', time=.3)
    await until(lambda: len(session.pages) == 1)
    assert (await session.observe()).title == 'First'

async def test_links_history_and_reload(session, tmp_path):
    (tmp_path/'a.html').write_text('<title>A</title><a id=a href="b.html" style="font-size:40px">b</a>')
    (tmp_path/'b.html').write_text('<title>B</title>')
    await session.goto(f'file://{tmp_path}/a.html')
    await click(session, '#a')
    obs = await session.observe()
    assert obs.title == 'B' and EventKind.NAVIGATION in kinds(obs)
    await act(session, 'navigate_back')
    assert (await session.observe()).title == 'A'
    await act(session, 'hotkey', key='alt right')
    assert (await session.observe()).title == 'B'
    await session.evaluate('window.mark = 1')
    await act(session, 'hotkey', key='f5')
    assert await session.evaluate('window.mark') is None
    await act(session, 'navigate', content=f'file://{tmp_path}/a.html')
    assert (await session.observe()).title == 'A'

async def test_files_outside_are_refused(session, tmp_path):
    (tmp_path/'in').mkdir()
    (tmp_path/'out.html').write_text('<title>secret</title>secret')
    (tmp_path/'in'/'a.html').write_text('<title>A</title><a id=a href="../out.html" style="font-size:40px">x</a>')
    await session.goto(f'file://{tmp_path}/in/a.html')
    await click(session, '#a')
    obs = await session.observe()
    assert EventKind.REFUSED_REQUEST in kinds(obs) and obs.title != 'secret'
    with pytest.raises(ActionError): await act(session, 'navigate', content=f'file://{tmp_path}/out.html')
    with pytest.raises(ActionError): await act(session, 'navigate', content='chrome://settings')
    for url in ('javascript:while(1);', 'data:text/html,<script>for(;;);</script>', 'blob:x'):   # a page of the policy's own could hang, and its failure be the environment's
        with pytest.raises(ActionError): await act(session, 'navigate', content=url)
    assert (await session.observe()).title != 'secret'

async def test_network_is_closed(session, server):
    "Fetch, images, web sockets and plain addresses fail alike; the refusal is an event."
    await session.goto(page('', f'window.out = []; fetch("{server}/", {{mode: "no-cors"}}).then(() => out.push("fetched"), () => out.push("refused"));'
        f'const w = new WebSocket("{server.replace("http", "ws")}/"); w.onerror = () => out.push("refused"); w.onopen = () => out.push("open");'
        'const i = new Image(); i.onerror = () => out.push("refused"); i.src = "http://example.org/a.png"'))
    for _ in range(100):
        if len(out := await session.evaluate('out')) == 3: break
        await asyncio.sleep(.05)
    assert out == ['refused'] * 3
    assert EventKind.REFUSED_REQUEST in kinds(await session.observe())

async def test_local_server(session, server):
    await session.goto(server + '/')
    assert (await session.observe()).title == 'Served'
    await act(session, 'navigate', content=server + '/other')
    assert (await session.observe()).url.endswith('/other')

async def test_download(session, server):
    await session.goto(server + '/')
    await session.evaluate("document.body.innerHTML = '<a id=a href=/file style=\"font-size:40px\">get</a>'")
    for n in range(2):
        await click(session, '#a')
        for _ in range(100):
            if sum(e.kind == EventKind.DOWNLOAD for e in session.events) > n: break
            await asyncio.sleep(.05)
    obs = await session.observe()
    assert [e.data['file'] for e in obs.events if e.kind == EventKind.DOWNLOAD] == ['report.txt', 'report (1).txt']
    assert 'served' in Path(session.folder, 'report.txt').read_text()

async def test_print_and_permissions_do_not_hang(session, server):
    await session.goto(server + '/')
    await asyncio.wait_for(session.evaluate('window.print(), 1'), 20)
    states = await asyncio.wait_for(session.evaluate('''Promise.all([Notification.requestPermission(),
        new Promise(r => navigator.geolocation.getCurrentPosition(() => r("given"), e => r("denied"))),
        navigator.mediaDevices.getUserMedia({audio: true}).then(() => "given", () => "denied")])'''), 20)
    assert states[1:] == ['denied'] * 2 and states[0] in ('denied', 'default')
    assert (await session.observe()).title == 'Served'

async def test_console_errors_are_events(session):
    await session.goto(page('', 'console.error("oh", 1); setTimeout(() => { throw new Error("uncaught") })'))
    await act(session, 'wait', time=.1)
    await until(lambda: len([e for e in session.events if e.kind == EventKind.CONSOLE_ERROR]) == 2)
    assert [e.text.splitlines()[0] for e in (await session.observe()).events if e.kind == EventKind.CONSOLE_ERROR] == ['oh 1', 'Error: uncaught']

LEAVE = '''(async () => { localStorage.a = 1; sessionStorage.a = 1; document.cookie = 'a=1'; window.name = 'left'; await (await caches.open('c')).put('/x', new Response('x'))
  await new Promise(r => { const q = indexedDB.open('db'); q.onsuccess = r }); await navigator.serviceWorker.register('/sw.js'); history.pushState(1, '', '/y')
  document.body.style.zoom = 2; scrollTo(0, 100); setInterval(() => { localStorage.tick = 1 }, 1); addEventListener('unload', () => { localStorage.unload = 1 }) })()'''
FOUND = '''(async () => ({local: localStorage.length, session: sessionStorage.length, cookie: document.cookie, name: window.name, caches: (await caches.keys()).length,
  dbs: (await indexedDB.databases()).length, workers: (await navigator.serviceWorker.getRegistrations()).length, history: history.length,
  zoom: document.body.style.zoom + visualViewport.scale + devicePixelRatio, scroll: scrollY}))()'''

async def test_reset_leaves_nothing(session, server):
    await session.goto(server + '/')
    clean = await session.evaluate(FOUND)
    await session.evaluate(LEAVE)
    assert await session.evaluate(FOUND) != clean
    await session.evaluate("window.open('about:blank'), 1")
    await act(session, 'press', key='shift')
    await act(session, 'mouse_down', point=(5, 5), button='left')
    session.clipboard = 'left'
    Path(session.folder, 'left.txt').write_text('x')
    await session.reset()
    obs = await session.observe()
    assert (len(obs.tabs), obs.url, obs.events, obs.clock_ms) == (1, 'about:blank', (), 0)
    assert (session.clipboard, session.hands.keys, session.hands.buttons, os.listdir(session.folder)) == ('', [], 0, [])
    await session.goto(server + '/')
    assert await session.evaluate(FOUND) == clean

async def test_reset_of_local_pages_leaves_nothing(session, tmp_path):
    (tmp_path/'a.html').write_text('<title>A</title><body>')
    find = '({local: {...localStorage}, session: {...sessionStorage}, name: window.name, history: history.length, mark: window.mark, ticks: localStorage.tick})'
    await session.goto(f'file://{tmp_path}/a.html')
    clean = await session.evaluate(find)
    for _ in range(3):
        await session.evaluate('''localStorage.a = sessionStorage.a = window.name = window.mark = 1; history.pushState(1, ''); setInterval(() => { localStorage.tick = 1 }, 1);
            for (const t of ['unload', 'pagehide', 'visibilitychange']) addEventListener(t, () => { localStorage[t] = 1; sessionStorage[t] = 1 })''')
        await session.reset()
        await session.goto(f'file://{tmp_path}/a.html')
        assert await session.evaluate(find) == clean

async def test_same_actions_same_pixels(session):
    "Caret, focus ring, selection and an open list are all in the picture."
    runs = []
    for _ in range(2):
        await session.reset()
        await session.goto(page('<input id=i><select id=s><option>one<option>two</select><p>Some <b>text</b> to select, with <i>faces</i> and 日本</p>'))
        shots = [(await session.observe()).screenshot]
        for name, args in [('click', dict(point=await point(session, '#i'))), ('type', dict(content='abc é')), ('hotkey', dict(key='ctrl a')), ('hotkey', dict(key='tab')), ('click', dict(point=await point(session, '#s'))), ('wait', dict(time=.6))]:
            await act(session, name, **args)
            shots.append((await session.observe()).screenshot)
        runs.append(shots)
    assert all(np.array_equal(a, b) for a, b in zip(*runs))
    assert not np.array_equal(runs[0][0], runs[0][1])

async def failure(awaitable):
    with pytest.raises(EnvironmentFailure) as e: await awaitable
    return e.value.reason

async def test_endless_loop_is_a_time_out(browser):
    session = BrowserSession(browser, BrowserConfig(timeout=1))
    await session.reset()
    await session.goto(page('<button id=b style="width:100px;height:100px">b</button>', 'b.onclick = () => { for (;;); }'))
    assert await failure(session.evaluate('b.onclick()')) == StopReason.ENV_TIMEOUT
    await session.reset()
    assert (await session.observe()).url == 'about:blank'
    await session.close()

async def test_crashed_tab(browser):
    session = BrowserSession(browser, BrowserConfig(timeout=3))
    await session.reset()
    page = session.page
    with contextlib.suppress(EnvironmentFailure): await session.goto('chrome://crash')  # the crash may be told a moment later
    await asyncio.wait({page.blocked}, timeout=3)
    assert await failure(session.observe()) == StopReason.ENV_CRASH
    await session.reset()
    assert (await session.observe()).url == 'about:blank'
    await session.close()

async def test_killed_browser():
    browser = await launch()
    session = BrowserSession(browser)
    await session.reset()
    waiting = asyncio.create_task(session.evaluate('new Promise(() => 0)'))
    await asyncio.sleep(.1)
    browser.kill()
    assert await asyncio.wait_for(failure(waiting), 20) == StopReason.ENV_CRASH
    assert await failure(session.observe()) == StopReason.ENV_CRASH
    assert await failure(session.reset()) == StopReason.ENV_RESET
    await session.close()
    await browser.close()

async def test_a_launch_that_is_cancelled_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    slow = tmp_path/'slow'
    slow.write_text('#!/bin/sh\necho $$ > "$TMPDIR/new"; mv "$TMPDIR/new" "$TMPDIR/pid"; exec sleep 1000')
    slow.chmod(0o755)
    starting = asyncio.create_task(launch(path=str(slow), on_demand=False))
    pid = int((await until(lambda: [*tmp_path.glob('*/pid')]))[0].read_text())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError): await starting
    await until(lambda: not process_start_time(pid))
    assert [*tmp_path.iterdir()] == [slow]

async def test_a_handler_that_fails_keeps_nothing_from_the_others():
    loop, heard, told = asyncio.get_running_loop(), [], []
    connection = Connection()
    def fail(params): raise OSError('no room')
    for event, handler in (('One', fail), ('One', heard.append), ('Two', heard.append)): connection.root.on(event, handler)
    answer, before = connection.send('Page.enable'), loop.get_exception_handler()
    connection.outgoing.clear()
    loop.set_exception_handler(lambda loop, about: told.append(str(about['exception'])))
    try: connection.data_received(b'{"method":"One","params":1}\0{"method":"Two","params":2}\0{"id":1,"result":3}\0')
    finally: loop.set_exception_handler(before)
    assert heard == [1, 2] and answer.result() == 3 and told == ['no room']

async def test_names_of_downloads_that_no_file_can_have(tmp_path):
    downloads = Downloads(str(tmp_path))
    for i, name in enumerate(['\u00e4' * 300 + '.pdf'] * 2 + ['a.' + 'x' * 300, '\ud800.txt', '..', 'x/', '']):
        downloads.begin(str(i), name)
        (tmp_path/downloads.folder/str(i)).write_text('text')
        assert downloads.end(str(i)).data['bytes'] == 4
    names = downloads.offered()
    assert len(names) == 7 and '\u00e4' * 118 + ' (1).pdf' in names and max(len(o.encode()) for o in names) <= 255

async def test_a_refused_download_ends_once_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr('uitars_nb.sandbox.browser.downloads.LIMIT', 1000)
    downloads = Downloads(str(tmp_path))
    downloads.begin('a', 'large.bin')
    assert not downloads.fits('a', 2000)
    assert 'was not downloaded' in downloads.end('a', False).text and not downloads.names
    late = tmp_path/downloads.folder/'a'
    late.write_bytes(bytes(2000))   # it was complete before Chromium heard of the cancellation
    assert downloads.end('a', True, 2000) is None and not late.exists() and not downloads.offered()

async def test_unknown_actions_are_refused(session):
    for name, args in [('fly', {}), ('click', {}), ('hotkey', dict(key='hyper q')), ('navigate_back', {})]:
        with pytest.raises(ActionError): await act(session, name, **args)

COLOURS = 'let n = 0; onmousedown = () => document.body.style.background = `rgb(${++n % 256}, ${7 * n % 256}, ${31 * n % 256})`'

def colour(n): return [n % 256, 7 * n % 256, 31 * n % 256]

async def late_screens(session, episodes, clicks):
    "Screens that do not show the click before them, or not the page that was opened."
    late = []
    for e in range(episodes):
        await session.reset()
        await session.goto(page(f'<p>{e}</p>', f'document.body.style.background = "rgb(0, {e % 256}, 0)"; {COLOURS}'))
        if (await session.observe()).screenshot[-1, -1].tolist() != [0, e % 256, 0]: late.append((e, 'first'))
        for n in range(1, clicks + 1):
            await act(session, 'click', point=(500, 900))
            if (await session.observe()).screenshot[-1, -1].tolist() != colour(n): late.append((e, n))
    return late

@pytest.mark.parametrize('episodes, clicks', [(8, 5), (1, 60), pytest.param(150, 8, marks=pytest.mark.slow), pytest.param(2, 1500, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
async def test_every_screen_is_fresh(browser, episodes, clicks):
    "Two sessions in one browser, so that their frames take turns."
    sessions = [BrowserSession(browser, BrowserConfig(window=(500, 320))) for _ in range(2)]
    assert await asyncio.gather(*[late_screens(s, episodes, clicks) for s in sessions]) == [[], []]
    for s in sessions: await s.close()

async def test_a_page_that_hangs_while_it_is_drawn_does_not_hold_up_its_neighbour(browser):
    hung, other = [BrowserSession(browser, BrowserConfig(timeout=t)) for t in (1, 10)]
    for s in (hung, other):
        await s.reset()
        await s.goto(page('<div id=d>d</div>', 'new ResizeObserver(() => { if (d.style.width == "99px") for (;;); }).observe(d)'))
        await s.observe()
    await hung.evaluate('d.style.width = "99px", 1')
    looked = await asyncio.gather(hung.observe(), other.observe(), return_exceptions=True)
    assert looked[0].reason == StopReason.ENV_TIMEOUT and looked[1].url.startswith('data:')
    await hung.reset()
    assert (await hung.observe()).url == 'about:blank'
    for s in (hung, other): await s.close()

async def test_giving_up_a_look_leaves_the_browser_whole(browser):
    "A frame goes on in Chromium when nobody waits for it any more; the next one takes its turn after it."
    sessions = [BrowserSession(browser) for _ in range(2)]
    for s in sessions:
        await s.reset()
        await s.goto(page('p'))
    for n in range(30):
        looks = [asyncio.create_task(s.observe()) for s in sessions]
        await asyncio.sleep(.0003 * (n % 10))
        looks[n % 2].cancel()
        await asyncio.gather(*looks, return_exceptions=True)
    assert not browser.gone.done()
    assert all([(await s.observe()).url.startswith('data:') for s in sessions])
    for s in sessions: await s.close()

async def test_what_frames_tell_is_heard_before_the_next_look(session):
    "Scrolling, observers and what the pointer is over reach the page although nobody looks in between."
    await session.goto(page('<style>#m { width: 200px; height: 40px } #m:hover { background: lime }</style><div id=m>m</div><div style="height:2000px"></div><p id=end>end',
        'window.heard = []; onscroll = () => heard.push("scroll " + scrollY); new IntersectionObserver(e => heard.push("seen " + e[0].isIntersecting)).observe(end)'))
    await act(session, 'scroll', direction='down', point=(500, 500))
    assert await session.evaluate('heard') == ['seen false', 'scroll 100']
    await session.evaluate('scrollTo(0, 0)')
    await act(session, 'move_to', point=grid(20, 10))
    assert (await session.observe()).screenshot[35, 150].tolist() == [0, 255, 0]

@pytest.mark.parametrize('js, arg, value', [('() => [1, 2]', None, [1, 2]), ('async () => 7', None, 7), ('function () { return 3 }', None, 3), ('x => x', 0, 0), ('x => typeof x', None, 'undefined'),
    ('() => () => 1', None, None), ('1, 2', None, 2), ('{ let a = 5; a }', None, 5), ('let q = 4; q', None, 4), ('({a: 1})', None, {'a': 1}), ('1 // one', None, 1),
    ('document.body.onclick = () => 1; 0', None, 0), ('document.body.onclick', None, 1)])
async def test_evaluate_calls_functions(session, js, arg, value):
    await session.goto(page('<script>document.body.onclick = () => 1</script>'))
    assert await session.evaluate(js, arg) == value

async def test_evaluate_runs_once(session):
    "What the page throws while it runs is no reason to run it again."
    await session.goto(page(''))
    for js in ('window.n = (window.n ?? 0) + 1, JSON.parse("{")', '() => { n++; JSON.parse("{") }', 'async () => { n++; JSON.parse("{") }', '() => { n++; eval("(") }'):
        with pytest.raises(RuntimeError, match='SyntaxError'): await session.evaluate(js)
    assert await session.evaluate('n') == 4
    with pytest.raises(RuntimeError, match='Unexpected'): await session.evaluate('syntax error here')

async def test_device_scale(browser):
    session = BrowserSession(browser, BrowserConfig(size=(160, 210), window=(500, 320), scale=2.))
    await session.reset()
    await session.goto(page('<div id=d style="position:absolute;left:80px;top:100px;width:40px;height:40px;background:red">', 'd.onclick = () => d.style.background = "blue"'))
    assert (await session.observe()).screenshot.shape == (420, 320, 3)
    await act(session, 'click', point=to_grid((100, 120), (160, 210)))
    assert (await session.observe()).screenshot[239, 199].tolist() == [0, 0, 255]
    assert await session.evaluate('[innerWidth, innerHeight, devicePixelRatio]') == [500, 320, 2]
    await session.close()


def test_threads_that_need_the_shared_loop_together_get_one(monkeypatch):
    "With two loops, a session of one would be waited for on the other, for ever."
    import threading
    import time

    from uitars_nb.sandbox import base

    made = []
    class Slow:
        def __init__(self): time.sleep(.05); made.append(self)
    monkeypatch.setattr(base, '_background', None)
    monkeypatch.setattr(base, 'Background', Slow)
    threads = [threading.Thread(target=base._shared) for _ in range(8)]
    for o in threads: o.start()
    for o in threads: o.join()
    assert len(made) == 1
