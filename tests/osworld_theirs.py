"""OSWorld's own code against a served desktop. Runs in the Python that has `desktop-env`:
python osworld_theirs.py calls|tasks ADDRESS FOLDER; the last line of its output is JSON."""
import json
import sys
import types
from pathlib import Path

try: import easyocr
except ImportError: sys.modules['easyocr'] = types.ModuleType('easyocr')   # one metric of slides uses it, and it brings PyTorch
sys.path.insert(0, str(Path(__file__).parents[1]))


def calls(address, folder):
    "Name of a call -> whether it gave what their server would give, or the error."
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController
    from desktop_env.evaluators import getters
    ip, port, chromium = address.split(':')[:3]
    c = PythonController(ip, int(port))
    s = SetupController(ip, int(port), int(chromium), cache_dir=str(folder), screen_width=800, screen_height=600)
    c.retry_interval = .1
    env = types.SimpleNamespace(controller=c, vm_ip=ip, server_port=int(port), chromium_port=int(chromium), cache_dir=str(folder), vm_platform='Linux')
    do = lambda kind, **parameters: s.setup([dict(type=kind, parameters=parameters)])
    output = lambda *words: c.execute_python_command(*words)['output'].strip()
    position = lambda: output('print(tuple(pyautogui.position()))')
    names = lambda path: {o['name'] for o in c.get_vm_directory_tree(path)['children']}
    (folder/'sent.txt').write_text('milk\n')
    from PIL import Image
    Image.new('RGB', (800, 600), (255, 0, 0)).save(folder/'red.png')

    def moved(): c.execute_action(dict(action_type='MOVE_TO', x=33, y=44)); return position() == '(33, 44)'
    def typed():
        do('launch', command=['xterm', '-e', 'cat > /home/user/typed.txt'])
        do('sleep', seconds=3)
        c.execute_action(dict(action_type='TYPING', text="it's A"))
        c.execute_action(dict(action_type='PRESS', key='enter'))
        c.execute_action(dict(action_type='HOTKEY', keys=['ctrl', 'd']))
        return c.get_file('/home/user/typed.txt') == b"it's A\n"
    def uploaded(): do('upload_file', files=[dict(local_path=str(folder/'sent.txt'), path='/home/user/new/got.txt')]); return c.get_file('~/new/got.txt') == b'milk\n'
    def downloaded():
        import http.server, functools, threading
        served = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder)))
        threading.Thread(target=served.serve_forever, daemon=True).start()
        do('download', files=[dict(url=f'http://127.0.0.1:{served.server_port}/sent.txt', path='/home/user/down.txt')])
        served.shutdown()
        return c.get_file('/home/user/down.txt') == b'milk\n'
    def opened(): do('open', path='/home/user/new/got.txt'); return c.get_vm_window_size('mousepad')['width'] > 100
    def wallpaper():
        do('upload_file', files=[dict(local_path=str(folder/'red.png'), path='/home/user/red.png')])
        do('change_wallpaper', path='/home/user/red.png')
        shot = Image.open(__import__('io').BytesIO(c.get_screenshot()))
        return c.get_vm_wallpaper() == (folder/'red.png').read_bytes() and shot.getpixel((790, 5))[:3] == (255, 0, 0)
    def verified(): return s._execute_with_verification_setup(['true'], dict(window_exists='got.txt', command_success='test -e /home/user/new'))['verification'] == 'passed'
    def active(): return output("import subprocess; print(subprocess.run(['sh', '-c', 'echo ok'], capture_output=True).stdout.decode())") == 'ok'
    def activated(): do('activate_window', window_name='got.txt'); return 'st:active="true"' in next(o for o in c.get_accessibility_tree().split('<application') if 'got.txt' in o)
    def closed(): do('close_window', window_name='mousepad.Mousepad', strict=True, by_class=True); do('sleep', seconds=1); return c.get_accessibility_tree().find('got.txt') < 0
    def executed(): do('execute', command=['echo', '{SCREEN_WIDTH_HALF}'], stdout='half.txt'); return (folder/'half.txt').read_text() == '400\n'
    def waited(): do('command', command='date +%N > /home/user/now; cat /home/user/now', shell=True, until=dict(returncode=0)); return 'now' in names('/home/user')
    def recorded(): c.start_recording(); do('sleep', seconds=1); c.end_recording(str(folder/'r.mp4')); return (folder/'r.mp4').read_bytes()[4:8] == b'ftyp'
    def tabs():
        do('launch', command=['google-chrome', '--remote-debugging-port=1337'])
        do('chrome_open_tabs', urls_to_open=['about:blank', 'data:text/html,<title>mine</title>'])
        return 'mine' in [o['title'] for o in getters.get_open_tabs_info(env, {})]
    def tabs_closed(): do('chrome_close_tabs', urls_to_close=['data:text/html,<title>mine</title>']); return 'mine' not in [o['title'] for o in getters.get_open_tabs_info(env, {})]
    bash = lambda *a, **k: {x: y for x, y in c.run_bash_script(*a, **k).items() if x != 'message'}

    checks = {
        'get_screenshot': lambda: c.get_screenshot()[:8] == b'\x89PNG\r\n\x1a\n',
        'get_terminal_output': lambda: c.get_terminal_output() is None,
        'execute_python_command': lambda: c.execute_python_command('print(6*7)') == dict(status='success', output='42\n', error='', returncode=0),
        'execute_python_command with an error': lambda: 'ZeroDivisionError' in c.execute_python_command('1/0')['error'],
        'run_python_script': lambda: c.run_python_script('print("a{b}")')['output'] == 'a{b}\n' and c.run_python_script('1/0')['status'] == 'error',
        'run_bash_script': lambda: bash('echo "a  b"; echo c >&2; exit 3') == dict(status='error', output='a  b\nc\n', error='', returncode=3),
        'run_bash_script in a folder': lambda: bash('pwd', working_dir='~/Pictures')['output'] == '/home/user/Pictures\n',
        'execute_action: pointer': moved,
        'get_vm_platform': lambda: c.get_vm_platform() == 'Linux',
        'get_vm_screen_size': lambda: c.get_vm_screen_size() == dict(width=800, height=600),
        'get_vm_desktop_path': lambda: c.get_vm_desktop_path() == '/home/user/Desktop',
        'setup upload_file, get_file': uploaded,
        'get_file of none': lambda: c.get_file('/home/user/none') is None,
        'setup download': downloaded,
        'get_vm_directory_tree': lambda: c.get_vm_directory_tree('/home/user/new') == dict(type='directory', name='new', children=[dict(type='file', name='got.txt')]),
        'setup open, get_vm_window_size': opened,
        'setup execute': executed, 'setup command': waited, 'setup execute_with_verification': verified,
        'setup launch, execute_action: keys': typed,
        'setup activate_window, get_accessibility_tree': activated, 'setup close_window': closed,
        'setup change_wallpaper, get_vm_wallpaper': wallpaper,
        'start_recording, end_recording': recorded,
        'getter vm_command_line': lambda: getters.get_vm_command_line(env, dict(command='echo $HOME', shell=True)) == '/home/user\n',
        'getter vm_command_error': lambda: 'none' in getters.get_vm_command_error(env, dict(command=['ls', '/none'])),
        'getter vm_file': lambda: Path(getters.get_vm_file(env, dict(path='/home/user/new/got.txt', dest='back.txt'))).read_text() == 'milk\n',
        'getter list_directory': lambda: getters.get_list_directory(env, dict(path='/home/user/new'))['name'] == 'new',
        'getter vm_wallpaper': lambda: Path(getters.get_vm_wallpaper(env, dict(dest='paper.png'))).stat().st_size > 100,
        'getter vm_screen_size': lambda: getters.get_vm_screen_size(env, {})['height'] == 600,
        'getter vm_terminal_output': lambda: getters.get_vm_terminal_output(env, {}) is None,
        'getter default_video_player': lambda: isinstance(getters.get_default_video_player(env, dict(dest='player')), str),
        'setup chrome_open_tabs, getter open_tabs_info': tabs, 'setup chrome_close_tabs': tabs_closed,
    }
    return {name: attempt(check) for name, check in checks.items()}


def attempt(check):
    try: return bool(check())
    except Exception as e: return f'{type(e).__name__}: {e}'


def tasks(address, folder):
    "Policy -> the rows of `run_osworld` over the tasks."
    from uitars_nb.evaluation.benchmarks import osworld_agent as ours
    from tests.osworld_oracles import TASKS, Hasty, Oracle, Unreachable
    module, loop = ours.load_osworld()
    if hasattr(loop, 'time'): loop.time = types.SimpleNamespace(sleep=lambda seconds: None)   # a minute before each task
    found = {}
    for policy in (Oracle, Hasty, Unreachable):
        out = folder/policy.__name__
        for o in TASKS:
            if 'wanted' not in o: continue
            (out/'cache'/o['id']).mkdir(parents=True)
            (out/'cache'/o['id']/'wanted.txt').write_text(o['wanted'])
        played = TASKS if policy is Oracle else [o for o in TASKS if o['id'] in ('folders', 'impossible')]
        table = ours.run_osworld(played, ours.OSWorldAgent(policy), address, out, (800, 600), max_steps=8, pause=.5, say=lambda words: print(words, file=sys.stderr))
        found[policy.__name__] = table.set_index('seed').drop(columns='task').fillna(-1).to_dict('index')
    return found


if __name__ == '__main__':
    what, address, folder = sys.argv[1:]
    print('\n' + json.dumps(dict(calls=calls, tasks=tasks)[what](address, Path(folder))))
