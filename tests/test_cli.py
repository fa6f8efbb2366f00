"The command line as a user meets it: in processes of its own."
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uitars_nb.core.figures import Figure, record_figures
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, Observation, Step, StopReason, TaskSpec, Trajectory

COMMANDS = ['run', 'baseline', 'pages', 'read', 'train', 'probe', 'reinforce', 'flywheel', 'eval', 'diagnose', 'suites', 'serve', 'sandbox', 'mcp', 'show', 'figures']


UITARS = [sys.executable, '-m', 'uitars_nb']


def cli(*words, cwd=None, timeout=280, **env):
    "Status, output and complaints of a call, which takes at most `timeout` seconds."
    done = subprocess.run([*UITARS, *map(str, words)], cwd=cwd, env=os.environ | env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def complaint(*words, **kw):
    "The one line that a failing call prints."
    status, out, err = cli(*words, **kw)
    assert status and not out and len(err.splitlines()) == 1, (status, out, err)
    return err


def test_help_names_every_command():
    status, out, _ = cli('--help')
    assert status == 0
    assert set(COMMANDS) <= set(re.findall(r'^  (\w+) ', out, re.M))


@pytest.mark.parametrize('command', COMMANDS)
def test_each_command_explains_itself_with_an_example(command):
    status, out, _ = cli(command, '--help')
    assert status == 0
    assert re.search(f'\n  uitars-nb {command}( |$)', out), 'no example below the options'
    assert 'Annotated' not in out and str(Path(__file__).parents[1]) not in out


def test_version():
    import uitars_nb
    assert cli('--version') == (0, f'uitars_nb {uitars_nb.__version__}\n', '')


def test_wrong_words_are_one_line():
    assert 'Did you mean' in complaint('sho')
    assert '--help' in complaint('show')
    assert 'Did you mean --check' in complaint('figures', '--chekc')
    assert 'given twice' in complaint('suites', '--name', 'a', '--name', 'b')


def test_a_traceback_on_request():
    status, _, err = cli('show', '/nowhere', UITARS_DEBUG='1')
    assert status == 1 and 'Traceback' in err and 'FileNotFoundError' in err


def episode(seed, won=True):
    screen = np.full((210, 160, 3), 240, np.uint8)
    step = Step(Observation(screen), 'a thought', (Action('click', dict(point=(500, 500))),))
    return Trajectory(f'demo/{seed}', TaskSpec('demo/press', seed, 'Press it.'), (step,), StopReason.TERMINATED, 1. if won else -1., won, Observation(screen), 'demo')


@pytest.fixture
def run_dir(tmp_path):
    Store(tmp_path/'run'/'store').extend([episode(i, i % 3 > 0) for i in range(30)])
    return tmp_path


def test_show_lists_and_filters(run_dir):
    _, out, _ = cli('show', 'run', '--success', 'no', '--limit', '4', cwd=run_dir)
    rows = [line for line in out.splitlines() if line.startswith('demo/')]
    assert [row.split()[0] for row in rows] == ['demo/0', 'demo/3', 'demo/6', 'demo/9']
    assert '10 trajectories, 0 successes' in out and '4 shown' in out
    assert '0 trajectories' in cli('show', 'run', '--task', 'demo/other', cwd=run_dir)[1]


def test_show_replays(run_dir):
    status, out, _ = cli('show', 'run/store', 'demo/1', '--html', 'new/a.html', '--gif', 'a.gif', cwd=run_dir)
    assert status == 0 and 'click(point=(500, 500))' in out
    assert '<html' in (run_dir/'new/a.html').read_text() and (run_dir/'a.gif').read_bytes()[:4] == b'GIF8'


def test_show_names_the_other_stores_of_a_run_and_finds_an_episode_in_any(run_dir):
    Store(run_dir/'run'/'later'/'store').append(episode(77))
    assert 'more are in run/later/store' in cli('show', 'run', cwd=run_dir)[1]
    assert 'demo/77: Press it.' in cli('show', 'run', 'demo/77', cwd=run_dir)[1]


def test_suites_are_listed_with_their_tasks():
    assert re.search(r'^corridor/all +3 ', cli('suites')[1], re.M)
    assert re.search(r'^recall/code-6 +12$', cli('suites', 'recall/code')[1], re.M)


def test_show_makes_nothing_where_there_is_nothing(tmp_path):
    assert 'no trajectories in missing' in complaint('show', 'missing', cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_show_complains_in_one_line(run_dir):
    assert "no trajectory 'demo/99'" in complaint('show', 'run', 'demo/99', cwd=run_dir)
    assert 'give its id' in complaint('show', 'run', '--gif', 'a.gif', cwd=run_dir)


def test_figures(tmp_path):
    record_figures('demo', {'browser_reset_ms': Figure(9.5, command='make bench', machine='a machine', date='2026-01-01')}, root=tmp_path)
    status, out, _ = cli('figures', tmp_path)
    assert status == 0 and re.search(r'browser_reset_ms +9.5 ms +≤ 15 +yes', out)
    assert cli('figures', tmp_path, '--check')[0] == 1
    assert cli('figures', tmp_path, '--markdown')[1].startswith('| figure |')
    assert 'nowhere' in complaint('figures', 'nowhere', cwd=tmp_path)


def test_sandbox_acts_and_keeps_the_screen(tmp_path):
    status, out, err = cli('sandbox', 'miniwob/click-test', '--seed', 3, '--act', "click(point='<point>10 990</point>')", '--act', 'finished()', '--act', 'wait()',
                           '--save', 'new/a.png', cwd=tmp_path)
    assert status == 0, err
    assert 'Click the button.' in out and 'click(point=(10, 990))  goes on, reward' in out and 'finished()  ended, reward' in out and 'wait()' not in out
    assert (tmp_path/'new/a.png').read_bytes().startswith(b'\x89PNG')


def test_sandbox_oracle_wins():
    status, out, err = cli('sandbox', 'miniwob/click-test', '--oracle')
    assert status == 0 and 'done, reward 1' in out, out + err


@pytest.mark.skipif(not shutil.which('bwrap'), reason='file tasks need bubblewrap')
def test_file_tasks_are_played_where_they_belong(tmp_path):
    status, out, err = cli('eval', '--suite', 'files/rename-sdk', '--episodes', '2', '--out', str(tmp_path/'run'))
    assert status == 0 and 'oracle: 100.0%' in out and 'files/rename-sdk,2,1.0' in (tmp_path/'run'/'by_task.csv').read_text(), err
    status, out, _ = cli('sandbox', 'files/add-up-sdk', '--seed', '3', '--oracle')
    assert status == 0 and 'Add up the prices' in out and '| item,price' in out and out.count('reward 1') == 1


def test_sandbox_complains_before_it_starts_anything():
    assert 'did you mean miniwob/click-test' in complaint('sandbox', 'miniwob/click-tset')
    assert 'no action' in complaint('sandbox', 'miniwob/click-test', '--act', 'clock()')
    assert '--oracle acts by itself' in complaint('sandbox', 'miniwob/click-test', '--oracle', '--act', 'wait()')


def test_a_diagnosis_says_where_there_is_room(tmp_path):
    words = ['diagnose', 'pix2act59', '--suite', 'miniwob/click-test,miniwob/hot-cold', '--instances', 1, '--samples', 2, '--max_steps', 2, '--out', tmp_path/'room']
    status, out, _ = cli(*words)
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith('miniwob/')}
    assert rows['miniwob/click-test'].endswith('solved') and {*rows} == {'miniwob/click-test', 'miniwob/hot-cold'}
    assert re.search('RL has room on [01] of 2 tasks, judged by 1 instance', out)
    assert 'all of it was there already' in cli(*words)[1]


@pytest.mark.timeout(400)
def test_a_baseline_plays_reports_and_resumes(tmp_path):
    "At its smallest: one task, one episode each; a second call plays nothing and leaves the same report."
    words = ['baseline', '--suite', 'miniwob/click-test', '--episodes', 1, '--out', tmp_path/'run', '--report', tmp_path/'report', '--browsers', 1]
    seen = []
    for _ in range(2):
        status, out, err = cli(*words, cwd=Path(__file__).parents[1])
        assert status == 0 and '1 episodes, 0 environment failures' in out, out + err
        seen.append({p.name: p.read_bytes() for p in (tmp_path/'report').iterdir() if p.is_file()})
    assert set(seen[0]) == {'suite.ipynb', 'suite.html', 'episodes.csv', 'success.svg', 'stops.svg', 'cost.svg'}
    assert seen[0] == seen[1]
    played = [json.loads(row)['episodes'] for row in (tmp_path/'run'/'oracle'/'metrics.jsonl').read_text().splitlines()]
    assert played == [1, 0, 0, 0]   # the command, then its notebook, twice


@pytest.mark.timeout(900)
def test_the_main_job_learns_reports_and_resumes(tmp_path):
    "At its smallest, killed during SFT; the call after that goes on there, and one more plays and learns nothing and leaves the same report."
    words = ['run', '--suite', 'miniwob/click-test', '--before', '--demonstrations', 2, '--sft.steps', 5, '--rl.updates', 2, '--rl.batch', 8, '--rl.samples', 4, '--rl.no_dynamic_sampling', '--evaluation.episodes', 2, '--sessions', 2,
             '--out', tmp_path/'run', '--report', tmp_path/'report']
    killed = subprocess.Popen([*UITARS, *map(str, words)], cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path/'run/sft/last.ckpt').exists(): assert killed.poll() is None and not time.sleep(.05)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() < 0 and not (tmp_path/'run/sft/policy').exists()   # what is left goes on to the same bits: tests/test_sft.py
    seen = []
    for _ in range(2):
        status, out, err = cli(*words, cwd=Path(__file__).parents[1], timeout=560)   # two minutes alone, five beside other tests
        assert status == 0 and '\nrl ppo' not in out and re.search('^rl ', out, re.M) and out.count('difference') == 2, out + err
        seen.append({p.name: p.read_bytes() for p in (tmp_path/'report').iterdir() if p.is_file()})
    assert set(seen[0]) == {'main.ipynb', 'main.html', 'episodes.csv', 'learning.csv', 'learning.svg', 'practice.csv', 'practice.svg', 'recipes.json', 'stages.csv', 'success.svg', 'stops.svg'}
    assert seen[0] == seen[1]
    for name in ('before', 'demos', 'after', 'rl'):
        played = [json.loads(row)['episodes'] for row in (tmp_path/'run'/name/'metrics.jsonl').read_text().splitlines()]
        assert played == ([2, 0, 0] if name in ('before', 'demos') else [2, 0])
    stages = json.loads((tmp_path/'run/stages.json').read_text())
    assert [*stages] == ['before', 'demos', 'sft', 'after', 'ppo', 'rl', 'report'] and all(o['done'] and o['seconds'] > 0 for o in stages.values())


def test_what_the_start_fails_in_is_begun_by_it_and_finished_by_the_expert(tmp_path, monkeypatch):
    "Of tasks that were tried and failed, or of all if none was tried; on instances that no demonstration shows."
    from uitars_nb.pipelines import main_job
    played, none = [], replace(main_job.MAIN_RL, updates=0)
    monkeypatch.setattr(main_job, 'play_recipe', lambda recipe, out, browsers, sessions, manager='': played.append((out.name, recipe)))
    monkeypatch.setattr(main_job, 'run_sft', lambda job, out: played.append(('train', [o.name for o in job.sources.demonstrations])))
    monkeypatch.setattr(main_job, 'split_by_success', lambda _: (['miniwob/click-test'], ['miniwob/click-tab', 'miniwob/use-slider']))
    main_job.run_main_job(main_job.MainJob(demonstrator='demonstrator', demonstrations=2, demonstrations_hard=5, expert_takeovers=3, skip=10, validation_episodes=1, rl=none), tmp_path)
    assert [o for o, _ in played] == ['validation', 'demos', 'hard', 'takeovers', 'train', 'after'] and played[-2][1] == ['demos', 'hard', 'takeovers']
    taken = played[3][1]
    assert (taken.suite, taken.split, taken.skip, taken.episodes, taken.expert) == ('miniwob/click-tab,miniwob/use-slider', 'train', 15, 3, 'demonstrator') and 'ct' in taken.policy
    assert not any(o.expert for name, o in played if name not in ('takeovers', 'train'))
    played.clear()
    main_job.run_main_job(main_job.MainJob(demonstrations=0, expert_takeovers=3, rl=none), tmp_path)
    assert [o for o, _ in played] == ['takeovers', 'train', 'after'] and played[0][1].suite == 'miniwob/main-demonstrated'


@pytest.mark.parametrize('demonstrations, order', [(1, ['demos', 'after', 'ppo', 'rl']), (0, ['ppo', 'after', 'rl'])])
def test_a_start_without_sft_is_trained_before_it_is_measured(demonstrations, order, tmp_path, monkeypatch):
    "A run of RL alone has its policy before an hour of playing."
    from uitars_nb.pipelines import main_job
    done = []
    monkeypatch.setattr(main_job, 'play_recipe', lambda recipe, out, browsers, sessions, manager='': done.append(out.name))
    monkeypatch.setattr(main_job, 'run_sft', lambda *_: None)
    monkeypatch.setattr(main_job, 'run_rl', lambda *_, **__: done.append('ppo'))
    main_job.run_main_job(main_job.MainJob(demonstrations=demonstrations), tmp_path)
    assert done == order


def test_an_interrupted_command_says_what_is_kept(tmp_path):
    "Ctrl-C while episodes are played: one line, status 130; the same command goes on."
    words = ['eval', '--suite', 'miniwob/click-test', '--policy', 'random', '--episodes', 400, '--out', tmp_path/'run']
    playing = subprocess.Popen([*UITARS, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not [*tmp_path.glob('run/store/*')]: assert playing.poll() is None and not time.sleep(.05)
    playing.send_signal(signal.SIGINT)
    err = playing.communicate(timeout=60)[1]
    assert playing.returncode == 130 and re.search(r'uitars-nb: \d+ of 400 episodes kept; the same command continues$', err.strip()), err


@pytest.mark.parametrize('name', [o.stem for o in (Path(__file__).parents[1]/'nbs/experiments/params').glob('*.yaml') if 'uitars-nb run' in o.read_text().partition('\n')[0]])
def test_every_file_of_options_fits(name):
    from uitars_nb.cli.config_file import options_of
    from uitars_nb.cli.run import RunOptions
    assert options_of(RunOptions, ['--config', f'{Path(__file__).parents[1]}/nbs/experiments/params/{name}.yaml'], 'uitars-nb run').out.name == name


def test_a_list_in_a_file_of_options_leaves_the_positional_ones_alone(tmp_path):
    from uitars_nb.cli.config_file import options_of
    from uitars_nb.cli.train import TrainOptions
    (tmp_path/'o.yaml').write_text('steps: 5\ndemonstrations: [runs/a, runs/b]\n')
    o = options_of(TrainOptions, ['runs/sft', '--config', str(tmp_path/'o.yaml'), '--seed', '3'], 'uitars-nb train')
    assert (str(o.out), len(o.job.sources.demonstrations), o.job.sft.steps, o.job.sft.seed) == ('runs/sft', 2, 5, 3)


def test_a_reward_that_there_is_not_is_refused_before_anything_is_played(tmp_path):
    from uitars_nb.pipelines.main_job import MainJob, resolve_job
    with pytest.raises(ValueError, match='no reward'): resolve_job(MainJob(reward='verifer'))
