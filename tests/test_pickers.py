"Every pop-up that Chromium would open beside the page is seen in the picture and used by clicks and keys; none of them hangs the tab."
from urllib.parse import quote

import numpy as np
import pytest, pytest_asyncio

from uitars_nb.core.types import Action, EventKind
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.chromium import launch

pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.timeout(60)]
SIZE = (320, 240)
BOX = 'width:120px;height:30px;margin:0;box-sizing:border-box'
OPTIONS = '<option>a<option>b<option>c'

@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def browser():
    browser = await launch()
    yield browser
    await browser.close()

@pytest_asyncio.fixture(loop_scope='module')
async def session(browser):
    session = BrowserSession(browser, BrowserConfig(size=SIZE, timeout=5))
    await session.reset()
    yield session
    await session.close()

async def open_page(session, body, script=''):
    heard = 'window.heard = []; for (const t of ["input", "change"]) addEventListener(t, e => heard.push(t + ":" + (e.composedPath()[0].value)), true);'
    await session.goto('data:text/html;charset=utf-8,' + quote(f'<!doctype html><title>T</title><body style="margin:0">{body}<script>{heard}{script}</script>'))
    return (await session.observe()).screenshot

def grid(x, y): return (round(1000 * x / SIZE[0]), round(1000 * y / SIZE[1]))

async def click(session, x=40, y=15): await session.act(Action('click', dict(point=grid(x, y))))
async def keys(session, *names):
    for name in names: await session.act(Action('hotkey', dict(key=name)))

async def below(session):
    "What is seen below the control."
    return (await session.observe()).screenshot[34:]

def row(i): return dict(y=33 + 16 * i + 8)   # of a picker without a title

SELECTS = dict(
    inline=(f'<select id=s style="appearance:none;{BOX}">{OPTIONS}</select>', ''),
    id=(f'<style>#s{{appearance:none;{BOX}}}</style><select id=s>{OPTIONS}</select>', ''),
    important=(f'<style>select{{appearance:auto!important}}</style><select id=s style="{BOX}">{OPTIONS}</select>', ''),
    one_row=(f'<select id=s size=1 style="{BOX}">{OPTIONS}</select>', ''),
    open_root=('<div id=h></div>', f"window.s = h.attachShadow({{mode: 'open'}}).appendChild(document.createElement('select')); s.style.cssText = '{BOX}'; s.innerHTML = '{OPTIONS}'; s.onchange = () => heard.push('change:' + s.value)"),
    closed_root=('<div id=h></div>', f"window.s = h.attachShadow({{mode: 'closed'}}).appendChild(document.createElement('select')); s.style.cssText = '{BOX}'; s.innerHTML = '{OPTIONS}'; s.onchange = () => heard.push('change:' + s.value)"),
    sheets=(f'<select id=s style="{BOX}">{OPTIONS}</select>', 'document.adoptedStyleSheets = [new CSSStyleSheet()]'),
    show=(f'<select id=s style="appearance:none;{BOX}">{OPTIONS}</select>', 's.onmousedown = e => e.preventDefault(); s.onclick = () => s.showPicker()'),
    frame=(f'<iframe style="border:0;width:200px;height:31px" srcdoc="<body style=margin:0><select id=s style=\'appearance:none;{BOX}\'>{OPTIONS}</select>"></iframe>',
           'onload = () => { window.s = frames[0].s; frames[0].addEventListener("change", () => heard.push("change:" + s.value)) }'),
    modal=(f'<dialog id=d style="border:0;padding:0;margin:0;inset:0"><select id=s style="appearance:none;{BOX}">{OPTIONS}</select></dialog>', 'd.showModal()'))

@pytest.mark.parametrize('case', SELECTS)
async def test_a_list_is_seen_and_used(session, case):
    await open_page(session, *SELECTS[case])
    before = await below(session)
    await click(session)
    opened = await below(session)
    assert (opened != before).any(-1).sum() > 200
    await click(session, **row(1))
    assert await session.evaluate('s.value') == 'b' and 'change:b' in await session.evaluate('heard')
    assert np.array_equal(await below(session), before)
    await click(session)
    await keys(session, 'down', 'enter')
    assert await session.evaluate('s.value') == 'c'
    await click(session)
    await click(session, 300, 230)
    assert np.array_equal(await below(session), before) and await session.evaluate('s.value') == 'c'

async def test_a_list_whose_page_draws_its_own_stays_closed(session):
    await open_page(session, f'<select id=s style="appearance:none;{BOX}">{OPTIONS}</select>', 's.onmousedown = e => { e.preventDefault(); document.title = e.defaultPrevented }')
    before = await below(session)
    await click(session)
    assert np.array_equal(await below(session), before) and (await session.observe()).title == 'true'

async def test_another_list_and_its_own_control_close_a_list(session):
    await open_page(session, f'<select id=s style="appearance:none;{BOX}">{OPTIONS}</select><select id=t style="appearance:none;{BOX}">{OPTIONS}</select>')
    before = await below(session)
    await click(session)
    first = await below(session)
    await click(session, x=170)
    second = await below(session)
    assert not np.array_equal(first, second) and not np.array_equal(second, before)
    await click(session, x=170)
    assert np.array_equal(await below(session), before)

PICKS = [('date', '2026-02-10', 'space', ('right', 'enter'), '2026-02-11'), ('date', '2026-02-10', 'f4', ('pagedown', 'enter'), '2026-02-10'),
         ('date', '', 'alt down', ('right', 'right', 'enter'), '2025-12-29'), ('month', '2026-02', 'alt down', ('right', 'enter'), '2026-03'), ('week', '2026-W02', 'f4', ('down', 'enter'), '2026-W03'),
         ('time', '10:00', 'space', ('right', 'enter'), '10:30'), ('datetime-local', '2026-02-10T10:00', 'f4', ('right', 'enter', 'down', 'enter'), '2026-02-11T00:00')]

@pytest.mark.parametrize('kind, value, opens, chosen, then', PICKS)
async def test_dates_and_times_are_seen_and_used(session, kind, value, opens, chosen, then):
    await open_page(session, f'<input id=s type={kind} value="{value}" style="{BOX}">')
    await click(session)
    before = await below(session)
    await keys(session, opens)
    assert (await below(session) != before).any(-1).sum() > 500
    await keys(session, *chosen)
    assert await session.evaluate('s.value') == then
    assert ('change:' + then in await session.evaluate('heard')) == (then != value)
    await keys(session, 'escape')
    assert np.array_equal(await below(session), before)

async def test_a_calendar_turns_and_takes_clicks(session):
    await open_page(session, f'<input id=s type=date value=2026-02-10 min=2026-01-05 style="{BOX}">', 's.ondblclick = () => s.showPicker()')
    await session.act(Action('left_double', dict(point=grid(40, 15))))
    await click(session, 20, 41)              # <
    await click(session, 20, 33 + 2 * 16 + 8) # 28 December and 4 January are too early
    assert await session.evaluate('s.value') == '2026-02-10'
    await click(session, 20, 33 + 4 * 16 + 8)
    assert await session.evaluate('s.value') == '2026-01-11'

async def test_a_colour_is_seen_and_used(session):
    await open_page(session, f'<label><input id=s type=color value=#ff0000 style="{BOX}">colour</label>')
    before = await below(session)
    await click(session, x=140)   # the label
    assert (await below(session) != before).any(-1).sum() > 5000
    await click(session, 9, 33 + 16 + 8)
    assert await session.evaluate('[s.value, heard]') == ['#000000', ['input:#000000', 'change:#000000']]
    await click(session)
    await session.act(Action('type', dict(content='1a2b3c')))
    assert await session.evaluate('s.value') == '#1a2b3c'

async def test_suggestions_are_seen_and_used(session):
    await open_page(session, f'<form onsubmit="document.title = s.value; return false"><input id=s list=l style="{BOX}"></form><datalist id=l><option>tea<option>coffee<option value=w>water</datalist>')
    before = await below(session)
    await click(session)
    everything = await below(session)
    await session.act(Action('type', dict(content='f')))
    some = await below(session)
    assert len({o.tobytes() for o in (before, everything, some)}) == 3
    await click(session, **row(0))
    assert await session.evaluate('[s.value, heard.at(-1)]') == ['coffee', 'change:coffee']
    await keys(session, 'ctrl a', 'backspace', 'down', 'up', 'down', 'down', 'enter')
    assert await session.evaluate('s.value') == 'w'
    await session.act(Action('type', dict(content='ords\n')))
    assert (await session.observe()).title == 'words' and np.array_equal(await below(session), before)

async def test_the_pointer_is_not_locked(session):
    await open_page(session, f'<div id=s style="{BOX}">x</div>', 's.onclick = () => s.requestPointerLock().catch(e => document.title = e.name)')
    for _ in range(10):
        await click(session)
        await session.act(Action('move_to', dict(point=(900, 900))))
    assert (await session.observe()).title == 'NotSupportedError'

async def test_printing_is_told(session):
    await open_page(session, f'<div id=s style="{BOX}">x</div>', 's.onclick = () => { print(); document.title = "on" }')
    await click(session)
    obs = await session.observe()
    assert obs.title == 'on' and [e.data.get('type') for e in obs.events if e.kind is EventKind.DIALOG] == ['print']

@pytest.mark.parametrize('body', [f'<div><template shadowrootmode=closed><select style="{BOX}">{OPTIONS}</select></template></div>',
    f'<iframe sandbox style="border:0" srcdoc="<body style=margin:0><select style=\'appearance:none;{BOX}\'>{OPTIONS}</select>"></iframe>'])
async def test_what_no_script_reaches_is_closed_and_told(session, body):
    await open_page(session, body)
    for _ in range(10):   # beside others a frame may end before the pop-up wants one
        await click(session)
        obs = await session.observe()
        if any(e.data.get('type') == 'popup' for e in obs.events): break
    else: pytest.fail('no pop-up was told of')
    assert (await session.observe()).title == 'T' and await session.evaluate('1 + 1') == 2

async def test_pickers_are_the_same_bit_for_bit(session):
    runs = []
    for _ in range(2):
        await session.reset()
        await open_page(session, f'<input id=s type=date style="{BOX}">')
        await click(session)
        await keys(session, 'space', 'right')
        runs.append(await below(session))
    assert np.array_equal(*runs)
