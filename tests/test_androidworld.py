"""AndroidWorld: actions on the simulated phone, and AndroidWorld's own loop, agent class, actions and adb actuation over it.

Its code runs where UITARS_BENCH_ANDROIDWORLD is a checkout of github.com/google-research/android_world and UITARS_BENCH_ANDROIDWORLD_PYTHON
a Python with android_env, pytest and this package's requirements.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.adb_device import NOTES, SETTINGS, AdbServer, Phone
from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action
from uitars_nb.evaluation.benchmarks.androidworld import SPACE, Player, json_actions, perform, read_episodes
from uitars_nb.sandbox.android.adb import AdbConfig
from uitars_nb.sandbox.android.session import AndroidConfig, AndroidSession
from uitars_nb.sandbox.base import Sync, run

root = Path(__file__).resolve().parents[1]
SOURCE, PYTHON = os.environ.get('UITARS_BENCH_ANDROIDWORLD', ''), os.environ.get('UITARS_BENCH_ANDROIDWORLD_PYTHON', sys.executable)
with_source = pytest.mark.skipif(not (Path(SOURCE or '/none')/'android_world/episode_runner.py').is_file(), reason='UITARS_BENCH_ANDROIDWORLD is no checkout of android_world')
with_adb = pytest.mark.skipif(not shutil.which('adb'), reason='no adb here: sudo apt-get install adb')
TYPES = {'answer', 'click', 'double_tap', 'input_text', 'keyboard_enter', 'long_press', 'navigate_back', 'navigate_home', 'open_app', 'scroll', 'status',
         'swipe', 'unknown', 'wait'}


def test_every_action_is_one_of_androidworld_or_refused():
    examples = dict(click=dict(point=(0, 1000)), long_press=dict(point=(5, 5)), scroll=dict(direction='left'), type=dict(content='a\n\nb\n'), wait=dict(time=0),
                    open_app=dict(app_name='Clock'), finished=dict(content=''), infeasible=dict(content='no'), call_user=dict(content='who?'))
    assert {*examples} | {'press_home', 'press_back'} == {o.name for o in SPACE}
    made = {name: json_actions(Action(name, args), (1080, 2400)) for name, args in examples.items()}
    assert {o['action_type'] for out in made.values() for o in out} <= TYPES
    assert made['click'] == [dict(action_type='click', x=0, y=2399)] and made['type'] == [dict(action_type='input_text', text='a\n\nb')]
    assert made['finished'] == [dict(action_type='status', goal_status='complete')] and made['wait'] == []


class Quitter:
    def __init__(self, session, task, spec): self.spec = spec
    async def act(self, steps, obs):
        if not steps: return Reply(actions=(Action('press_home'), Action('hotkey', dict(key='a')), Action('press_home')))
        if len(steps) == 1: return Reply(error='no call found')
        return Reply(steps[0].error, (Action('infeasible'),))


def test_refused_and_malformed_turns_go_on_and_their_errors_are_shown():
    asked, env = [], SimpleNamespace(logical_screen_size=(40, 20), foreground_activity_name='', execute_action=lambda a: asked.append(a.action_type))
    state = SimpleNamespace(pixels=np.zeros((20, 40, 3), np.uint8), ui_elements=[])
    player = Player(f'{__name__}:Quitter')
    turns = [player.step('Go.', env, state, SimpleNamespace) for _ in range(3)]
    player.close()
    assert asked == ['navigate_home', 'status'] and [o[0] for o in turns] == [False, False, True]
    assert 'not done: press_home' in turns[2][1]['thought'] and turns[1][1]['error'] == 'no call found' and turns[2][1]['stop'] == 'infeasible'
    assert len({tuple(o[1]) for o in turns}) == 1   # AndroidWorld transposes the turns


def test_success_needs_the_agent_to_say_so():
    row = dict(task_template='T', instance_id=0, is_successful=0., episode_length=3, exception_info=None, episode_data=dict(stop=['', '', '']))
    index = read_episodes([row, row | dict(exception_info='Traceback', is_successful=float('nan'), episode_length=float('nan'), episode_data=float('nan'))])
    assert index.stop.tolist() == ['step_limit', 'env_crash'] and index.env_failure.tolist() == [False, True]


class Noter:
    "Writes a note on the simulated phone, and answers with it."
    def __init__(self, session, task, spec):
        self.turns = [(Action('press_home'), Action('open_app', dict(app_name='settings'))), (Action('scroll', dict(direction='down')),), (Action('press_back'), Action('press_home')),
                      (Action('click', dict(point=self.NOTES)),), (Action('click', dict(point=self.NEW)),), (Action('type', dict(content='buy milk')),),
                      (Action('finished', dict(content='buy milk')),)]
    NOTES, NEW = (170, 200), (500, 150)
    async def act(self, steps, obs): return Reply(actions=self.turns[len(steps)])


class Simulated:
    "An `AsyncEnv` over the simulated phone: screens by our session, taps and keys by AndroidWorld's own adb calls where it is there, else by ours."
    def __init__(self, phone, server, actuate=None):
        self.phone, self.actuate, self.interaction_cache = phone, actuate, ''
        self.session = Sync(AndroidSession(phone.address, AndroidConfig(AdbConfig(port=server.port), settle=0)))
        self.session.reset()

    @property
    def logical_screen_size(self): return self.session.observe().screenshot.shape[1::-1]
    @property
    def foreground_activity_name(self): return self.phone.state.front
    def reset(self, go_home=False): self.session.reset(); return self.get_state()
    def hide_automation_ui(self): pass
    def get_state(self, wait_to_stabilize=False): return SimpleNamespace(pixels=self.session.observe().screenshot, forest=None, ui_elements=[])
    def execute_action(self, action):
        if action.action_type == 'answer': self.interaction_cache = action.text
        if action.action_type in ('answer', 'status'): return
        self.actuate(action, [], self.logical_screen_size)


SCRIPT = '''
import sys
from android_env import env_interface
from android_env.components import adb_call_parser, adb_controller, config_classes
from android_world import episode_runner
from android_world.env import actuation, interface, json_action
from tests.adb_device import NOTES, AdbServer, Phone
from tests.test_androidworld import Simulated
from uitars_nb.evaluation.benchmarks.androidworld import android_world_agent
from uitars_nb.sandbox.base import run

async def begin(): return await AdbServer().start(), await Phone(keyboard=False).start()
server, phone = run(begin())
config = config_classes.AdbControllerConfig(adb_path='/usr/bin/adb', adb_server_port=server.port, device_name=phone.address)
parser = adb_call_parser.AdbCallParser(adb_controller.AdbController(config))

class Env(env_interface.AndroidEnvInterface):
    def action_spec(self): return {}
    def observation_spec(self): return {}
    def reset(self): pass
    def step(self, action): pass
    def close(self): pass
    def execute_adb_call(self, call): return parser.parse(call)

controller = Env()

class World(Simulated, interface.AsyncEnv):
    controller = controller
    ask_question = close = None
    device_screen_size = orientation = physical_frame_boundary = None

def actuate(action, elements, size):
    assert isinstance(action, json_action.JSONAction)
    actuation.execute_adb_action(action, elements, size, controller)

World.interaction_cache = ''
World.__abstractmethods__ = frozenset()
try:
    env = World(phone, server, actuate)
    agent = android_world_agent()(env, 'tests.test_androidworld:Noter', transition_pause=.1)
    for _ in range(2):   # the agent begins anew with every episode
        result = episode_runner.run_episode('Write a note: buy milk.', agent, max_n_steps=10, start_on_home_screen=True, print_fn=lambda o: None)
        assert result.done and result.step_data['stop'] == [''] * 6 + ['finished'], result.step_data
        assert env.interaction_cache == 'buy milk'
        assert phone.state.data[NOTES]['notes'][-1] == 'buy milk\\n', phone.state.data
    short = episode_runner.run_episode('Write a note: buy milk.', agent, max_n_steps=2, print_fn=lambda o: None)
    assert not short.done
    agent.player.close()
    print('proved', [o for o in phone.log if 'input' in o or 'am start' in o][-6:])
finally:
    run(phone.stop()); run(server.stop())
'''


@with_source
@with_adb
@pytest.mark.timeout(200)
def test_the_loop_of_androidworld_plays_our_agent_on_the_simulated_phone():
    done = subprocess.run([PYTHON, '-c', SCRIPT], env=os.environ | dict(PYTHONPATH=f'{root}:{SOURCE}'), cwd=root, capture_output=True, text=True, timeout=180)
    assert not done.returncode and 'proved' in done.stdout, done.stderr[-3000:] + done.stdout[-1000:]


@with_adb
def test_the_agent_writes_a_note_on_the_simulated_phone_without_androidworld():
    async def begin(): return await AdbServer().start(), await Phone(keyboard=False).start()
    server, phone = run(begin())
    try:
        def actuate(action, elements, size):
            app = {'settings': SETTINGS}
            command = dict(click=lambda: f'input tap {action.x} {action.y}', input_text=lambda: f"input text '{action.text.replace(' ', '%s')}'; input keyevent KEYCODE_ENTER",
                           navigate_home=lambda: 'input keyevent KEYCODE_HOME', navigate_back=lambda: 'input keyevent KEYCODE_BACK',
                           open_app=lambda: f'am start -n {app[action.app_name]}/.Main', scroll=lambda: 'input swipe 180 320 180 0 300')
            env.session.adb and run(env.session.adb.shell(command[action.action_type]()))
        env = Simulated(phone, server, actuate)
        player = Player(f'{__name__}:Noter')
        for _ in range(7): done, data = player.step('Write a note: buy milk.', env, env.get_state(), SimpleNamespace)
        player.close()
        assert done and env.interaction_cache == 'buy milk' and phone.state.data[NOTES]['notes'][-1] == 'buy milk\n'
    finally: run(phone.stop()); run(server.stop())
