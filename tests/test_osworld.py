"OSWorld: every request of its controllers, its own code against our desktop, and our agent in its loop."
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.osworld_oracles import TASKS, Oracle, Unreachable
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.types import Action, png_bytes
from uitars_nb.evaluation.benchmarks import osworld_agent as agent
from uitars_nb.evaluation.benchmarks.osworld_desktop import OSWorldDesktop, named_key
from uitars_nb.evaluation.benchmarks.osworld_requests import ROUTES
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.sandbox.browser.input import NAMED
from uitars_nb.sandbox.desktop.session import DesktopConfig
from uitars_nb.sandbox.desktop.xserver import authority

missing = [o for o in ('Xvfb', 'bwrap', 'openbox', 'tint2', 'xclip', 'mousepad', 'xterm', 'xdg-open') if not shutil.which(o)]
on_desktop = pytest.mark.skipif(bool(missing), reason=f'the desktop needs {", ".join(missing)}: make setup installs them')
root = Path(__file__).resolve().parents[1]
THEIRS, PYTHON = os.environ.get('UITARS_BENCH_OSWORLD', ''), os.environ.get('UITARS_BENCH_OSWORLD_PYTHON', '')
theirs = pytest.mark.skipif(not (THEIRS and PYTHON), reason='UITARS_BENCH_OSWORLD names a checkout of OSWorld, UITARS_BENCH_OSWORLD_PYTHON a Python with desktop-env')
SERVE = '''
import asyncio
from uitars_nb.evaluation.benchmarks.osworld_server import serve_osworld
from uitars_nb.sandbox.desktop.session import DesktopConfig
asyncio.run(serve_osworld(DesktopConfig(size=(800, 600), start_timeout=90), port=0, chromium=0, say=lambda o: print(o, flush=True)))
'''


@pytest.fixture(scope='module')
def address():
    "The address of a served desktop."
    process = subprocess.Popen([sys.executable, '-c', SERVE], stdout=subprocess.PIPE, text=True, cwd=root)
    yield json.loads(process.stdout.readline())['address']
    process.terminate()
    process.wait(30)


@pytest.fixture
def ask(address):
    "A request to the served desktop, after a reset."
    ip, port = address.split(':')[:2]
    with httpx.Client(base_url=f'http://{ip}:{port}', timeout=120, trust_env=False) as client:
        client.post('/uitars/reset').raise_for_status()
        yield lambda method, path, **body: client.request(method, path, **body)


def run_code(ask, code): return ask('POST', '/execute', json=dict(command=['python', '-c', f'import pyautogui; import time; pyautogui.FAILSAFE = False; {code}'], shell=False)).json()
def comes(true):
    "Wait until `true()`."
    end = time.monotonic() + 30
    while not (found := true()) and time.monotonic() < end: time.sleep(.05)
    return found
def put(ask, path, data=b'milk'): return ask('POST', '/setup/upload', data=dict(file_path=path), files=dict(file_data=('x', data)))
def get(ask, path): return ask('POST', '/file', data=dict(file_path=path))
def command(ask, words, **more): return ask('POST', '/setup/execute', json=dict(command=words, **more))
def titles(ask): return ask('GET', '/accessibility').json()['AT']


def pixels(ask): return np.asarray(Image.open(io.BytesIO(ask('GET', '/screenshot').content)).convert('RGB')).astype(int)
def check_screenshot(ask):
    shots = []
    for x in (100, 700):
        assert run_code(ask, f'pyautogui.moveTo({x}, 100)')['returncode'] == 0
        shots.append(pixels(ask))
    assert shots[0].shape == (600, 800, 3)
    assert {bool(abs(shots[0] - shots[1])[80:140, x:x + 40].any()) for x in (90, 690)} == {True}, 'the pointer is on it'
def check_accessibility(ask): assert titles(ask).startswith('<desktop-frame')
def check_terminal(ask): assert ask('GET', '/terminal').json() == dict(output=None, status='success')
def check_execute(ask):
    assert run_code(ask, 'print(2)') == dict(status='success', output='2\n', error='', returncode=0)
    assert ask('POST', '/execute', json=dict(command=['none'])).json()['status'] == 'error'
    assert ask('POST', '/execute', json=dict(command=['none'])).status_code == 500
    assert ask('POST', '/execute', content=b'{').status_code == 400
def check_setup_execute(ask): assert command(ask, 'echo "a  b" | cat; exit 4', shell=True).json() == dict(status='success', output='a  b\n', error='', returncode=4)
def check_verification(ask, path='/execute_with_verification'):
    ask('POST', '/setup/launch', json=dict(command='sh -c "sleep 1; touch late"'))
    asked = dict(command=['true'], verification=dict(command_success='test -e /home/user/late'), max_wait_time=10, check_interval=.1)
    assert ask('POST', path, json=asked).json()['verification'] == 'passed'
    refused = ask('POST', path, json=dict(command=['true'], verification=dict(window_exists='none'), max_wait_time=.3, check_interval=.1))
    assert refused.status_code == 500 and refused.json()['status'] == 'verification_failed'
def check_setup_verification(ask): check_verification(ask, '/setup/execute_with_verification')
def check_run_python(ask):
    assert ask('POST', '/run_python', json=dict(code='import pyautogui\nprint("ü")')).json()['output'] == 'ü\n'
    bad = ask('POST', '/run_python', json=dict(code='raise SystemExit(3)')).json()
    assert (bad['status'], bad['return_code'], bad['error']) == ('error', 3, 'Process exited with code 3')
    assert ask('POST', '/run_python', json={}).status_code == 400
def check_run_bash(ask):
    assert ask('POST', '/run_bash_script', json=dict(script='echo a; echo b >&2')).json() == dict(status='success', output='a\nb\n', error='', returncode=0)
    assert ask('POST', '/run_bash_script', json=dict(script='sleep 9', timeout=1)).status_code == 500
    assert ask('POST', '/run_bash_script', json=dict(script='pwd', working_dir='/none')).status_code == 400
def check_file(ask): assert put(ask, '$HOME/a b.txt').text == 'File Uploaded: 4 bytes' and get(ask, '~/a b.txt').content == b'milk' and get(ask, '/none').status_code == 404
def check_upload(ask):
    assert put(ask, '/home/user/deep/er/x').status_code == 200 and put(ask, '/usr/x').status_code == 500
    assert ask('POST', '/setup/upload', data=dict(file_path='x')).status_code == 400
def check_download(ask):
    assert ask('POST', '/setup/download_file', json=dict(url='file:///etc/passwd', path='x')).status_code == 500
    assert ask('POST', '/setup/download_file', json=dict(url='http://127.0.0.1:1/x', path='x')).status_code == 500
def check_list_directory(ask):
    put(ask, '/home/user/t/u/x')
    command(ask, 'ln -s u t/link; ln -s x t/u/file', shell=True)
    inner = [dict(type='file', name='file'), dict(type='file', name='x')]
    wanted = [dict(type='directory', name=o, children=inner) for o in ('link', 'u')]
    assert ask('POST', '/list_directory', json=dict(path='/home/user/t')).json() == dict(directory_tree=dict(type='directory', name='t', children=wanted))
    assert ask('POST', '/list_directory', json=dict(path='/home/user/t/u/x')).status_code == 400
def check_screen_size(ask): assert ask('POST', '/screen_size').json() == dict(width=800, height=600)
def check_window_size(ask):
    ask('POST', '/setup/open_file', json=dict(path='mousepad', window_name='Mousepad'))
    assert ask('POST', '/window_size', data=dict(app_class_name='MOUSEPAD')).json()['width'] > 100
    assert ask('POST', '/window_size', data=dict(app_class_name='none')).status_code == 500
def check_cursor(ask): run_code(ask, 'pyautogui.moveTo(12, 34)'); assert ask('GET', '/cursor_position').json() == [12, 34]
def check_platform(ask): assert ask('GET', '/platform').text == 'Linux'
def check_desktop_path(ask): assert ask('POST', '/desktop_path').json() == dict(desktop_path='/home/user/Desktop')
def check_wallpaper(ask):
    before = pixels(ask)
    put(ask, '~/red.png', png_bytes(np.full((10, 10, 3), (255, 0, 0), np.uint8)))
    assert ask('POST', '/wallpaper').status_code == 404
    assert ask('POST', '/setup/change_wallpaper', json=dict(path='~/red.png')).status_code == 200
    assert (pixels(ask)[5, 5] == (255, 0, 0)).all() and ask('POST', '/wallpaper').content == get(ask, '~/red.png').content
    ask('POST', '/uitars/reset')
    assert (pixels(ask)[5, 5] == before[5, 5]).all() and ask('POST', '/wallpaper').status_code == 404, 'a reset takes it away'
def check_change_wallpaper(ask): assert ask('POST', '/setup/change_wallpaper', json=dict(path='/none')).status_code == 404
def check_open_file(ask):
    put(ask, '~/plan.txt')
    assert ask('POST', '/setup/open_file', json=dict(path='~/plan.txt', timeout_seconds=30)).status_code == 200 and 'plan.txt' in titles(ask)
    assert ask('POST', '/setup/open_file', json=dict(path='/none')).status_code == 404
def check_launch(ask):
    assert ask('POST', '/setup/launch', json=dict(command=['touch', '~/made'])).text == 'touch ~/made launched successfully'
    assert ask('POST', '/setup/launch', json=dict(command=['none'])).status_code == 500
def check_activate(ask):
    for name in ('one.txt', 'two.txt'): put(ask, f'~/{name}'); command(ask, 'true'); ask('POST', '/setup/launch', json=dict(command=['xterm', '-T', name]))
    check = lambda name: any(name in o and 'active="true"' in o for o in titles(ask).split('<application'))
    for name in ('one.txt', 'two.txt', 'one.txt'):
        wanted = dict(command=['true'], verification=dict(window_exists=name))
        assert ask('POST', '/execute_with_verification', json=wanted).status_code == 200
        assert ask('POST', '/setup/activate_window', json=dict(window_name=name.upper())).status_code == 200
        assert ask('POST', '/setup/activate_window', json=dict(window_name=name.upper(), strict=True)).status_code == 404
        assert comes(lambda: check(name))
def check_close(ask):
    ask('POST', '/setup/open_file', json=dict(path='mousepad', window_name='Mousepad'))
    assert ask('POST', '/setup/close_window', json=dict(window_name='mousepad.Mousepad', strict=True, by_class=True)).status_code == 200
    assert comes(lambda: 'Mousepad' not in titles(ask))
def check_start_recording(ask): assert ask('POST', '/start_recording').status_code == 200 and ask('POST', '/start_recording').status_code == 400
def check_end_recording(ask):
    assert ask('POST', '/end_recording').status_code == 400
    ask('POST', '/start_recording'); command(ask, ['sleep', '1'])
    assert ask('POST', '/end_recording').content[4:8] == b'ftyp'
def check_reset(ask): put(ask, '~/left'); ask('POST', '/uitars/reset'); assert get(ask, '~/left').status_code == 404


CHECKS = {('GET', '/screenshot'): check_screenshot, ('GET', '/accessibility'): check_accessibility, ('GET', '/terminal'): check_terminal,
          ('POST', '/execute'): check_execute, ('POST', '/setup/execute'): check_setup_execute, ('POST', '/execute_with_verification'): check_verification,
          ('POST', '/setup/execute_with_verification'): check_setup_verification, ('POST', '/run_python'): check_run_python,
          ('POST', '/run_bash_script'): check_run_bash, ('POST', '/file'): check_file, ('POST', '/setup/upload'): check_upload,
          ('POST', '/setup/download_file'): check_download, ('POST', '/list_directory'): check_list_directory, ('POST', '/screen_size'): check_screen_size,
          ('POST', '/window_size'): check_window_size, ('GET', '/cursor_position'): check_cursor, ('GET', '/platform'): check_platform,
          ('POST', '/desktop_path'): check_desktop_path, ('POST', '/wallpaper'): check_wallpaper, ('POST', '/setup/change_wallpaper'): check_change_wallpaper,
          ('POST', '/setup/open_file'): check_open_file, ('POST', '/setup/launch'): check_launch, ('POST', '/setup/activate_window'): check_activate,
          ('POST', '/setup/close_window'): check_close, ('POST', '/start_recording'): check_start_recording, ('POST', '/end_recording'): check_end_recording,
          ('POST', '/uitars/reset'): check_reset}


def test_every_request_has_a_check(): assert {*CHECKS} == {*ROUTES}


@on_desktop
@pytest.mark.parametrize('key', CHECKS, ids=lambda key: key[1])
def test_a_request(ask, key): CHECKS[key](ask)


def test_commands_run_in_a_jail_only():
    with pytest.raises(ValueError, match='jail'): OSWorldDesktop(DesktopConfig(jail=None))


def test_the_key_of_a_display_is_valid_in_the_jail():
    assert named_key(authority(b'c' * 16, '12'), 'sandbox').count(b'MIT-MAGIC-COOKIE-1') == 3


def played(ask, policy, task, most=8):
    "The code that our agent gives for a task, each run on the desktop as their environment does."
    player, codes = agent.OSWorldAgent(policy), []
    for _ in range(most):
        _, actions = player.predict(task['instruction'], dict(screenshot=ask('GET', '/screenshot').content))
        for code in actions:
            codes.append(code)
            if code in ('DONE', 'FAIL'): return codes
            if code != 'WAIT': assert run_code(ask, code)['returncode'] == 0
    return codes


@on_desktop
def test_a_task_is_played(ask):
    task = next(o for o in TASKS if o['id'] == 'note')
    command(ask, ['touch', '/home/user/Documents/note.txt'])
    ask('POST', '/setup/open_file', json=dict(path='/home/user/Documents/note.txt'))
    assert played(ask, Oracle, task)[-1] == 'DONE'
    assert comes(lambda: get(ask, '~/Documents/note.txt').text == 'buy milk & 2 < 3 eggs\n'), get(ask, '~/Documents/note.txt').text


@on_desktop
def test_other_letters_are_pasted(ask):
    ask('POST', '/setup/open_file', json=dict(path='mousepad', window_name='Mousepad'))
    for code in [agent.as_code(Action('type', dict(content="Grüße 'n' {漢字}\n")), (800, 600)), 'pyautogui.hotkey("ctrl", "a"); pyautogui.hotkey("ctrl", "c"); time.sleep(.5)']:
        assert run_code(ask, code)['returncode'] == 0
    assert command(ask, ['xclip', '-o', '-selection', 'clipboard']).json()['output'] == "Grüße 'n' {漢字}\n"


def test_infeasible_ends_with_fail():
    screen = dict(screenshot=png_bytes(np.zeros((9, 9, 3), np.uint8)))
    task = next(o for o in TASKS if o['id'] == 'impossible')
    assert agent.OSWorldAgent(Oracle).predict(task['instruction'], screen)[1] == ['FAIL']


@pytest.mark.parametrize('kind', [agent.OSWorldAgent, agent.WindowsArenaAgent])
def test_a_client_error_is_never_an_action(kind):
    with pytest.raises(EnvironmentFailure, match='cannot be reached'): kind(Unreachable).predict('x', dict(screenshot=png_bytes(np.zeros((9, 9, 3), np.uint8))))


def test_every_action_has_its_code():
    samples = dict(point=(3, 4), start_point=(1, 1), end_point=(9, 9), direction='left', button='right', key='ctrl a', content="it's <b>", time=2)
    for function in agent.SPACE:
        action = Action(function.name, {p.name: samples[p.name] for p in function.parameters if p.name != 'app_name'} if function.name != 'press' and function.name != 'release' else dict(key='a'))
        compile(agent.as_code(action, (640, 480)), function.name, 'exec')
    assert {o.name for o in ACTION_SPACE.select('gui')} - {o.name for o in agent.SPACE} - {*agent.WORDS} == {'navigate'}


def test_every_key_is_one_of_theirs():
    source = (Path(__import__('importlib.util').util.find_spec('pyautogui').origin)).read_text()   # an import needs a display
    for name in NAMED: assert f'"{agent.keys(name)[0]}"' in source, name


def test_an_error_keeps_the_task_open(tmp_path):
    def play(player, env, example, max_steps, instruction, args, folder, scores): player.predict(instruction, dict(screenshot=None))
    assert agent.play_example(play, agent.OSWorldAgent(Oracle), None, TASKS[0], tmp_path/'os'/'note', 3, 0) is None
    row = agent.read_osworld(tmp_path).iloc[0]
    assert row.env_failure and row.stop == 'env_crash' and 'no screenshot' in (tmp_path/'os/note/error.txt').read_text()


def theirs_says(what, address, folder):
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([THEIRS, str(root)]))
    done = subprocess.run([PYTHON, str(root/'tests/osworld_theirs.py'), what, address, str(folder)], cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@theirs
@on_desktop
def test_their_controllers(address, tmp_path, ask):
    found = theirs_says('calls', address, tmp_path)
    print('osworld_face', sum(o is True for o in found.values()), 'of', len(found))
    assert {k: v for k, v in found.items() if v is not True} == {}


@theirs
@on_desktop
def test_their_loop_plays_our_agent(address, tmp_path, ask):
    found = theirs_says('tasks', address, tmp_path)
    assert {k: o['reward'] for k, o in found['Oracle'].items()} == {o['id']: 1. for o in TASKS}
    assert found['Oracle']['impossible']['stop'] == 'infeasible' and found['Oracle']['note']['stop'] == 'finished'
    assert {k: o['reward'] for k, o in found['Hasty'].items()} == dict(folders=0., impossible=0.)
    assert {o['stop'] for o in found['Unreachable'].values()} == {'env_crash'}, 'not one became DONE or FAIL'


def test_a_policy_by_name_is_offered_what_the_guest_can_do():
    from uitars_nb.evaluation.benchmarks.osworld_agent import SPACE, OSWorldAgent
    agent = OSWorldAgent.named('pix2act59')
    try: assert agent.make_agent.space == SPACE and not {'execute_bash', 'navigate'} & {o.name for o in SPACE}
    finally: agent.close()
