"A screenshot is what the page shows there: scrolled pages against Chromium's own picture of the whole document, cut to the screen."
import asyncio, base64
from urllib.parse import quote

import numpy as np
import pytest, pytest_asyncio

from tests.waiting import until
from uitars_nb.core.types import Action
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.chromium import find_chromium, is_shell, launch
from uitars_nb.sandbox.browser.clock import ClockConfig
from uitars_nb.sandbox.browser.capture import SHOT, decode

pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.timeout(180)]
SIZE = (1600, 1400)  # of the document, CSS pixels

# A tile of its own colour and number every 50 pixels, and a box that scrolls by itself.
DOCUMENT = '''<!doctype html><title>Tiles</title><style>* { scrollbar-width: none; margin: 0 } div { position: absolute; width: 50px; height: 50px }
  #box { left: 300px; top: 250px; width: 170px; height: 120px; overflow: scroll }</style>
<body style="width: %dpx; height: %dpx; position: relative"><script>
const tile = (n, x, y, into) => Object.assign(into.appendChild(document.createElement('div')),
  {textContent: n, style: `left: ${x}px; top: ${y}px; background: rgb(${37 * n %% 256}, ${91 * n %% 256}, ${n %% 256}); color: ${n %% 2 ? 'black' : 'white'}`})
for (let n = 0; n < 896; n++) tile(n, n %% 32 * 50, Math.floor(n / 32) * 50, document.body)
const box = document.createElement('div')
box.id = 'box'
document.body.append(box)
for (let n = 0; n < 200; n++) tile(1000 + n, n %% 10 * 50, Math.floor(n / 10) * 50, box)
</script>''' % SIZE

STEPS = dict(  # what is done after the last step, by the policy or by the page; it ends at whole device pixels
    still=[], down=[('scroll', dict(direction='down', point=(200, 200)))] * 2, right=[('scroll', dict(direction='right', point=(200, 200)))],
    odd=['scrollBy(34, 78)'], page=[('hotkey', dict(key='pagedown'))], nested=['scrollTo(200, 170); box.scrollTo(60, 130)'],
    zoom=['document.body.style.zoom = 1.5; scrollTo(412, 350)'], plain=['document.body.style.zoom = 1'],
    end=['scrollTo(0, 0)', ('hotkey', dict(key='end'))], up=[('scroll', dict(direction='up', point=(100, 100)))])
STATE = '[scrollX, scrollY, box.scrollLeft, box.scrollTop, document.body.style.zoom]'


@pytest_asyncio.fixture(loop_scope='module', scope='module', params=['shell', 'full'])
async def pair(request):
    "A browser as sessions get it, and the same binary that draws at its own pace, with pictures of the whole document."
    try: path = find_chromium(shell=request.param == 'shell')
    except FileNotFoundError as e: pytest.skip(str(e))
    if is_shell(path) != (request.param == 'shell'): pytest.skip('there is no headless shell here')
    browser, other = await launch(path=path), await launch(path=path, on_demand=False)
    yield browser, other, dict(full=request.param == 'full')
    for b in (browser, other): await b.close()


async def opened(browser, **config):
    session = BrowserSession(browser, BrowserConfig(**config))
    await session.reset()
    await session.goto('data:text/html,' + quote(DOCUMENT))
    return session


async def whole(other, kept, scale, left, top, zoom):
    "Chromium's own picture of all of the document, with the box and the zoom as they are in the session."
    if (key := (scale, left, top, zoom)) not in kept:
        session = await opened(other, size=(400, 300), scale=scale, clock=ClockConfig(mode='real'))
        size = await session.evaluate(f'document.body.style.zoom = {zoom!r}; box.scrollTo({left}, {top}); [document.documentElement.scrollWidth, document.documentElement.scrollHeight]')
        clip = dict(x=0, y=0, width=size[0], height=size[1], scale=1)
        shot = await session.page.cdp.send('Page.captureScreenshot', SHOT | dict(captureBeyondViewport=True, clip=clip))
        kept[key] = decode(shot['data'], tuple(round(n * scale) for n in size))
        await session.close()
    return kept[key]


async def check(session, pair, name):
    "The screenshot equals that part of the whole document; the full Chromium scrolls in a thread of its own, so it gets 5 s."
    for attempt in range(25 if pair[2]['full'] else 0):
        try: return await compared(session, pair, name)
        except AssertionError: await asyncio.sleep(.2)
    return await compared(session, pair, name)


async def compared(session, pair, name):
    x, y, left, top, zoom = await session.evaluate(STATE)
    seen, scale = (await session.observe()).screenshot, session.config.scale
    x, y = round(x * scale), round(y * scale)
    right = (await whole(*pair[1:], scale, left, top, zoom))[y:y + seen.shape[0], x:x + seen.shape[1]]
    assert seen.shape == right.shape and not (wrong := (seen != right).any(-1)).any(), f'{name} at {x, y}: {wrong.mean():.0%} of the pixels differ'
    return x, y, left, top, zoom


PLAIN, CORNER = dict(size=(400, 300)), dict(size=(160, 210), window=(500, 320))
CASES = {'plain': PLAIN, 'corner': CORNER, 'corner at 2': CORNER | dict(scale=2.), 'at 1.5': dict(size=(304, 208), scale=1.5), 'large': dict(size=(1024, 768)),
    'plain, real time': PLAIN | dict(clock=ClockConfig(mode='real')), 'corner at 2, real time': CORNER | dict(scale=2., clock=ClockConfig(mode='real'))}

@pytest.mark.parametrize('case', CASES)
async def test_scrolled_pages(pair, case):
    session, states = await opened(pair[0], **CASES[case]), set()
    for name, steps in STEPS.items():
        for step in steps: await (session.evaluate(step + '; 0') if isinstance(step, str) else session.act(Action(*step)))
        states.add(await check(session, pair, name))
    assert len(states) == len(STEPS), 'some step moved nothing'
    await session.close()


async def test_scrolled_after_another_size(pair):
    session = await opened(pair[0], size=(400, 300))
    for size, window, scale in (((160, 210), (500, 320), 1.), ((600, 250), None, 2.), ((400, 300), None, 1.)):
        session.configure(size=size, window=window, scale=scale)
        session.size = tuple(round(n * scale) for n in size)
        await session.reset()
        await session.goto('data:text/html,' + quote(DOCUMENT))
        for _ in range(2): await session.act(Action('scroll', dict(direction='down')))
        assert (await check(session, pair, str(size)))[1] == 200 * scale
    await session.close()


async def test_scrolled_pop_up_and_another_document(pair, tmp_path):
    "The picture follows tabs that pages open, and documents of another origin."
    session = await opened(pair[0], size=(400, 300), folders=(str(tmp_path),))
    (tmp_path/'tiles.html').write_text(DOCUMENT)
    await session.goto((tmp_path/'tiles.html').as_uri())
    await session.act(Action('scroll', dict(direction='down')))
    await check(session, pair, 'another document')
    await session.evaluate('void open(location.href, "", "width=250,height=150")')
    async def loaded(): return len(session.pages) == 2 and (await session.observe()).title == 'Tiles' and await session.evaluate('document.readyState === "complete"')
    await until(loaded)
    for _ in range(3): await session.act(Action('scroll', dict(direction='down')))
    assert (await check(session, pair, 'pop-up'))[1] == 300
    await session.evaluate('void close()')
    await until(lambda: len(session.pages) == 1)
    assert (await check(session, pair, 'the tab behind it'))[1] == 100
    await session.close()


async def test_fonts_have_chinese_japanese_korean_and_emoji(pair):
    "No box stands for a character, and emoji have colours. U+0378 is no character: its picture is the box."
    text = '\u0378确定取消図ヘ한글😀🚀'
    session = await opened(pair[0], size=(40 * len(text), 60))
    cells = ''.join(f'<div style="left: {40 * i}px">{c}</div>' for i, c in enumerate(text))
    await session.goto('data:text/html;charset=utf-8,' + quote(f'<!doctype html><style>* {{ margin: 0; font: 24px sans-serif }} div {{ position: absolute }}</style>{cells}'))
    screen = (await session.observe()).screenshot.astype(int)
    box, *glyphs = [screen[:, 40 * i:40 * (i + 1)] for i in range(len(text))]
    advice = 'apt-get install fonts-wqy-microhei fonts-noto-color-emoji'
    boxes = [c for c, glyph in zip(text[1:], glyphs) if (glyph == box).all() or not (glyph < 255).any()]
    assert (box < 255).any() and not boxes, f'{boxes} are drawn as boxes: {advice}'
    assert len({g.tobytes() for g in glyphs}) == len(glyphs)
    assert all(np.ptp(g, axis=-1).max() > 60 for g in glyphs[-2:]), f'emoji have no colour: {advice}'
    await session.close()
