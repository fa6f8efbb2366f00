"What a program in a jail does to the jail is the policy's own: it is told in words, and never ends as the environment's failure."
import asyncio, resource, sys, threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.escapes import LIMITS
from uitars_nb.core.types import Action
from uitars_nb.sandbox.jail import client as clients
from uitars_nb.sandbox.jail import jail as jails
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.jail.cgroups import Group, fits, places
from uitars_nb.sandbox.browser.downloads import Downloads
from uitars_nb.sandbox.tools.home import Home
from uitars_nb.sandbox.jail.jail import Jail, JailConfig
from uitars_nb.sandbox.tools.mcp_tools import ToolServer
from uitars_nb.sandbox.tools.session import ToolConfig, ToolSession

pytestmark = pytest.mark.timeout(180)
SMALL = JailConfig(LIMITS)
GROUPS = any(fits(*o) for o in places(Path('/proc/self/cgroup').read_text(), Path('/proc/self/mountinfo').read_text()))


def bash(command): return Action('execute_bash', dict(command=command))
def python(code, **args): return Action('execute_python', dict(code=code, **args))
def view(path): return Action('str_replace_editor', dict(command='view', path=path))


async def do(session, action):
    "What the policy is told; an `EnvironmentFailure` passes, and fails the test."
    try: await session.act(action)
    except ActionError as e: refused = f'refused: {e}\n'
    else: refused = ''
    return refused + (await session.observe()).text


async def told(session, action, words, attempts=4):
    "Until the answer holds `words`: what has been done to the jail may cost a few turns, and no more."
    said = []
    for attempt in range(attempts):
        said.append(await asyncio.wait_for(do(session, action), 115))
        if words in said[-1]: return said
    pytest.fail(f'{words!r} was never said: {said}')


@pytest.fixture
def hasty(monkeypatch):
    "A supervisor that gives up a start after 3 s in place of 10."
    assert 'START = 10.' in jails._SOURCE
    monkeypatch.setattr(jails, '_SOURCE', jails._SOURCE + '\nSTART = 3.')


@pytest.fixture
async def session():
    session = ToolSession(ToolConfig(SMALL, bash_seconds=5))
    await session.reset()
    yield session
    await session.close()


SIGNALS = 'import os, signal\nfor n in signal.valid_signals():\n  try: os.kill(1, n)\n  except OSError: pass\nprint("sent")'

async def test_no_signal_from_within_reaches_process_1(session):
    said = await do(session, bash(f"kill -INT 1; python -c '{SIGNALS}'; for i in $(seq 2000); do kill -CHLD 1; done"))
    assert 'sent' in said
    await told(session, bash('echo alive'), 'alive', 1)
    assert session.jail.alive


async def test_programs_that_stop_all_others_are_ended_and_that_is_told(hasty, session):
    "The loop stops every child of process 1 before it has become the program that was asked for."
    session.config = replace(session.config, bash_seconds=2.)
    stopper = "import os, signal\\nwhile True:\\n  try: os.kill(-1, signal.SIGSTOP)\\n  except OSError: pass"
    await do(session, bash(f"printf '{stopper}' > stop.py; (setsid python stop.py &); sleep 1"))
    await told(session, view('/home/user'), 'stop.py', 1)   # the supervisor itself is not stopped
    for i in range(3): said = await do(session, bash('C-c'))
    assert 'the shell has ended' in said
    said = await told(session, bash('echo alive'), 'alive')
    assert any('all programs were ended' in o for o in said[:-1]), said
    await told(session, python('6 * 7'), '42')
    await told(session, view('/home/user'), 'stop.py', 1)


async def test_a_stopped_start_ends_with_its_child(hasty):
    async with Jail(SMALL) as jail:
        loop = 'import os, signal\nwhile True:\n  try: os.kill(-1, signal.SIGSTOP)\n  except OSError: pass'
        await jail.spawn([sys.executable, '-I', '-S', '-c', loop])
        await asyncio.sleep(.5)
        failures = 0
        for attempt in range(3):
            task = asyncio.ensure_future(jail.spawn(['sleep', '600']))
            assert await jail.read('/etc/hostname') == b'sandbox\n', 'other orders are answered meanwhile'
            try: await asyncio.wait_for(task, 20)
            except TimeoutError as e: failures += 'stopped' in str(e)
        assert failures and not jail.client.waiting


async def test_an_order_without_an_answer_has_an_end(monkeypatch):
    nap = "\nOrders.nap = lambda self, fds: time.sleep(2) or ({}, [])\nORDERS += ('nap',)"
    monkeypatch.setattr(jails, '_SOURCE', jails._SOURCE + nap)
    async with Jail(SMALL) as jail:
        monkeypatch.setattr(clients, 'ANSWER', .5)
        with pytest.raises(TimeoutError, match='did not answer'): await asyncio.wait_for(jail.ask('nap'), 1.5)
        monkeypatch.setattr(clients, 'ANSWER', 25.)
        assert await jail.run(['echo', 'on']) == (0, b'on\n') and not jail.client.waiting


async def test_too_many_programs_for_a_kernel_is_said(session):
    session.config = replace(session.config, bash_seconds=2.)
    await do(session, bash('for i in $(seq 70); do sleep 600 & done; echo $(jobs | wc -l)'))
    said = await do(session, python('6 * 7'))
    assert said.startswith('refused: execute_python') and 'at most 64 processes' in said and 'must be installed' not in said
    for i in range(3): await do(session, bash('C-c'))
    await do(session, bash('pkill sleep; sleep .5'))
    await told(session, python('6 * 7'), '42')


async def test_a_module_of_the_policys_that_hides_one_of_pythons_is_named(session):
    await do(session, bash('echo "raise SystemError(\'mine\')" > random.py'))
    said = await do(session, python('6 * 7'))
    if '42' not in said: assert 'SystemError: mine' in said
    await do(session, bash('rm random.py; echo "raise SystemError(\'mine\')" > ipykernel_launcher.py'))
    await do(session, python('import os; os._exit(0)'))
    await do(session, bash('rm *.py'))
    await told(session, python('6 * 7'), '42')


async def test_a_home_that_nobody_may_enter(session):
    await do(session, bash('chmod 000 ~; exit'))
    said = await do(session, bash('pwd'))
    assert '/\n' in said and 'home' in said and 'chmod 700' in said
    assert 'refused' in await do(session, view('/home/user/a.txt'))
    await told(session, python('6 * 7'), '42', 1)
    await do(session, bash('chmod 700 ~; exit'))
    assert '/home/user\n' in await do(session, bash('pwd'))


FORGED = '''from IPython import get_ipython
k = get_ipython().kernel
for kind, content in (("stream", {}), ("display_data", {}), ("display_data", {"data": 7}), ("error", {}), ("stream", {"text": 7}), ("status", {})):
    k.session.send(k.iopub_socket, kind, content, parent=k.get_parent("shell"))
k.iopub_socket.send_multipart([b"nonsense"])
k.iopub_socket.send_multipart([b"a", b"<IDS|MSG>", b"b", b"c", b"d", b"e", b"f"])'''

async def test_a_kernel_that_breaks_its_own_protocol(session):
    await told(session, python('x = 1'), 'no output')
    await do(session, python(FORGED))
    await told(session, python('6 * 7'), '42')


async def test_a_program_in_the_kernels_place(session):
    "Sockets that answer nonsense where those of a kernel would be."
    fake = """import json, sys, zmq, time
c = json.load(open(sys.argv[sys.argv.index('-f') + 1])); ctx = zmq.Context(); socks = []
for i, kind in enumerate((zmq.ROUTER, zmq.PUB, zmq.ROUTER, zmq.ROUTER, zmq.REP), 1):
    s = ctx.socket(kind); s.bind(f'ipc://{c["ip"]}-{i}'); socks.append(s)
for i in range(40):
    socks[1].send_multipart([b'nonsense']); socks[1].send_multipart([b'a', b'<IDS|MSG>', b'b', b'{', b'd', b'e', b'f']); time.sleep(.05)"""
    await session.jail.write('ipykernel_launcher.py', fake.encode())
    said = await asyncio.wait_for(do(session, python('6 * 7')), 115)
    if '42' not in said: assert 'refused' in said
    await do(session, bash('rm *.py'))
    await told(session, python('6 * 7'), '42')


DEEDS = {
    'a fork bomb': ':(){ :|:& };:',
    'a bomb that forks and stops': '(while :; do sleep 99 & kill -STOP $!; done) &',
    'full disks': 'for d in ~ /tmp /dev/shm; do head -c 999999999 /dev/zero > $d/full; done; echo x > ~/no; echo done',
    'no more files': f'cd /tmp; {sys.executable} -I -S -c "import os\nfor i in range(300000):\n  open(str(i), chr(119)).close()"; cd; echo done',
    'nothing in the home': 'rm -rf ~/* ~/.[!.]* /tmp/* /tmp/.[!.]*; echo done',
    'no sockets': 'find / -xdev -type s -delete 2>/dev/null; rm -rf /tmp/.kernel*; echo done',
    'a limit of everything': 'ulimit -n 3; ulimit -u 1; ulimit -v 1000; ulimit -f 0; echo done',
    'a dead kernel': 'pkill -9 -f ipykernel; echo done',
    'a slow supervisor': f'renice -n 19 1 2>/dev/null; chrt -i -p 0 1 2>/dev/null; for i in $(seq 40); do (while :; do :; done) & done; echo done',
}


@pytest.mark.parametrize('deed', DEEDS)
async def test_the_jail_outlives(session, deed):
    "Whatever the policy has done there, its tools answer again after a few turns, and no turn is the environment's failure."
    if deed in ('a fork bomb', 'a limit of everything'): session.config = replace(session.config, bash_seconds=2.)   # nothing of theirs takes longer
    await told(session, python('x = 1'), 'no output')
    await do(session, bash(DEEDS[deed]))
    for attempt in range(3):
        await do(session, view('/home/user'))
        await do(session, python('x'))
        for i in range(3):
            try: await session.act(bash('C-c'))
            except ActionError: pass
        await session.observe()
    await told(session, bash('echo $((6 * 7))'), '42', 6)
    await do(session, bash('rm -rf /tmp/* /dev/shm/* ~/*; pkill -9 -f "[w]hile"; jobs -p | xargs -r kill -9; echo tidy'))
    await told(session, python('6 * 7'), '42', 8)
    assert session.jail.alive


IN_FLIGHT = """import array, os, socket, time
def send(a, fds): a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))])
keep = []
try:
    while True:
        a, b = socket.socketpair(); keep += [a, b]
        for i in range(20): send(a, [b.fileno()] * 20)
except OSError as e: print(e, flush=True)
time.sleep(5)"""

async def test_descriptors_under_way_leave_room_for_the_supervisors():
    "The kernel counts those of one user together, and refuses another one above the limit of who sends it."
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with Jail(SMALL) as jail:
            filler = await jail.spawn([sys.executable, '-I', '-S', '-c', IN_FLIGHT], stdout='pipe')
            assert b'Too many references' in await filler.stdout.readline()
            assert await jail.read('/etc/hostname') == b'sandbox\n' and (await jail.spawn(['true'], pty=(9, 9))).master
            assert jail.alive
    finally: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


TAKEN = dict(
    shared="""import mmap, time
held, taken = [], 0
for i in range(300):
    m = mmap.mmap(-1, 4 << 20); m.write(b"x" * (4 << 20)); m.madvise(mmap.MADV_DONTNEED); held.append(m); taken += 4 << 20
    print(taken, flush=True)
time.sleep(5); print(taken, "kept", flush=True)""",
    sockets="""import resource, socket, time, os
for child in range(6):
    if not os.fork(): break
held, taken = [], 0
for i in range(400):
    try: a, b = socket.socketpair()
    except OSError: break
    a.setblocking(False); held += [a, b]
    try:
        while True: taken += a.send(bytes(1 << 15))
    except OSError: pass
time.sleep(5); print(taken, "kept", flush=True); time.sleep(2)""",
    tcp="""import socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=500); held, taken = [], 0
for i in range(300):
    try: a = socket.create_connection(server.getsockname()); b, _ = server.accept()
    except OSError: break
    a.setblocking(False); held += [a, b]
    try:
        while True: taken += a.send(bytes(1 << 16))
    except OSError: pass
    print(taken, flush=True)
time.sleep(5); print(taken, "kept", flush=True)""",
    files="""import os, time
for i in range(750_000):
    os.close(os.open(f"/tmp/{i}", os.O_CREAT | os.O_WRONLY)); 
    if i % 1000 == 0: print(1024 * i, flush=True)
print(1024 * i, "kept", flush=True)""")


@pytest.mark.parametrize('grouped', [True, False], ids=['grouped', 'watched'])
@pytest.mark.parametrize('way', TAKEN)
async def test_memory_that_no_process_shows_is_limited(way, grouped, monkeypatch):
    if grouped and not GROUPS: pytest.skip('no control group can be made here')
    if not grouped: monkeypatch.setattr(jails, 'limited_group', lambda memory: None); monkeypatch.setattr(jails, '_warn', lambda: None)
    async with Jail(SMALL) as jail:
        assert bool(jail.group) == grouped
        _, out = await jail.run([sys.executable, '-I', '-S', '-c', TAKEN[way]], timeout=100)
        kept = [int(o.split()[0]) for o in out.decode().splitlines() if 'kept' in o]
        assert sum(kept) < LIMITS.whole, f'{sum(kept) >> 20} MB at once'
        assert way != 'files' or int(out.split()[-1]) < LIMITS.memory // 4
        assert kept or jail.starved
        assert await jail.run(['sh', '-c', 'rm -rf /tmp/*; echo on'], timeout=60) == (0, b'on\n'), 'whoever makes room is left alone'


async def test_the_limit_of_all_is_told(session):
    await told(session, bash(f"{sys.executable} -I -S -c '{TAKEN['shared']}' | tail -1"), 'programs were ended')


async def test_where_there_is_no_group_that_is_said_once(monkeypatch):
    monkeypatch.setattr(jails, 'limited_group', lambda memory: None)
    monkeypatch.setattr(jails._warn, '__defaults__', (set(),))
    with pytest.warns(RuntimeWarning, match='(?s)control group.*systemd-run') as said:
        for i in range(2):
            async with Jail(SMALL) as jail: assert (await jail.run(['echo', 'on']))[0] == 0
    assert len([o for o in said if 'control group' in str(o.message)]) == 1


async def test_empty_space_costs_little_outside(tmp_path):
    "Forty files of 64 MB that hold nothing: what the file chooser offers has a size in all."
    downloads = Downloads(str(tmp_path))
    async with Jail() as jail:
        for folder in ('.', 'Downloads'): await jail.run(['sh', '-c', f'mkdir -p {folder}; cd {folder}; for i in $(seq 40); do truncate -s 64M f$i; done; echo x > small{len(folder)}'])
        home = Home(jail, downloads)
        for turn in range(2):
            await home.mirror()
            sizes = [sum(o.stat().st_size for o in Path(folder).iterdir()) for folder in (home.stage, downloads.folder)]
            assert all(64 << 20 < o <= 128 << 20 for o in sizes) and {'small1', 'small9'} <= {*downloads.offered()}
            await jail.run(['sh', '-c', 'touch f* Downloads/f*'])
        home.close()


async def test_what_is_no_text_can_be_written_down(session):
    "Names of files and what a kernel says: a policy reads it, and a trajectory stores it."
    await do(session, bash(r"""touch $'\xff.txt'; mkdir $'d\xfe'; touch $'d\xfe/\xfd'"""))
    for action, words in ((view('/home/user'), 'ff.txt'), (python(r"print('\ud800')"), 'ud800'), (python('import os; os.listdir()'), 'ff.txt')):
        said = await do(session, action)
        assert words in said and said.encode().decode() == said


async def test_a_tool_server_that_the_policy_has_broken():
    server = ToolServer('time', (sys.executable, '-m', 'mcp_server_time', '--local-timezone', 'UTC'))
    session = ToolSession(ToolConfig(SMALL, servers=(server,)))
    ask = Action('time__get_current_time', dict(timezone='UTC'))
    await session.reset()
    try:
        assert 'UTC' in await do(session, ask)
        await do(session, bash("echo 'raise SystemError(1)' > mcp_server_time.py; pkill -9 -f mcp_server_time"))
        said = await told(session, ask, 'does not start again')
        assert 'SystemError' in said[-1]
        await do(session, bash('rm *.py'))
        await told(session, ask, '"timezone": "UTC"')
    finally: await session.close()


async def test_groups_are_given_back():
    async with Jail(SMALL) as jail:
        if not jail.group: pytest.skip('no control group can be made here')
        folder = jail.group.folder
        inside = await jail.spawn(['sleep', '600'])
        assert folder.is_dir() and len((folder/'cgroup.procs').read_text().split()) == 1, 'the program is in it, process 1 is not'
    assert not folder.exists()
    left = Group(folder.with_name('uitars-999999999-1'), 1)
    left.folder.mkdir()
    async with Jail(SMALL): assert not left.folder.exists(), 'one of a process that was killed'


def test_a_jail_outlives_the_thread_that_started_it():
    "The kernel ends it with the thread that is its parent, so that has to be one that lasts."
    loop = asyncio.new_event_loop()
    session = ToolSession(ToolConfig(SMALL))
    starter = threading.Thread(target=lambda: loop.run_until_complete(session.reset()))
    starter.start(); starter.join()
    async def later():
        await asyncio.sleep(.5)
        await session.act(bash('echo alive'))
        text = (await session.observe()).text
        await session.close()
        return text
    assert loop.run_until_complete(later()) == 'alive\n[exit code 0]'
    loop.close()
