"Forks of a process that has imported torch are as good as processes of their own."
import os
from textwrap import dedent

import psutil
import pytest

from tests.forks import forks
from tests.waiting import lives, until

CODE = dict(
    draws="""
        import random, numpy as np, torch
        print(random.random(), np.random.random(), torch.get_num_threads(), sys.argv)""",
    clean="""
        print([o for o in sys.modules if o.startswith('uitars_nb')], os.getsid(0) == os.getpid())""",
    at_end="""
        import atexit, threading, time
        atexit.register(print, 'last')
        threading.Thread(target=lambda: (time.sleep(.3), print('thread'))).start()""",
    says_no='sys.exit("no")',
    breaks='1 / 0',
    dies='os.kill(os.getpid(), 9)',
    leaves='import subprocess; print(subprocess.Popen(["sleep", "600"]).pid)',
    adds='import torch; x = torch.ones(600, 600); print((x @ x).max().item(), os.environ.get("TOLD"))',
    spawns="""
        import multiprocessing
        if __name__ == '__main__':
            with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(abs, [-5]))""")


@pytest.fixture(scope='module')
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp('scripts')
    for name, code in CODE.items(): (home/f'{name}.py').write_text(f'import os, sys\n{dedent(code)}\n')
    def run(name, *words, seconds=60, **env):
        return forks().run('script', name, *words, seconds=seconds, **os.environ | dict(PYTHONPATH=str(home)) | env)
    return run


def test_each_begins_anew(server):
    first, second = (server('draws', 'a', 'b')[1].split() for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1]   # neither kind of random numbers
    assert first[2:] == second[2:] and 'a' in first[4]
    assert server('clean') == (0, '[] True\n')


def test_each_ends_as_python_does(server):
    assert server('at_end') == (0, 'thread\nlast\n')
    assert server('says_no') == (1, 'no\n') and server('dies')[0] == -9
    code, out = server('breaks')
    assert code == 1 and out.splitlines()[-1] == 'ZeroDivisionError: division by zero'


def test_torch_computes_and_processes_are_spawned(server):
    assert server('adds', TOLD='so') == (0, '600.0 so\n')
    assert server('spawns') == (0, '[5]\n')


async def test_what_does_not_end_is_killed_with_what_it_left(server):
    code, out = server('leaves', seconds=1)
    assert code is None
    await until(lambda: not psutil.pid_exists(int(out)) or not lives(psutil.Process(int(out))))
