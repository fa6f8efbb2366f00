"Interactive annotation: who is asked what, what is stored and taught, and the page in a real browser."
import asyncio, re, signal, subprocess, sys, time

import numpy as np, pytest

from uitars_nb.agent.loop import Reply, run_episode
from uitars_nb.agent.policy_agent import PolicyAgent
from uitars_nb.core.runs import read_jsonl
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, ContextExceeded, Observation, Step, TaskSpec, Trajectory, StopReason
from uitars_nb.flywheel.annotation.interactive import LIMITS, AnnotatedAgent, AnnotatedAgents, Decision, AnnotationDesk, Proposal, DecisionRequest, draw_proposals, proposals_of
from uitars_nb.flywheel.annotation.page import serve_desk
from uitars_nb.sandbox.browser.clock import ClockConfig
from uitars_nb.sandbox.browser.session import BrowserConfig
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import get_task, suite
from uitars_nb.tasks.session_pools import pool_for

pytestmark = pytest.mark.timeout(180)
SCREEN = Observation(np.full((200, 400, 3), 200, np.uint8))


def click(x, y=500): return Action('click', dict(point=(x, y)))
def question(episode='e/1', steps=(), proposals=(Proposal(Reply('the left one', (click(200),)), 3), Proposal(Reply('the right one', (click(800),)))), words='Take one.'):
    return DecisionRequest(episode, TaskSpec('demo/choose', instruction=words), steps, SCREEN, proposals)

async def asked(desk, *questions):
    "The futures of questions that lie on the desk."
    out = [asyncio.ensure_future(desk.ask(q)) for q in questions]
    while len(desk.open) < len(questions): await asyncio.sleep(0)
    return out


async def test_each_annotator_keeps_an_episode_until_they_have_left():
    now = 0.
    desk = AnnotationDesk(patience=60, clock=lambda: now)
    one, two = await asked(desk, question('a'), question('b'))
    assert (await desk.take('Ann')).episode == 'a' and (await desk.take('Bob')).episode == 'b'
    assert await desk.take('Cid', .01) is None
    desk.answer('a#0', Decision('', (click(1),)), 'Ann')
    again, = [asyncio.ensure_future(desk.ask(question('a', (Step(SCREEN),))))]
    await one
    assert (await desk.take('Ann')).id == 'a#1'
    now = 59.
    desk.hear('Bob')
    now = 61.   # Ann has said nothing for a minute, Bob two seconds ago
    assert (await desk.take('Cid')).id == 'a#1' and await desk.take('Dan', .01) is None
    for o in (two, again): o.cancel()

async def test_who_waits_is_told_of_a_new_question():
    desk = AnnotationDesk()
    waiting = asyncio.ensure_future(desk.take('Ann', 30))
    await asyncio.sleep(.05)
    assert not waiting.done()
    asking, = await asked(desk, question())
    assert (await waiting).id == 'e/1#0'
    asking.cancel()

async def test_at_the_end_nobody_is_left_waiting(capfd):
    import httpx
    async with serve_desk(desk := AnnotationDesk(), 'secret') as address, httpx.AsyncClient(base_url=address.partition('#')[0], headers=dict(authorization='Bearer secret'), timeout=60) as client:
        waiting = asyncio.ensure_future(client.get('/next', params=dict(annotator='Ann')))
        while 'Ann' not in desk.leases.heard: await asyncio.sleep(.01)
        await desk.close()
        said = (await waiting).json()
        assert said['over'] and said['question'] is None
        waiting = asyncio.ensure_future(client.get('/next', params=dict(annotator='Ann')))
        assert (await waiting).json()['over']   # and nobody waits any more
    assert 'Traceback' not in capfd.readouterr().err

async def test_a_service_that_ends_tells_those_who_wait(capfd):
    import httpx
    async with httpx.AsyncClient(headers=dict(authorization='Bearer secret'), timeout=60) as client:
        async with serve_desk(desk := AnnotationDesk(), 'secret') as address:
            waiting = asyncio.ensure_future(client.get(address.partition('#')[0] + 'next', params=dict(annotator='Ann')))
            while 'Ann' not in desk.leases.heard: await asyncio.sleep(.01)
        assert (await waiting).json()['over']
    assert 'Traceback' not in capfd.readouterr().err

async def test_an_episode_that_ends_takes_its_question_along():
    desk = AnnotationDesk()
    asking, = await asked(desk, question())
    await desk.take('Ann')
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(KeyError, match='the episode has ended'): desk.answer('e/1#0', Decision('', (click(1),)), 'Ann')
    assert not desk.open and await desk.take('Ann', .01) is None

async def test_the_journal_says_what_was_decided(tmp_path):
    now = 5.
    desk = AnnotationDesk(tmp_path/'decisions.jsonl', clock=lambda: now)
    for k, (words, action) in enumerate([('the left one', click(200)), ('the left one, as it says', click(200)), ('neither', Action('finished'))]):
        asking, = await asked(desk, question(steps=(Step(SCREEN),) * k))
        await desk.take('Ann')
        now += 2 + k
        desk.answer(f'e/1#{k}', Decision(words, (action,)), 'Ann')
        await asking
    rows = read_jsonl(tmp_path/'decisions.jsonl')
    assert [(o['kind'], o['draws'], o['seconds'], o['step'], o['annotator']) for o in rows] == [('accepted', 3, 2., 0, 'Ann'), ('edited', 3, 3., 1, 'Ann'), ('overridden', 0, 4., 2, 'Ann')]
    assert desk.counts == dict(accepted=1, edited=1, overridden=1)

async def test_a_prompt_that_does_not_fit_ends_no_annotators_episode():
    class Full:
        async def act(self, steps, obs): raise ContextExceeded('too long')
    class Fine:
        async def act(self, steps, obs): return Reply('so', (click(3),))
    desk = AnnotationDesk()
    acting = asyncio.ensure_future(AnnotatedAgent(desk, TaskSpec('demo/choose'), [Full(), Fine()]).act([], SCREEN))
    got = await desk.take('Ann')
    assert [o.reply.thought for o in got.proposals] == ['so']
    desk.answer(got.id, Decision('mine', (click(4),)), 'Ann')
    assert await acting == Reply('mine', (click(4),))


async def test_a_model_proposes_and_every_step_is_taught(tmp_path):
    import torch
    from uitars_nb.flywheel.datasets import read_examples
    from uitars_nb.model.engine.engine import Engine
    from uitars_nb.model.engine.sampling import Sampling
    from uitars_nb.pipelines.policies import first_policy
    torch.manual_seed(0)
    policy = first_policy('new', hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    desk, spec, store = AnnotationDesk(), suite('miniwob/click-test-2', 'train', 1)[0], Store(tmp_path)
    async def annotator():
        got = await desk.take('Ann')
        desk.answer(got.id, Decision('I look', (Action('wait', dict(time=1)),)), 'Ann')
        got = await desk.take('Ann')
        assert [s.thought for s in got.steps] == ['I look']
        desk.answer(got.id, Decision('done', (Action('finished'),)), 'Ann')
    async with Engine(policy) as engine, pool_for([spec.name]) as pool, pool.session() as session:
        players = draw_proposals(PolicyAgent.of(policy, engine, Sampling(max_tokens=6, seed=3)), 3)
        working = asyncio.ensure_future(annotator())
        traj = await run_episode(session, get_task(spec.name), spec, AnnotatedAgents(desk, players), LIMITS)
        await working
    assert [len(s.aside) for s in traj.steps] == [3, 3] and all(s.completion is None for s in traj.steps)
    assert len({tuple(c.ids) for c in traj.steps[0].aside}) == 3   # of its own seed each
    with store.writer() as writer: writer.append(traj)
    kept = Store(tmp_path)[traj.id]
    assert all(np.array_equal(a.ids, b.ids) for s, t in zip(kept.steps, traj.steps) for a, b in zip(s.aside, t.aside))
    assert len([*read_examples(Store(tmp_path), policy, players[0].memory)]) == 2


async def seen(browser, script, most=60):
    "Wait until `script` is true on the page."
    end = time.perf_counter() + most
    while not await browser.evaluate(script):
        assert time.perf_counter() < end, await browser.evaluate('document.body.innerText')
        await browser.act(Action('wait', dict(time=.05)))

@pytest.fixture
async def page():
    desk = AnnotationDesk()
    async with serve_desk(desk, 'secret') as address, BrowserPool(BrowserConfig(size=(1180, 760), allow=('127.0.0.1',), clock=ClockConfig(network_s=.3)), 1, 1) as pool, pool.session() as browser:   # the page always waits for the next question
        await browser.act(Action('navigate', dict(content=address.replace('/#', '/?name=Ann#'))))
        yield desk, browser

READY = '!document.getElementById("work").hidden'

async def test_a_key_accepts_a_proposal(page):
    desk, browser = page
    asking, = await asked(desk, question(words='<b>Take</b> one.'))
    await seen(browser, READY)
    assert await browser.evaluate('document.getElementById("instruction").textContent') == '<b>Take</b> one.'
    await browser.act(Action('hotkey', dict(key='2')))
    assert await asyncio.wait_for(asking, 60) == Decision('the right one', (click(800),))
    assert desk.counts['accepted'] == 1 and desk.leases.holders['e/1'] == 'Ann'
    following, = await asked(desk, question(steps=(Step(SCREEN, 'the right one', (click(800),), error='there is nothing'),)))
    await seen(browser, 'document.getElementById("where").textContent.includes("step 2")')
    assert 'there is nothing' in await browser.evaluate('document.getElementById("past").textContent')
    following.cancel()

async def middle(browser, selector):
    x, y = await browser.evaluate('s => { const r = document.querySelector(s).getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }', selector)
    return Action('click', dict(point=(round(1000 * x / 1180), round(1000 * y / 760))))

async def test_an_action_of_ones_own_is_pointed_at(page):
    desk, browser = page
    asking, = await asked(desk, question())
    await seen(browser, READY)
    await browser.act(await middle(browser, '#thought'))
    await browser.act(Action('type', dict(content='the middle')))
    await browser.act(await middle(browser, '#image'))
    await browser.act(Action('hotkey', dict(key='ctrl enter')))
    decision = await asyncio.wait_for(asking, 60)
    assert decision.thought == 'the middle' and decision.actions[0].name == 'click'
    assert np.abs(np.array(decision.actions[0].args['point']) - 500).max() <= 3
    assert desk.counts['overridden'] == 1

async def test_a_proposal_is_mended_and_a_refusal_is_shown(page):
    desk, browser = page
    asking, = await asked(desk, question())
    await seen(browser, READY)
    await browser.act(await middle(browser, '.card:nth-child(2) .buttons button:nth-child(2)'))
    assert await browser.evaluate('[document.getElementById("thought").value, document.querySelector("[data-type=point]").value]') == ['the right one', '800 500']
    await browser.evaluate('document.querySelector("[data-type=point]").value = "1800 500"')
    await browser.act(await middle(browser, '#go'))
    await seen(browser, 'document.getElementById("fault").textContent.includes("off the screen")')
    await browser.evaluate('document.querySelector("[data-type=point]").value = ""')
    await browser.act(await middle(browser, '#go'))   # left out where it is required
    await seen(browser, 'document.getElementById("fault").textContent.includes("missing: point")')
    await browser.evaluate('document.querySelector("[data-type=point]").value = "810 500"')
    await browser.act(await middle(browser, '#go'))
    assert await asyncio.wait_for(asking, 60) == Decision('the right one', (click(810),))

async def test_what_the_framework_refuses_is_shown_and_stays_in_the_form(page):
    desk, browser = page
    asking, = await asked(desk, question())
    await seen(browser, READY)
    await browser.evaluate('document.getElementById("thought").value = "x".repeat(20001)')
    await browser.act(await middle(browser, '#image'))
    await browser.act(await middle(browser, '#go'))
    await seen(browser, 'document.getElementById("fault").textContent.includes("thought: String should have at most")')
    assert await browser.evaluate('document.getElementById("thought").value.length') == 20001
    await browser.evaluate('document.getElementById("thought").value = "x".repeat(1 << 20)')
    await browser.act(await middle(browser, '#go'))
    await seen(browser, 'document.getElementById("fault").textContent.includes("too long")')
    asking.cancel()

async def test_a_decision_that_comes_too_late_is_told_and_the_page_goes_on(page):
    desk, browser = page
    asking, = await asked(desk, question())
    await seen(browser, READY)
    await browser.evaluate('window.alert = words => { window.told = words; }')
    desk.answer('e/1#0', Decision('', (click(200),)), 'Bob')
    await browser.act(await middle(browser, '.card .buttons button'))
    await seen(browser, 'window.told && document.getElementById("work").hidden')
    assert 'nobody waits for e/1#0' in await browser.evaluate('window.told')
    assert (await asking).actions == (click(200),)

async def test_annotators_without_a_name_have_one_each():
    async with serve_desk(desk := AnnotationDesk(), 'secret') as address, BrowserPool(BrowserConfig(size=(600, 400), allow=('127.0.0.1',), clock=ClockConfig(network_s=.3)), 1, 2) as pool:
        async with pool.session() as one, pool.session() as two:
            for o in (one, two, one): await o.act(Action('navigate', dict(content=address)))   # `one` twice
            end = time.perf_counter() + 60
            while len(desk.leases.heard) < 2 and time.perf_counter() < end: await asyncio.sleep(.05)
            assert len(desk.leases.heard) == 2 and all(o.startswith('annotator ') for o in desk.leases.heard)

async def test_every_function_has_a_form_that_gives_what_was_written(page):
    desk, browser = page
    actions = (Action('drag', dict(start_point=(10, 20), end_point=(30, 40))), Action('scroll', dict(direction='down')), Action('type', dict(content='a\nb "c"\n')),
               Action('wait', dict(time=2.5)), Action('str_replace_editor', dict(command='view', path='/a', view_range=(1, 20))), Action('finished', dict(content='12')))
    asking, = await asked(desk, question(proposals=(Proposal(Reply('all', actions)),)))
    await seen(browser, READY)
    await browser.act(await middle(browser, '.card .buttons button:nth-child(2)'))
    await browser.evaluate('document.getElementById("thought").value = "all of them"')
    await browser.act(await middle(browser, '#thought'))
    await browser.act(Action('hotkey', dict(key='ctrl enter')))
    assert await asyncio.wait_for(asking, 60) == Decision('all of them', actions) and desk.counts['edited'] == 1

async def test_the_outcome_of_an_episode_is_told(page):
    desk, browser = page
    desk.end(Trajectory('e/1', TaskSpec('demo/choose'), (), StopReason.FINISHED, 1., True))
    asking, = await asked(desk, question('e/2'))
    await seen(browser, READY)
    assert '1 of 1 episodes solved' in await browser.evaluate('document.getElementById("counts").textContent')
    assert 'solved (finished)' in await browser.evaluate('document.getElementById("outcome").textContent')
    asking.cancel()

async def test_the_page_says_when_all_is_played(page):
    desk, browser = page
    await desk.close()
    await seen(browser, 'document.getElementById("instruction").textContent.startsWith("That is all")')

async def test_without_the_token_the_page_says_what_is_missing():
    async with serve_desk(AnnotationDesk(), 'secret') as address, BrowserPool(BrowserConfig(size=(600, 400), allow=('127.0.0.1',)), 1, 1) as pool, pool.session() as browser:
        await browser.act(Action('navigate', dict(content=address.partition('#')[0])))
        await seen(browser, 'document.getElementById("instruction").textContent.includes("token is missing or wrong")')


def test_ctrl_c_keeps_what_was_annotated_and_the_same_command_goes_on(tmp_path):
    import httpx
    def start():
        command = [sys.executable, '-c', 'import sys; from uitars_nb.cli.main import main; sys.exit(main())', 'annotate', '--port', '0', '--suite', 'miniwob/click-test', '--policy', 'none',
                   '--episodes', '2', '--out', str(tmp_path/'run')]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        url, token = re.match(r'Annotate at (http://\S+/)#(\S+)', process.stdout.readline()).groups()
        return process, httpx.Client(base_url=url, headers=dict(authorization=f'Bearer {token}'), timeout=60)
    def take(client):
        while not (got := client.get('/next', params=dict(annotator='Ann')).json()['question']): pass
        return got['id']
    def decide(client, id): assert client.post('/answer', json=dict(id=id, thought='done', actions=[dict(name='finished')], annotator='Ann')).status_code == 200
    process, client = start()
    decide(client, first := take(client))
    second = take(client)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert 'Traceback' not in errors
    assert len(Store(tmp_path/'run'/'store').index()) == 1 and first != second
    process, client = start()
    assert take(client) == second   # and not the one that is there
    decide(client, second)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and '2 episodes, 0 solved' in said, errors
