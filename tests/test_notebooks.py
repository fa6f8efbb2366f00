"Every notebook runs top to bottom in a process of its own; one that hangs is named."
from pathlib import Path

import pytest

from tests.forks import forks

root = Path(__file__).resolve().parents[1]
books = sorted(p for p in (root/'nbs').rglob('*.ipynb') if not any(o.startswith(('.', '_')) for o in p.relative_to(root).parts))
SECONDS = 240  # before a notebook counts as hanging


def last(text): return '\n'.join(text.splitlines()[-60:])


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize('path', books, ids=lambda p: str(p.relative_to(root/'nbs')))
def test_notebook(path):
    code, out = forks().run('notebook', path, seconds=SECONDS)
    assert code is not None, f'{path.name} did not end within {SECONDS} s'
    assert code == 0, last(out)
