"""A fork server for notebooks: one process imports what the package imports from elsewhere, then forks a child for each notebook.

The package itself is not imported in the server, so each notebook imports it afresh, in a process, session and process group of its own."""
import ast
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

root = Path(__file__).resolve().parents[1]
TOOLS = ['nbdev.test', 'nbdev.showdoc', 'fastcore.test', 'IPython.core.completerlib', 'matplotlib_inline.backend_inline']
COMMAND = 'from tests.notebook_server import serve; serve({})'   # `-c`, so that `__main__` is no file that a child of a notebook would run again


def imports(path):
    "Modules from outside the standard library and the package that the file at `path` imports as it is loaded."
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        names = [o.name for o in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (o for o in names if o.split('.')[0] not in {*sys.stdlib_module_names, 'uitars_nb'})


def preload():
    "Import what the package imports. Raises `RuntimeError` if that starts a thread of Python, which no child would have."
    os.environ.setdefault('PYTORCH_NVML_BASED_CUDA_CHECK', '1')   # whether there is a GPU can be asked before a fork, only not through CUDA itself
    for name in sorted({*TOOLS, *(o for path in (root/'uitars_nb').rglob('*.py') for o in imports(path))}): importlib.import_module(name)
    if threading.active_count() > 1: raise RuntimeError(f'importing started threads: {threading.enumerate()}')
    gc.freeze()   # what is shared with the children is not written to by their collections


def run_notebook(path, out):
    "Run one notebook in this process, the child, with output to the descriptor `out`."
    from nbdev.test import nbdev_test
    import numpy as np
    os.setsid()
    for target in (1, 2): os.dup2(out, target)
    os.close(out)
    np.random.seed()   # else the same in every child; Python's own `random` sees to it itself
    nbdev_test(path=path, n_workers=0)


def serve(fd):
    "Answer each path that comes over the socket `fd` with a child's process id and, when it has ended, its exit code. Returns in a child after its notebook, and at the socket's end."
    link = socket.socket(fileno=fd)
    preload()
    while True:
        path, out, *_ = socket.recv_fds(link, 1 << 16, 1)
        if not path: return
        if not (pid := os.fork()):
            link.close()
            return run_notebook(path.decode(), *out)
        os.close(*out)
        link.sendall(f'{pid}\n'.encode())
        link.sendall(f'{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n'.encode())


class Notebooks:
    "The other end: starts a server, runs notebooks there one after another."
    def __init__(self):
        self.link, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile('w+')
        command = [sys.executable, '-c', COMMAND.format(theirs.fileno())]
        self.server = subprocess.Popen(command, cwd=root, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors)
        theirs.close()
        self.answers = self.link.makefile()

    def __enter__(self): return self

    def __exit__(self, *_):
        self.answers.close()
        self.link.close()
        self.server.wait()

    def run(self, path, seconds):
        "Exit code and output of a notebook; the code is None if it, or what it left behind with its output, did not end within `seconds` and its group was killed."
        read, write = os.pipe()
        with open(read, 'rb', buffering=0) as pipe:
            socket.send_fds(self.link, [str(path).encode()], [write])
            os.close(write)
            pid = self._answer()
            out, ended = _read(pipe, time.monotonic() + seconds)
            if not ended: os.killpg(pid, signal.SIGKILL)
        code = self._answer()
        return (code if ended else None), out

    def _answer(self):
        if line := self.answers.readline(): return int(line)
        self.errors.seek(0)
        raise RuntimeError(f'the notebook server ended: {self.errors.read()[-3000:]}')


def _read(pipe, deadline):
    "All of a pipe, and whether its end was seen before the deadline."
    chunks = []
    while select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0] and (not chunks or chunks[-1]): chunks.append(pipe.read(1 << 16))
    return b''.join(chunks).decode(errors='replace'), bool(chunks) and not chunks[-1]
