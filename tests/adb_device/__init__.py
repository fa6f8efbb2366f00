"""A phone that is not there: the device's side of the Android Debug Bridge, for the real `adb` client to talk to.

It speaks the wire protocol over TCP (CNXN, AUTH, OPEN, OKAY, WRTE, CLSE; shell with and without v2, exec, sync) and answers as Android 14 does
from a phone-sized screen with a launcher, notes and settings. Its commands run in a real shell, so quoting means what it means on a phone. It is
told to fail by its attributes.
"""
import asyncio
import contextlib
import io
import os
import random
import re
import socket
import struct
import tempfile
import zipfile
from pathlib import Path

from . import screen
from .commands import IME, PROGRAMS, call
from .screen import HOME, KEYBOARD, NOTES, SETTINGS, State
from .wire import Closed, Link

STDOUT, STDERR, EXIT = 1, 2, 3
PRELUDE = '''PATH=/nowhere
exec 3>/proc/self/fd/{asks} 4</proc/self/fd/{answers}
_ask() {{ printf '%s\\0' "$#" "$@" >&3; read -r _status _out _err <&4; /bin/cat "$_out"; /bin/cat "$_err" >&2; return "$_status"; }}
grep() {{ /bin/grep "$@"; }}
''' + ''.join('{0}() {{{{ _ask {0} "$@"; }}}}\n'.format(name) for name in PROGRAMS)
FEATURES = 'shell_v2,cmd,stat_v2'


class Phone:
    "One device; use it as an asynchronous context manager."
    def __init__(self, size=(360, 640), keyboard=True, auth=False, trusting=True, features=FEATURES):
        self.state, self.features = State(size), features
        self.hidden = {KEYBOARD} if keyboard else set()           # packages without an icon
        self.keys, self.trusting = [] if auth else None, trusting  # public keys of hosts; whether a new one is let in
        self.pixel_format, self.header = 1, 16                     # of raw screenshots
        self.warning = b''          # what a screenshot of no display in particular begins with
        self.displays = {}          # id -> what it shows, None for the main display; a phone with several
        self.elsewhere = []         # what was done on other displays
        self.delay = 0.             # seconds before any service answers
        self.vanish = None          # pattern: a service at which the cable is pulled, in mid-answer
        self.cut = None             # pattern: a service whose answer ends in the middle; the phone stays
        self.garbage = None         # pattern: a service that answers with noise
        self.garbled, self.full = False, False   # noise instead of the greeting; no room for files
        self.snapshots, self.log = {}, []
        self.links, self.server, self.console = set(), None, None

    @property
    def banner(self): return f'device::ro.product.name=sim;ro.product.model=Sim;ro.product.device=sim;features={self.features}'

    @property
    def address(self): return f'127.0.0.1:{self.port}'

    async def __aenter__(self): return await self.start()
    async def __aexit__(self, *exc): await self.stop()

    async def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.port = self.port_pair()
        await self.plug_in()
        self.console = await asyncio.start_server(self.talk, '127.0.0.1', self.port - 1)
        return self

    async def stop(self):
        self.pull_out()
        self.console.close()
        self.folder.cleanup()

    def port_pair(self):
        "A free port whose lower neighbour, the emulator's console, is free too."
        for _ in range(100):
            port = random.randrange(20001, 30000, 2)
            with contextlib.suppress(OSError), socket.create_server(('127.0.0.1', port)), socket.create_server(('127.0.0.1', port - 1)): return port

    async def plug_in(self): self.server = await asyncio.start_server(self.connected, '127.0.0.1', self.port)

    def pull_out(self):
        "The cable is pulled: nothing answers any more."
        self.server.close()
        for link in list(self.links): link.drop()

    async def register(self, server_port):
        "Tell an adb server of this emulator, as emulators do; its serial."
        _, writer = await asyncio.open_connection('127.0.0.1', server_port)
        request = f'host:emulator:{self.port}'.encode()
        writer.write(b'%04x%s' % (len(request), request))
        await writer.drain()
        writer.close()
        return f'emulator-{self.port - 1}'

    async def connected(self, reader, writer):
        self.links.add(link := Link(self, reader, writer))
        await link.run()
        self.links.discard(link)

    # -- services

    def knows(self, name): return name.startswith(('shell', 'exec:', 'sync:'))

    async def serve(self, name, stream):
        self.log.append(name)
        await asyncio.sleep(self.delay)
        if self.garbage and re.search(self.garbage, name): return await stream.write(os.urandom(3000))
        if name == 'sync:': return await self.sync(stream)
        kind, command = name.split(':', 1)
        if kind == 'exec' and (m := re.match(r"cmd package '?install'? .*-S '?(\d+)", command)):
            return await stream.write(self.install(await stream.read(int(m[1]))).encode())
        pulled, cut = (pattern and re.search(pattern, name) for pattern in (self.vanish, self.cut))
        status, out, err = await self.shell(command, apart='v2' in kind)
        if pulled or cut: out = out[:max(1, len(out) // 2)]
        if 'v2' not in kind: await stream.write(out)
        else:
            for id, data in ((STDOUT, out), (STDERR, err)):
                for i in range(0, len(data), 2 ** 15): await stream.write(struct.pack('<BI', id, len(data[i:i + 2 ** 15])) + data[i:i + 2 ** 15])
        if pulled:
            await stream.ready.wait()
            return self.pull_out()
        if 'v2' in kind and not cut: await stream.write(struct.pack('<BIB', EXIT, 1, status & 255))

    async def shell(self, command, apart):
        "Status, output and errors of a command line, run by the machine's own shell with nothing but the phone's programs in its reach."
        asks, asked = os.pipe()
        answers, answered = os.pipe()
        os.set_blocking(asks, False)
        script = PRELUDE.format(asks=asked, answers=answers) + command
        process = await asyncio.create_subprocess_exec('/bin/sh', '-c', script, pass_fds=(asked, answers), cwd=self.folder.name, env={},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE if apart else asyncio.subprocess.STDOUT)
        os.close(asked); os.close(answers)
        reader = asyncio.create_task(self.answer(asks, answered))
        try: out, err = await process.communicate()
        finally:
            if process.returncode is None: process.kill()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        return process.returncode, out, err

    async def answer(self, asks, answered):
        "Answer a shell's questions: a count and as many words, each ended by a NUL."
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(asks, 'rb', 0))
        async def word(): return (await reader.readuntil(b'\0'))[:-1].decode(errors='replace')
        try:
            for n in range(10 ** 9):
                status, out, err = call(self, *[await word() for _ in range(int(await word()))])
                for name, data in (('out', out), ('err', err)): Path(self.folder.name, f'{answered}.{n}.{name}').write_bytes(data)
                os.write(answered, f'{status} {self.folder.name}/{answered}.{n}.out {self.folder.name}/{answered}.{n}.err\n'.encode())
        except asyncio.IncompleteReadError: pass
        finally:
            transport.close()
            os.close(answered)

    def install(self, apk):
        "What the package manager says to an APK; here a ZIP whose manifest is plain text: package, then label."
        if self.full: return 'Failure [INSTALL_FAILED_INSUFFICIENT_STORAGE]\n'
        try: package, label = zipfile.ZipFile(io.BytesIO(apk)).read('AndroidManifest.xml').decode().split('\n')[:2]
        except (zipfile.BadZipFile, KeyError, ValueError): return 'Failure [INSTALL_PARSE_FAILED_NOT_APK: Failed to parse]\n'
        self.state.labels[package] = label
        self.state.own.add(package)
        return 'Success\n'

    # -- files

    async def sync(self, stream):
        while True:
            id, length = struct.unpack('<4sI', await stream.read(8))
            if id == b'QUIT': return
            arg = (await stream.read(length)).decode()
            if id in (b'STAT', b'STA2', b'LST2'): await stream.write(self.stat(id, arg))
            elif id == b'SEND': await self.receive(stream, arg.rsplit(',', 1)[0])
            elif id == b'RECV': await self.send(stream, arg)
            else: return

    def stat(self, id, path):
        folder = path.rstrip('/') in ('/sdcard', '/sdcard/Download', '/data/local/tmp')
        size, mode = (len(self.state.files[path]), 0o100644) if path in self.state.files else (0, 0o40755 if folder else 0)
        if id == b'STAT': return struct.pack('<4sIII', id, mode, size, 0)
        return struct.pack('<4sIQQIIIIQqqq', id, 0 if mode else 2, 0, 0, mode, 1, 0, 0, size, 0, 0, 0)

    async def receive(self, stream, path):
        data = b''
        while True:
            id, length = struct.unpack('<4sI', await stream.read(8))
            if id == b'DONE': break
            data += await stream.read(length)
        words = b"couldn't write: No space left on device"
        if self.full: return await stream.write(struct.pack('<4sI', b'FAIL', len(words)) + words)
        self.state.files[path] = data
        await stream.write(struct.pack('<4sI', b'OKAY', 0))

    async def send(self, stream, path):
        if (data := self.state.files.get(path)) is None: return await stream.write(struct.pack('<4sI', b'FAIL', 25) + b'No such file or directory')
        for i in range(0, len(data), 65536): await stream.write(struct.pack('<4sI', b'DATA', len(data[i:i + 65536])) + data[i:i + 65536])
        await stream.write(struct.pack('<4sI', b'DONE', 0))

    # -- the emulator's console

    async def talk(self, reader, writer):
        writer.write(b'Android Console: type \'help\' for a list of commands\r\nOK\r\n')
        while line := (await reader.readline()).decode().strip():
            if line == 'quit': break
            writer.write(self.console_command(line.split()).encode() + b'\r\n')
        writer.close()

    def console_command(self, words):
        if words[0] == 'auth': return 'OK'
        if words[:2] != ['avd', 'snapshot'] or len(words) < 3: return 'KO: unknown command, try \'help\''
        what, name = words[2], words[-1]
        if what == 'save': self.snapshots[name] = self.state.copy()
        elif name not in self.snapshots: return f'KO: Snapshot load failure: no snapshot {name}'
        elif what == 'load': self.state = self.snapshots[name].copy()
        else: del self.snapshots[name]
        return 'OK'


class AdbServer:
    "An adb server of one's own, which knows no other device; its `port`."
    async def start(self):
        with socket.create_server(('127.0.0.1', 0)) as s: self.port = s.getsockname()[1]
        self.home = tempfile.TemporaryDirectory()   # where the server keeps its key
        await self.client('start-server')
        return self

    async def stop(self):
        await self.client('kill-server')
        self.home.cleanup()

    async def __aenter__(self): return await self.start()
    async def __aexit__(self, *exc): await self.stop()

    async def client(self, *args):
        quiet = dict(stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
        process = await asyncio.create_subprocess_exec('adb', '-P', str(self.port), *args, env=os.environ | dict(HOME=self.home.name), **quiet)
        await process.wait()
