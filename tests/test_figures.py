"""core.figures: intervals against scipy and against simulation, paired rounds under drift, many writers at once, the schema of contract 9."""
import json, multiprocessing as mp, os, shutil, subprocess, sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import binom

from uitars_nb.core.figures import GOALS, Figure, FigureGoal, alternate, figure, figure_table, load_figures, load_goals, machine, markdown, median_interval, rank, ratio, record_figures, typical

root = Path(__file__).resolve().parents[1]
SCHEMA = ['value', 'goal', 'unit', 'low', 'high', 'n', 'command', 'machine', 'date']  # contract 9, in its order


@given(n=st.integers(1, 400), confidence=st.sampled_from([.8, .9, .95, .99]))
def test_rank_is_the_largest_that_covers(n, confidence):
    covers = lambda k: 1 - 2 * binom.cdf(k - 1, n, .5) >= confidence - 1e-12
    k = rank(n, confidence)
    assert covers(k) or k == 0
    assert not covers(k + 1)


def test_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = [(lambda i: i.low <= 1 <= i.high)(median_interval(rng.lognormal(0, 1, 15))) for _ in range(2000)]
    assert .95 <= np.mean(inside) < .985  # exact coverage at n=15 is 0.965


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=60))
def test_interval_holds_its_median_and_knows_no_order(values):
    a, b = median_interval(values), median_interval(values[::-1])
    assert a == b and min(values) <= a.low <= a.value <= a.high <= max(values) and a.n == len(values)


@pytest.mark.parametrize('n', range(6))
def test_too_few_rounds_are_refused(n):
    with pytest.raises(ValueError, match='measure more rounds'): median_interval(range(n))


async def test_sides_take_turns_and_the_first_round_is_thrown_away():
    order = []
    def arm(name):
        async def block(): order.append(name); return [len(order)]
        return block
    seen = await alternate(dict(a=arm('a'), b=arm('b')), rounds=3)
    assert ''.join(order) == 'abbaabba'
    assert {k: [b.tolist() for b in v] for k, v in seen.items()} == dict(a=[[4.], [5.], [8.]], b=[[3.], [6.], [7.]])


def test_ratio_is_blind_to_what_slows_both_sides():
    rng, slow = np.random.default_rng(1), np.geomspace(1, 100, 12)
    fast = [s * rng.lognormal(0, .05, 30) for s in slow]
    far = ratio([4 * b for b in fast], fast)
    assert far.value == pytest.approx(4) and far.low == pytest.approx(4) == far.high
    assert typical(fast).high / typical(fast).low > 10


def test_file_has_the_schema_of_contract_9(tmp_path):
    record_figures('r', dict(clock_speed=figure(median_interval(range(60, 70)), command='c')), root=tmp_path)
    row = json.loads((tmp_path/'r'/'summary.json').read_text())['figures']['clock_speed']
    assert list(row) == SCHEMA
    assert (row['value'], row['goal'], row['unit'], row['n'], row['command']) == (64.5, 60, 'x', 10, 'c')
    assert row['machine'] == machine()
    assert load_figures(tmp_path) == dict(clock_speed=Figure(**row))


def test_a_run_that_fails_to_write_leaves_the_old_file(tmp_path):
    path = record_figures('r', dict(clock_speed=Figure(70)), root=tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError): record_figures('r', dict(clock_speed=Figure(float('inf'))), root=tmp_path)
    with pytest.raises(ValueError): record_figures('r', dict(clock_sped=Figure(1)), root=tmp_path)
    assert path.read_bytes() == before and [p.name for p in (tmp_path/'r').iterdir()] == ['summary.json']


def write(args):
    root, i = args
    for j in range(10): record_figures('r', {f'writer {i} figure {j}': Figure(i)}, root=root)


def test_many_writers_lose_nothing(tmp_path):
    (tmp_path/'r').mkdir()
    (tmp_path/'r'/'summary.json').write_text('{"seed": 3}')
    with mp.get_context('spawn').Pool(4) as pool: pool.map(write, [(tmp_path, i) for i in range(4)])
    summary = json.loads((tmp_path/'r'/'summary.json').read_text())
    assert summary['seed'] == 3 and len(summary['figures']) == 40


def test_goals_are_those_of_the_issue():
    wanted = dict(browser_step_vs_selenium=(10, 'higher'), browser_step_vs_browsergym=(100, 'higher'), browser_step_vs_cdp=(1.3, 'lower'), browser_reset_ms=(15, 'lower'),
        browser_reset_vs_selenium=(6, 'higher'), browser_pool_vs_selenium=(8, 'higher'), clock_speed=(60, 'higher'), pool_recovery_s=(2, 'lower'), oracle_tasks=(59, 'higher'))
    assert {k: (GOALS[k].value, GOALS[k].better) for k in wanted} == wanted
    assert {'leak_mb_per_1000_episodes', 'store_bytes_per_step', 'store_ms_per_step'} <= set(GOALS)


def test_a_goal_that_the_file_misspells_is_refused(tmp_path):
    (tmp_path/'goals.yaml').write_text('goals:\n  speed: {what: a click, valu: 3}\nbeside: {}\ncounted_twice: []\n')
    with pytest.raises(TypeError, match='valu'): load_goals(tmp_path/'goals.yaml')


def test_a_package_without_its_repository_has_no_goals(tmp_path):
    "It still records and shows figures, also those that bring a goal of their own."
    shutil.copytree(root/'uitars_nb', tmp_path/'uitars_nb', ignore=lambda folder, names: [o for o in names if Path(folder).name == 'uitars_nb' and o not in ('__init__.py', 'core')])
    code = '''from uitars_nb.core.figures import *
record_figures('r', dict(clock_speed=Figure(3, unit='x'), store_ms_per_step=Figure(1, goal=2)))
print(GOALS, BESIDE, figure_table(load_figures()).goal.tolist())'''
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(tmp_path)), capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("{} {} ['', '≥ 2']", '')


@pytest.mark.parametrize('better, value, met', [('higher', 2, True), ('higher', 3, True), ('higher', 1.9, False), ('lower', 2, True), ('lower', 2.1, False), ('lower', 1, True)])
def test_met(better, value, met): assert FigureGoal('', 2, 'x', better).met(value) is met


def test_table_shows_gaps_misses_and_what_nobody_declared(tmp_path):
    table = figure_table(dict(clock_speed=Figure(59, unit='x', goal=60), pages=Figure(3, unit='pages')))
    assert table.loc['clock_speed', ['measured', 'goal', 'met']].tolist() == ['59 x', '≥ 60', 'no']
    assert table.loc['pool_recovery_s', ['measured', 'met']].tolist() == ['not measured', '']
    assert table.index[-1] == 'pages' and len(table) == len(GOALS) + 1
    lines = markdown(table).splitlines()
    assert len(lines) == len(table) + 2 and len({line.count('|') for line in lines}) == 1


def test_every_recorded_figure_is_explained():
    table = figure_table(load_figures(Path(__file__).parents[1]/'reports'))
    assert not table.index[table.what == ''].tolist()


def test_bench_command_names_its_benches():
    root = Path(__file__).parents[1]
    run = lambda *args: subprocess.run([sys.executable, '-m', 'tests.bench', *args], cwd=root, capture_output=True, text=True, timeout=60)
    assert 'peers' in run('--help').stdout
    wrong = run('nonsense')
    assert wrong.returncode == 2 and 'no bench nonsense; there are' in wrong.stderr


def test_missing_chromedriver_says_what_to_install(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from tests.bench.peers import client
    monkeypatch.delenv('MINIWOB_CHROMEDRIVER', raising=False)
    monkeypatch.setattr(client.shutil, 'which', lambda *args, **kwargs: None)
    with pytest.raises(client.MissingPeer, match='apt-get install chromium-driver'): client.chromedriver()


def test_a_soak_sees_an_episode_that_is_counted_twice():
    from tests.bench.bench_soak import Ledger
    ledger = Ledger()
    for _ in range(3): ledger.draw()
    ended, broken = SimpleNamespace(value='terminated', is_environment=False), SimpleNamespace(value='env_crash', is_environment=True)
    for id, stop in (('soak/0-0.0', broken), ('soak/0-0.1', ended), ('soak/1-0.0', ended), ('soak/1-0.0', ended)): ledger.note(SimpleNamespace(id=id, stop=stop))
    assert (ledger.drawn, ledger.whole, ledger.doubled) == (3, 2, 1), 'one is nowhere, and one was counted twice: they do not cancel out'


@pytest.mark.parametrize('report, notebook', [('cloning', 'main'), *(pytest.param(*o, marks=pytest.mark.slow) for o in (('dynamics', 'dynamics'), ('scaling', 'scaling')))])
def test_a_report_is_drawn_again_from_its_files(report, notebook, tmp_path):
    "`-p play False`: the same figures to the byte, and nothing measured is touched."
    before, home = root/'reports'/report, tmp_path/report
    shutil.copytree(before, home, ignore=shutil.ignore_patterns('films', '*.svg'))
    parameters = root/'nbs/experiments/params'/f'{report}.yaml'
    options = ['-f', str(parameters)] if notebook != 'main' else []
    command = [sys.executable, '-m', 'papermill', f'nbs/experiments/{notebook}.ipynb', str(home/f'{notebook}.ipynb'), *options, '-p', 'report', str(home), '-p', 'run', str(tmp_path/'no run'), '-p', 'play', 'False', '-k', 'python3', '--cwd', str(root)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = [o.name for o in before.iterdir() if o.suffix in ('.csv', '.json', '.svg')]
    assert {o for o in kept if o.endswith('.svg')} and [o for o in kept if (home/o).read_bytes() != (before/o).read_bytes()] == []
