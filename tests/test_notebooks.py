"Every notebook runs top to bottom in a process of its own; one that hangs is named."
import json, re
from html import unescape
from pathlib import Path

import pytest

from tests.forks import forks

root = Path(__file__).resolve().parents[1]
hidden = lambda path: any(o.startswith(('.', '_')) for o in path.relative_to(root).parts)
books = sorted(o for o in (root/'nbs').rglob('*.ipynb') if not hidden(o))
SECONDS = 240  # before a notebook counts as hanging
# over 15 seconds of a core each, for `make test-all`; ppo_grpo stays for its kind, the main job in test_cli
LONG = """70_train/28_value 70_train/32_reinforce tutorials/20_own_loss
    experiments/architectures experiments/async_rollout experiments/clip_higher experiments/cluster experiments/ct
    experiments/decoupled_gae
    experiments/dynamics experiments/games_learning experiments/main experiments/outcome_model
    experiments/undemonstrated experiments/value_pretraining experiments/verticals""".split()


def named(path): return str(path.relative_to(root/'nbs').with_suffix(''))
def param(path): return pytest.param(path, marks=[pytest.mark.slow] * (named(path) in LONG), id=f'{named(path)}.ipynb')
def last(text): return '\n'.join(text.splitlines()[-60:])


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize('path', map(param, books))
def test_notebook(path):
    code, out = forks().run('notebook', path, seconds=SECONDS)
    assert code is not None, f'{path.name} did not end within {SECONDS} s'
    assert code == 0, last(out)


def test_the_long_ones_exist(): assert {*LONG} <= {*map(named, books)}


def test_stored_pages_show_files_as_they_are():
    "A page was run after the last change of the files that it displays, such as `Code('shop.py')`."
    shown = []
    for path in books:
        for c in json.loads(path.read_text())['cells']:
            if not (m := re.fullmatch(r"Code\('([\w.]+)'\)", ''.join(c['source']).strip())): continue
            text = unescape(re.sub('<[^>]+>', '', ''.join(c['outputs'][0]['data']['text/html'])))
            shown.append((m[1], (path.parent/m[1]).read_text().strip() in text))
    assert len(shown) >= 3 and [name for name, same in shown if not same] == []
