"The Gymnasium adapter: its checker, determinism, budgets, and a running Jupyter kernel."
import random
import warnings
from dataclasses import replace

import gymnasium
import nbformat
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from nbclient import NotebookClient

from uitars_nb.core.actions import ACTION_SPACE, validate
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.tasks.base import SUITES
from uitars_nb.tasks.gym import FIELDS, NAMES, TaskEnv, action_space, to_action, to_values

IDS = ['uitars-miniwob/click-test-v0', 'uitars-miniwob/enter-text-v0']


@pytest.fixture
def env():
    env = TaskEnv('miniwob/click-test-2', text=True, render_mode='rgb_array')
    yield env
    env.close()


@pytest.mark.parametrize('id', IDS)
def test_checker(id):
    env = gymnasium.make(id)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        try: check_env(env.unwrapped, skip_render_check=True)
        finally: env.close()


def test_every_sample_is_an_action():
    "Only keys may be refused: any text can be sampled for them."
    space = action_space()
    space.seed(0)
    for _ in range(300):
        action = to_action(space.sample())
        fault = validate(action, ACTION_SPACE.select('gui'))
        assert fault is None or action.name in ('hotkey', 'press', 'release'), (action, fault)


def test_same_seed_same_episode(env):
    def play():
        obs, _ = env.reset(seed=3)
        env.action_space.seed(3)
        seen = [obs['screenshot']]
        for _ in range(4):
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample() | dict(function=NAMES.index('move_to')))
            seen.append(obs['screenshot'])
        return seen
    assert all(np.array_equal(a, b) for a, b in zip(play(), play(), strict=True))


def test_truncated_at_the_step_budget(env):
    env.reset(seed=1)
    ends = [env.step(env.action_space.sample() | dict(function=NAMES.index('move_to')))[1:4] for _ in range(env.task.max_steps)]
    assert ends[-1] == (0., False, True) and all(o == (0., False, False) for o in ends[:-1])


def test_seeds_stay_in_their_split(env):
    env.split = 'test'
    assert env.reset(seed=1)[1]['seed'] >= 1_500_000_000
    assert env.reset(options=dict(seed=7))[1]['seed'] == 7


def test_a_new_episode_after_a_crash(env):
    env.reset(seed=1)
    broken = env.session
    broken.browser.kill()
    with pytest.raises(EnvironmentFailure): env.step(env.action_space.sample() | dict(function=NAMES.index('click')))
    first, _ = env.reset(seed=1)
    assert env.session is not broken and np.array_equal(first['screenshot'], env.reset(seed=1)[0]['screenshot'])


def test_in_a_running_kernel():
    code = '''import asyncio, gymnasium, uitars_nb.tasks.gym
assert asyncio.get_running_loop().is_running()
env = gymnasium.make('uitars-miniwob/click-test-v0')
obs, info = env.reset(seed=0)
obs = env.step(env.action_space.sample() | dict(function=5))[0]
env.close()
print(obs.shape)'''
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(nb, timeout=120, kernel_name='python3').execute()
    assert nb.cells[0].outputs[-1].text.strip() == '(210, 160, 3)'


def test_a_task_that_is_no_page_brings_its_session_and_begins_anew(monkeypatch):
    from dataclasses import replace
    from uitars_nb.core.types import Observation
    from uitars_nb.tasks.base import TASKS, Outcome

    class Sheet:
        id, size = 'sheet', (8, 8)
        async def reset(self): self.marks = 0
        async def close(self): pass
        async def observe(self): return Observation(np.full((8, 8, 3), self.marks, np.uint8))
        async def act(self, action): self.marks += 1

    class Mark:
        name, max_steps, opener = 'tests/mark', 3, Sheet
        async def setup(self, session, spec): return replace(spec, instruction='Make a mark.')
        async def verify(self, session, spec): return Outcome(float(session.marks > 0), session.marks > 0, session.marks > 0)

    monkeypatch.setitem(TASKS, 'tests/mark', Mark())
    env = TaskEnv('tests/mark', size=(8, 8))
    for seed in range(2):
        screen, _ = env.reset(seed=seed)
        assert not screen.any()
        assert env.step(env.action_space.sample())[2]
    env.close()


VECTOR = '''
import gymnasium, uitars_nb.tasks.gym
from uitars_nb.tasks.gym import TaskEnv
with_loop = TaskEnv('miniwob/click-test')
with_loop.reset(seed=0)      # the thread of the shared loop runs before the processes are forked
envs = gymnasium.make_vec('uitars-miniwob/click-test-v0', num_envs=2, vectorization_mode='async', vector_kwargs=dict(context='fork'))
obs, _ = envs.reset(seed=[1, 2])
print(obs.shape)
envs.close()
with_loop.close()'''

def test_environments_in_forked_processes():
    "A fork copies the shared loop, but not the thread that runs it."
    import subprocess, sys
    done = subprocess.run([sys.executable, '-c', VECTOR], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and '(2, 210, 160, 3)' in done.stdout, done.stderr[-2000:]


def test_a_session_of_another_size_is_told(monkeypatch):
    from functools import partial
    from uitars_nb.tasks.gym import lone_browser
    from uitars_nb.tasks.miniwob.task import BROWSER
    env = TaskEnv('miniwob/click-test', partial(lone_browser, BROWSER.resized((200, 220))))
    try:
        with pytest.raises(ValueError, match=r'shows 200x220 pixels: give size=\(200, 220\)'): env.reset(seed=1)
    finally: env.close()


def test_before_the_first_reset():
    env = TaskEnv('miniwob/click-test', render_mode='rgb_array')
    for what in (lambda: env.step(env.action_space.sample()), env.render):
        with pytest.raises(gymnasium.error.ResetNeeded, match='call reset'): what()


def test_finished_ends_the_episode_and_brings_its_answer(monkeypatch):
    from uitars_nb.core.types import Observation
    from uitars_nb.tasks.base import TASKS, Outcome

    class Sheet:
        id, size = 'sheet', (8, 6)
        async def reset(self): pass
        async def close(self): pass
        async def observe(self): return Observation(np.zeros((6, 8, 3), np.uint8))
        async def act(self, action): raise AssertionError('nothing is done on the screen')

    class Sum:
        name, max_steps, opener = 'tests/sum', 3, Sheet
        async def setup(self, session, spec): return spec
        async def verify(self, session, spec): return Outcome(float(right := spec.params.get('answer') == '7'), right)

    monkeypatch.setitem(TASKS, 'tests/sum', Sum())
    env = TaskEnv('tests/sum')
    assert env.observation_space.shape == (6, 8, 3)
    for text, reward in (('7', 1.), ('8', 0.), ('', 0.)):
        env.reset(seed=0)
        assert env.step(env.action_space.sample() | dict(function=NAMES.index('finished'), text=text))[1:4] == (reward, True, False)
    env.close()


GAMES = {'games/2048': (25, False, True), 'games/merge-and-double': (100, True, False)}   # in turns and in real time: random moves at most, terminated, truncated


@pytest.mark.parametrize('name', GAMES)
def test_checker_on_games(name):
    env = gymnasium.make(f'uitars-{name}-v0')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        try: check_env(env.unwrapped, skip_render_check=True)
        finally: env.close()


def play_at_random(env, max_steps, seed=5):
    "Rewards, infos and the end of an episode of random actions of the game."
    env.reset(options=dict(seed=seed))
    game, rng, steps = env.unwrapped.task, random.Random(seed), []
    env.unwrapped.player.spec = replace(env.unwrapped.player.spec, max_steps=max_steps)
    while not steps or not (steps[-1][2] or steps[-1][3]): steps.append(env.step(to_values(game.random_action(rng))))
    return [o[1] for o in steps], [o[4] for o in steps], steps[-1][2:4]


@pytest.mark.parametrize('name', GAMES)
def test_a_game_pays_the_change_of_its_score(name):
    env = gymnasium.make(f'uitars-{name}-v0')
    most, *wanted = GAMES[name]
    try: rewards, infos, ends = play_at_random(env, most)
    finally: env.close()
    assert [*ends] == wanted and (len(rewards) == most) == ends[1]
    scores = np.array([o['score'] for o in infos])
    assert scores[-1] > 0 and np.allclose(np.cumsum(rewards), scores / env.unwrapped.task.reference)
    assert ('reason' in infos[-1]) == ends[0]   # the game says why it ended


def test_a_held_key_runs_until_its_release():
    env = gymnasium.make('uitars-games/lm-platformer-v0')
    def score(*actions):
        env.reset(options=dict(seed=2))
        return [env.step(to_values(o))[4]['score'] for o in actions][-1]
    wait, key = Action('wait', dict(time=1)), dict(key='right')
    try:
        tapped, held = score(Action('hotkey', key), wait), score(Action('press', key), wait)
        stopped = score(Action('press', key), Action('release', key), wait)
    finally: env.close()
    assert held > 3 * tapped and stopped < held


def test_every_game_has_an_id():
    names = [o for suite in ('games/all', 'games/lm', 'games/midgame', 'games/levels') for o in SUITES[suite]]
    assert len(names) > 40 and all(f'uitars-{o}-v0' in gymnasium.registry for o in names)


def test_values_of_an_action_give_it_back():
    space = action_space()
    space.seed(1)
    for _ in range(200):
        action = to_action(space.sample())
        assert to_action(to_values(action)) == action and to_values(action) in space
    assert len(FIELDS) == space['function'].n
