"""Attempts to get out of a jail, or to take more than it gives. Each returns what it got hold of; nothing means that it failed, as it must."""
import asyncio, contextlib, os, secrets, shutil, signal, socket, subprocess, sys, tempfile
from pathlib import Path

import psutil

from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import ActionError
from uitars_nb.sandbox.jail.bubblewrap import STRANGER, JailLimits
from uitars_nb.sandbox.browser.downloads import Downloads
from uitars_nb.sandbox.tools.editor import Editor
from uitars_nb.sandbox.tools.home import Home
from uitars_nb.sandbox.jail.jail import Jail, JailConfig
from uitars_nb.sandbox.jail.network import open_network
from uitars_nb.sandbox.tools.shell import Shell

LIMITS = JailLimits(memory=256 << 20, disk=16 << 20, tmp=8 << 20, file=12 << 20, processes=64, cpu=60)
ATTEMPTS = {}


def attempt(f): ATTEMPTS[f.__name__] = f; return f


class World:
    "A jail, and what there is to steal and to break around it."
    def __init__(self, leak=lambda world: {}): self.leak = leak  # fields of a configuration that lets something out, to see that the attempts would notice

    async def __aenter__(self):
        self.secret = f'secret-{secrets.token_hex(8)}'
        self.folder = Path(tempfile.mkdtemp(prefix='outside-'))
        self.folder.chmod(0o777)
        self.file = self.folder/'secret.txt'
        self.file.write_text(self.secret)
        os.environ['UITARS_TEST_SECRET'] = self.secret
        own = dict(user=STRANGER, group=STRANGER, extra_groups=[]) if os.geteuid() == 0 else {}
        self.victim = subprocess.Popen(['sleep', '600'], cwd='/', env={'TOKEN': self.secret, 'PATH': os.environ['PATH']}, **own)  # with the very rights of the jail
        async def tell(reader, writer):
            writer.write(f'HTTP/1.0 200 OK\r\n\r\n{self.secret}'.encode())
            writer.close()
        self.servers = [await asyncio.start_server(tell, o, 0) for o in ('127.0.0.1', '::1') if o != '::1' or socket.has_ipv6]
        self.ports = [s.sockets[0].getsockname()[1] for s in self.servers]
        self.servers += [await asyncio.start_unix_server(tell, self.folder/'socket'), await asyncio.start_unix_server(tell, f'\0{self.secret}')]
        (self.folder/'socket').chmod(0o777)
        self.segment = _segment(self.secret)
        self.jail = await Jail(JailConfig(**dict(limits=LIMITS) | self.leak(self))).start()
        return self

    async def __aexit__(self, *exc):
        await self.jail.close()
        self.victim.kill(); self.victim.wait()
        for server in self.servers: server.close()
        del os.environ['UITARS_TEST_SECRET']
        if self.segment: subprocess.run(['ipcrm', '-m', self.segment], check=False)
        shutil.rmtree(self.folder)

    async def bash(self, script, timeout=60):
        "Output of a script, whatever became of it."
        try: return (await self.jail.run(['bash', '-c', script], timeout=timeout))[1].decode(errors='replace')
        except TimeoutError: return ''

    async def python(self, code, timeout=60):
        try: return (await self.jail.run([sys.executable, '-I', '-S', '-c', code], timeout=timeout))[1].decode(errors='replace')
        except TimeoutError: return ''

    async def steal(self, script):
        "The secret, where a script's output holds it."
        out = await self.bash(script)
        return self.secret if self.secret in out else ''

    @property
    def safe(self):
        "True while nothing outside has been broken."
        return self.file.read_text() == self.secret and self.victim.poll() is None and [p.name for p in sorted(self.folder.iterdir())] == ['secret.txt', 'socket']


def _segment(text):
    "The id of a shared memory segment that everybody may read; '' where ipcmk is missing."
    if not shutil.which('ipcmk'): return ''
    return subprocess.run(['ipcmk', '-M', '4096', '-p', '0666'], capture_output=True, text=True).stdout.split()[-1]


# Reading

@attempt
async def read_a_file_of_the_host(w): return await w.steal(f'cat {w.file} /tmp/*/secret.txt')

@attempt
async def read_shadow_and_homes(w): return (await w.bash('cat /etc/shadow /etc/sudoers 2>/dev/null; ls -A /root 2>/dev/null | grep -v "^[.]pyenv$"; ls -A /home | grep -vx user')).strip()

@attempt
async def read_the_project(w): return (await w.bash(f'cat {Path(__file__)} {Path(__file__).parents[1]}/settings.ini 2>/dev/null')).strip()

@attempt
async def read_through_proc_root(w): return await w.steal(f'for p in /proc/[0-9]* /proc/self /proc/thread-self; do cat $p/root{w.file} $p/cwd{w.file} $p/cwd/../../..{w.file}; done')

@attempt
async def read_the_environment(w): return await w.steal('env; cat /proc/*/environ | tr "\\0" "\\n"; cat /proc/*/cmdline')

@attempt
async def read_through_leaked_descriptors(w): return await w.steal(f'for fd in /proc/*/fd/*; do cat $fd{w.file} $fd/../{w.file}; done 2>/dev/null < /dev/null')

@attempt
async def find_a_socket_of_the_supervisor(w): return (await w.bash('ls -l /proc/self/fd /proc/$$/fd | grep -E "socket|memfd"')).strip()

@attempt
async def read_disks_and_memory(w): return (await w.bash('head -c 16 /dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/kmsg /proc/kcore /proc/kmsg 2>/dev/null; mknod /tmp/disk b 254 0 && head -c 16 /tmp/disk')).split('mknod')[0].strip()

@attempt
async def see_processes_of_the_host(w): return (await w.bash(f'ls -d /proc/{w.victim.pid}; ps -e -o args= 2>/dev/null | grep "[s]leep 600"; pgrep -f "[s]leep 600"') if w.victim.pid > 60 else '').replace(f"ls: cannot access '/proc/{w.victim.pid}': No such file or directory", '').strip()

@attempt
async def read_a_keyring(w):
    code = 'import ctypes; c = ctypes.CDLL(None, use_errno=True)\nfor n in (248, 249, 250): print(c.syscall(n, 0, -3, 0, 0, 0), ctypes.get_errno())'
    return '' if all(o == '-1 38' for o in (await w.python(code)).splitlines()) else 'a keyring answered'

@attempt
async def read_shared_memory(w): return await w.steal('ipcs -m | grep 666; ls /dev/shm') or ('a segment' if '666' in await w.bash('ipcs -m') else '')

@attempt
async def read_by_the_editor(w):
    await w.bash(f'ln -s {w.file} link; ln -s / root; ln -s /proc/self/root proc; mkdir -p a; ln -s {w.folder} a/folder')
    got = ''
    for path in (w.file, '/home/user/link', f'/home/user/root{w.file}', f'/home/user/proc{w.file}', '/home/user/a/folder/secret.txt', f'/home/user/../../{w.file}', f'/proc/1/root{w.file}', '/etc/shadow'):
        with contextlib.suppress(ActionError): got += await Editor(w.jail).run(Action('str_replace_editor', dict(command='view', path=str(path))))
    return got

@attempt
async def read_by_upload(w):
    downloads = Downloads(str(w.folder.parent))
    await w.bash(f'ln -s {w.file} link.txt; mkdir -p Downloads; ln -s {w.file} Downloads/link.txt; ln {w.file} hard.txt')
    home = Home(w.jail, downloads)
    try:
        await home.mirror()
        return ''.join(Path(p).read_text() for p in downloads.offered().values() if Path(p).is_file() and w.secret in Path(p).read_text())
    finally: home.close(); downloads.remove()

@attempt
async def read_another_session(w):
    async with Jail(JailConfig(LIMITS)) as other:
        await other.write('mine.txt', w.secret.encode())
        sleeper = await other.spawn(['sleep', '601'])
        got = await w.steal('cat /home/user/mine.txt /proc/*/root/home/user/mine.txt; find / -name mine.txt -exec cat {} + 2>/dev/null') or await w.bash('pgrep -f "[s]leep 601"')
        await w.bash('kill -9 -1')
        return got.strip() or ('' if sleeper.code is None else 'killed it')


# Writing and breaking

@attempt
async def write_outside(w):
    await w.bash(f'echo x > {w.file}; echo x > {w.folder}/new; mkdir -p {w.folder} && echo x > {w.file}; for d in / /usr /usr/bin /etc /etc/ssl /dev /run /var /proc /proc/sys/kernel /root; do echo x > $d/uitars-was-here; done')
    left = [d for d in ('/', '/usr', '/usr/bin', '/etc', '/dev', '/run', '/var', '/root') if os.path.exists(f'{d}/uitars-was-here')]
    return '' if w.safe and not left and not (await w.bash('ls /*/uitars-was-here /uitars-was-here 2>/dev/null')).strip() else 'written'

@attempt
async def write_by_the_editor(w):
    await w.bash(f'ln -s {w.folder}/new new; ln -s {w.file} old; ln -s /usr/bin bin')
    for command, path, args in (('create', 'new', dict(file_text='x')), ('str_replace', 'old', dict(old_str='secret', new_str='x')), ('create', 'bin/uitars-was-here', dict(file_text='x')),
                                ('create', f'../../..{w.folder}/new', dict(file_text='x')), ('insert', f'../..{w.file}', dict(insert_line=0, new_str='x'))):
        with contextlib.suppress(ActionError): await Editor(w.jail).run(Action('str_replace_editor', dict(command=command, path=f'/home/user/{path}', **args)))
    return '' if w.safe and not Path('/usr/bin/uitars-was-here').exists() else 'written'

@attempt
async def write_by_a_download(w):
    downloads = Downloads(str(w.folder.parent))
    await w.bash(f'ln -s {w.folder} Downloads')
    downloads.begin('id', 'new'); Path(downloads.folder, 'id').write_text('x'); downloads.end('id')
    home = Home(w.jail, downloads)
    try: await home.deliver(); return '' if w.safe else 'written'
    finally: home.close(); downloads.remove()

@attempt
async def mount_something(w): return (await w.bash('mount -t tmpfs tmpfs /tmp && echo mounted; mount --bind /usr /tmp && echo mounted; mount -o remount,rw /usr && echo mounted; umount /home/user && echo mounted; mkdir -p /tmp/c && mount -t cgroup2 c /tmp/c && echo mounted; mount -t proc p /tmp/c && echo mounted; fusermount -V 2>/dev/null && ls /dev/fuse 2>/dev/null && echo mounted')).count('\nmounted') * 'mounted'

@attempt
async def become_root(w):
    code = 'import os\nfor f in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)):\n try: f(); print("became", os.getresuid())\n except OSError: pass'
    script = 'su -c "echo became" < /dev/null; sudo -n echo became; cp /bin/bash /tmp/b; chmod 6755 /tmp/b; /tmp/b -p -c "id -u"; find / -xdev -perm -4000 -type f 2>/dev/null | while read f; do [ -u $f ] && mount | grep -q "/usr .*nosuid" || echo became; done; setcap cap_sys_admin+ep /tmp/b && echo became; capsh --print 2>/dev/null | grep "^Current: =e" '
    out = await w.bash(script) + await w.python(code)
    return 'became root' if 'became' in out or '\n0\n' in out or '=e' in out else ''

@attempt
async def make_namespaces(w): return 'a namespace' if 'inside' in await w.bash('unshare -Ur echo inside; unshare -m echo inside; unshare -n echo inside; nsenter -t 1 -a echo inside; chroot / echo inside; bwrap --bind / / echo inside') else ''

@attempt
async def change_the_kernel(w):
    before = {p: Path(p).read_text() for p in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sys/vm/overcommit_memory')}
    await w.bash('for p in kernel/core_pattern kernel/hostname vm/overcommit_memory kernel/modprobe fs/binfmt_misc/register; do echo evil > /proc/sys/$p; done; echo c > /proc/sysrq-trigger; hostname evil; date -s 2000-01-01; swapoff -a; sysctl -w kernel.hostname=evil; modprobe dummy; reboot -f; dmesg -C')
    return '' if all(Path(p).read_text() == text for p, text in before.items()) else 'changed'

@attempt
async def reach_dangerous_calls(w):
    calls = dict(memfd_create=319, bpf=321, userfaultfd=323, perf_event_open=298, io_uring_setup=425, keyctl=250, shmget=29, kexec_load=246, init_module=175, open_by_handle_at=304, setns=308, reboot=169, iopl=172)
    code = f'import ctypes; c = ctypes.CDLL(None)\nfor k, n in {calls}.items():\n r = c.syscall(n, 0, 4096, 0o1600, 0, 0)\n if r >= 0: print(k)'
    return (await w.python(code)).strip()

@attempt
async def kill_processes_of_the_host(w):
    await w.bash(f'kill -9 {w.victim.pid} {os.getpid()} 1; kill -9 -1')
    await w.python(f'import os, signal\nfor p in [{w.victim.pid}, {os.getpid()}, 1, -1]:\n try: os.kill(p, signal.SIGKILL)\n except OSError: pass')
    return '' if w.safe and (await w.bash('echo alive')).strip() == 'alive' else 'killed'

@attempt
async def trace_the_supervisor(w):
    code = 'import ctypes; c = ctypes.CDLL(None)\nprint(c.ptrace(16, 1, 0, 0), c.syscall(434, 1, 0) >= 0 and c.syscall(438, c.syscall(434, 1, 0), 3, 0))\nfor f in "mem", "environ", "fd/3", "maps":\n try: print(len(open("/proc/1/" + f, "rb").read(1)), "read")\n except OSError: pass'
    out = await w.python(code) + await w.bash('prlimit -p 1 --cpu=1 && echo read; gdb -p 1 -batch 2>/dev/null | grep -q "^0x" && echo read; strace -p 1 -o /tmp/x & sleep .3; kill %1')
    return out if 'read' in out or out.startswith('0') else ''


# Taking too much

@attempt
async def fork_bomb(w):
    before = len(psutil.pids())
    bomb = asyncio.ensure_future(w.bash(':(){ :|:& };:; sleep 3', timeout=3))
    most = 0
    for _ in range(12):
        await asyncio.sleep(.25)
        most = max(most, len(psutil.pids()) - before)
    await w.jail.ask('kill', pid=-1, signal=int(signal.SIGKILL), group=False)
    await bomb
    return '' if most < LIMITS.processes + 40 and (await w.bash('echo alive')).strip() == 'alive' else f'{most} processes'

@attempt
async def fill_the_disk(w):
    free = shutil.disk_usage('/').free
    await w.bash('for d in ~ /tmp /var/tmp /dev/shm /run /dev; do for i in 1 2 3 4; do head -c 100000000 /dev/zero > $d/big$i; done; done; cd; i=0; while mkdir d 2>/dev/null && cd d && [ $i -lt 300 ]; do i=$((i+1)); done; for i in $(seq 2000); do echo > f$i || break; done')
    held = 'import os\nfs = []\ntry:\n for i in range(50): f = open("/home/user/h", "wb"); fs.append(f); os.unlink("/home/user/h"); [f.write(bytes(1 << 20)) for _ in range(10)]\nexcept OSError: print(sum(os.fstat(f.fileno()).st_blocks * 512 for f in fs))'
    await w.bash('rm -rf ~/* /tmp/*')
    taken = int((await w.python(held)).strip() or 0)
    return '' if taken <= LIMITS.disk and free - shutil.disk_usage('/').free < 256 << 20 else f'{taken} bytes'

@attempt
async def take_all_memory(w):
    one = await w.python('x = bytearray(1 << 30); print("taken")')
    many = await w.bash('for i in 1 2 3 4; do ' + sys.executable + ' -I -S -c "import time; x = bytearray(150 << 20); time.sleep(2); print(\'ta\' + \'ken\')" & done; wait', timeout=20)
    shared = await w.python('import mmap, time; x = [mmap.mmap(-1, 8 << 20) for i in range(60)]\nfor m in x: m.write(b"x" * (8 << 20))\ntime.sleep(1); print("taken")')
    return f'{one}{shared}{many}' if 'taken' in one + shared or many.count('taken') > 1 else ''

@attempt
async def run_for_ever(w):
    async with Jail(JailConfig(JailLimits(memory=LIMITS.memory, disk=LIMITS.disk, tmp=LIMITS.tmp, processes=32, cpu=1))) as jail:
        try: code, _ = await jail.run(['bash', '-c', 'while :; do :; done'], timeout=60)
        except TimeoutError: return 'endless'
    return '' if code < 0 else f'{code}'

@attempt
async def flood_the_terminal(w):
    shell = Shell(w.jail)
    before = psutil.Process().memory_info().rss
    await shell.run('yes "$(head -c 3000 /dev/zero | tr "\\0" x)"', timeout=2)
    grown = psutil.Process().memory_info().rss - before
    await shell.run('C-c')
    shell.close()
    return '' if grown < 64 << 20 else f'{grown} bytes'


# The network

CONNECT = '''import socket, sys
for family, address in {targets}:
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2)
    try: s.connect(address); print(s.recv(200))
    except OSError: pass'''

@attempt
async def reach_services_of_the_host(w):
    targets = [(2, ('127.0.0.1', p)) for p in w.ports] + [(10, ('::1', p)) for p in w.ports] + [(1, f'{w.folder}/socket'), (1, f'\0{w.secret}'), (2, (socket.gethostname(), w.ports[0]))]
    targets += [(2, (a.address, w.ports[0])) for o in psutil.net_if_addrs().values() for a in o if a.family == socket.AF_INET]
    return await w.python(CONNECT.format(targets=targets))

@attempt
async def reach_the_network(w): return await w.python(CONNECT.format(targets=[(2, ('1.1.1.1', 53)), (2, ('169.254.169.254', 80)), (10, ('2606:4700:4700::1111', 53)), (2, ('example.org', 80))])) + (await w.bash('ip -o addr | grep -v " lo " | grep inet')).strip()

FAMILIES = """import socket
for family in set(range(1, 46)) - {1, 2, 10, 16}:
    for kind in 1, 2, 3, 5:
        try: print(family, socket.socket(family, kind)); break
        except OSError as e:
            if e.errno != 97: print(family, e)
for protocol in set(range(1, 23)) - {15}:
    try: print('netlink', protocol, socket.socket(16, 3, protocol))
    except OSError: pass
for family, kind, protocol in (2, 5, 132), (10, 1, 132), (2, 6, 33), (2, 1, 262), (2, 2, 136):
    try: print(socket.socket(family, kind, protocol))
    except OSError: pass
try: socket.socket(40, 1).connect((2, 22)); print('the host')
except (OSError, AttributeError): pass
import ctypes, mmap, platform, struct
if platform.machine() == 'x86_64':   # the 32-bit `socketcall`, whose arguments a filter does not see
    low = mmap.mmap(-1, 4096, flags=0x22 | 0x40, prot=7); at = ctypes.addressof(ctypes.c_char.from_buffer(low))
    low[2048:2060] = struct.pack('III', 40, 1, 0)
    low[:24] = (b'\\x53\\xbb\\x01\\0\\0\\0\\xb9' + struct.pack('I', at + 2048) + b'\\xb8\\x66\\0\\0\\0\\xcd\\x80\\x5b\\xc3').ljust(24, b'\\x90')
    found = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
    if found >= 0: print('socketcall', found)"""

@attempt
async def reach_past_the_network_namespace(w): return (await w.python(FAMILIES)).strip()

@attempt
async def choke_process_1(w):
    code = """import ctypes, os
c = ctypes.CDLL(None)
for name, f in dict(nice=lambda: os.setpriority(0, 1, 19), user=lambda: os.setpriority(2, 1000, 19), group=lambda: os.setpriority(1, 1, 19), idle=lambda: os.sched_setscheduler(1, 5, os.sched_param(0)), one=lambda: os.sched_setaffinity(1, {0})).items():
    try: f(); print(name)
    except OSError: pass
if c.syscall(251, 1, 1, 3 << 13) == 0 or c.syscall(251, 3, 1000, 3 << 13) == 0: print('disk')
os.setpriority(0, 0, 1); os.sched_setaffinity(0, {0}); os.sched_setscheduler(0, 3, os.sched_param(0))"""
    return (await w.python(code)).strip()

@attempt
async def reach_unlisted_hosts(w):
    async with Jail(JailConfig(LIMITS)) as jail:
        await open_network(jail, ['*', f'host:{w.ports[0]}'])
        asks = ''.join(f's = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(5); s.send(b"{ask}"); print(s.recv(300)); '
                       for ask in (f'CONNECT 127.0.0.1:{w.ports[0]} HTTP/1.1\\r\\n\\r\\n', f'GET http://localhost:{w.ports[0]}/ HTTP/1.1\\r\\n\\r\\n', 'CONNECT host:22 HTTP/1.1\\r\\n\\r\\n',
                                   'CONNECT [::ffff:7f00:1]:22 HTTP/1.1\\r\\n\\r\\n', 'CONNECT 169.254.169.254:80 HTTP/1.1\\r\\n\\r\\n', f'CONNECT 2130706433:{w.ports[0]} HTTP/1.1\\r\\n\\r\\n', f'CONNECT 0.0.0.0:{w.ports[0]} HTTP/1.1\\r\\n\\r\\n'))
        _, out = await jail.run([sys.executable, '-c', f'import socket; {asks}'])
        answers = out.decode().splitlines()
    return '' if len(answers) == 7 and not any('200' in o.split('Proxy')[0] or w.secret in o for o in answers) else '\n'.join(answers)


# Staying

@attempt
async def stay_after_the_end(w):
    mark = 7000 + int(secrets.token_hex(2), 16)
    await w.bash(f'setsid nohup sleep {mark} > /dev/null 2>&1 & (trap "" HUP TERM INT; sleep {mark} & sleep {mark}) > /dev/null 2>&1 & disown -a; sleep .2')
    await w.jail.close()
    await asyncio.sleep(.2)
    left = [p.pid for p in psutil.process_iter(['cmdline']) if str(mark) in (p.info['cmdline'] or [])]
    return f'{left}' if left else ''
