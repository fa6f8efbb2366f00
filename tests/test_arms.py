"""pipelines.variants and the experiments that are made of it: what a figure says of itself, what drawing again leaves alone, how a critic's episodes are sampled."""
import ast, json, os, re, subprocess, sys, time
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
import yaml

from uitars_nb.agent.playing import ActorConfig
from uitars_nb.core.figures import Figure
from uitars_nb.evaluation.evaluate import task_scores
from uitars_nb.evaluation.statistics import macro_mean
from uitars_nb.pipelines import variants
from uitars_nb.train.ppo import PPOConfig
from uitars_nb.train.update import Objective
from uitars_nb.train.value import ValueConfig

root = Path(__file__).resolve().parents[1]


def cells(path, kind): return [''.join(c['source']) for c in json.loads((root/path).read_text())['cells'] if c['cell_type'] == kind]


def drawn(notebook, *parameters):
    "Draw an experiment's report again in a process of its own."
    command = [sys.executable, '-m', 'papermill', f'nbs/experiments/{notebook}.ipynb', '/dev/null', '-p', 'play', 'False', *parameters, '-k', 'python3', '--cwd', str(root)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]


def bytes_of(folder): return {o.name: o.read_bytes() for o in folder.iterdir() if o.suffix in ('.csv', '.json')}


@pytest.mark.parametrize('path', sorted((root/'nbs/experiments/params').glob('*.yaml')), ids=lambda o: o.stem)
def test_no_experiment_practises_on_what_its_start_was_taught(path):
    "Starts are taught the first instances, which seed 0 would play."
    assert 0 not in (yaml.safe_load(path.read_text()).get('seeds') or [1])


@pytest.mark.parametrize('smooth, said', [({}, 'success'), (dict(smooth=1), 'success'), (dict(smooth=4), 'success, mean of 4 updates')])
def test_a_curve_is_drawn_as_measured_or_says_that_it_is_not(smooth, said):
    up = [0., 1., 0., 1., 0., 1.]
    fig = variants.draw_curves(pd.DataFrame(dict(update=range(1, 7), success=up, variant='a', seed=0)), ['success'], **smooth)
    plt.close(fig)
    assert fig.axes[0].get_ylabel() == said
    assert (fig.axes[0].lines[0].get_ydata().tolist() == up) == (said == 'success')


def test_no_band_promises_more_than_all():
    fig = variants.draw_curves(pd.DataFrame(dict(update=1, success=[.8, 1., .2], variant=['a', 'a', 'b'], seed=[0, 1, 0])), ['success'])
    plt.close(fig)
    ends = [path.vertices[:, 1] for band in fig.axes[0].collections for path in band.get_paths()]
    assert min(map(min, ends)) >= 0 and max(map(max, ends)) <= 1


@dataclass(frozen=True)
class Meeting:
    "An arm that ends only where as many seeds run at the same time."
    seeds: int

    def __call__(self, path, seed):
        path.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + 120
        while len(list(path.parent.glob(f'{path.name.split("-")[0]}-*'))) < self.seeds:
            if time.monotonic() > deadline: raise TimeoutError('nobody else runs')
            time.sleep(.02)
        if (path.parent.parent/'broken').exists() and path.name == 'b-1': raise RuntimeError('seed 1 is broken')
        pd.DataFrame(dict(step=[1], process=os.getpid(), threads=torch.get_num_threads(), ended=time.time())).to_csv(path/'metrics.csv', index=False)


def met(path): return pd.read_csv(path/'metrics.csv').set_index('step')


def test_seeds_run_at_the_same_time_and_one_that_fails_costs_the_others_nothing(tmp_path):
    made, columns = dict(a=Meeting(2), b=Meeting(2)), ['process', 'threads', 'ended']
    (tmp_path/'broken').touch()
    with pytest.raises(RuntimeError, match='seed 1 is broken'): variants.run_variants(tmp_path, made, [0, 1], columns, met, at_once=2)
    kept = pd.read_csv(tmp_path/'curves.csv')
    assert sorted(zip(kept.variant, kept.seed)) == [('a', 0), ('a', 1), ('b', 0)]
    assert kept.groupby('seed').process.nunique().eq(1).all() and kept.process.nunique() == 2 and os.getpid() not in set(kept.process)
    assert set(kept.threads) == {max(1, torch.get_num_threads() // 2)}
    ended = kept[kept.seed == 0].set_index('variant').ended
    assert ended.a < ended.b
    (tmp_path/'broken').unlink()
    curves = variants.run_variants(tmp_path, made, [0, 1], columns, met)
    assert curves[:3].equals(kept) and curves.loc[3, 'variant'] == 'b' and curves.loc[3, 'process'] == os.getpid()


@pytest.mark.parametrize('notebook, last', [('ppo_grpo', ''), *(pytest.param(*o, marks=pytest.mark.slow) for o in (('decoupled_gae', 'critics'), ('async_rollout', 'last')))])
def test_a_local_run_does_not_touch_a_report(notebook, last, tmp_path):
    "A report of all arms and two seeds, a run of one of each."
    report, run = tmp_path/'report', tmp_path/'run'
    seeds = sorted(pd.read_csv(root/'reports'/notebook/'curves.csv').seed.unique().tolist())[:2]
    for folder in (report, run): folder.mkdir()
    for name in filter(None, ('curves', last)):
        table = pd.read_csv(root/'reports'/notebook/f'{name}.csv')
        table[table.seed.isin(seeds)].to_csv(report/f'{name}.csv', index=False)
    curves = pd.read_csv(report/'curves.csv')
    curves[(curves.seed == seeds[0]) & (curves.variant == curves.variant[0])].to_csv(run/'curves.csv', index=False)
    before = bytes_of(report)
    drawn(notebook, '-f', f'nbs/experiments/params/{notebook}.yaml', '-y', f'seeds: {seeds}', '-p', 'run', str(run), '-p', 'report', str(report))
    assert bytes_of(report) == before and list(report.glob('*.svg'))


@pytest.mark.parametrize('missing', [('ppo', 'grpo'), ('grpo', 'ppo')])
def test_an_effect_says_which_arm_is_missing(missing):
    curves = pd.DataFrame(dict(update=1, success=.5, variant='ppo', seed=[0, 1]))
    with pytest.raises(ValueError, match="no curve of 'grpo': there are those of 'ppo'"): variants.effect(curves, 'success', *missing)


def test_a_critic_learns_from_episodes_sampled_as_in_practice(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(variants, 'pretrain_value', lambda start, path, actor, *args, **kwargs: seen.append(actor) or path)
    monkeypatch.setattr(variants, 'reinforce', lambda start, path, *args, **kwargs: path)
    variant = variants.RLVariant('start', ActorConfig('start', ('miniwob/click-test',), 'demo'), PPOConfig(objective=Objective(temperature=.6, top_p=.9)), ValueConfig())
    variant(tmp_path/'a-0', 0)
    replace(variant, config=PPOConfig())(tmp_path/'b-0', 0)
    replace(variant, actor=replace(variant.actor, samples=2, revisit=.5))(tmp_path/'c-0', 0)
    assert [(o.temperature, o.top_p, o.samples, o.revisit) for o in seen] == [(.6, .9, 1, 0.), (1., 1., 1, 0.), (.6, .9, 1, 0.)]


def test_an_effect_up_to_the_first_update_is_of_that_alone():
    curves = pd.DataFrame([dict(update=u, success=.5 * (variant == 'a') * u, variant=variant, seed=seed) for u in (0, 1) for variant in 'ab' for seed in (0, 1)])
    assert (variants.effect(curves, 'success', 'a', 'b', last=0).value, variants.effect(curves, 'success', 'a', 'b').value) == (0., .25)


def test_trajectories_that_were_too_old_are_kept_in_curves(): assert 'dropped' in variants.COLUMNS


def test_a_figure_of_the_main_job_rests_on_what_was_played():
    cell = next(o for o in cells('nbs/experiments/main.ipynb', 'code') if 'def figure_of' in o)
    names = dict(Figure=Figure, macro_mean=macro_mean, task_scores=task_scores, COMMAND='', machine=lambda **_: '', versions=dict)
    exec(next(ast.unparse(o) for o in ast.parse(cell).body if getattr(o, 'name', '') == 'figure_of'), names)
    table = pd.DataFrame(dict(task='t', seed=range(5), success=True, env_failure=[False] * 4 + [True]))
    assert names['figure_of'](table, 'success').n == 4


def test_the_table_of_dynamics_is_its_reports():
    "The numbers in prose are those that a cell made of `curves.csv`."
    report = json.loads((root/'reports/dynamics/dynamics.ipynb').read_text())
    made = next(''.join(o['data']['text/plain']) for c in report['cells'] for o in c.get('outputs', ()) if ' to ' in ''.join(o.get('data', {}).get('text/plain', '')))
    found = re.findall(r'\S+ to \S+, \S+ \[\S+, \S+\]', re.sub(r'\b0\.', '.', made))
    prose = next(o for o in cells('nbs/experiments/dynamics.ipynb', 'markdown') if '| entropy of a token, nats |' in o)
    assert len(found) == 8 and [o for o in found if o not in prose] == []
