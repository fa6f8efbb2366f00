"The recall tasks ask only what they have told, can be solved, cannot be guessed, and are read without an error."
import random
from collections import Counter

import numpy as np
import pytest
import pytest_asyncio

from uitars_nb.agent.loop import OracleAgent, RandomAgent, run_episode
from uitars_nb.agent.memory import MemoryConfig
from uitars_nb.agent.policy_agent import PolicyAgent
from uitars_nb.agent.reader import Reader, decide, texts
from uitars_nb.core.types import Action, StopReason, TaskSpec
from uitars_nb.model.dialects import get_dialect
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks import base, recall
from uitars_nb.tasks.base import SUITES, TASKS, Task, split_of, suite
from uitars_nb.tasks.recall import BROWSER, CHOICES, GRID_SIZE, learn_glyphs, problem, read_screen

pytestmark = pytest.mark.asyncio(loop_scope='module')
COLS, ROWS = GRID_SIZE


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def pool():
    async with BrowserPool(BROWSER, browsers=1, pages=2) as pool: yield pool


@pytest_asyncio.fixture(loop_scope='module')
async def session(pool):
    async with pool.session() as session: yield session


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def glyphs(pool):
    async with pool.session() as session: return await learn_glyphs(session)


def problems(n=40):
    "Some problems of every task."
    for name in SUITES['recall/all']:
        task = TASKS[name]
        for seed in range(n): yield task, problem(seed, task.pages, task.people, task.scattered)


def told(p): return {i: ' '.join(s['lines'][2:]) for i, s in enumerate(p.screens[:-1])}


# --- problems

async def test_what_is_asked_was_told_once_and_early():
    for task, p in problems():
        facts = {i: text for i, text in told(p).items() if text.startswith('THE CODE OF')}
        assert len(facts) == task.people and len(p.screens) == task.pages + 1
        assert [i for i, text in facts.items() if text == f'THE CODE OF {p.person} IS {p.code}'], facts
        assert max(facts) < (task.pages // 2 if task.scattered else task.people)
        assert sum(p.code in text for text in told(p).values()) == 1 and sum(p.person in text for text in facts.values()) == 1


async def test_the_right_code_is_one_of_six_and_not_the_only_one_seen():
    for task, p in problems():
        assert len(set(p.choices)) == CHOICES and p.choices.count(p.code) == 1
        assert p.choices == tuple(b['choice'] for b in p.screens[-1]['buttons'])
        seen = [c for c in p.choices if any(c in text for text in told(p).values())]
        assert len(seen) >= 3


async def test_nothing_but_memory_tells_the_place_of_the_right_code():
    places = Counter(p.choices.index(p.code) for _, p in problems(100))
    n = sum(places.values())
    assert len(places) == CHOICES and max(abs(k - n / CHOICES) for k in places.values()) < 4 * (n * 5 / 36) ** .5
    order = Counter(sorted(p.choices).index(p.code) for _, p in problems(100))
    assert max(abs(k - n / CHOICES) for k in order.values()) < 4 * (n * 5 / 36) ** .5


async def test_everything_fits_the_screen():
    for _, p in problems(20):
        for s in p.screens:
            assert all(len(line) <= COLS for line in s['lines'])
            boxes = {(b['row'], c) for b in s['buttons'] for c in range(b['col'] - 1, b['col'] + len(b['label']) + 1)}
            assert len(boxes) == sum(len(b['label']) + 2 for b in s['buttons']), 'buttons overlap'
            assert all(len(s['lines']) < row < ROWS and 0 <= col < COLS for row, col in boxes), 'a button lies off the screen or beside text'


async def test_seeds_and_tasks_have_problems_of_their_own():
    assert problem(3, 20, 3) == problem(3, 20, 3)
    assert len({repr(p) for _, p in problems(20)}) == 20 * len(SUITES['recall/all'])
    assert all(split_of(s.seed) == 'test' for s in suite('recall/all', 'test', 3))
    assert all(isinstance(TASKS[n], Task) for n in SUITES['recall/all'])


@pytest.mark.parametrize('pages, people, scattered', [(2, 3, False), (4, 3, True), (20, 0, False), (20, 6, False)])
async def test_too_few_pages_are_refused(pages, people, scattered):
    with pytest.raises(ValueError, match='do not fit'): problem(0, pages, people, scattered)


async def test_outside_a_checkout_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(base, 'SANDBOXES', tmp_path)
    with pytest.raises(FileNotFoundError, match='sandboxes/recall'): base.own_page('recall')


# --- the page

@pytest.mark.parametrize('name', ['recall/code-6', 'recall/pairs-10', 'recall/scattered-6', 'recall/scattered-40'])
async def test_oracle_solves_it(session, name):
    for spec in suite(name, 'validation', 2 if '40' not in name else 1):
        traj = await run_episode(session, TASKS[name], spec, OracleAgent)
        assert traj.success and traj.reward == 1 and len(traj.steps) == TASKS[name].pages + 1


async def test_every_screen_is_read_exactly(session, glyphs):
    for name in ('recall/scattered-20', 'recall/pairs-6'):
        task, spec = TASKS[name], suite(name, 'validation', 5)[-1]
        traj = await run_episode(session, task, spec, OracleAgent)
        for step, s in zip(traj.steps, task.problem(spec).screens, strict=True):
            wanted = [list(line.ljust(COLS)) for line in s['lines']] + [[' '] * COLS for _ in range(ROWS - len(s['lines']))]
            for b in s['buttons']: wanted[b['row']][b['col']:b['col'] + len(b['label'])] = b['label']
            assert read_screen(step.observation.screenshot, glyphs) == [''.join(r) for r in wanted]


async def walk_to_question(session, name, seed=1):
    "The task at its question."
    task = TASKS[name]
    spec = await task.setup(session, TaskSpec(name, seed))
    oracle = task.oracle(session, spec)
    for _ in range(task.pages): await session.act(await anext(oracle))
    return task, spec, oracle


async def test_a_wrong_code_costs_and_is_final(session):
    task, spec, oracle = await walk_to_question(session, 'recall/pairs-6')
    assert (await task.verify(session, spec)).reward == 0
    right = await anext(oracle)
    wrong = next(c for c in task.problem(spec).choices if c != task.problem(spec).code)
    await session.act(await recall.click_on(session, "$('[data-label=' + x + ']')", wrong))
    for _ in range(2):
        verdict = await task.verify(session, spec)
        assert (verdict.reward, verdict.success, verdict.done, verdict.info['chosen']) == (-1, False, True, wrong)
        await session.act(right)


async def test_only_the_button_turns_the_page(session):
    task = TASKS['recall/code-6']
    spec = await task.setup(session, TaskSpec(task.name, 5))
    before = (await session.observe()).screenshot
    button = task.problem(spec).screens[0]['buttons'][0]
    for x, y in ((8, 8), (80, 75), (155, 205)):
        assert not (button['row'] * 16 <= y < button['row'] * 16 + 16 and (button['col'] - 1) * 8 <= x < (button['col'] + 5) * 8)
        await session.act(Action('click', dict(point=(round(x / 160 * 1000), round(y / 210 * 1000)))))
    await session.act(Action('hotkey', dict(key='enter')))
    assert np.array_equal((await session.observe()).screenshot, before) and (await task.verify(session, spec)).info == dict(page=1)


@pytest.mark.parametrize('key', ['f5', 'ctrl t'])
async def test_leaving_the_page_loses(session, key):
    task = TASKS['recall/code-6']
    spec = await task.setup(session, TaskSpec(task.name, 1))
    await session.act(Action('hotkey', dict(key=key)))
    verdict = await task.verify(session, spec)
    assert (verdict.reward, verdict.done, verdict.info) == (-1, True, dict(reason='left the page'))


async def test_an_episode_leaves_nothing_to_the_next(pool):
    async with pool.session() as one: first = await run_episode(one, TASKS['recall/pairs-6'], TaskSpec('recall/pairs-6', 9), OracleAgent)
    async with pool.session() as two:
        await run_episode(two, TASKS['recall/scattered-10'], TaskSpec('recall/scattered-10', 4), RandomAgent)
        again = await run_episode(two, TASKS['recall/pairs-6'], TaskSpec('recall/pairs-6', 9), OracleAgent)
    assert [s.observation.screenshot.tobytes() for s in first.steps] == [s.observation.screenshot.tobytes() for s in again.steps]


async def test_dawdling_ends_at_the_step_budget(session):
    traj = await run_episode(session, TASKS['recall/code-6'], suite('recall/code-6')[0], RandomAgent)
    assert traj.stop in (StopReason.STEP_LIMIT, StopReason.TERMINATED) and len(traj.steps) <= 12


# --- the reader

async def played(session, glyphs, name, n, notes=True, **memory):
    agent = PolicyAgent(Reader(glyphs, notes), get_dialect('ui-tars-2'), Sampling(max_tokens=256), MemoryConfig(system=False, **memory))
    return [await run_episode(session, TASKS[name], spec, agent) for spec in suite(name, 'validation', n)]


async def test_the_reader_is_right_exactly_where_its_prompt_says_the_code(session, glyphs):
    "Over memories that keep and lose it: whenever the code stands in the last prompt it is pressed, and every prompt is within its budget."
    kept = []
    for notes, memory in ((True, dict(context=1500)), (True, dict(context=1500, episodic=False)), (False, dict(images=5)), (True, dict(images=1, steps=0, episodic=False))):
        agent = PolicyAgent(Reader(glyphs, notes), get_dialect('ui-tars-2'), Sampling(max_tokens=256), MemoryConfig(system=False, **memory))
        for traj in await played(session, glyphs, 'recall/scattered-10', 3, notes, **memory):
            p = TASKS['recall/scattered-10'].problem(traj.task)
            prompt = agent.memory.recall(traj.task.instruction, traj.steps[:-1], traj.steps[-1].observation, 256)
            knows = f'THE CODE OF {p.person} IS {p.code}' in ' '.join(texts(prompt.messages, glyphs))
            kept.append(knows)
            assert traj.success or not knows
            assert prompt.tokens <= agent.config.context - 256 and len(traj.steps) == 11
    assert kept[:3] == [True] * 3 and kept[-3:] == [False] * 3


async def test_the_reader_is_a_function_of_its_prompt(session, glyphs):
    spec = await TASKS['recall/code-6'].setup(session, suite('recall/code-6')[0])
    image = (await session.observe()).screenshot
    messages = [dict(role='user', content=[dict(type='text', text=spec.instruction), dict(type='image', image=image)])]
    reader = Reader(glyphs)
    first = await reader.complete(messages, key='one')
    await reader.complete([dict(role='user', content=[dict(type='image', image=np.full_like(image, 255)), dict(type='image', image=image)])], key='two')
    assert await reader.complete(messages, key='two') == first


async def test_guesses_are_no_better_than_guesses():
    "Where the prompt does not say the code, the choice has nothing to do with it."
    right, n = 0, 900
    for seed in range(n):
        p = problem(seed, 10, 3)
        rows = [line.ljust(COLS) for line in p.screens[-1]['lines']] + [' '.join(p.choices)]
        right += decide(['Some instruction.', ' '.join(rows)], rows) == p.code
    assert abs(right - n / CHOICES) < 4 * (n * 5 / 36) ** .5


async def test_the_code_of_another_person_or_an_old_one_is_not_taken():
    rows = ['', 'THE CODE OF ADA?    ', '', '', 'BBBB  CCCC', '', 'DDDD  FFFF', '', 'GGGG HHHH']
    said = ['AN OLD CODE OF ADA WAS BBBB', 'THE CODE OF BEN IS CCCC', 'I read: THE CODE OF ADA IS DDDD. I press NEXT.']
    for _ in range(5):
        random.shuffle(said)
        assert decide(said, rows) == 'DDDD'
