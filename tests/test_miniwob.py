"MiniWoB++'s pages as tasks: the same seed the same screen, no clock but the session's, no way out of a verdict."
import asyncio, hashlib, json, re, subprocess, sys

import gymnasium
import numpy as np
import pytest, pytest_asyncio

from uitars_nb.agent.loop import RandomAgent
from uitars_nb.core.types import Action, TaskSpec
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import SUITES, TASKS, Task, seeds, split_of, suite
from uitars_nb.tasks.oracle_helpers import click_on, look
from uitars_nb.tasks.miniwob.task import AGAIN, BROWSER, GRADED, HTML, NAMES

pytestmark = [pytest.mark.asyncio(loop_scope='module'), pytest.mark.timeout(900)]
FEW = ['click-test-2', 'click-color', 'click-dialog', 'choose-date-nodelay', 'click-shape', 'enter-time']
FILES = [n for n in NAMES if not n.startswith('flight.')]


@pytest_asyncio.fixture(loop_scope='module', scope='module')
async def pool():
    async with BrowserPool(BROWSER, browsers=1, pages=2) as pool: yield pool


@pytest_asyncio.fixture(loop_scope='module')
async def session(pool):
    async with pool.session() as session: yield session


async def first_screens(pool, names, seeds):
    "The instruction and a digest of the first screen, by task and seed."
    async def one(name, seed):
        async with pool.session() as session:
            spec = await TASKS[f'miniwob/{name}'].setup(session, TaskSpec(f'miniwob/{name}', seed))
            return spec.instruction, hashlib.sha256((await session.observe()).screenshot.tobytes()).hexdigest()
    pairs = [(name, seed) for name in names for seed in seeds]
    return {f'{n}:{s}': list(x) for (n, s), x in zip(pairs, await asyncio.gather(*[one(*p) for p in pairs]))}


ELSEWHERE = '''
import asyncio, json, sys
sys.path.insert(0, 'tests')
from test_miniwob import BROWSER, BrowserPool, first_screens
async def main():
    async with BrowserPool(BROWSER, browsers=1, pages=2) as pool: print(json.dumps(await first_screens(pool, *json.loads(sys.argv[1]))))
asyncio.run(main())'''


async def in_another_process(names, seeds):
    "`first_screens` in a Python and a Chromium of their own."
    run = lambda: subprocess.run([sys.executable, '-c', ELSEWHERE, json.dumps([names, seeds])], capture_output=True, text=True, timeout=800)
    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_every_registered_task():
    registered = {i[8:-3] for i in gymnasium.registry if i.startswith('miniwob/')}
    assert len(registered) == 128 and registered <= set(NAMES)
    assert all(isinstance(TASKS[f'miniwob/{n}'], Task) for n in NAMES)
    assert set(SUITES['miniwob/pix2act59']) | set(SUITES['miniwob/quick']) <= set(SUITES['miniwob/all']) == {f'miniwob/{n}' for n in NAMES}


async def test_no_seed_is_in_two_splits():
    chosen = {split: {s.seed for s in suite('miniwob/quick', split, 50)} for split in ('train', 'validation', 'test')}
    assert all(split_of(s) == split for split, group in chosen.items() for s in group)
    assert not chosen['train'] & chosen['test'] and not chosen['train'] & chosen['validation'] and not chosen['validation'] & chosen['test']


async def test_same_seed_same_screen_in_another_process(pool):
    here = await first_screens(pool, FEW, [3, 4])
    assert here == await in_another_process(FEW, [3, 4])
    assert all(here[f'{n}:3'][1] != here[f'{n}:4'][1] for n in FEW)


@pytest.mark.slow
async def test_every_page_starts_the_same_in_another_process(pool):
    here, there = await first_screens(pool, FILES, [5]), await in_another_process(FILES, [5])
    assert all(said for said, _ in here.values())
    assert not [k for k in here if here[k] != there[k]]


async def test_the_seed_is_miniwobs_own(session):
    "The first numbers of `Math.seedrandom(seed)` place the button."
    spec = await TASKS['miniwob/click-test-2'].setup(session, TaskSpec('miniwob/click-test-2', 7))
    left = await look(session, "parseInt($('#subbtn').style.left)")
    assert left == await look(session, '(Math.seedrandom(x), core.randi(0, 118))', spec.seed)


async def test_patience_costs_nothing(session):
    task = TASKS['miniwob/click-test-2']
    spec = await task.setup(session, TaskSpec(task.name, 1))
    await session.act(Action('wait', dict(time=60)))
    assert not (await task.verify(session, spec)).done
    await session.act(await click_on(session, "byText('button', 'ONE')"))
    assert (await task.verify(session, spec)).reward == 1


async def test_a_double_click_does_not_wipe_out_a_verdict(session):
    task = TASKS['miniwob/click-test-2']
    spec = await task.setup(session, TaskSpec(task.name, 1))
    await session.act(await click_on(session, "byText('button', 'TWO')", name='left_double'))
    await session.act(Action('click', dict(point=(500, 500))))
    verdict = await task.verify(session, spec)
    assert (verdict.reward, verdict.success, verdict.done) == (-1, False, True)


async def test_a_page_of_ones_own_says_nothing_of_the_task(session):
    task = TASKS['miniwob/click-test-2']
    spec = await task.setup(session, TaskSpec(task.name, 1))
    forged = "<script>var core={under_way:1},WOB_RAW_REWARD_GLOBAL=1,WOB_DONE_GLOBAL=true,WOB_REWARD_REASON=''</script>"
    with pytest.raises(ActionError): await session.act(Action('navigate', dict(content=f'data:text/html,{forged}')))
    await session.goto(f'data:text/html,{forged}')   # or however it may get there
    verdict = await task.verify(session, spec)
    assert (verdict.reward, verdict.success, verdict.info) == (-1, False, dict(reason='left the page'))


@pytest.mark.parametrize('key', ['f5', 'ctrl t'])
async def test_leaving_the_page_loses(session, key):
    task = TASKS['miniwob/click-test-2']
    spec = await task.setup(session, TaskSpec(task.name, 1))
    await session.act(Action('hotkey', dict(key=key)))
    verdict = await task.verify(session, spec)
    assert (verdict.reward, verdict.done, verdict.info) == (-1, True, dict(reason='left the page'))


async def test_part_of_the_reward_for_part_of_the_boxes(session):
    task = TASKS['miniwob/click-checkboxes-large']
    spec = await task.setup(session, TaskSpec(task.name, 2))
    await session.act(await click_on(session, "byText('label', x).querySelector('input')", spec.params['fields']['target 0']))
    await session.act(await click_on(session, "$('#subbtn')"))
    verdict = await task.verify(session, spec)
    assert -1 < verdict.reward < 1 and verdict.done and not verdict.success


async def handed_in(session, name, seed, *actions):
    "The verdict on a page where `actions`, made after it has started, are followed by its submit button."
    task = TASKS[f'miniwob/{name}']
    spec = await task.setup(session, TaskSpec(task.name, seed))
    for action in actions: await session.act(await action())
    await session.act(await click_on(session, "$('#subbtn') || $('#submit')"))
    return await task.verify(session, spec)


@pytest.mark.parametrize('right', [True, False])
async def test_a_wrong_card_is_paid_and_no_success(session, right):
    async def card():
        n = await look(session, '(v => v.indexOf((x ? Math.max : Math.min)(...v)))($$(".card-value").map(e => +e.textContent))', right)
        return await click_on(session, f'$$(".card")[{n}]')
    verdict = await handed_in(session, 'find-greatest', 3, card)
    assert (verdict.reward, verdict.success, verdict.done) == ((1, True, True) if right else (.1, False, True))


@pytest.mark.parametrize('all_but', [0, 1])
async def test_five_of_six_boxes_are_no_success(session, all_but):
    task = TASKS['miniwob/click-checkboxes']
    for spec in suite(task.name, n=20):
        targets = [v for k, v in (await task.setup(session, spec)).params['fields'].items() if k.startswith('target')]
        if len(targets) > 2: break
    tick = lambda label: lambda: click_on(session, "byText('label', x).querySelector('input')", label)
    verdict = await handed_in(session, 'click-checkboxes', spec.seed, *map(tick, targets[all_but:]))
    assert (verdict.reward == 1, verdict.success) == ((False, False) if all_but else (True, True)) and verdict.reward > 0


@pytest.mark.parametrize('off, success', [(1, True), (6, False), (20, False)])
async def test_near_the_centre_is_not_at_the_centre(session, off, success):
    "The reward is 1 less the distance as a share of the radius, 25 to 40 pixels."
    async def dot():
        x, y = await look(session, "(r => [r.left + r.width / 2, r.top + r.height / 2])($('circle').getBoundingClientRect())")
        return Action('click', dict(point=(round((x + off) / 160 * 1000), round(y / 210 * 1000))))
    verdict = await handed_in(session, 'circle-center', 5, dot)
    assert 0 < verdict.reward < 1 and verdict.success == success, verdict


ONE = r'-?(1|1\.0|0?\.5|0?\.75)'
WHOLE = re.compile(rf'({ONE}|[^?;]*\?\s*-?1(\.0)?\s*:\s*-?1(\.0)?)')
READ = {'buy-ticket', 'generate-number', 'identify-shape', 'read-table', 'read-table-2'}   # pages that compute 1 or less than 0 in another way

def pays_between(script):
    "What a page hands to `endEpisode`, and how it comes to it, unless that is 1, below 0, or a choice of both."
    script = re.sub(r'//[^\n]*', '', script)
    given = {o.strip() for o in re.findall(r'endEpisode\(\s*([^,)]+)', script)}
    found = {o for o in given if not re.fullmatch(r'[a-z_]\w*', o) and not WHOLE.fullmatch(o)}
    for name in given - found:
        for op, value in re.findall(rf'\b{re.escape(name)}\s*([-+*/]?=)(?!=)\s*([^;\n]+(?:\n\s*[?:&|][^;\n]*)*)', script):
            if op != '=' or not WHOLE.fullmatch(value.strip().rstrip(',)')): found.add(f'{name} {op} {value}')
    return found

async def test_every_page_that_pays_in_between_is_in_the_table():
    found = {o.stem for o in (HTML / 'miniwob').glob('*.html') if pays_between(o.read_text())}
    assert found - READ == {o for o in GRADED if not o.startswith('flight.')}
    assert {o for o in NAMES if o.startswith('flight.')} <= {*GRADED}   # `score / n` in wrapper.js


async def test_the_other_kind_of_data(session):
    task = TASKS['miniwob/click-test-transfer']
    said = {mode: (await task.setup(session, TaskSpec(task.name, 1, params=dict(mode=mode)))).instruction for mode in ('train', 'test')}
    assert said == dict(train='Click button ONE.', test='Click button TWO.')


async def course(session, task, spec, n=3):
    "The screens, the reward and the instruction of an episode of a few random actions."
    spec = await task.setup(session, spec)
    agent, screens = RandomAgent(session, task, spec), [(await session.observe()).screenshot]
    for _ in range(n):
        await session.act((await agent.act([], None)).actions[0])
        verdict = await task.verify(session, spec)
        screens.append((await session.observe()).screenshot)
        if verdict.done: break
    return screens, verdict.reward, spec.instruction


@pytest.mark.parametrize('name', ['click-test-2', 'enter-text', 'click-checkboxes', *(pytest.param(n, marks=pytest.mark.slow) for n in sorted(AGAIN))])
async def test_an_episode_begun_again_is_like_one_on_a_fresh_page(pool, name):
    task = TASKS[f'miniwob/{name}']
    async with pool.session() as begun, pool.session() as fresh:
        for spec in suite(task.name, n=5):
            fresh.home = None  # so that its page has to be loaded
            (a, *rest_a), (b, *rest_b) = await course(fresh, task, spec), await course(begun, task, spec)
            assert rest_a == rest_b and len(a) == len(b)
            assert all(map(np.array_equal, a, b)), f'{spec.id} shows something of the episode before'


OTHER = 'miniwob/enter-date'   # leaves a focused field and an open list of a date picker

@pytest.mark.parametrize('name', [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in sorted({*FILES} - {*FEW}))])
async def test_a_page_in_a_kept_tab_is_like_one_in_a_new_tab(pool, name):
    task, other = TASKS[f'miniwob/{name}'], TASKS[OTHER]
    async with pool.session() as kept, pool.session() as fresh:
        for spec, before in zip(suite(task.name, n=3), suite(OTHER, n=3)):
            await course(kept, other, before)
            tab, fresh.home = kept.page.id, None   # so that the other one's page has a new tab
            (a, *rest_a), (b, *rest_b) = await course(fresh, task, spec), await course(kept, task, spec)
            assert rest_a == rest_b and len(a) == len(b) and (kept.page.id == tab or name == 'enter-date')
            assert all(map(np.array_equal, a, b)), f'{spec.id} shows something of the episode before'
            assert await kept.evaluate('[history.length, window.name, {...localStorage}]') == [1, '', {}]


async def test_only_flight_pages_write_to_a_storage():
    "The others promise `same_tab`; their libraries lie elsewhere."
    writes = re.compile('localStorage|sessionStorage|indexedDB|unload|pagehide|visibilitychange')
    pages = lambda folder: [o.name for o in (HTML / folder).rglob('*') if o.suffix in ('.html', '.js') and writes.search(o.read_text(errors='replace'))]
    assert not pages('miniwob') and 'index.html' in pages('flight')
    assert not [o.name for o in (HTML / 'core').glob('*.js') if writes.search(o.read_text(errors='replace'))]
