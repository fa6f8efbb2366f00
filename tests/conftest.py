"How the tests share the machine."
import os

if workers := os.environ.get('PYTEST_XDIST_WORKER_COUNT'):   # in a worker; before torch: who computes on all cores beside another waits for a core at every operation
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, os.cpu_count() // int(workers))))

import pytest
from hypothesis import settings

settings.register_profile('shared machine', deadline=None)  # how long one example takes says nothing while others work
settings.load_profile('shared machine')


def pytest_xdist_auto_num_workers(config):
    "One worker more than there are cores, since many tests wait; each has a gigabyte or two."
    return min(8, os.cpu_count() + 1)


def shares(item):
    "Whether a test shares a fixture with others of its module or class."
    return any(o[-1].scope in ('module', 'class') for o in item._fixtureinfo.name2fixturedefs.values() if o)


def pytest_collection_modifyitems(items):
    "Tests that share a fixture run on one worker, in turn; any other runs on whichever is free."
    for item in filter(shares, items): item.add_marker(pytest.mark.xdist_group(item.path.stem))
