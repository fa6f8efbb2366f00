"How the tests share the machine."
import ast
import functools
import os
import zlib
from pathlib import Path

if workers := os.environ.get('PYTEST_XDIST_WORKER_COUNT'):   # in a worker; before torch: who computes on all cores beside another waits for a core at every operation
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, os.cpu_count() // int(workers))))

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile('shared machine', deadline=None)  # how long one example takes says nothing while others work
settings.load_profile('shared machine')


def pytest_xdist_auto_num_workers(config):
    "More workers than there are cores, since many tests wait; each has a gigabyte or two."
    return min(8, os.cpu_count() + (3 if os.cpu_count() < 3 else 2))


def wide(function):
    "Whether a function is a fixture that lives for a module or a class."
    return any(k.arg == 'scope' and getattr(k.value, 'value', '') in ('module', 'class') for d in function.decorator_list if isinstance(d, ast.Call) for k in d.keywords)


@functools.cache
def sharing(path):
    "The functions of a test file that use, also through other fixtures, one that lives for a module or a class."
    functions = [o for o in ast.walk(ast.parse(Path(path).read_text())) if isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef))]
    shared = {o.name for o in functions if wide(o)}
    while more := {o.name for o in functions if {a.arg for a in o.args.args} & shared} - shared: shared |= more
    return shared


class Spread(LoadScopeScheduling):
    "Tests that share a fixture run on one worker, in turn; any other runs on whichever is free."

    def _split_scope(self, nodeid):
        path, *_, name = nodeid.split('::')
        return path if name.partition('[')[0] in sharing(path) else nodeid


FIRST = 'tests/test_cli.py::test_the_main_job', 'tests/test_site.py', 'tests/test_reinforce.py::', 'tests/test_notebooks.py::test_notebook[experiments/ppo_grpo'


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    "In workers: the longest tests first, then tests of all files mixed, so that some wait while others compute."
    if 'PYTEST_XDIST_WORKER' not in os.environ: return
    items.sort(key=lambda o: (not o.nodeid.startswith(FIRST), zlib.crc32(Spread._split_scope(None, o.nodeid).encode())))


def pytest_xdist_make_scheduler(config, log):
    if config.getoption('dist') == 'loadgroup': return Spread(config, log)
