"Every notebook runs top to bottom in a process of its own; one that hangs is named."
from pathlib import Path

import pytest

from tests.forks import forks

root = Path(__file__).resolve().parents[1]
books = sorted(p for p in (root/'nbs').rglob('*.ipynb') if not any(o.startswith(('.', '_')) for o in p.relative_to(root).parts))
SECONDS = 240  # before a notebook counts as hanging
LONG = """
    70_train/28_value 70_train/32_reinforce
    experiments/architectures experiments/async_rollout experiments/clip_higher experiments/decoupled_gae experiments/dynamics
    experiments/ct experiments/main experiments/outcome_model experiments/value_pretraining
    tutorials/20_own_loss""".split()   # over 15 seconds of a core each. What stays: ppo_grpo, of those that compare runs; the main job, in test_cli


def named(path): return str(path.relative_to(root/'nbs').with_suffix(''))


def last(text): return '\n'.join(text.splitlines()[-60:])


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize('path', [pytest.param(o, marks=[pytest.mark.slow] * (named(o) in LONG), id=str(o.relative_to(root/'nbs'))) for o in books])
def test_notebook(path):
    code, out = forks().run('notebook', path, seconds=SECONDS)
    assert code is not None, f'{path.name} did not end within {SECONDS} s'
    assert code == 0, last(out)


def test_the_long_ones_exist(): assert {*LONG} <= {*map(named, books)}
