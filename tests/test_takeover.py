"A person takes a session over: through the live page in a real browser, and by lines that misbehave."
import asyncio
import json
import re
import shutil

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.bench.bench_manager import serving
from tests.waiting import until
from uitars_nb.agent.loop import as_environment_failure
from uitars_nb.core.types import Action, Event, EventKind, Observation, StopReason
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.sandbox.browser.session import BrowserConfig
from uitars_nb.sandbox.browser.clock import ClockConfig
from uitars_nb.sandbox.manager.messages import unframe
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.sandbox.manager.takeover import SessionControl

pytestmark = pytest.mark.timeout(180)


def token_of(server): return (server.folder/'token').read_text().strip()
def person(server, lease): return connect(f"ws://127.0.0.1:{server.config['port']}/leases/{lease}/person", proxy=None)


class Line:
    "A person's line, without a browser."
    def __init__(self, ws): self.ws = ws
    async def heads(self, n): return [unframe(await asyncio.wait_for(self.ws.recv(), 20))[0] for _ in range(n)]
    async def tell(self, **message): await self.ws.send(json.dumps(message))
    async def begin(self, server):
        await self.ws.send(token_of(server))
        assert [h.get('state') for h in await self.heads(3)] == ['waiting', 'yours', None]
        return self


@pytest.fixture(scope='module')
def server():
    with serving(kinds=dict(simulated=dict(slots=2, most=1))) as server: yield server


# --- lines

async def test_the_owner_waits_and_is_told(server):
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as ws:
        await session.act(Action('wait', dict(time=0)))
        line = await Line(ws).begin(server)
        theirs = asyncio.ensure_future(session.observe())
        await line.tell(do='act', name='type', args=dict(content='by hand'))
        assert (await line.heads(1))[0]['title'] == 'by hand'
        await asyncio.sleep(.3)
        assert not theirs.done(), 'the owner acts while a person sits there'
        await line.tell(do='give')
        assert await line.heads(1) == [dict(state='over', why='you gave it back')]
        obs = await asyncio.wait_for(theirs, 20)
        assert obs.title == 'by hand' and obs.text == "A person has acted here: type(content='by hand')"
        assert (await session.observe()).text == '', 'told once'


async def test_an_owner_who_waits_for_a_person_has_all_the_time(server):
    "A person may stay longer than an environment may take to answer."
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as ws:
        line = await Line(ws).begin(server)
        async def waiting():
            async with as_environment_failure(2.5, StopReason.ENV_CRASH): return await session.observe()
        theirs = asyncio.ensure_future(waiting())
        await asyncio.sleep(5)
        assert not theirs.done()
        await line.tell(do='give')
        await asyncio.wait_for(theirs, 20)
        await session.act(Action('wait', dict(time=0)))   # nothing of the waiting is left on the line
        with pytest.raises(EnvironmentFailure, match='no answer within'):
            async with as_environment_failure(.5, StopReason.ENV_CRASH): await session.act(Action('wait', dict(time=2)))


async def test_the_time_of_persons_is_not_the_owners():
    seat = SessionControl()
    async def look(ms): return await seat.look(Still(ms))
    class Still:
        def __init__(self, ms): self.ms = ms
        async def observe(self): return Observation(np.zeros((1, 1, 3), np.uint8), clock_ms=self.ms)
    now = lambda ms: seat.told(Observation(np.zeros((1, 1, 3), np.uint8), clock_ms=ms)).clock_ms
    assert now(700) == 700
    for first, last in ((1000, 61_000), (70_000, 90_000)):
        seat.sit()
        for ms in (first, (first + last) / 2, last): await look(ms)
    assert now(91_000) == 91_000 - 60_000 - 20_000 and now(10) == 0


async def test_an_episode_that_begins_has_a_time_of_its_own():
    with serving(kinds=dict(browser=dict(slots=1, most=1, options=dict(clock=dict(mode='paused'))))) as server:
        async with server.client() as client, client.session('browser') as session, person(server, session.lease.id) as ws:
            line = await Line(ws).begin(server)
            await line.tell(do='act', name='wait', args=dict(time=5))
            await line.heads(1)
            await line.tell(do='give')
            await session.start('about:blank')
            await session.act(Action('wait', dict(time=1)))
            assert (await session.observe()).clock_ms >= 1000


async def test_a_person_waits_for_the_end_of_the_owners_action(server):
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as ws:
        busy = asyncio.ensure_future(session.act(Action('wait', dict(time=1))))
        await asyncio.sleep(.3)
        await ws.send(token_of(server))
        line = Line(ws)
        assert (await line.heads(1))[0] == dict(state='waiting') and not busy.done()
        assert (await line.heads(1))[0] == dict(state='yours')
        await asyncio.wait_for(busy, 1)


@pytest.mark.parametrize('token', ['', 'wrong', 'x' * 100_000])
async def test_without_the_token_there_is_nothing(server, token):
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as ws:
        await ws.send(token)
        with pytest.raises(ConnectionClosed) as e: await asyncio.wait_for(ws.recv(), 20)
        assert e.value.rcvd.code in (4401, 1009)
        await session.act(Action('wait', dict(time=0)))


async def test_a_lease_that_is_not_yours_or_over_is_refused(server):
    async with server.client() as client:
        session = await client.acquire('simulated')
        await session.close()
        for id in (session.lease.id, 'nothing'):
            async with person(server, id) as ws:
                await ws.send(token_of(server))
                with pytest.raises(ConnectionClosed) as e: await asyncio.wait_for(ws.recv(), 20)
                assert e.value.rcvd.code == 4404


@pytest.mark.parametrize('message', ['', 'null', '[]', '{}', '{"do": 1}', '{"do": "act"}', '{"do": "act", "name": "click", "args": 3}', '{"do": "act", "name": "navigate", "args": {}}',
                                     '{"do": "act", "name": {"a": 1}, "args": {"b": []}}', '{"do": "close"}', '{"do": "act", "name": "type", "args": [["content", 1]]}'])
async def test_nonsense_is_refused_and_harms_nobody(server, message):
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as ws:
        line = await Line(ws).begin(server)
        await ws.send(message)
        head = (await line.heads(1))[0]
        assert head.get('refused') or head.get('size')   # a simulated session takes any name
        await line.tell(do='give')
        assert (await line.heads(1))[0]['state'] == 'over'
        await asyncio.wait_for(session.act(Action('wait', dict(time=0))), 20)


async def test_one_person_at_a_time(server):
    async with server.client() as client, client.session('simulated') as session, person(server, session.lease.id) as a, person(server, session.lease.id) as b:
        await Line(a).begin(server)
        await b.send(token_of(server))
        assert await Line(b).heads(1) == [dict(state='over', why='another person is there')]


async def test_a_line_that_is_cut_gives_the_session_back(server):
    async with server.client() as client, client.session('simulated') as session:
        async with person(server, session.lease.id) as ws:
            await Line(ws).begin(server)
            ws.transport.abort()
        await asyncio.wait_for(session.act(Action('wait', dict(time=0))), 20)
        async with person(server, session.lease.id) as ws: await Line(ws).begin(server)


async def test_the_end_of_the_lease_is_the_end_of_the_person(server):
    async with server.client() as client:
        session = await client.acquire('simulated')
        async with person(server, session.lease.id) as ws:
            line = await Line(ws).begin(server)
            await line.tell(do='act', name='type', args=dict(content='left over'))
            await line.heads(1)
            await session.close()
            with pytest.raises(ConnectionClosed) as e:
                while True: await asyncio.wait_for(ws.recv(), 20)
            assert e.value.rcvd.reason == 'the lease is over'
        for _ in range(2):
            async with client.session('simulated') as other:
                obs = await other.observe()
                assert (obs.title, obs.text) == ('', ''), 'the next owner is told nothing'


async def test_who_does_nothing_has_given_it_back():
    from websockets.asyncio.server import serve
    from uitars_nb.sandbox.manager.kinds import SimulatedSession
    from uitars_nb.sandbox.manager.takeover import Person, SessionControl
    seat, session = SessionControl(), SimulatedSession()
    async with serve(lambda ws: Person(ws, seat, session, idle=.5).stay(), '127.0.0.1', 0) as server:
        async with connect(f'ws://127.0.0.1:{server.sockets[0].getsockname()[1]}') as ws:
            line, said = Line(ws), await Line(ws).heads(3)
            for _ in range(3):
                await line.tell(do='look')   # a page that is left open
                said += await line.heads(1)
                await asyncio.sleep(.1)
            assert (await line.heads(1))[0] == dict(state='over', why='nothing was done for 0.5 s')
    assert not seat.turn.locked() and not seat.person


async def test_a_session_that_fails_is_told_and_given_back():
    from websockets.asyncio.server import serve
    from uitars_nb.sandbox.manager.kinds import SimulatedSession
    from uitars_nb.sandbox.manager.takeover import Person, SessionControl
    seat, session = SessionControl(), SimulatedSession()
    async with serve(lambda ws: Person(ws, seat, session).stay(), '127.0.0.1', 0) as server:
        async with connect(f'ws://127.0.0.1:{server.sockets[0].getsockname()[1]}') as ws:
            line = Line(ws)
            await line.heads(3)
            await line.tell(do='act', name='call_user', args={})
            assert (await line.heads(1))[0]['why'].startswith('the session has failed')
    assert not seat.turn.locked()


async def test_what_the_person_saw_is_kept_for_the_owner():
    from uitars_nb.sandbox.manager.kinds import SimulatedSession
    from uitars_nb.sandbox.manager.takeover import SessionControl
    from dataclasses import replace
    class Eventful(SimulatedSession):
        async def observe(self): return replace(await super().observe(), events=(Event(EventKind.DOWNLOAD, f'{self.acts}'),), text='said')
    seat, session = SessionControl(), Eventful()
    await seat.look(session)
    await seat.act(session, Action('wait', dict(time=0)))
    await seat.look(session)
    obs = seat.told(await session.observe())
    assert [e.text for e in obs.events] == ['0', '1', '1'] and obs.text.splitlines() == ['A person has acted here: wait(time=0)', 'said', 'said', 'said']
    assert len(seat.told(await session.observe()).events) == 1


# --- the page

class Page:
    "The live page in a browser, with real mouse and keyboard events."
    def __init__(self, page): self.page = page
    async def open(self, server):
        await self.page.goto(f"http://127.0.0.1:{server.config['port']}/")
        await self.page.evaluate('t => { document.getElementById("token").value = t; document.querySelector("#who button").click() }', token_of(server))
        await until(lambda: self.ask('!!document.querySelector("article .take")'))
    async def ask(self, js): return await self.page.evaluate(js)
    async def take(self):
        await self.ask('document.querySelector("article .take").click()')
        await until(lambda: self.ask('document.getElementById("how").textContent.startsWith("Yours") && document.getElementById("screen").naturalWidth > 0'))
    async def spot(self, x, y):
        "Where a point of the session's screen (thousandths) is on the page's grid."
        l, t, w, h = await self.ask('(r => [r.left, r.top, r.width, r.height])(document.getElementById("screen").getBoundingClientRect())')
        return round((l + w * x / 1000) / self.page.size[0] * 1000), round((t + h * y / 1000) / self.page.size[1] * 1000)
    async def do(self, name, **args):
        await self.page.act(Action(name, args))
    async def at(self, name, x, y, **args): await self.do(name, point=await self.spot(x, y), **args)


@pytest.mark.skipif(not shutil.which('Xvfb') or not shutil.which('mousepad'), reason='no desktop')
async def test_a_desktop_is_taken_over_in_a_browser():
    "Opened with the mouse, typed with the keyboard, marked with a hotkey; then the agent goes on."
    with serving(kinds=dict(desktop=dict(slots=1, most=1, options=dict(size=[640, 480])))) as server:
        async with server.client() as client, BrowserPool(BrowserConfig((1000, 760), clock=ClockConfig('real')), 1, 1) as pool, pool.session() as view:
            async with client.session('desktop', wait=90, task='write a note') as session:
                before = (await session.observe()).screenshot
                page = Page(view)
                await page.open(server)
                await page.take()
                theirs = asyncio.ensure_future(session.observe())
                await page.at('click', 73, 967)   # the editor's button
                await until(lambda: page.ask('document.getElementById("screen").dataset.title.includes("Untitled")'))
                await page.do('type', content='Hands on, World')
                await until(lambda: page.ask('document.getElementById("screen").dataset.title.startsWith("*")'))
                await page.do('hotkey', key='ctrl a')
                await asyncio.sleep(1)
                assert not theirs.done()
                await page.ask('document.getElementById("give").click()')
                obs = await asyncio.wait_for(theirs, 30)
                assert not np.array_equal(obs.screenshot, before) and 'Mousepad' in obs.title
                assert ''.join(re.findall(r"type\(content='(.*?)'\)", obs.text)) == 'Hands on, World'
                x, y = map(int, re.search(r'click\(point=\((\d+), (\d+)\)\)', obs.text).groups())
                assert abs(x - 73) <= 2 and abs(y - 967) <= 2 and obs.text.rstrip().endswith("hotkey(key='ctrl a')")
                await until(lambda: page.ask('!document.getElementById("hand").open'))
                await session.act(Action('hotkey', dict(key='delete')))   # the agent has its hands again


async def test_what_mouse_and_keyboard_mean():
    with serving(kinds=dict(simulated=dict(slots=1, most=1, options=dict(size=[400, 300])))) as server:
        async with server.client() as client, BrowserPool(BrowserConfig((1000, 760), clock=ClockConfig('real')), 1, 1) as pool, pool.session() as view:
            async with client.session('simulated', task='<b>') as session:
                await session.observe()
                page = Page(view)
                await page.open(server)
                await page.take()
                theirs = asyncio.ensure_future(session.observe())
                deeds = [('left_double', 500, 500), ('right_single', 250, 750), ('click', 10, 990), ('scroll', 500, 100)]
                for name, x, y in deeds:
                    await page.at(name, x, y, **dict(direction='down') if name == 'scroll' else {})
                    await asyncio.sleep(.6)
                await page.do('drag', start_point=await page.spot(100, 100), end_point=await page.spot(900, 800))
                await asyncio.sleep(.6)
                for key in ('escape', 'ctrl shift t', 'tab', 'shift arrowleft', 'f2'):
                    await page.do('hotkey', key=key)
                await page.do('type', content='a"\\é')
                await asyncio.sleep(.6)
                await page.ask('document.getElementById("give").click()')
                told = (await asyncio.wait_for(theirs, 30)).text
                said = [o for o in re.findall(r'(\w+)\(', told) if o != 'move_to']
                assert said == ['left_double', 'right_single', 'click', 'scroll', 'drag', *['hotkey'] * 5, 'type'], told
                assert re.findall(r"key='(.*?)'", told) == ['escape', 'ctrl shift t', 'tab', 'shift arrowleft', 'f2'] and "direction='down'" in told
                assert eval(re.search(r"type\(content=('.*?')\)", told)[1]) == 'a"\\é'
                for name, x, y in [*deeds, ('start_point=', 100, 100), ('end_point=', 900, 800)]:
                    found = re.search(name + r'\D*(\d+), (\d+)', told)
                    assert abs(int(found[1]) - x) <= 5 and abs(int(found[2]) - y) <= 5, (name, told)   # a pixel of the page, and one of the screen
