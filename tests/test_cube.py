"""CUBE: `cube test` on our suites, and our agents on tasks of miniwob-cube.

They run where UITARS_BENCH_CUBE names a Python (3.12 or later) with cube-standard, miniwob-cube, pytest and this package's requirements.
"""
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from uitars_nb.agent.loop import Reply
from uitars_nb.agent.suite_player import offered, schemas
from uitars_nb.core.types import Action
from uitars_nb.evaluation.benchmarks.cube import LIVE, CubePlayer, cube_actions
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.browser.chromium import find_chromium
from uitars_nb.tasks.base import suite

root = Path(__file__).resolve().parents[1]
PYTHON = os.environ.get('UITARS_BENCH_CUBE', '')
with_cube = pytest.mark.skipif(not Path(PYTHON or '/none').is_file(), reason='UITARS_BENCH_CUBE names no Python that has cube-standard')


def test_schemas_say_what_the_session_takes():
    assert {o['name'] for o in schemas(offered('miniwob/click-test', endings=False))} & {'finished', 'execute_bash', 'open_app'} == set()
    for o in schemas(offered('miniwob/click-test')):
        assert o['description'] and all(p.get('description') for p in o['parameters']['properties'].values())


def test_two_players_of_a_task_show_the_same_first_screen_and_close_twice():
    (spec,) = suite('miniwob/click-test', 'test')
    one, two = CubePlayer(spec), CubePlayer(spec)
    for player in (one, two): player.reset()
    assert np.array_equal(one.obs.screenshot, two.obs.screenshot) and LIVE[spec.id] is two
    assert 'finished' in one.act('finished', {})
    assert 'point' in two.act('click', dict(point='left')) and not two.act('click', dict(point='<point>1 999</point>')) and not two.act('click', dict(point=[1, 999]))
    for player in (one, two): player.close(); player.close()


def test_actions_without_pixels_are_refused():
    assert [o[1]['key'] for o in cube_actions(Action('type', dict(content='a B\n')), (10, 10))] == ['a', ' ', 'B', 'Enter']
    assert cube_actions(Action('hotkey', dict(key='ctrl shift a')), (10, 10)) == [('browser_press_key', dict(key='Control+Shift+a'))]
    for action in (Action('scroll', dict(direction='down')), Action('click', {})):
        with pytest.raises(ActionError): cube_actions(action, (10, 10))


def cube_test(names, *options):
    env = os.environ | dict(PYTHONPATH=str(root), UITARS_CUBE_SUITE=names)
    code = 'import sys; from cube.cli import main; sys.argv = ["cube", *sys.argv[1:]]; main()'
    return subprocess.run([PYTHON, '-c', code, 'test', 'uitars_nb.evaluation.benchmarks.cube', '--ci', *options], env=env, capture_output=True, text=True, timeout=250)


@with_cube
@pytest.mark.timeout(300)
@pytest.mark.parametrize('names', ['miniwob/click-test,miniwob/enter-text', 'files/copy-sdk,files/add-up-sdk'])
def test_our_suite_passes_cube_test(names):
    done = cube_test(names)
    assert not done.returncode and 'tasks=2  failures=0' in done.stdout and done.stdout.strip().endswith('PASSED'), done.stdout[-2000:] + done.stderr[-2000:]
    assert 'FAIL' not in done.stdout and 'PASS  test_reset_reproducibility' in done.stdout and 'PASS  test_close_idempotent' in done.stdout


class Looker:
    "Reads the screen: clicks the button, or fills the field first."
    def __init__(self, session, task, spec): self.goal = spec.instruction
    async def act(self, steps, obs):
        height, width, _ = obs.screenshot.shape
        ys, xs = np.nonzero((obs.screenshot[52:208, :158] < 250).any(2))
        point = lambda x, y: dict(point=(int(1000 * x / width), int(1000 * y / height)))
        if not (text := re.search('"(.+?)" into', self.goal)):
            return Reply(actions=(Action('click', point(xs.mean(), 52 + ys.mean())), Action('finished')))
        field, submit = Action('click', point(40, 52 + ys.min() + 10)), Action('click', point(xs.min() + 25, 52 + ys.max() - 8))
        return Reply(actions=(field, Action('type', dict(content=text[1])), submit, Action('finished')))


class Scroller(Looker):
    async def act(self, steps, obs): return Reply(actions=(Action('scroll', dict(direction='down')) if not steps else Action('finished'),), thought=steps[-1].error if steps else '')


PLAY = '''
import asyncio, sys, json
from cube_browser_tool import PlaywrightConfig
from miniwob_cube.benchmark import MiniWobBenchmarkConfig
from uitars_nb.evaluation.benchmarks.cube import cube_index, play_cube
config = MiniWobBenchmarkConfig(port=int(sys.argv[1]), tool_config=PlaywrightConfig(use_html=False, use_screenshot=True))
trajs = asyncio.run(play_cube(config, sys.argv[2], sys.argv[3].split(',')))
index = cube_index(trajs)
print(json.dumps(dict(success=index.success.tolist(), stop=index.stop.tolist(), errors=[s.error for o in trajs for s in o.steps], info=[o.info.get('error', '') for o in trajs])))
'''


@pytest.fixture
def browsers(tmp_path):
    "A folder of browsers as Playwright looks them up, with this machine's Chromium in the place of its own."
    code = 'import json, pathlib, playwright; p = pathlib.Path(playwright.__file__).parent/"driver/package/browsers.json"; print(next(o["revision"] for o in json.loads(p.read_text())["browsers"] if o["name"] == "chromium"))'
    revision = subprocess.run([PYTHON, '-c', code], capture_output=True, text=True).stdout.strip()
    folder = tmp_path/f'chromium-{revision}'/'chrome-linux'
    folder.mkdir(parents=True)
    (folder/'chrome').write_text(f'#!/bin/sh\nexec {find_chromium()} --no-sandbox "$@"\n')
    (folder/'chrome').chmod(0o755)
    (folder.parent/'INSTALLATION_COMPLETE').touch()
    return tmp_path


def play(browsers, policy, tasks):
    import socket
    with socket.create_server(('127.0.0.1', 0)) as s: port = s.getsockname()[1]
    env = os.environ | dict(PYTHONPATH=str(root), PLAYWRIGHT_BROWSERS_PATH=str(browsers))
    done = subprocess.run([PYTHON, '-c', PLAY, str(port), f'tests.test_cube:{policy}', tasks], env=env, cwd=root, capture_output=True, text=True, timeout=250)
    assert not done.returncode, done.stderr[-3000:]
    import json
    return json.loads(done.stdout.splitlines()[-1])


@with_cube
@pytest.mark.timeout(300)
def test_our_agent_plays_miniwob_cube_by_pixels(browsers):
    told = play(browsers, 'Looker', 'click-test,enter-text')
    assert told['success'] == [True, True], told


@with_cube
@pytest.mark.timeout(300)
def test_an_action_that_the_cube_has_not_is_told_to_the_policy(browsers):
    told = play(browsers, 'Scroller', 'click-test')
    assert told['success'] == [False] and 'scroll' in told['errors'][0] and told['stop'] == ['finished'], told
