"A jail keeps what is in it, does what the host asks, and leaves nothing behind."
import asyncio, os, signal, subprocess, sys, textwrap
from pathlib import Path

import psutil
import pytest

from tests.escapes import ATTEMPTS, LIMITS, World
from uitars_nb.core.types import StopReason
from uitars_nb.sandbox.jail import bubblewrap
from uitars_nb.sandbox.jail import jail as jails
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.sandbox.jail.bubblewrap import JailLimits
from uitars_nb.sandbox.jail.jail import Jail, JailConfig, JailGone

pytestmark = pytest.mark.timeout(180)
SMALL = JailConfig(LIMITS)


@pytest.mark.parametrize('name', ATTEMPTS)
async def test_escape_fails(name):
    async with World() as world:
        assert not await ATTEMPTS[name](world), f'{name} succeeded'
        assert world.safe


LEAKS = dict(
    read_a_file_of_the_host=lambda w: dict(readonly={str(w.folder): str(w.folder)}),
    read_by_the_editor=lambda w: dict(readonly={str(w.folder): str(w.folder)}),
    reach_services_of_the_host=lambda w: dict(readonly={str(w.folder): str(w.folder)}),
    read_the_environment=lambda w: dict(env={'TOKEN': w.secret}),
    read_the_project=lambda w: dict(readonly={str(Path(__file__).parents[1]): str(Path(__file__).parents[1])}),
    write_outside=lambda w: dict(writable={str(w.folder): str(w.folder)}),
    write_by_a_download=lambda w: dict(writable={str(w.folder): str(w.folder)}),
    fork_bomb=lambda w: dict(limits=JailLimits(processes=400)),
    fill_the_disk=lambda w: dict(limits=JailLimits(disk=64 << 20, tmp=8 << 20)),
    take_all_memory=lambda w: dict(limits=JailLimits(memory=2 << 30)))


@pytest.mark.parametrize('name', LEAKS)
async def test_attempts_notice_a_leak(name):
    async with World(LEAKS[name]) as world: assert await ATTEMPTS[name](world) or not world.safe


async def output(jail, script, **kw): return (await jail.run(['bash', '-c', script], **kw))[1].decode()


async def test_programs_share_one_jail():
    async with Jail(SMALL) as jail:
        sleeper = await jail.spawn(['sleep', '600'])
        assert str(sleeper.pid) in await output(jail, 'pgrep sleep')
        await output(jail, f'kill -TERM {sleeper.pid}')
        assert await sleeper.wait(20) == -signal.SIGTERM


async def test_pipes_terminals_and_exit_codes():
    async with Jail(SMALL) as jail:
        data = os.urandom(300_000)
        assert await jail.run(['cat'], input=data) == (0, data)
        assert await output(jail, 'echo $UITARS; echo $0 $HOME', env={'UITARS': 'x'}) == 'x\nbash /home/user\n'
        terminal = await jail.spawn(['bash', '-c', 'tty; stty size; exit 4'], pty=(30, 90))
        assert await terminal.wait(20) == 4
        assert os.read(terminal.master, 1000) == b'/dev/pts/0\n30 90\n'
        os.close(terminal.master)
        code, out = await jail.run(['head', '-c', '5000000', '/dev/zero'], most=1000)
        assert (code, len(out)) == (0, 1000)


async def test_what_cannot_be_started_says_why():
    async with Jail(SMALL) as jail:
        with pytest.raises(FileNotFoundError): await jail.spawn(['no-such-program'])
        with pytest.raises(PermissionError): await jail.spawn(['/etc/hostname'])
        with pytest.raises(FileNotFoundError): await jail.spawn(['true'], cwd='/nowhere')
        with pytest.raises(OSError, match='too long'): await jail.spawn(['echo', 'x' * 200_000])
        assert await jail.run(['true']) == (0, b'') and not jail.client.waiting


async def test_what_no_system_call_can_take_is_refused_and_ends_nothing():
    async with Jail(SMALL) as jail:
        with pytest.raises(OSError): await jail.read('/home/user/\ud800')
        for where in (70_000, -1, 'no\0path', '/\udfff'):
            with pytest.raises(OSError): await jail.connect(where)
        with pytest.raises(OSError): await jail.listen(70_000, lambda fd: None)
        assert jail.alive and await jail.run(['true']) == (0, b'')


async def test_orders_wait_until_the_socket_has_room():
    async with Jail(SMALL) as jail:
        assert await asyncio.gather(*[jail.run(['true', 'x' * 100_000]) for _ in range(12)]) == [(0, b'')] * 12
        assert not jail.client.waiting


async def test_many_at_once():
    async with Jail(SMALL) as jail:
        done = await asyncio.gather(*[jail.run(['bash', '-c', f'sleep .2; echo {i}']) for i in range(20)])
        assert [int(out) for _, out in done] == [*range(20)]


async def test_files():
    async with Jail(SMALL) as jail:
        await jail.write('a/b/c.bin', data := os.urandom(70_000))
        assert await jail.read('a/b/c.bin') == data and await jail.read('a/b/c.bin', 10) == data[:10]
        assert list(await jail.listing('/home/user/a')) == ['b']
        await output(jail, 'mkfifo pipe; ln -s /dev/zero endless')
        for path in ('pipe', 'endless', '/dev/tty', '/proc/kmsg'):
            with pytest.raises(OSError): await asyncio.wait_for(jail.read(path), 10)
        with pytest.raises(OSError, match='No space'): await jail.write('big', bytes(LIMITS.disk + 1))
        with pytest.raises(OSError, match='Read-only'): await jail.write('/usr/x', b'')
        with pytest.raises(IsADirectoryError): await jail.read('a')
        with pytest.raises(ValueError): await jail.read('a\0b')
        assert await jail.read('/proc/self/status', 6) == b'Name:\t'


async def test_the_end_of_the_host_is_the_end_of_the_jail():
    program = textwrap.dedent('''
        import asyncio
        from uitars_nb.sandbox.jail.jail import Jail
        async def main():
            jail = await Jail().start()
            await jail.spawn(['sleep', '98765'])
            print('ready', flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())''')
    host = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
    assert host.stdout.readline() == 'ready\n'
    left = lambda: [p for p in psutil.process_iter(['cmdline']) if '98765' in (p.info['cmdline'] or [])]
    assert left()
    host.kill(); host.wait()
    for attempt in range(100):
        if not left(): break
        await asyncio.sleep(.1)
    assert not left()


async def test_a_dead_jail_is_told():
    jail = await Jail(SMALL).start()
    process = await jail.spawn(['sleep', '600'])
    jail.process.kill()
    assert await process.wait(20) == -signal.SIGKILL
    for work in (jail.run(['true']), jail.read('x'), jail.connect(80)):
        with pytest.raises(JailGone): await work
    await jail.close(); await jail.close()


async def test_what_cannot_run_here_says_what_to_do(monkeypatch, tmp_path):
    fake = tmp_path/'bwrap'
    fake.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2; exit 1')
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    for folder in [o for o in tmp_path.parents if o.is_relative_to('/tmp') and o != Path('/tmp')]: folder.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    with pytest.raises(RuntimeError, match='(?s)No permissions.*sysctl'): await Jail(SMALL).start()
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(RuntimeError, match='apt-get install bubblewrap'): await Jail(SMALL).start()


async def test_a_start_that_takes_too_long(monkeypatch):
    monkeypatch.setattr(jails, '_SOURCE', 'def main(*o):\n    import time; time.sleep(60)')
    with pytest.raises(EnvironmentFailure) as e: await Jail(JailConfig(LIMITS, start_timeout=.5)).start()
    assert e.value.reason is StopReason.ENV_RESET


async def test_nothing_is_left(tmp_path):
    fds, files = len(os.listdir('/proc/self/fd')), set(os.listdir('/tmp'))
    for i in range(3):
        async with Jail(SMALL) as jail:
            process = await jail.spawn(['cat'], stdin='pipe', stdout='pipe', stderr='pipe')
            await jail.listen(0, os.close)
            with pytest.raises(FileNotFoundError): await jail.spawn(['nothing'], stdout='pipe')
            process.stdin.close(); await process.wait(20)
    await asyncio.sleep(.1)
    assert len(os.listdir('/proc/self/fd')) <= fds + 2
    assert not [o for o in set(os.listdir('/tmp')) - files if o.startswith(('uk-', 'uploads-', 'jail'))]


def test_a_host_path_that_strangers_cannot_enter_is_staged():
    command = bubblewrap.drop_root(['bwrap', '--ro-bind', '/root/.x', '/root/.x', '--', 'true'], ['/usr', '/root/.x'], root=True)
    assert ('--ro-bind /mnt/0 /root/.x' in command[-1]) == bubblewrap.closed('/root/.x')
    assert bubblewrap.drop_root(['bwrap'], ['/usr'], root=False) == ['bwrap']


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can become somebody else')
def test_ordinary_users_can_run_jails(tmp_path):
    packages, python = Path(jails.__file__).parents[3], f'/usr/bin/python3.{sys.version_info[1]}'
    if not Path(python).exists() or bubblewrap.closed(str(packages/'x')): pytest.skip('no Python that ordinary users can run')
    site = next(o for o in sys.path if o.endswith('site-packages'))
    program = 'import asyncio\nfrom uitars_nb.sandbox.jail.jail import Jail\nasync def main():\n  async with Jail() as j: print(await j.run(["id", "-u"]), await j.run(["cat", "/etc/shadow"]))\nasyncio.run(main())'
    done = subprocess.run([python, '-c', program], env=dict(PYTHONPATH=f'{packages}:{site}', PATH='/usr/bin:/bin'), user=12345, group=12345, extra_groups=[], cwd='/', capture_output=True, text=True, timeout=120)
    assert done.stdout == "(0, b'1000\\n') (1, b'cat: /etc/shadow: No such file or directory\\n')\n", done.stderr[-1000:]


async def test_orphans_and_abandoned_programs():
    async with Jail(SMALL) as jail:
        await jail.run(['bash', '-c', 'for i in $(seq 30); do (sleep .1 &) ; done'])
        task = asyncio.create_task(jail.spawn(['sleep', '600']))
        await asyncio.sleep(0)
        task.cancel()
        for attempt in range(100):
            await asyncio.sleep(.05)
            if not jail.processes: break
        assert not jail.processes and (await output(jail, 'pgrep sleep; echo none')).endswith('none\n')


@pytest.mark.parametrize('deed', [':(){ :|:& };:', 'while :; do sleep 9 & done'])
async def test_a_sweep_ends_what_starts_programs_without_end(deed):
    async with Jail(JailConfig(JailLimits(processes=100))) as jail:
        kept = await jail.spawn(['sleep', '99'])
        for attempt in range(5):
            await jail.spawn(['bash', '-c', deed])
            await asyncio.sleep(.1)
            await jail.ask('sweep', keep=[kept.pid])
            _, said = await jail.run(['sh', '-c', 'grep -h ^Name /proc/[0-9]*/status'])
            assert not {b'bash'} & {*said.split()} and said.count(b'sleep') == 1
        assert kept.code is None
