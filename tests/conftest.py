"How the tests share the machine."
import os

if workers := os.environ.get('PYTEST_XDIST_WORKER_COUNT'):   # in a worker; before torch: who computes on all cores beside another waits for a core at every operation
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, os.cpu_count() // int(workers))))

import pytest
from hypothesis import settings

settings.register_profile('shared machine', deadline=None)  # how long one example takes says nothing while others work
settings.load_profile('shared machine')

APART = {'test_notebooks'}  # files whose tests may run on any worker; the others keep one worker, and its fixtures, to themselves


def pytest_collection_modifyitems(items):
    for item in items:
        stem = item.path.stem
        item.add_marker(pytest.mark.xdist_group(item.name if stem in APART else stem))
