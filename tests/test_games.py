"Games: every folder of sandboxes/games keeps the contract, and broken packages of each kind are found."
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from uitars_nb.cli.main import main
from uitars_nb.core.types import Action, StopReason, TaskSpec
from uitars_nb.sandbox.browser.chromium import launch
from uitars_nb.sandbox.browser.session import BrowserSession
from uitars_nb.sandbox.desktop.xserver import XServer
from uitars_nb.tasks.base import SUITES, TASKS, get_task, register
from uitars_nb.agent.loop import EpisodeLimits, Reply, limits_of, run_episode
from uitars_nb.tasks.games import check, person
from uitars_nb.tasks.games.game import BROWSER, FOLDER, STATE, click_at, drag_between, game_at, game_state, load_players, random_action, tap
from uitars_nb.tasks.games.person import HumanScore, keep_score, play_by_hand
from uitars_nb.tasks.games.real_time import paced, record_inputs, repeat_in_real_time

NAMES = [*SUITES['games/all'], *SUITES['games/lm']]
KINDS = ['games/2048', 'games/energy', 'games/free-the-key', 'games/merge-and-double', 'games/wood-blocks-3d', 'games/lm-tetris']   # keys, clicks, drags, real time, WebGL


def run(work):
    "Runs `work(chromium, session)` in a fresh browser."
    async def main():
        chromium = await launch()
        session = BrowserSession(chromium, BROWSER)
        try: return await work(chromium, session)
        finally:
            await session.close()
            await chromium.close()
    return asyncio.run(main())


def test_there_are_fifteen_and_five():
    assert len(SUITES['games/all']) == 15 and len(SUITES['games/lm']) == 5
    assert {o.removeprefix('games/') for o in NAMES} == {*load_players()}
    assert all(get_task(o).max_steps == 100 for o in SUITES['games/all'])   # the report's budget


@pytest.mark.parametrize('name', NAMES)
def test_same_seed_and_actions_give_the_same_game(name):
    async def work(chromium, session):
        return await check.check_determinism(session, get_task(name), steps=10) + await check.check_reading(session, get_task(name), steps=3)
    assert run(work) == []


@pytest.mark.parametrize('name', NAMES)
def test_another_seed_gives_another_board(name):
    if name == 'games/lm-sokoban': pytest.skip('its levels are fixed')
    async def work(chromium, session):
        boards = []
        for seed in (1, 2):
            await get_task(name).setup(session, TaskSpec(name, seed))
            boards.append((await game_state(session)).board)
        return boards
    first, second = run(work)
    assert first != second


@pytest.mark.parametrize('name', NAMES)
def test_a_checkpoint_restores_the_game(name):
    async def work(chromium, session):
        game, rng = get_task(name), random.Random(1)
        await game.setup(session, TaskSpec(name, 5))
        for _ in range(6): await session.act(random_action(game.manifest, rng))
        await session.act(Action('wait', dict(time=1)))
        saved, later, ends = await session.evaluate('gameAPI.checkpoint()'), [random_action(game.manifest, rng) for _ in range(6)], []
        for _ in range(2):
            await session.evaluate('text => gameAPI.restore(text)', saved)
            for action in later: await session.act(action)
            ends.append((await game_state(session), (await session.observe()).screenshot))
        return ends
    (first, screen), (second, again) = run(work)
    assert first == second and np.array_equal(screen, again)


@pytest.mark.parametrize('name', KINDS[:-1])
def test_samples_of_a_midgame_instance_begin_with_the_same_game_and_score_only_what_they_gain(name):
    from uitars_nb.tasks.games import midgame
    async def work(chromium, session):
        game, others = get_task(name + midgame.SUFFIX), [BrowserSession(chromium, BROWSER) for _ in range(3)]
        played = []
        async def counted(session, game, spec, moves):
            played.append(moves)
            return await opening(session, game, spec, moves)
        opening, midgame.play_opening = midgame.play_opening, counted
        try: specs = await asyncio.gather(*(game.setup(o, TaskSpec(game.name, 3)) for o in (session, *others)))
        finally: midgame.play_opening = opening
        boards = [(await game_state(o), (await o.observe()).screenshot) for o in (session, *others)]
        gained = [await game.verify(session, specs[0])]
        player = game.oracle(session, specs[0])
        for _ in range(4): await session.act(await anext(player))
        await player.aclose()
        gained.append(await game.verify(session, specs[0]))
        for o in others: await o.close()
        return played, specs, boards, gained
    played, specs, boards, (before, after) = run(work)
    assert played == sorted(played, reverse=True) and len({*played}) == len(played)   # one opening, or shorter ones after a lost game
    assert len({o.params['opening_score'] for o in specs}) == 1
    assert all(o == boards[0][0] and np.array_equal(screen, boards[0][1]) for o, screen in boards)
    assert before.signal == 0 and after.info['gained'] == after.info['score'] - specs[0].params['opening_score']


@pytest.mark.parametrize('name', [o for o in NAMES if not get_task(o).manifest.real_time])
def test_the_first_screen_shows_the_game_and_motions_settle_within_a_step(name):
    "Waiting changes nothing, neither before the first action nor after one."
    async def work(chromium, session):
        game, rng = get_task(name), random.Random(2)
        spec, pairs = await game.setup(session, TaskSpec(name, 5)), []
        heuristic = game.oracle(session, spec)
        for k in range(6):
            if k: await session.act(await anext(heuristic) if k > 2 else random_action(game.manifest, rng))
            before = (await session.observe()).screenshot
            await session.act(Action('wait', dict(time=1)))
            pairs.append((before, (await session.observe()).screenshot))
        await heuristic.aclose()
        return pairs
    pairs = run(work)
    assert len(np.unique(pairs[0][0].reshape(-1, 3), axis=0)) > 20   # text and shapes, not a bare background
    assert [k for k, (a, b) in enumerate(pairs) if not np.array_equal(a, b)] == []


@pytest.mark.parametrize('name', [pytest.param(o, marks=() if o in KINDS else pytest.mark.slow) for o in NAMES])
def test_the_heuristic_player_beats_random_and_idle(name):
    seeds = range(2) if name in KINDS else range(10)
    assert run(lambda chromium, session: check.check_verifier(session, get_task(name), seeds)) == []


@pytest.mark.parametrize('name', [pytest.param(o, marks=() if o in KINDS else pytest.mark.slow) for o in NAMES])
def test_the_score_does_not_depend_on_the_clock(name):
    async def work(chromium, session): return await check.check_clock(chromium, get_task(name)) + await check.check_network(chromium, get_task(name))
    assert run(work) == []


REAL_TIME = {'games/merge-and-double': 2., 'games/lm-platformer': 0.}   # seconds between actions


def test_the_real_time_games_are_known():
    assert {o for o in NAMES if get_task(o).manifest.real_time} == {*REAL_TIME}


@pytest.mark.parametrize('name', REAL_TIME)
def test_a_real_time_game_on_the_paused_clock_is_the_game_in_real_time(name):
    async def work(chromium, session):
        episode = await record_inputs(session, get_task(name), paced(check.heuristic, REAL_TIME[name]), seed=3, steps=100 if name == 'games/lm-platformer' else 12)
        return episode.state, await repeat_in_real_time(chromium, get_task(name), episode)
    paused, real = run(work)
    assert paused.score > 0 and (paused.score, paused.terminal, paused.board) == (real.score, real.terminal, real.board)


def test_a_verifier_cannot_be_replaced():
    async def work(chromium, session):
        game = get_task('games/2048')
        spec = await game.setup(session, TaskSpec('games/2048', 0))
        await session.evaluate('''try { gameAPI.getState = () => ({metrics: {score: 1e9}, terminal: {}}) } catch (e) {}
          try { window.gameAPI = {getState: () => ({metrics: {score: 1e9}, terminal: {}})} } catch (e) {}''')
        return (await game.verify(session, spec)).info['score']
    assert run(work) == 0


def test_stacked_knots_do_not_solve_yarn_untangle():
    "Knots on one line, or one on another, once counted as untangled."
    async def work(chromium, session):
        task = get_task('games/yarn-untangle')
        await task.setup(session, TaskSpec(task.name, 1))
        game = json.loads(await session.evaluate('window.gameAPI.checkpoint()'))
        game['state']['knots'] = [[4, y] for _, y in game['state']['knots']]
        await session.evaluate('text => window.gameAPI.restore(text)', json.dumps(game))
        assert (await game_state(session)).score == 0
    run(work)


SAID = """text => {   // restores a game; the words that it writes in its first frame
  const said = [], {fillText} = CanvasRenderingContext2D.prototype
  CanvasRenderingContext2D.prototype.fillText = function (...args) { said.push(args[0]); fillText.apply(this, args) }
  gameAPI.restore(text)
  CanvasRenderingContext2D.prototype.fillText = fillText
  return said
}"""


@pytest.mark.parametrize('name, level, ending, words', [
    ('games/gem-11', 1, lambda s: s['board'][0].__setitem__(0, 11), 'Gem 11'),
    ('games/lm-sokoban', 6, lambda s: s.update(boxes=s['targets']), 'All boxes are on targets'),
    ('games/lm-candy-crush', 1, lambda s: s.update(left=0), 'No swap is left')])
def test_a_game_that_is_over_says_why(name, level, ending, words):
    "Once, whether the game or the kit draws the banner; a game in progress shows none."
    async def work(chromium, session):
        await get_task(name).setup(session, TaskSpec(name, 1, params=dict(level=level)))
        game = json.loads(await session.evaluate('gameAPI.checkpoint()'))
        before = await session.evaluate(SAID, json.dumps(game))
        ending(game['state'])
        after = await session.evaluate(SAID, json.dumps(game))
        return before, after, (await game_state(session)).terminal
    before, after, ended = run(work)
    assert ended and before.count(words) == 0 and after.count(words) == 1


def test_limits_grow_with_the_budget_of_a_game():
    usual, limits = EpisodeLimits(), lambda name, n: limits_of(get_task(name), TaskSpec(name, max_steps=n), EpisodeLimits())
    assert all(limits(o, get_task(o).max_steps) == usual for o in SUITES['games/all'])
    long = limits('games/lm-2048', get_task('games/lm-2048').max_steps)
    assert long.tokens == 10 * usual.tokens and long.session_ms == 10 * usual.session_ms and long.seconds == usual.seconds
    assert limits('games/2048', 400).tokens == 4 * usual.tokens and limits_of(object(), TaskSpec('other', max_steps=400), usual) == usual


def test_a_game_ends_by_its_own_rule_and_not_as_a_loop():
    "In 2048 of LMGame-Bench ten moves that change nothing end the game; five alike end other episodes."
    class Stubborn:
        def __init__(self, session, task, spec): pass
        async def act(self, steps, obs): return Reply(actions=(tap('left'),))
    async def work(chromium, session):
        return [await run_episode(session, get_task(o), TaskSpec(o, 1, max_steps=get_task(o).max_steps), Stubborn)
                for o in ('games/lm-2048', 'games/2048')]
    patient, other = run(work)
    assert (patient.stop, patient.info['reason']) == (StopReason.TERMINATED, '10 moves changed nothing')
    assert other.stop is StopReason.LOOP


@pytest.mark.parametrize('end', [(0, -19), (19, 0), (-19, 0), (0, 19)])
def test_a_person_swaps_candies_by_a_slow_drag(end):
    "Press, many moves with time between them, and release: one swap, as for the agent's drag or two clicks."
    async def work(chromium, session):
        task, swaps = get_task('games/lm-candy-crush'), []
        x, y = 4 + 3.5 * 19, 36 + 3.5 * 19
        to = x + end[0], y + end[1]
        for way in ('slow', 'drag', 'clicks'):
            await task.setup(session, TaskSpec(task.name, 2))
            if way == 'slow':
                await session.act(Action('mouse_down', dict(point=click_at(session, x, y).args['point'])))
                for k in range(1, 5):
                    await session.act(Action('move_to', dict(point=click_at(session, x + end[0] * k / 4, y + end[1] * k / 4).args['point'])))
                await session.act(Action('mouse_up', dict(point=click_at(session, *to).args['point'])))
            elif way == 'drag': await session.act(drag_between(session, (x, y), to))
            else:
                for o in ((x, y), to): await session.act(click_at(session, *o))
            swaps.append((await game_state(session)).board)
        return swaps
    slow, drag, clicks = run(work)
    assert slow == drag == clicks and slow['left'] == 49


def test_a_drag_is_one_move():
    async def work(chromium, session):
        task = get_task('games/yarn-untangle')
        await task.setup(session, TaskSpec(task.name, 1))
        x, y = (await game_state(session)).board['knots'][0]
        await session.act(drag_between(session, (x, y), (80, 100)))
        assert (await session.evaluate(STATE))['metrics']['moves'] == 1
    run(work)


def test_level_and_seed_are_reported():
    async def work(chromium, session):
        await get_task('games/energy').setup(session, TaskSpec('games/energy', 3, params=dict(level=4)))
        return await session.evaluate(STATE)
    state = run(work)
    assert (state['seed'], state['metrics']['level'], state['gameId'], state['schemaVersion']) == (3, 4, 'energy', '2.0')


SCREEN = '<canvas id=c width=160 height=210></canvas><script>const draw = n => { const g = c.getContext("2d"); g.fillRect(n % 160, 0, 5, 5) }\n'
BROKEN = {   # kind -> (page, words of the finding)
    'no API': ('<p>a page', 'cannot be played'),
    'no score': ('<script>window.gameAPI = {init: async () => ({}), getState: () => ({terminal: {}})}</script>', 'no score'),
    'chance without the seed': ('''<script>let n = 0
addEventListener('keydown', () => { n += Math.random() })
window.gameAPI = {init: async () => { n = 0 }, getState: () => ({metrics: {score: n}, terminal: {}})}</script>''', 'different scores'),
    'pictures without the seed': (SCREEN + '''let n = 0
addEventListener('keydown', () => { n++; draw(Math.floor(Math.random() * 160)) })
window.gameAPI = {init: async () => { n = 0 }, getState: () => ({metrics: {score: n}, terminal: {}})}</script>''', 'different screenshots'),
    'reading plays': ('''<script>let n = 0
window.gameAPI = {init: async () => { n = 0 }, getState: () => ({metrics: {score: n++}, terminal: {}})}</script>''', 'reading the state changes it'),
    'the clock scores': ('''<script>let at = 0, n = 0
addEventListener('keydown', () => { n += Date.now() - at })
window.gameAPI = {init: async () => { at = Date.now(); n = 0 }, getState: () => ({metrics: {score: n}, terminal: {}})}</script>''', 'depends on the clock'),
    'it calls home': ('''<script>let n = 0
addEventListener('keydown', () => { n++; fetch('http://home.example/').catch(() => 0) })
window.gameAPI = {init: async () => { n = 0 }, getState: () => ({metrics: {score: n}, terminal: {}})}</script>''', 'requests to the network'),
}


def packed(tmp_path, page, **facts):
    "A folder with a game of that page."
    (folder := tmp_path/'broken').mkdir()
    (folder/'index.html').write_text(f'<!doctype html><body>{page}')
    (folder/'manifest.json').write_text(json.dumps(dict(id='broken', title='Broken', rules='Press left.', keys=['left'], mouse=[], budget=10) | facts))
    return folder


@pytest.mark.parametrize('kind', BROKEN)
def test_broken_games_are_found(kind, tmp_path):
    page, words = BROKEN[kind]
    found = asyncio.run(check.check_game(packed(tmp_path, page), seeds=range(1)))
    assert any(words in o for o in found), found


# a small game that keeps the contract: the left arrow is right after an odd number, the right arrow after an even one;
# a click draws a new number, and a level begins with its number in front
SOUND = '''<h1 style="font-size: 12px"></h1><script>let s, at
const h = document.querySelector('h1'), next = () => { s.chance = (s.chance * 1103515245 + 12345) % 2147483648; h.textContent = `${s.level} ${s.chance} ${s.score}` }
const begin = (seed, level) => { at = Date.now(); h.dataset.seed = seed; s = {chance: seed * 7919 + level, level, score: 0, moves: 0}; next() }
const over = () => s.moves >= 40
addEventListener('keydown', e => {
  const k = ['ArrowLeft', 'ArrowRight'].indexOf(e.key)
  if (k < 0 || over()) return
  s.moves++
  if ((s.chance >> 16) % 2 !== k) s.score++
  next()
})
addEventListener('pointerdown', () => { if (!over()) { s.moves++; next() } })
window.gameAPI = {capabilities: {seed: true, level: true}, init: async ({seed, level}) => begin(seed, level),
  getState: () => ({metrics: {score: s.score, level: s.level}, terminal: {isTerminal: over(), reason: 'forty moves'}, game_state: {environment: {...s}}})}
begin(0, 1)
</script>'''
FACTS = dict(keys=['left', 'right'], mouse=['click'], levels=3, budget=20, reference=20)


async def play_sound(session, spec):
    "Presses the right arrow."
    while True: yield tap(('right', 'left')[((await game_state(session)).board['chance'] >> 16) % 2])


@pytest.fixture
def known(monkeypatch):
    "The game's heuristic player is registered."
    monkeypatch.setitem(load_players(), 'broken', play_sound)


def test_a_small_sound_game_keeps_the_contract(known, tmp_path):
    found = asyncio.run(check.examine_game(packed(tmp_path, SOUND, **FACTS), seeds=range(2)))
    assert not any(found.values()), found
    assert [*found] == ['start', 'seeds', 'determinism', 'reading', 'controls', 'levels', 'budget', 'player', 'network', 'clock', 'console']


FAULTS = {   # kind -> (check, what to replace in the page, by what, changes of the manifest, words of the only finding)
    'the seed is ignored': ('seeds', 'begin(seed, level)', 'begin(4, level)', {}, 'seeds 0, 1, 2 give the same game'),
    'it says that the seed is ignored': ('seeds', '', '', dict(seeded=False), 'seeds give different games'),
    'the level is ignored': ('levels', 'init: async ({seed, level}) => begin(seed, level)', 'init: async ({seed}) => begin(seed, 1)', {}, 'starts level 1'),
    'the level is ignored and not reported': ('levels', 'init: async ({seed, level}) => begin(seed, level),\n  getState: () => ({metrics: {score: s.score, level: s.level}',
                                              'init: async ({seed}) => begin(seed, 1),\n  getState: () => ({metrics: {score: s.score}', {}, 'starts like level 1'),
    'fewer levels than it says': ('levels', 'begin(seed, level)', 'begin(seed, Math.min(level, 2))', {}, 'init({level: 3}) starts level 2'),
    'over at its start': ('start', 's.moves >= 40', 'true', {}, 'over at its start (forty moves)'),
    'over at one start': ('start', 's.moves >= 40', 'h.dataset.seed === "2"', {}, 'the game of seed 2 is over'),
    'an unused key': ('controls', '', '', dict(keys=['left', 'right', 'z']), "'z' of \"keys\" changes nothing in 10 games"),
    'an unused mouse': ('controls', "addEventListener('pointerdown'", "addEventListener('never'", {}, "'click' of \"mouse\" changes nothing"),
    'a reference out of reach': ('player', '', '', dict(reference=30), 'the heuristic player reaches 20 at best in 2 games (mean 20)'),
    'the clock scores late': ('clock', 's.score++', '{ s.score++; if (s.score > 14) s.score += (Date.now() - at) % 7 }', {}, 'depends on the clock'),
    'it calls home late': ('network', 's.score++', "{ s.score++; if (s.score === 12) fetch('http://home.example/').catch(() => 0) }", {}, 'requests to the network, such as http://home.example/'),
    'an uncaught exception': ('console', "if (k < 0 ||", "if (s.moves === 3) setTimeout(() => { throw new Error('no such tile') })\n  if (k < 0 ||", {}, 'no such tile'),
    'a console error': ('console', 'begin(0, 1)', "begin(0, 1); console.error('sounds are missing'); console.error('and more')", {}, 'sounds are missing'),
}


@pytest.mark.parametrize('kind', FAULTS)
def test_a_fault_is_found_by_its_check_alone(kind, known, tmp_path):
    name, old, new, facts, words = FAULTS[kind]
    assert old in SOUND
    page = SOUND.replace(old, new, 1) if old else SOUND
    found = asyncio.run(check.examine_game(packed(tmp_path, page, **FACTS | facts), seeds=range(2)))
    [fault] = [o for faults in found.values() for o in faults]
    assert found[name] == [fault] and words in fault, found


def test_only_the_heuristic_player_gets_to_the_late_faults(tmp_path):
    "Without a registered player the two pass, so they are found by its actions."
    for kind in ('the clock scores late', 'it calls home late'):
        name, old, new, _, _ = FAULTS[kind]
        found = asyncio.run(check.examine_game(packed(tmp_path, SOUND.replace(old, new, 1), **FACTS), seeds=range(1)))
        assert found[name] == [] and 'no heuristic player' in found['player'][0]
        shutil.rmtree(tmp_path/'broken')


async def lost_player(session, spec):
    yield tap('left')
    yield tap(('left', 'right')[(await game_state(session)).board['missing']])


async def wrong_player(session, spec):
    while True: yield tap('no such key')


@pytest.mark.parametrize('broken, words', [
    ('hang', 'gave no answer'), (lost_player, "KeyError: 'missing' (test_games.py:"), (wrong_player, 'ActionError')])
def test_a_game_that_breaks_off_does_not_stop_the_next_one(broken, words, monkeypatch, tmp_path, capsys):
    "Each game's faults are printed before the next one is examined."
    page = SOUND.replace("addEventListener('keydown', e => {", "addEventListener('keydown', e => { for (;;);") if broken == 'hang' else SOUND
    monkeypatch.setattr(check, 'BROWSER', replace(BROWSER, timeout=1.))
    monkeypatch.setitem(load_players(), 'broken', play_sound if broken == 'hang' else broken)
    folder, printed, examine = packed(tmp_path, page, **FACTS), [], check.examine_game
    async def examined(source, seeds):
        printed.append(capsys.readouterr().out)
        return await examine(source, seeds)
    monkeypatch.setattr(check, 'examine_game', examined)
    assert main(['games', 'check', str(folder), str(tmp_path/'nowhere'), '--seeds', '1']) == 1
    assert printed[0] == '' and words in printed[1] and printed[1].startswith(f'{folder}:\n  ')
    assert '(checked: start, seeds' in printed[1] and 'manifest.json is missing' in capsys.readouterr().out


def test_a_page_by_its_address_may_say_that_it_ignores_seeds(tmp_path):
    folder = packed(tmp_path, SOUND.replace('begin(seed, level)', 'begin(4, 1)'))
    page, found = folder/'index.html', []
    for said in ('seed: true', 'seed: false'):
        page.write_text(page.read_text().replace('seed: true', said))
        found.append(asyncio.run(check.examine_game(page.as_uri()))['seeds'])
    assert 'the same game' in found[0][0] and found[1] == []


@pytest.mark.parametrize('change, words', [
    (dict(id='other'), 'the folder'), (dict(lives=3), 'unknown field'), (dict(budget=0), 'at least one step'),
    (dict(mouse=['hover']), 'click, drag'), (dict(keys=[]), 'keys or the mouse')])
def test_broken_manifests_are_found(change, words, tmp_path):
    (folder := tmp_path/'broken').mkdir()
    (folder/'index.html').write_text('<p>')
    (folder/'manifest.json').write_text(json.dumps(dict(id='broken', title='Broken', rules='Press.', keys=['left'], mouse=[]) | change))
    [found] = asyncio.run(check.check_game(folder))
    assert words in found


def test_a_folder_without_a_manifest(tmp_path):
    [found] = asyncio.run(check.check_game(tmp_path))
    assert 'manifest.json' in found


PLAIN = ('<script src="late.js" defer></script><body>', """setTimeout(() => {   // its scripts come late, and nothing of ours lies beside it
  let score = 0, target = 0, chance = 0
  const next = () => { chance = (chance * 1103515245 + 12345) % 2147483648; target = Math.floor(chance / 65536) % 4; document.body.textContent = `press ${target} (draw ${chance})` }
  addEventListener('keydown', e => { if (['ArrowLeft', 'ArrowUp', 'ArrowRight', 'ArrowDown'].indexOf(e.key) === target) { score += 10; next() } })
  window.gameAPI = {capabilities: {seed: true},
    init: async ({seed}) => { chance = seed; score = 0; next(); return {ok: true} },
    getState: () => ({status: 'playing', terminal: {isTerminal: score >= 200}, metrics: {score}, game_state: {environment: {target}}})}
}, 700)""")


OWN = """from pathlib import Path
from uitars_nb.tasks.games.game import game_state, player, register_games, tap

register_games(Path(__file__).parent/'own')

@player('follow')
async def follow(session, spec):
    while True: yield tap(('left', 'up', 'right', 'down')[(await game_state(session)).board['target']])
"""


def test_a_game_in_a_folder_of_ones_own(tmp_path):
    (folder := tmp_path/'own/follow').mkdir(parents=True)
    (folder/'index.html').write_text(f'<!doctype html>{PLAIN[0]}')
    (folder/'late.js').write_text(PLAIN[1])
    (folder/'manifest.json').write_text(json.dumps(dict(id='follow', title='Follow', rules='Press.', keys=['left', 'up', 'right', 'down'], mouse=[], budget=20)))
    (tmp_path/'own_games.py').write_text(OWN)
    called = lambda own, *words: subprocess.run([sys.executable, '-m', 'uitars_nb', 'games', *words], cwd=tmp_path,
                                                env=os.environ | dict(PYTHONPATH='.', UITARS_TASKS=own), capture_output=True, text=True)
    known, unknown = (called(o, 'check', 'own/follow', '--seeds', '2') for o in ('own_games', ''))
    assert (known.returncode, unknown.returncode) == (0, 1), known.stdout + known.stderr
    assert 'keeps the contract' in known.stdout and 'UITARS_TASKS' in unknown.stdout
    assert [o.split()[:2] for o in called('own_games', 'list').stdout.splitlines()][-1] == ['games/follow', 'Follow']


def test_the_game_of_the_readme_keeps_the_contract(tmp_path):
    "Its files, its module with a heuristic player, and its parts as tasks."
    text = (FOLDER/'README.md').read_text()
    block = lambda kind, start: next(o for o in re.findall(rf'```{kind}\n(.*?)```', text, re.S) if o.startswith(start))
    (folder := tmp_path/'own/dots').mkdir(parents=True)
    shutil.copy(FOLDER/'kit/kit.js', folder)
    for name, found in (('index.html', block('html', '<!')), ('game.js', block('js', '// own')), ('manifest.json', block('json', '{')),
                        ('../../my_games.py', block('python', '# my_games'))): (folder/name).write_text(found)
    called = lambda *words: subprocess.run([sys.executable, '-m', 'uitars_nb', *words], cwd=tmp_path, capture_output=True, text=True,
                                           env=os.environ | dict(PYTHONPATH='.', UITARS_TASKS='my_games'))
    checked = called('games', 'check', 'own/dots', '--seeds', '2')
    assert checked.returncode == 0 and 'keeps the contract' in checked.stdout, checked.stdout + checked.stderr
    played = called('eval', '--policy', 'oracle', '--suite', 'games/dots-last2,games/dots-level,games/dots-midgame', '--episodes', '1', '--split', 'train')
    assert played.returncode == 0 and '100.0% with a reward above 0' in played.stdout and '3 episodes, 0 environment failures' in played.stdout, played.stdout + played.stderr


def test_games_of_the_benchmark_are_checked_with_their_own_player():
    assert {check.game_from(FOLDER/o).name for o in ('2048', 'lm/2048', 'lm/tetris')} == {'games/2048', 'games/lm-2048', 'games/lm-tetris'}


@pytest.fixture
def served(tmp_path):
    "Address of a folder that a local server shows."
    (tmp_path/'index.html').write_text(f'<!doctype html>{PLAIN[0]}')
    (tmp_path/'late.js').write_text(PLAIN[1])
    with ThreadingHTTPServer(('127.0.0.1', 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_address[1]}/'
        server.shutdown()


def test_a_page_without_a_manifest_is_played_by_its_address(served):
    game = register(game_at(served, rules='Press the arrow that the page names.', reference=100.))
    async def work(chromium, session):
        spec = await get_task(game.name).setup(session, TaskSpec(game.name, 4))
        for _ in range(7):
            target = (await game_state(session)).board['target']
            await session.act(tap(('left', 'up', 'right', 'down')[target]))
        return spec, await game.verify(session, spec)
    try: spec, outcome = run(work)
    finally: TASKS.pop(game.name)
    assert spec.instruction == 'Press the arrow that the page names.'
    assert (outcome.reward, outcome.success, outcome.info['score']) == (.7, False, 70) and 'checksum' not in outcome.info


def test_the_command_line_checks_an_address(served, tmp_path, capsys):
    assert main(['games', 'check', served]) == 0 and 'keeps the contract' in capsys.readouterr().out
    (tmp_path/'late.js').write_text(PLAIN[1].replace('chance = seed', 'chance = Math.random()'))
    assert main(['games', 'check', served]) == 1 and 'same seed and actions' in capsys.readouterr().out
    (tmp_path/'late.js').write_text('')
    assert main(['games', 'check', served]) == 1 and 'has no window.gameAPI' in capsys.readouterr().out


PRESS = """import sys, time, pyautogui
for k in range(400):   # until the budget of moves is spent, and beyond
    if k % 20 == 0: pyautogui.click(240, 420)
    pyautogui.press(('left', 'up', 'right', 'down')[k % 4])
    time.sleep(.2)"""
CLOSE = "import time, pyautogui\nwhile True: pyautogui.press('enter'); time.sleep(.5)"


@pytest.fixture
def display(monkeypatch, tmp_path):
    "A display of its own, and programs that use its mouse and keyboard."
    server, hands = XServer((800, 800), folder=str(tmp_path)), []
    for name, value in server.env.items(): monkeypatch.setenv(name, value)
    yield lambda source: hands.append(subprocess.Popen([sys.executable, '-c', source]))
    for o in hands: o.kill()
    server.close()


@pytest.mark.skipif(not shutil.which('Xvfb'), reason='needs Xvfb')
def test_a_person_plays_in_a_window(display, monkeypatch):
    "Keys of its keyboard reach the game. The window stays when the budget is spent, until Enter, and takes no more moves."
    game = get_task('games/2048')
    game, stayed = replace(game, manifest=replace(game.manifest, budget=6)), []
    async def watched(page, most):
        "As a person does, look at the window for two seconds after the last move, and press Enter."
        async def look():
            await page.wait_for_function("document.body.textContent.includes('Press Enter')", timeout=0)
            first = await page.evaluate(STATE)
            await asyncio.sleep(2)
            stayed.extend([first['metrics']['moves'], (await page.evaluate(STATE))['metrics']['moves']])
            stayed.append(await page.evaluate('[innerWidth === outerWidth, document.querySelector("canvas").clientWidth === innerWidth]'))
            display(CLOSE)
        _, answer = await asyncio.gather(look(), watch(page, most))
        return answer
    watch = person._watch
    monkeypatch.setattr(person, '_watch', watched)
    display(PRESS)
    score = asyncio.run(asyncio.wait_for(play_by_hand(game, seed=1), 120))
    assert score.moves >= 6 and score.score >= 0 and score.checksum == game.checksum
    assert stayed[0] == stayed[1] and stayed[2] == [True, True]   # no move after the end, no strip beside the game


def test_a_person_needs_a_display(monkeypatch):
    monkeypatch.delenv('DISPLAY', raising=False)
    with pytest.raises(RuntimeError, match='needs a display'): asyncio.run(play_by_hand(get_task('games/2048')))


def test_scores_of_persons_become_the_reference(tmp_path):
    shutil.copytree(FOLDER/'2048', tmp_path/'2048')
    game = replace(get_task('games/2048'), folder=tmp_path/'2048')
    before = game.checksum
    for score in (900., 1100.): keep_score(game.folder, HumanScore(0, score, 100, False, before))
    assert game.reference == 1000 and game.checksum == before
