"""Notebooks and scripts in processes of their own, without the seconds that importing torch takes: forks of a server.

The server imports what the package imports from elsewhere and starts no thread. Every fork imports the package itself
afresh, and has a session and process group of its own."""
import ast
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = 'nbdev.test nbdev.showdoc fastcore.test IPython.core.completerlib matplotlib_inline.backend_inline'.split()
COMMAND = 'from tests.forks import serve; serve({})'


# ---- in the server

def imports(path):
    "Modules from outside the standard library and the package that the file at `path` imports when it is loaded."
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Import): names = [o.name for o in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level: names = [node.module]
        else: continue
        yield from (o for o in names if o.split('.')[0] not in {*sys.stdlib_module_names, 'uitars_nb'})


def preload():
    "Import what the package imports. Raises `RuntimeError` if that starts a Python thread, which no fork would have."
    names = {o for path in (ROOT/'uitars_nb').rglob('*.py') for o in imports(path)}
    for name in sorted(names | {*TOOLS}): importlib.import_module(name)
    if threading.active_count() > 1: raise RuntimeError(f'importing started threads: {threading.enumerate()}')
    gc.freeze()   # collections in the forks leave what they share alone


def serve(fd):
    "Fork for every order from the socket `fd`. The answers are the fork's process id and, at its end, its exit code."
    link = socket.socket(fileno=fd)
    preload()
    while True:
        order, out, *_ = socket.recv_fds(link, 1 << 20, 1)
        if not order: return
        if not (pid := os.fork()):
            link.close()
            begin(*out)
            end(obey(**json.loads(order)))
        os.close(*out)
        link.sendall(f'{pid}\n'.encode())
        link.sendall(f'{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n'.encode())


# ---- in a fork

def begin(out):
    "Become a process as if newly started, which writes to the descriptor `out`."
    import numpy as np
    os.setsid()
    for target in (1, 2): os.dup2(out, target)
    os.close(out)
    np.random.seed()   # else the same in every fork; Python's own `random` sees to it itself


def obey(kind, args, env):
    "Run a notebook, given its path, or a module as a script, given its name and words; the exit code."
    os.environ.clear()
    os.environ.update(env)
    sys.path[1:1] = filter(None, env.get('PYTHONPATH', '').split(os.pathsep))
    try: dict(notebook=run_notebook, script=run_script)[kind](*args)
    except SystemExit as e:
        if not isinstance(e.code, int | None): print(e.code, file=sys.stderr)
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_notebook(path):
    from nbdev.test import nbdev_test
    nbdev_test(path=path, n_workers=0)


def run_script(name, *words):
    sys.argv = [name, *words]
    runpy.run_module(name, run_name='__main__', alter_sys=True)


def end(code):
    "What Python does at its end, short of taking down the modules, which copies all that was shared."
    threading._shutdown()
    atexit._run_exitfuncs()
    for o in (sys.stdout, sys.stderr): o.flush()
    os._exit(code)


# ---- in a test

class Forks:
    "A server and what it runs, one after another."
    def __init__(self):
        self.link, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile('w+')
        # with `-c`, `__main__` is no file that a process which a fork spawns would run again
        command = [sys.executable, '-c', COMMAND.format(theirs.fileno())]
        # the second: who looks for a GPU through CUDA before a fork keeps the forks from using it
        env = os.environ | dict(HF_HUB_OFFLINE='1', PYTORCH_NVML_BASED_CUDA_CHECK='1')
        streams = dict(stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors)
        self.server = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], **streams)
        theirs.close()
        self.answers = self.link.makefile()
        atexit.register(self.close)

    def close(self):
        "End the server."
        self.answers.close()
        self.link.close()
        self.server.wait()

    def run(self, kind, *args, seconds, **env):
        """Exit code and output of a notebook or script.

        If it, or a process that it left behind with its output, does not end within `seconds`, its process group is
        killed, and the code is None."""
        read, write = os.pipe()
        with open(read, 'rb', buffering=0) as pipe:
            order = dict(kind=kind, args=[str(o) for o in args], env=env or dict(os.environ))
            try: socket.send_fds(self.link, [json.dumps(order).encode()], [write])
            except BrokenPipeError: pass   # the answer says why
            os.close(write)
            pid = self._answer()
            out, ended = read_all(pipe, time.monotonic() + seconds)
            if not ended: os.killpg(pid, signal.SIGKILL)
        code = self._answer()
        return code if ended else None, out

    def _answer(self):
        if line := self.answers.readline(): return int(line)
        self.errors.seek(0)
        said = self.errors.read()[-3000:]
        raise RuntimeError(f'the server of forks ended with status {self.server.wait(10)}: {said}')


def read_all(pipe, deadline):
    "What a pipe gave until its end or the deadline, and whether its end was seen."
    chunks, ended = [], False
    while not ended and select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
        chunks.append(pipe.read(1 << 16))
        ended = not chunks[-1]
    return b''.join(chunks).decode(errors='replace'), ended


@functools.cache
def forks():
    "This process's server, started when it is first asked for."
    return Forks()
