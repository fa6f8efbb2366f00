"How the tests share the machine."
import pytest
from hypothesis import settings

settings.register_profile('shared machine', deadline=None)  # how long one example takes says nothing while others work
settings.load_profile('shared machine')

APART = {'test_notebooks'}  # files whose tests may run on any worker; the others keep one worker, and its fixtures, to themselves


def pytest_collection_modifyitems(items):
    for item in items:
        stem = item.path.stem
        item.add_marker(pytest.mark.xdist_group(item.name if stem in APART else stem))
