"""core.viz and core.replay: marks at the right pixel, nothing that a policy writes runs, and it all shows in a real browser."""
import io, re
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given, settings, strategies as st
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from playwright.async_api import async_playwright, expect

from uitars_nb.core.coordinates import to_pixel
from uitars_nb.core.replay import draw_marks, frames, gif_bytes, replay_html
from uitars_nb.core.types import Action, Event, EventKind, Observation, Step, StopReason, Tab, TaskSpec, Trajectory
from uitars_nb.core.viz import CSS, MARK, all_marks, film, fit, gallery, marks, overlay, register, show
from uitars_nb.sandbox.browser.chromium import find_chromium

EVIL = '</script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">"\'&<b>\u2028\ud83d'
PINK = np.array([int(MARK[i:i + 2], 16) for i in (1, 3, 5)])

def look(value=200, size=(160, 210), **kwargs): return Observation(np.full((size[1], size[0], 3), value, np.uint8), **kwargs)

def play(n=3, size=(160, 210), **kwargs):
    steps = tuple(Step(look(200 + k, size), f'thought {k}', (Action('click', dict(point=(100 * k + 100, 500))),)) for k in range(n))
    return replace(Trajectory('demo/1', TaskSpec('demo/page', 1, 'Do it'), steps, StopReason.FINISHED, 1., True, look(240, size), 'oracle'), **kwargs)

def evil():
    events = (Event(EventKind.CONSOLE_ERROR, EVIL),)
    step = Step(look(title=EVIL, url=EVIL, text=EVIL, events=events, tabs=(Tab(EVIL, EVIL),)), EVIL, (Action(EVIL, {EVIL: EVIL}), Action('type', dict(content=EVIL))), error=EVIL)
    return Trajectory(EVIL, TaskSpec(EVIL, 0, EVIL), (step,), StopReason.ENV_CRASH, policy=EVIL, info=dict(error=EVIL))

def pink(image):
    "Pixels (x, y) in the colour of marks."
    y, x = np.nonzero((np.abs(np.asarray(image.convert('RGB')).astype(int) - PINK) < 40).all(2))
    return np.stack([x, y], 1)

one_loop = pytest.mark.asyncio(loop_scope='module')

@pytest_asyncio.fixture(scope='module', loop_scope='module')
async def browser():
    async with async_playwright() as p:
        browser = await p.chromium.launch(executable_path=str(find_chromium()), args=['--headless', '--no-sandbox', '--disable-gpu'])
        yield browser
        await browser.close()

@pytest_asyncio.fixture(loop_scope='module')
async def page(browser):
    page = await browser.new_page(viewport=dict(width=1000, height=700))
    page.said, page.asked = [], []
    page.on('console', lambda m: page.said.append(m.text))
    page.on('pageerror', lambda e: page.said.append(str(e)))
    page.on('request', lambda r: r.url.startswith('data:') or page.asked.append(r.url))
    yield page
    await page.close()

# Marks

@pytest.mark.parametrize('size', [(160, 210), (320, 420), (1024, 768)])
@pytest.mark.parametrize('point', [(0, 0), (500, 500), (1000, 1000), (123, 877)])
def test_a_click_is_drawn_around_its_pixel(size, point):
    action = Action('click', dict(point=point))
    ring = next(o for o in marks(action, size) if o[0] == 'ring')
    assert ring[1] == to_pixel(point, size)
    if 100 < point[0] < 900:
        at = pink(draw_marks(Image.new('RGB', size, 'white'), (action,)))
        assert np.abs(at.mean(0) + .5 - ring[1]).max() < 1
        assert len(pink(draw_marks(Image.new('RGB', size, 'white'), ()))) == 0
        assert not (np.abs(at + .5 - ring[1]) < 3).all(1).any()  # what was hit stays visible

def test_a_drag_points_from_start_to_end():
    at = pink(draw_marks(Image.new('RGB', (400, 400), 'white'), (Action('drag', dict(start_point=(200, 250), end_point=(800, 250))),)))
    assert abs(at[:, 0].min() - 80) < 8 and abs(at[:, 0].max() - 320) < 3 and abs(at[:, 1].mean() - 100) < 1
    head = at[at[:, 0] > 300]
    assert np.ptp(head[:, 1]) > 5  # barbs

@pytest.mark.parametrize('way, sign', dict(up=(0, -1), down=(0, 1), left=(-1, 0), right=(1, 0)).items())
def test_a_scroll_points_its_way(way, sign):
    for args in (dict(direction=way), dict(direction=way, point=(500, 500))):
        line = next(o for o in marks(Action('scroll', args), (400, 400)) if o[0] == 'line')
        (x0, y0), (x1, y1) = line[1]
        assert (x0, y0) == (200, 200) and (np.sign(x1 - x0), np.sign(y1 - y0)) == sign

values = st.one_of(st.none(), st.text(max_size=5), st.integers(), st.floats(), st.lists(st.integers() | st.floats() | st.text(max_size=2), max_size=3),
                   st.dictionaries(st.text(max_size=2), st.integers(), max_size=2))

@settings(max_examples=150, deadline=None)
@given(st.sampled_from(['click', 'drag', 'scroll', 'left_double', 'right_single', 'mouse_up', 'odd']),
       st.dictionaries(st.sampled_from(['point', 'start_point', 'end_point', 'direction', 'content']), values, max_size=4))
def test_impossible_actions_are_drawn_on_the_screen_or_not_at_all(name, args):
    size = (320, 420)
    svg = overlay([Action(name, args), Action('click', dict(point=(5, 5)))], size)
    assert 'nan' not in svg and 'inf' not in svg
    for kind, at, *_ in marks(Action(name, args), size):
        if kind == 'ring': assert 0 <= at[0] <= 320 and 0 <= at[1] <= 420

def test_several_actions_are_numbered():
    two = [Action('click', dict(point=(0, 0))), Action('type', dict(content='x')), Action('click', dict(point=(1000, 1000)))]
    labels = [o for o in all_marks(two, (100, 100)) if o[0] == 'label']
    assert [o[2] for o in labels] == ['1', '3'] and all(0 <= x <= 100 and 0 <= y <= 100 for _, (x, y), _ in labels)
    assert not [o for o in all_marks(two[:1], (100, 100)) if o[0] == 'label']

@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(50, 1600))
def test_fit(w, h, room):
    size = fit((w, h), room)
    assert size[0] <= room
    if w <= room: assert size[0] % w == 0 and size[1] == h * (size[0] // w) and size[0] > room - w
    else: assert size[1] == 1 or abs(size[1] / size[0] - h / w) <= 1 / size[0] + h / w / size[0]

# The filmstrip

def test_the_film_says_what_happened():
    text = film(play(n=2))
    for part in ('demo/page:1', 'success', 'reward 1', 'finished', '2 steps', 'oracle', 'thought 1', 'click(point=(200, 500))'): assert part in text
    broken = film(play(n=1, stop=StopReason.ENV_TIMEOUT, reward=None, success=False, final=None, info=dict(error='no answer in 30 s')))
    assert 'environment failure' in broken and 'no answer in 30 s' in broken and 'no screen' in broken and 'reward' not in broken
    assert 'no success' in film(play(stop=StopReason.STEP_LIMIT, reward=0., success=False))

def test_long_films_are_cut_and_large_screens_reduced():
    assert film(play(n=40), limit=6).count('<img') == 6
    large = np.random.default_rng(0).integers(0, 256, (768, 1024, 3), np.uint8)
    assert len(show(play(n=1, final=Observation(large))).data) < 400_000
    assert len(gallery([play()] * 3, limit=2).data) < 40_000

def test_importing_is_enough():
    shell = InteractiveShell()
    register(shell)
    for x in (play(), look()):
        data, _ = shell.display_formatter.format(x)
        assert '<img src="data:image/png' in data['text/html'] and 'text/plain' in data
    assert 'text/html' not in shell.display_formatter.format(play().task)[0]

@one_loop
async def test_nothing_in_a_film_runs_and_marks_lie_over_the_screen(page):
    await page.set_content(f'<title>fine</title><style>{CSS}</style><body style="margin:0;background:#111;color:#ddd">' + film(evil()) + film(play(n=1)))
    await page.wait_for_timeout(100)
    assert await page.title() == 'fine' and not page.said and not page.asked
    assert '<b>' in await page.inner_text('.uitars')
    ring, img = page.locator('.screen circle').last, page.locator('.card img').nth(-2)
    a, b = await ring.bounding_box(), await img.bounding_box()
    at = (a['x'] + a['width'] / 2 - b['x'], a['y'] + a['height'] / 2 - b['y'])
    assert (b['width'], b['height']) == (320, 420) and np.abs(np.array(at) - (32, 210)).max() < 1.5

# The replay

def test_a_replay_asks_for_nothing():
    for traj in (play(), evil()):
        text = replay_html(traj)
        assert not re.search(r'(src|href)="(?!data:)', text.split('<script>')[0])
        assert text.count('</script>') == 1 and "default-src 'none'" in text
    assert replay_html(evil()).encode('utf-8')

def test_equal_screens_are_sent_once():
    same = Step(look(7), 'x')
    assert replay_html(play(steps=(same,) * 30, final=None)).count('data:image/png') == 1

@one_loop
async def test_a_replay_plays(page):
    await page.set_content(replay_html(play(n=3)))
    async def count(): return await page.text_content('#count')
    assert await count() == '1 / 3' and await page.text_content('.thought') == 'thought 0'
    for key, shown in (('ArrowRight', '2 / 3'), ('ArrowRight', '3 / 3'), ('ArrowRight', 'end'), ('ArrowRight', 'end'), ('ArrowLeft', '3 / 3'), ('Home', '1 / 3'),
                       ('ArrowLeft', '1 / 3'), ('End', 'end'), ('Home', '1 / 3')):
        await page.keyboard.press(key)
        assert await count() == shown
    await page.click('#next'); await page.click('#next'); await page.click('#back')
    assert await count() == '2 / 3'
    await page.fill('#slider', '3')
    assert await count() == 'end' and 'success' in await page.text_content('.thought')
    await page.select_option('#speed', '4')
    await page.click('#play')                         # from the end it starts anew
    assert await page.text_content('#play') == 'Pause'
    await page.keyboard.press(' ')                    # with the button in focus: one toggle, not two
    assert await page.text_content('#play') == 'Play'
    await page.keyboard.press(' ')
    await expect(page.locator('#count')).to_have_text('end', timeout=5000)
    assert await page.text_content('#play') == 'Play'
    assert not page.said and not page.asked

@pytest.mark.parametrize('size, window', [((160, 210), (1000, 700)), ((1024, 768), (1000, 700)), ((160, 210), (400, 700)), ((1920, 1080), (700, 500))])
@one_loop
async def test_a_replay_fits_its_window(page, size, window):
    await page.set_viewport_size(dict(width=window[0], height=window[1]))
    await page.set_content(replay_html(play(n=2, size=size)))
    await page.wait_for_timeout(150)
    assert await page.evaluate('document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight')
    screen, ring = await page.locator('#screen').bounding_box(), await page.locator('#marks circle').last.bounding_box()
    assert screen['width'] <= window[0] and abs(screen['height'] / screen['width'] - size[1] / size[0]) < .02
    assert abs(ring['x'] + ring['width'] / 2 - screen['x'] - screen['width'] / 10) < 2
    assert abs(ring['y'] + ring['height'] / 2 - screen['y'] - screen['height'] / 2) < 2
    smooth = await page.evaluate("getComputedStyle(document.getElementById('image')).imageRendering")
    assert (smooth == 'pixelated') == (screen['width'] > size[0])

@one_loop
async def test_nothing_in_a_replay_runs(page):
    await page.set_content(replay_html(evil()))
    await page.wait_for_timeout(100)
    assert await page.title() != 'owned'
    assert not page.said and not page.asked
    assert await page.locator('b, aside img').count() == 0
    await page.keyboard.press('End')
    assert 'environment failure' in await page.text_content('.thought')
    assert await page.is_visible('#none') and not await page.is_visible('#image')

# GIF

def test_gif():
    gif = Image.open(io.BytesIO(gif_bytes(play(n=3), seconds=.5)))
    assert gif.n_frames == 4 and gif.size == (480, 630 + 76)
    gif.seek(1)
    at = pink(gif.crop((0, 0, 480, 630)))
    assert np.abs(at.mean(0) + .5 - (96, 315)).max() < 2 and gif.info['duration'] == 500
    gif.seek(3)
    assert gif.info['duration'] == 1500

def test_gif_of_hard_cases():
    for traj in (evil(), play(n=0), play(n=1, stop=StopReason.ENV_RESET, reward=None, success=False, final=None), play(n=2, final=look(9, (300, 100)))):
        assert Image.open(io.BytesIO(gif_bytes(traj))).n_frames == len(traj.steps) + 1

def test_frames_are_one_for_each_step_and_the_end():
    assert [o['thought'] for o in frames(play(n=2))] == ['thought 0', 'thought 1', 'success\nreward 1\nfinished']
