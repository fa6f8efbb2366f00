"Session time in real pages: order, edges, loops that would never end, frames, workers, navigation, and MiniWoB++'s own pages."
import asyncio, contextlib, http.server, threading, time
from pathlib import Path

import numpy as np
import pytest, pytest_asyncio

from uitars_nb.core.types import Action
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.chromium import launch
from uitars_nb.sandbox.browser.clock import ClockConfig

PAGES = Path(__file__).parents[1]/'sandboxes/pages/clock'


def wait(seconds): return Action('wait', dict(time=seconds))


@pytest_asyncio.fixture
async def browser():
    browser = await launch()
    yield browser
    await browser.close()


async def session_on(browser, url, **clock):
    session = BrowserSession(browser, BrowserConfig(size=(160, 210), window=(500, 320), clock=ClockConfig(**clock), timeout=30))
    await session.reset()
    await session.goto(url if '://' in url else (PAGES/url).as_uri())
    return session


async def page(browser, tmp_path, body, **clock):
    (tmp_path/'page.html').write_text('<!doctype html>' + body)
    return await session_on(browser, (tmp_path/'page.html').as_uri(), **clock)


@pytest.mark.parametrize('bad', [dict(mode='slow'), dict(speed=0), dict(step_ms=-1), dict(network_s=-1)])
def test_bad_configuration(bad):
    with pytest.raises(ValueError): ClockConfig(**bad)


async def test_nothing_passes_on_the_wall(browser):
    session = await session_on(browser, 'motion.html')
    before = await session.evaluate('look()')
    await asyncio.sleep(.5)
    assert await session.evaluate('look()') == before
    assert before['date'] == before['now'] == before['ticks'] == 0


async def test_one_wait_equals_many(browser):
    "A pause at any time changes nothing of what comes."
    ends = []
    for parts in ([6.4], [.4] * 16, [.013, 1, 3.9, .087, 1.4]):
        session = await session_on(browser, 'motion.html')
        for t in parts: await session.act(wait(t))
        ends.append((await session.evaluate('look()'), (await session.observe()).screenshot))
    for look, shot in ends[1:]:
        assert {k: v for k, v in look.items() if k != 'smil'} == {k: v for k, v in ends[0][0].items() if k != 'smil'}
        assert look['smil'] == pytest.approx(ends[0][0]['smil'], abs=1e-3) and np.array_equal(shot, ends[0][1])


async def test_identical_screenshots(browser):
    async def film(pause):
        session, shots = await session_on(browser, 'motion.html'), []
        for t in (.01, .1, .333, 1, 2.5, .05, 7):
            await session.act(wait(t))
            await asyncio.sleep(pause)
            shots.append((await session.observe()).screenshot)
        return shots
    first, second = await film(0), await film(.05)
    assert [np.array_equal(a, b) for a, b in zip(first, second)] == [True] * 7
    assert len({o.tobytes() for o in first}) >= 6


async def test_order(browser):
    session = await session_on(browser, 'order.html')
    await session.evaluate('go()')
    await session.act(wait(.07))
    assert await session.evaluate('log') == ['message@0', 'frame@0', 'timeout 5@5', 'its promise@5', 'and the next@5', 'second timeout 5@5',
        'with an argument@10', 'as text@11', 'next frame@17', 'interval 1@20', 'interval 2@40', 'interval 3@60']


async def test_transitions_follow_each_other(browser, tmp_path):
    session = await page(browser, tmp_path, '''<style>#a{transition:opacity 100ms linear}</style><div id=a>a</div><script>let n = 0, at = []
      a.ontransitionend = () => { at.push(Date.now() - began); a.style.opacity = ++n % 2 }; const began = Date.now(); setTimeout(() => a.style.opacity = 0, 50)
      setTimeout(() => a.animate([{left: 0}, {left: '9px'}], 200).finished.then(() => window.finished = Date.now() - began), 1000)</script>''')
    await session.act(wait(2))
    at = await session.evaluate('at')
    assert at[0] == 150 and len(at) >= 10 and {b - a for a, b in zip(at, at[1:])} == {100}
    assert await session.evaluate('finished') == 1200


async def test_loops_end(browser, tmp_path):
    session = await page(browser, tmp_path, '<script>let n = 0; { const end = Date.now() + 300; while (Date.now() < end); }</script>')
    await session.evaluate('(function again() { n++; setTimeout(again, 0) })()')
    await session.act(wait(1))
    assert 240 <= await session.evaluate('n') <= 270  # 4 ms each, after the first few


async def test_too_many_jobs_are_late(browser, tmp_path):
    session = await page(browser, tmp_path, '<script>let n = 0; setInterval(() => n++, 1)</script>', max_jobs=100)
    await session.act(wait(1))
    assert await session.evaluate('n') == 100 and await session.evaluate('performance.now()') == 1000


async def test_an_action_takes_a_step(browser):
    session = await session_on(browser, 'motion.html', step_ms=40)
    for _ in range(3): await session.act(Action('click', dict(point=(990, 990))))
    assert session.clock.now_ms == await session.evaluate('performance.now()') == 120


async def test_time_goes_on_in_the_next_document(browser):
    session = await session_on(browser, 'motion.html')
    await session.act(wait(7))
    await session.goto((PAGES/'order.html').as_uri())
    assert await session.evaluate('[Date.now() - performance.timeOrigin, performance.now()]') == [0, 0]
    assert await session.evaluate('performance.timeOrigin') == ClockConfig().start + 7000
    await session.reset()
    assert session.clock.now_ms == 0


async def test_frames_and_workers(browser):
    session = await session_on(browser, 'order.html')
    await session.act(wait(1))
    assert await session.evaluate('[told[0], framed]') == [10, 10]


async def test_popup_and_date_forms(browser, tmp_path):
    session = await page(browser, tmp_path, '<p>p')
    assert await session.evaluate('''[new Date() instanceof Date, typeof Date(), new Date(5).getTime(), new Date(2020, 1).getFullYear(),
      new (class extends Date {})().getTime() === Date.now(), new Date().constructor === Date, Date.length]''') == [True, 'string', 5, 2020, True, True, 7]
    await session.evaluate("window.open('about:blank').document.body.textContent = 'popup'")
    await session.observe()
    assert await session.evaluate('Date.now()') == ClockConfig().start


async def test_real_and_fast(browser):
    for mode, at_most in (('real', 30), ('fast', 3)):
        session, start = await session_on(browser, 'motion.html', mode=mode), time.perf_counter()
        await session.act(wait(1))
        assert (await session.evaluate('look()'))['date'] >= 900 and session.clock.now_ms >= 1000
        assert time.perf_counter() - start < at_most


async def test_a_wait_may_be_longer_than_the_patience_with_a_page(browser):
    session = BrowserSession(browser, BrowserConfig(size=(160, 210), clock=ClockConfig('real'), timeout=1.))
    await session.reset()
    await session.goto((PAGES/'motion.html').as_uri())
    start = time.perf_counter()
    await session.act(wait(2))
    assert time.perf_counter() - start >= 2 and not session.used_up and (await session.evaluate('look()'))['date'] >= 1900
    await session.close()


async def test_real_time_has_frames(browser, tmp_path):
    "Pages that count on animation frames move by themselves, also while nobody looks."
    session = await page(browser, tmp_path, '<script>let n = 0; (function again() { n++; requestAnimationFrame(again) })()</script>', mode='real')
    before = await session.evaluate('n')
    await session.evaluate('new Promise(done => setInterval(() => n > 10 && done(), 10))')
    assert await session.evaluate('n') > max(10, before)


@pytest.mark.parametrize('name', 'chase-circle moving-items click-pie use-autocomplete click-collapsible simon-says'.split())
async def test_miniwob_pages(browser, name):
    "MiniWoB++'s own timers, jQuery's and D3's animations: the same pixels twice, whatever the pace on the wall."
    from uitars_nb.tasks.miniwob.task import page_url
    async def film(pause):
        session, shots = await session_on(browser, page_url(name)), []
        await session.evaluate("Math.seedrandom('7'); core.EPISODE_MAX_TIME = 1e9; core.startEpisodeReal()")
        for point in ((500, 500), (300, 700), (700, 400)):
            await session.act(Action('click', dict(point=point)))
            await session.act(wait(.3))
            await asyncio.sleep(pause)
            shots.append((await session.observe()).screenshot)
        return shots
    first, second = await film(0), await film(.1)
    assert [np.array_equal(a, b) for a, b in zip(first, second)] == [True] * 3


@pytest.fixture(scope='module')
def slow():
    "A server whose answers take as many seconds as their path says."
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seconds, kind, body = 0, 'text/html', b'<!doctype html>page'
            if self.path != '/': seconds, kind, body = float(self.path[1:].split('.js')[0]), 'text/javascript', b'"heard"; window.script = true'
            time.sleep(seconds)
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header('Content-Type', kind)
                self.end_headers()
                self.wfile.write(body)
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()


ASKS = dict(fetch='fetch("/.4").then(r => r.text()).then(said)',
    xhr='const x = new XMLHttpRequest(); x.open("GET", "/.4"); x.onload = () => said(x.responseText); x.send()',
    later='setTimeout(() => fetch("/.4").then(r => r.json().catch(e => r.status)).then(said), 1000)',
    chain='fetch("/.2").then(() => fetch("/.2")).then(said)',
    script='const s = document.createElement("script"); s.src = "/.4.js"; s.onload = said; document.body.append(s)',
    worker='new Worker(URL.createObjectURL(new Blob([`fetch("${location.href}.4").then(r => postMessage(r.status))`]))).onmessage = said')

@pytest.mark.parametrize('ask', ASKS)
async def test_time_waits_for_the_network(browser, slow, ask):
    "An answer comes before the page's own time-out, at the session time of the request."
    session = await session_on(browser, slow)
    await session.evaluate('window.log = []; window.said = () => { log.push(["answer", Date.now() - began]) }; window.began = Date.now()'
        '; setTimeout(() => log.push(["time-out", Date.now() - began]), 3000); ' + ASKS[ask] + '; 0')
    await session.act(wait(5))
    at = 1000 if ask == 'later' else 0
    assert await session.evaluate('log') == [['answer', at], ['time-out', 3000]]
    assert session.clock.now_ms == 5000


async def test_an_answer_that_never_comes_is_waited_for_once(browser, slow):
    session = await session_on(browser, slow, network_s=1.)
    await session.evaluate('window.log = []; fetch("/60"); setTimeout(() => log.push("time-out"), 3000); 0')
    start = time.perf_counter()
    await session.act(wait(5))
    assert await session.evaluate('log') == ['time-out'] and .9 < time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(5): await session.act(wait(1))
    assert time.perf_counter() - start < 4
    assert session.clock.now_ms == 10_000


async def test_a_failed_request_is_still_reported(browser, slow):
    "Waiting for an answer takes nothing from who asked, nor from `unhandledrejection`."
    session = await session_on(browser, slow)
    await session.evaluate('window.log = []; addEventListener("unhandledrejection", e => log.push(e.reason.name)); fetch("http://127.0.0.1:9/"); '
        'fetch("/0", {signal: AbortSignal.abort()}).catch(e => log.push(e.name)); try { new XMLHttpRequest().send() } catch (e) { log.push(e.name) }; 0')
    start = time.perf_counter()
    await session.act(wait(1))
    assert sorted(await session.evaluate('log')) == ['AbortError', 'InvalidStateError', 'TypeError'] and time.perf_counter() - start < 4
