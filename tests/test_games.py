"Games: every folder of sandboxes/games keeps the contract, and broken packages of each kind are found."
import asyncio
import json
import os
import random
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
from uitars_nb.core.types import Action, TaskSpec
from uitars_nb.sandbox.browser.chromium import launch
from uitars_nb.sandbox.browser.session import BrowserSession
from uitars_nb.sandbox.desktop.xserver import XServer
from uitars_nb.tasks.base import SUITES, TASKS, get_task, register
from uitars_nb.tasks.games import check
from uitars_nb.tasks.games.game import BROWSER, FOLDER, STATE, drag_between, game_at, game_state, load_players, random_action, tap
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


@pytest.mark.parametrize('kind', BROKEN)
def test_broken_games_are_found(kind, tmp_path):
    page, words = BROKEN[kind]
    (folder := tmp_path/'broken').mkdir()
    (folder/'index.html').write_text(f'<!doctype html><body>{page}')
    (folder/'manifest.json').write_text(json.dumps(dict(id='broken', title='Broken', rules='Press left.', keys=['left'], mouse=[], budget=10)))
    found = asyncio.run(check.check_game(folder, seeds=range(1)))
    assert any(words in o for o in found), found


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


PRESS = """import time, pyautogui
for k in range(200):   # until the budget of moves is spent
    if k % 20 == 0: pyautogui.click(240, 420)
    pyautogui.press(('left', 'up', 'right', 'down')[k % 4])
    time.sleep(.2)"""


@pytest.mark.skipif(not shutil.which('Xvfb'), reason='needs Xvfb')
def test_a_person_plays_in_a_window(monkeypatch, tmp_path):
    "On a display of its own: keys of its keyboard reach the game, and the score comes back when the budget of moves is spent."
    game = get_task('games/2048')
    game = replace(game, manifest=replace(game.manifest, budget=6))
    server = XServer((800, 800), folder=str(tmp_path))
    try:
        for name, value in server.env.items(): monkeypatch.setenv(name, value)
        fingers = subprocess.Popen([sys.executable, '-c', PRESS])
        try: score = asyncio.run(asyncio.wait_for(play_by_hand(game, seed=1), 60))
        finally: fingers.kill()
    finally: server.close()
    assert score.moves >= 6 and score.score >= 0 and score.checksum == game.checksum


def test_a_person_needs_a_display(monkeypatch):
    monkeypatch.delenv('DISPLAY', raising=False)
    with pytest.raises(RuntimeError, match='needs a display'): asyncio.run(play_by_hand(get_task('games/2048')))


def test_scores_of_persons_become_the_reference(tmp_path):
    shutil.copytree(FOLDER/'2048', tmp_path/'2048')
    game = replace(get_task('games/2048'), folder=tmp_path/'2048')
    before = game.checksum
    for score in (900., 1100.): keep_score(game.folder, HumanScore(0, score, 100, False, before))
    assert game.reference == 1000 and game.checksum == before
