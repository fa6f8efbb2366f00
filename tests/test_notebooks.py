"Every notebook runs top to bottom in a fresh process; one that hangs is named."
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
books = sorted(p for p in (root/'nbs').rglob('*.ipynb') if not any(o.startswith(('.', '_')) for o in p.relative_to(root).parts))
SECONDS = 240  # before a notebook counts as hanging


def last(text): return '\n'.join(text.splitlines()[-60:])


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize('path', books, ids=lambda p: str(p.relative_to(root/'nbs')))
def test_notebook(path):
    command = [sys.executable, '-c', f'from nbdev.test import nbdev_test; nbdev_test(path={str(path)!r}, n_workers=0)']
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try: out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f'{path.name} did not end within {SECONDS} s')
    assert process.returncode == 0, last(out)
