"The programs of the simulated phone's shell: each takes the state and its arguments and gives status, output and errors, in the words of Android 14."
import base64
import fnmatch
import io
import struct

import numpy as np
from PIL import Image

from . import screen
from .screen import HOME, KEYBOARD, NOTES

KEYS = dict(KEYCODE_HOME=3, KEYCODE_BACK=4, KEYCODE_TAB=61, KEYCODE_ENTER=66, KEYCODE_DEL=67, KEYCODE_WAKEUP=224)
IME = f'{KEYBOARD}/.AdbIME'


class Refused(Exception):
    "A program ends badly: its status and what it says."
    def __init__(self, status, words): self.status, self.words = status, words


def input(phone, what, *args):
    if what == '-d':
        number, what, *args = args
        if number != '0': return phone.elsewhere.append(['input', number, what, *args])
    s = phone.state
    if what in ('tap', 'swipe', 'draganddrop'): numbers = [float(a) for a in args]
    if what == 'tap': screen.tap(s, *numbers)
    elif what in ('swipe', 'draganddrop'): screen.swipe(s, *(numbers + [300])[:5])
    elif what == 'text':
        text = args[0]
        if not text.isascii(): raise Refused(255, 'java.lang.NullPointerException: Attempt to get length of null array')
        if s.settings['secure', 'default_input_method'] != IME: s.type(text.replace('%s', ' '))
    elif what == 'keyevent':
        for a in args: key(s, int(KEYS.get(a, a)))
    else: raise Refused(255, f'Error: Unknown command: {what}')


def key(s, code):
    if code == 3: s.launch(HOME)
    if code == 4: s.back()
    if code == 61: s.type('\t')
    if code == 66: s.type('\n')
    if code == 67: s.delete()


def screencap(phone, *args):
    if (id := option(args, '-d')) is None: return phone.warning + picture(phone, screen.draw(phone.state), args)
    if id not in phone.displays: raise Refused(1, f"Display Id '{id}' is not valid.\n")
    return picture(phone, screen.draw(phone.state) if phone.displays[id] is None else phone.displays[id], args)


def picture(phone, rgb, args):
    h, w, _ = rgb.shape
    if '-p' in args:
        Image.fromarray(rgb).save(out := io.BytesIO(), 'PNG')
        return out.getvalue()
    rgba = np.dstack([rgb, np.full((h, w, 1), 255, np.uint8)])
    return struct.pack('<IIII', w, h, phone.pixel_format, 1)[:phone.header] + rgba.tobytes()


def wm(phone, what, *args):
    if what == 'size': return 'Physical size: %dx%d\n' % phone.state.size
    if what == 'density': return 'Physical density: 160\n'


def component(phone, name):
    package = name.split('/')[0]
    if package not in phone.state.labels: raise Refused(1, f'Error: Activity class {{{name}}} does not exist.')
    return package


def option(args, name): return args[args.index(name) + 1] if name in args else None


def am(phone, what, *args):
    if what == 'start':
        if (number := option(args, '--display')) not in (None, '0'): return phone.elsewhere.append(['am', number, option(args, '-n')])
        phone.state.launch(component(phone, name := option(args, '-n') or args[-1]))
        return f'Starting: Intent {{ cmp={name} }}\nStatus: ok\nLaunchState: COLD\nActivity: {name}\nComplete\n'
    if what == 'force-stop': phone.state.stop(args[0])
    if what == 'broadcast':
        s, action = phone.state, option(args, '-a')
        if action == 'ADB_INPUT_B64' and s.settings['secure', 'default_input_method'] == IME: s.type(base64.b64decode(option(args, 'msg')).decode())
        return f'Broadcasting: Intent {{ act={action} flg=0x400000 (has extras) }}\nBroadcast completed: result=0\n'


def pm(phone, what, *args):
    s = phone.state
    if what == 'list': return ''.join(f'package:{p}\n' for p in sorted(s.own if '-3' in args else {*s.labels, HOME} | phone.hidden))
    if what == 'path':
        if args[0] not in s.labels: raise Refused(1, '')
        return f'package:/data/app/{args[0]}/base.apk\n'
    if what == 'uninstall':
        if args[0] not in s.own: raise Refused(1, 'Failure [DELETE_FAILED_INTERNAL_ERROR]')
        s.stop(args[0])
        for table in (s.labels, s.data): table.pop(args[0], None)
        s.own.discard(args[0])
        return 'Success\n'
    if what == 'clear':
        if args[0] not in s.labels: raise Refused(1, 'Failed')
        s.stop(args[0])
        s.data.pop(args[0], None)
        return 'Success\n'
    if what == 'install': return phone.install(s.files[args[-1]])


def cmd(phone, service, what='', *args):
    s = phone.state
    if service == 'statusbar': return
    if service == 'package' and what == 'resolve-activity':
        if args[-1] not in s.labels: return 'No activity found\n'
        return f'priority=0 preferredOrder=0 match=0x108000 specificIndex=-1 isDefault=false\n{args[-1]}/.MainActivity\n'
    if service == 'package' and what == 'query-activities':
        return f'{len(s.labels)} activities found:\n' + \
            ''.join(f'  priority=0 preferredOrder=0 match=0x108000\n  {p}/.MainActivity\n' for p in s.labels)
    raise Refused(255, f"cmd: Can't find service: {service}")


def dumpsys(phone, service, *args):
    s = phone.state
    record = f'ActivityRecord{{5d8e1f2 u0 {s.front}/.{s.page.name.split()[0].title()}Activity t12}}'
    if service == 'activity': return f'  Display #0 (activities from top to bottom):\n    topResumedActivity={record}\n  ResumedActivity: {record}\n'
    if service == 'window': return f'  DisplayRotation\n    mCurrentAppOrientation=SCREEN_ORIENTATION_USER\n    mRotation={s.rotation} mDeferredRotation=0\n'
    raise Refused(1, f"Can't find service: {service}")


def settings(phone, what, space, name, value=None):
    table = phone.state.settings
    if what == 'get': return table.get((space, name), 'null') + '\n'
    if what == 'put': table[space, name] = value
    if what == 'delete': table.pop((space, name), None)


def ime(phone, what, *args):
    s = phone.state
    known = [IME] * (KEYBOARD in phone.hidden)
    if what == 'list': return ''.join(f'{o}\n' for o in ['org.example.latin/.Latin', *(known if '-a' in args else sorted(s.enabled))])
    if args[0] not in known and args[0] != 'org.example.latin/.Latin': raise Refused(255, f'Unknown input method {args[0]} cannot be enabled for user #0')
    if what == 'enable': s.enabled.add(args[0])
    if what == 'set': s.settings['secure', 'default_input_method'] = args[0]


def getprop(phone, name): return {'ro.product.model': 'Simulated phone', 'ro.build.version.sdk': '34', 'sys.boot_completed': '1'}.get(name, '') + '\n'


def rm(phone, *args):
    patterns = [a for a in args if not a.startswith('-')]
    for path in [p for p in phone.state.files if any(fnmatch.fnmatch(p, o) or p.startswith(f'{o}/') for o in patterns)]: del phone.state.files[path]


def mkdir(phone, *args): return None


PROGRAMS = {f.__name__: f for f in (input, screencap, wm, am, pm, cmd, dumpsys, settings, ime, getprop, rm, mkdir)}


def call(phone, name, *args):
    "Status, output and errors of one program."
    try: out = PROGRAMS[name](phone, *args) or b''
    except Refused as e: return e.status, b'', e.words.encode() + b'\n'
    except (TypeError, ValueError, IndexError, KeyError) as e: return 255, b'', f'Error: {e!r}\n'.encode()
    return 0, out if isinstance(out, bytes) else out.encode(), b''
