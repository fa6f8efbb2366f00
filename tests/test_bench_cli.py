"""`uitars-nb bench` and `uitars-nb compare` as a user meets them: what is missing, a benchmark played, another harness's results read.

With a clone of web-arena-x/webarena-infinity in UITARS_BENCH_INFINITY, the oracle plays tasks of it through the command.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from uitars_nb.agent.loop import Reply
from uitars_nb.cli.main import main
from uitars_nb.core.runs import read_json, read_jsonl, write_json
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.evaluation.benchmarks.browsecomp import encrypt
from uitars_nb.evaluation.benchmarks.webarena_infinity import CLONE
from uitars_nb.evaluation.policies import make_player
from uitars_nb.pipelines.bench import BENCHMARKS, bench_command, read_examples
from uitars_nb.pipelines.bench_options import BenchConfig, player_options
from uitars_nb.tasks.base import SANDBOXES

NAMES = {'androidworld', 'browsecomp', 'cube', 'grounding', 'harbor', 'infinity', 'mind2web', 'openenv', 'osworld', 'swebench', 'webarena-verified'}
root = Path(__file__).resolve().parents[1]


@pytest.fixture
def say(capsys):
    "Runs a command; its output. A status that is not 0 is an error."
    def call(*words, status=0):
        capsys.readouterr()
        got, (out, err) = main([*map(str, words)]), capsys.readouterr()
        assert got == status, (got, out, err)
        return out if status == 0 else err
    return call


class Judge(BaseHTTPRequestHandler):
    "A judge that compares letter by letter, and calls every submission of a web task a success; and a site of one page."
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers['Content-Length'])))['messages'][-1]['content']
        text = said if isinstance(said, str) else said[0]['text']
        right = re.findall(r'\[correct_answer\]: (.*)', text)
        verdict = f'correct: {"yes" if f"Exact Answer: {right[0]}" in text else "no"}' if right else '**Key Points**:\n1. red\n**Score**: 5\nStatus: "success"'
        data = json.dumps(dict(choices=[dict(message=dict(content=verdict), finish_reason='stop')])).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Type', 'text/html')
        self.send_header('Content-Length', '4')
        self.end_headers()
        self.wfile.write(b'page')
    def log_message(self, *args): pass


@pytest.fixture
def judge():
    server = ThreadingHTTPServer(('127.0.0.1', 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/v1'
    server.shutdown()


def test_the_list_says_what_is_missing():
    env = {k: v for k, v in os.environ.items() if not k.startswith('UITARS_BENCH')}
    done = subprocess.run([sys.executable, '-m', 'uitars_nb', 'bench'], env=env, capture_output=True, text=True, timeout=120)
    rows = {o.split()[0]: o for o in done.stdout.splitlines()[1:]}
    assert done.returncode == 0 and NAMES <= {*rows} == {*BENCHMARKS}
    assert rows['grounding'].endswith('ready') and 'a clone of web-arena-x/webarena-infinity' in rows['infinity'] and '--judge.url' in rows['browsecomp']


@pytest.mark.parametrize('name, word', [('infinity', '--data'), ('browsecomp', '--browsecomp.corpus'), ('mind2web', '--mind2web.run'), ('swebench', '--swebench.repositories')])
def test_what_is_missing_is_an_error_in_one_line(name, word, say, tmp_path, monkeypatch):
    monkeypatch.delenv(CLONE, raising=False)
    told = say('bench', name, '--out', tmp_path/'run', status=1)
    assert len(told.splitlines()) == 1 and word in told and not (tmp_path/'run').exists()


def test_the_rendered_grounding_set_is_played_resumed_and_compared(say, tmp_path):
    first = say('bench', 'grounding', '--grounding.n', 20, '--out', tmp_path/'oracle')
    assert first.startswith('100.0%') and 'recipe: benchmark=grounding, policy=oracle' in first
    answers = (tmp_path/'oracle/answers.jsonl').read_bytes()
    assert say('bench', 'grounding', '--grounding.n', 20, '--out', tmp_path/'oracle') == first
    assert (tmp_path/'oracle/answers.jsonl').read_bytes() == answers, 'nothing was asked again'
    assert 'other parameters (policy' in say('bench', 'grounding', '--grounding.n', 20, '--policy', 'random', '--out', tmp_path/'oracle', status=1)
    say('bench', 'grounding', '--policy', 'random', '--grounding.n', 20, '--out', tmp_path/'random')
    told = say('compare', tmp_path/'random', tmp_path/'oracle')
    summary = read_json(tmp_path/'random/summary.json')
    n = read_json(tmp_path/'oracle/summary.json')['episodes']
    assert f'over {n:,} instances' in told and ' 0 worse' in told and 'real' in told
    assert summary['claims']['finished'] and summary['claims']['false_completes']['value'] > .8 and 'finished falsely' in told
    say('bench', 'grounding', '--grounding.n', 10, '--seed', 1, '--out', tmp_path/'other')
    assert 'targets' in say('compare', tmp_path/'other', tmp_path/'oracle', status=1)


def test_an_infinity_clone_is_played(say, tmp_path):
    told = say('bench', 'infinity', '--data', SANDBOXES/'infinity', '--policy', 'random', '--infinity.suite', 'infinity/list/task_e1', '--out', tmp_path/'run')
    assert 'infinity/list/task_e1' in told and 'step_limit' in told.splitlines()[1] and 'suite=infinity/list' in told
    config = read_json(tmp_path/'run/config.json')['parameters']
    assert config['samples'] == 1 and config['episodes'] == 1 and config['screens']['chromium']


@pytest.mark.skipif(not Path(os.environ.get(CLONE, '/nowhere')).is_dir(), reason=f'{CLONE} names no clone of web-arena-x/webarena-infinity')
def test_the_oracle_solves_tasks_of_the_real_clone(say, tmp_path):
    told = say('bench', 'infinity', '--infinity.suite', 'infinity/oracle', '--out', tmp_path/'run')
    assert told.startswith('100.0%') and 'over 3 tasks, 3 episodes, 0 environment failures' in told


class Researcher:
    "Answers with the last word of the first search result; the environment breaks its first episode of a question about sand."
    broke = set()
    def __init__(self, session, task, spec): self.asked = spec.instruction.partition('\n')[0]
    async def act(self, steps, obs):
        if 'sand' in self.asked and self.asked not in self.broke:
            from uitars_nb.sandbox.base import EnvironmentFailure
            self.broke.add(self.asked)
            raise EnvironmentFailure(StopReason.ENV_CRASH, 'the engine is gone')
        if not steps: return Reply(actions=(Action('Search', dict(query=self.asked)),))
        word = obs.text.splitlines()[2].strip(' .').split()[-1]
        return Reply(actions=(Action('finished', dict(content=f'Explanation: read\nExact Answer: {word}\nConfidence: 70%')),))


def test_browsecomp_is_played_judged_and_a_broken_episode_played_again(say, tmp_path, judge):
    facts = [('Which moon of Mars is the larger one?', 'Phobos'), ('How many days has a year on Mars?', '687'), ('Where is the sand of Mars?', 'Hellas')]
    pd.DataFrame([dict(problem=encrypt(q, 'canary'), answer=encrypt(a, 'canary'), canary='canary') for q, a in facts]).to_csv(tmp_path/'test.csv')
    pages = [('17', 'Moons', 'The moons of Mars. The larger one is Phobos.'), ('4', 'Year', 'A year on Mars has days, 668.'), ('9', 'Dunes', 'The sand of Mars is in Hellas.')]
    (tmp_path/'pages.jsonl').write_text(''.join(json.dumps(dict(zip(('url', 'title', 'text'), o))) + '\n' for o in pages))
    words = ['bench', 'browsecomp', '--data', tmp_path/'test.csv', '--browsecomp.corpus', tmp_path/'pages.jsonl', '--judge.url', judge, '--judge.model', 'rule',
             '--policy', f'{__name__}:Researcher', '--out', tmp_path/'run']
    told = say(*words)
    assert '2 episodes, 1 environment failures' in told and '50.0%' in told and '50.0% [9.5%, 90.5%] of 2 finished falsely' in told
    again = say(*words)
    assert '3 episodes, 0 environment failures' in again and read_json(tmp_path/f'run/runs/run_{hashlib.sha256(facts[0][0].encode()).hexdigest()[:12]}.json')['retrieved_docids']
    table = pd.DataFrame(json.loads(o) for o in (tmp_path/'run/episodes.jsonl').read_text().splitlines())
    assert table.success.tolist() == [True, False, True] and table.stop.tolist() == ['finished'] * 3


class Repairer:
    def __init__(self, session, task, spec): self.left = ["cd repository; sed -i 's/1/2/' one.py"]
    async def act(self, steps, obs): return Reply(actions=(Action('execute_bash', dict(command=self.left.pop())) if self.left else Action('finished'),))


def test_swebench_predictions_then_reports(say, tmp_path):
    clone = tmp_path/'clones/own__one'
    clone.mkdir(parents=True)
    (clone/'one.py').write_text('one = 1\n')
    def git(*args): return subprocess.run(['git', '-C', str(clone), '-c', 'user.name=a', '-c', 'user.email=a@b', *args], check=True, capture_output=True, text=True).stdout.strip()
    git('init', '-q'); git('add', '-A'); git('commit', '-qm', 'Begin')
    rows = [dict(instance_id=f'own__one-{k}', repo='own/one', base_commit=git('rev-parse', 'HEAD'), problem_statement='one is two') for k in (1, 2)]
    (tmp_path/'data.jsonl').write_text(''.join(json.dumps(o) + '\n' for o in rows))
    words = ['bench', 'swebench', '--data', tmp_path/'data.jsonl', '--swebench.repositories', tmp_path/'clones', '--policy', f'{__name__}:Repairer', '--out', tmp_path/'run']
    told = say(*words)
    assert '2 of 2 predictions' in told and 'swebench evaluate --predictions' in told and '--swebench.reports' in told
    assert all('+one = 2' in json.loads(o)['model_patch'] for o in (tmp_path/'run/predictions.jsonl').read_text().splitlines())
    write_json(tmp_path/'reports/report.json', {'own__one-1': dict(resolved=True)})
    told = say(*words, '--swebench.reports', tmp_path/'reports')
    assert told.startswith('100.0%') and '1 episodes, 1 environment failures' in told, 'an instance without a report is nobody\'s failure'


def web_run(folder):
    screen = Observation(np.zeros((8, 8, 3), np.uint8), url='https://shop.example')
    steps = (Step(screen, 'Look.', (Action('click', dict(point=(1, 1))),)), Step(screen, '', (Action('finished', dict(content='Runner')),)))
    for id, stop in (('a1', StopReason.FINISHED), ('b2', StopReason.ENV_CRASH)):
        Store(folder/'store').append(Trajectory(f'p/mind2web/{id}:0/0.0', TaskSpec(f'mind2web/{id}'), steps, stop, None if stop.is_environment else 0., final=screen, policy='p'))
    write_json(folder/'tasks.json', [dict(task_id=o, confirmed_task='Find red shoes.', website='https://shop.example', reference_length=3) for o in ('a1', 'b2', 'c3')])
    return folder


def test_mind2web_submissions_and_verdicts(say, tmp_path, judge):
    run = web_run(tmp_path/'run')
    words = ['bench', 'mind2web', '--data', run/'tasks.json', '--mind2web.run', run, '--out', tmp_path/'out']
    assert '1 submissions' in say(*words) and (tmp_path/'out/submissions/a1/result.json').exists() and not (tmp_path/'out/submissions/b2').exists()
    told = say(*words, '--judge.url', judge, '--judge.model', 'rule')
    assert told.startswith('100.0%') and '1 episodes, 1 environment failures' in told and 'online-mind2web' in told


def test_a_verdict_on_one_run_is_not_taken_for_another(say, tmp_path, judge):
    "The same task, played otherwise, in the same directory: it is judged anew."
    first, second = web_run(tmp_path/'first'), web_run(tmp_path/'second')
    Store(second/'store').append(replace(next(o for o in Store(second/'store') if o.task.name.endswith('a1')), id='p/mind2web/c3:0/0.0', task=TaskSpec('mind2web/c3')))
    for run in (first, second, second): say('bench', 'mind2web', '--data', run/'tasks.json', '--mind2web.run', run, '--out', tmp_path/'out', '--judge.url', judge, '--judge.model', 'rule')
    rows = read_jsonl(tmp_path/'out/verdicts.jsonl')
    assert [o['task_id'] for o in rows] == ['a1', 'c3']   # a1 is the same submission in both
    other = tmp_path/'third'
    Store(other/'store').append(replace(next(o for o in Store(first/'store') if o.task.name.endswith('a1')), steps=Store(first/'store')['p/mind2web/a1:0/0.0'].steps[1:]))
    say('bench', 'mind2web', '--data', first/'tasks.json', '--mind2web.run', other, '--out', tmp_path/'out', '--judge.url', judge, '--judge.model', 'rule')
    assert [o['task_id'] for o in read_jsonl(tmp_path/'out/verdicts.jsonl')] == ['a1', 'c3', 'a1']


@pytest.mark.skipif(not Path(os.environ.get('UITARS_BENCH_WEBARENA_VERIFIED', '/none')).is_file(), reason='UITARS_BENCH_WEBARENA_VERIFIED names no program webarena-verified')
def test_webarena_verified_is_played_and_graded_by_its_own_evaluator(say, tmp_path, judge):
    site = judge.removesuffix('/v1')
    write_json(tmp_path/'sites.json', dict(environments=dict(__GITLAB__=dict(urls=[site]))))
    write_json(tmp_path/'tasks.json', [dict(task_id=44, sites=['gitlab'], start_urls=[f'{site}/dashboard/todos'], intent='Open it'),
                                       dict(task_id=45, sites=['gitlab'], start_urls=[site], intent='Open it')])
    words = ['bench', 'webarena-verified', '--data', tmp_path/'tasks.json', '--webarena.sites', tmp_path/'sites.json', '--policy', f'{__name__}:Claimer', '--out', tmp_path/'run']
    told = say(*words)
    assert told.startswith('50.0%') and 'webarena-verified/gitlab' in told and 'of 2 finished falsely' in told


class Claimer:
    "Claims success at once."
    def __init__(self, session, task, spec): pass
    async def act(self, steps, obs):
        return Reply(actions=(Action('finished', dict(content='{"task_type": "navigate", "status": "SUCCESS", "retrieved_data": null}')),))


def test_results_of_osworld_with_a_false_completion_a_refusal_and_a_broken_task(say, tmp_path):
    for name, last, score in [('a', 'DONE', '1.0'), ('b', 'DONE', '0'), ('c', 'FAIL', '1.0'), ('d', 'FAIL', '0'), ('e', 'WAIT', None)]:
        folder = tmp_path/'results/os'/name
        folder.mkdir(parents=True)
        (folder/'traj.jsonl').write_text(json.dumps(dict(step_num=2, action=last)) + '\n')
        (folder/('result.txt' if score else 'error.txt')).write_text(score or 'env_crash\nno answer\n')
    told = say('bench', 'osworld', '--data', tmp_path/'results', '--policy', 'ours', '--out', tmp_path/'run')
    head = told.splitlines()[0]
    assert head.startswith('50.0%') and '4 episodes, 1 environment failures' in head and 'of 2 finished falsely' in head and '1 of 2 called infeasible rightly' in head
    assert 'policy=ours' in told and {'finished', 'infeasible', 'env_failures'} <= {*told.splitlines()[1].split()}


def test_results_of_a_harbor_job(say, tmp_path):
    for name, reward in (('a', 1.), ('b', 0.)):
        write_json(tmp_path/'job'/name/'result.json', dict(task_name=f'task-{name}', agent_info=dict(name='uitars_nb'), agent_result=dict(metadata=dict(stop='finished', n_steps=3)),
                                                          reward_valid=True, verifier_result=dict(rewards=dict(reward=reward)), exception_info=None))
    assert say('bench', 'harbor', '--data', tmp_path/'job', '--out', tmp_path/'run').startswith('50.0%')


@pytest.mark.parametrize('name, lines', [('harbor', ['harbor run -d terminal-bench@2.0 --agent uitars_nb.evaluation.benchmarks.terminal_bench:UitarsAgent --ak policy=mine']),
                                         ('osworld', ['uitars-nb bench osworld --osworld.serve', 'PYTHONPATH=OSWORLD uitars-nb bench osworld --osworld.tasks TASKS --policy mine']),
                                         ('cube', ['cube test uitars_nb.evaluation.benchmarks.cube', '--cube.config MODULE:NAME --policy mine']),
                                         ('openenv', ['uitars-nb bench openenv --openenv.serve --openenv.suite miniwob/quick', 'http://127.0.0.1:8000'])])
def test_a_harness_that_is_not_here_is_told_by_its_command_line(name, lines, say, tmp_path):
    told = say('bench', name, '--policy', 'mine', '--out', tmp_path/'run')
    assert all(o in told for o in lines) and not (tmp_path/'run').exists()


def test_osworlds_tasks_are_read_from_a_list_and_a_folder():
    tasks = read_examples(root/'tests/osworld_tasks.json')
    assert len(tasks) > 5 and read_examples(root/'tests')[:1] == tasks[:1]


def test_osworlds_own_figure_and_domains(tmp_path):
    import pandas as pd
    from uitars_nb.pipelines.bench import own_figure, read_examples
    index = pd.DataFrame(dict(reward=[1., .5, None, 0.], env_failure=[False, False, True, False]))
    assert 'over 3 tasks, partial scores included: 50.0%' in own_figure(index)
    (tmp_path/'multi_apps').mkdir()
    (tmp_path/'multi_apps/a.json').write_text('{"id": "a", "related_apps": ["writer"], "evaluator": {}}')
    assert [o['domain'] for o in read_examples(tmp_path)] == ['multi_apps']


def test_what_was_asked_for_and_could_not_run_ends_with_1(tmp_path, capsys):
    import importlib.util
    if importlib.util.find_spec('harbor'): pytest.skip('harbor is here')
    assert main(['bench', 'harbor', '--harbor.tasks', str(tmp_path)]) == 1 and 'missing here' in capsys.readouterr().out
    assert main(['bench', 'harbor']) == 0


async def test_a_models_own_prompt_reaches_the_agent_of_a_benchmark(tmp_path):
    (tmp_path/'own.txt').write_text('You point at things.\n{instruction}')
    config = BenchConfig(policy='ct', prompt=str(tmp_path/'own.txt'))
    async with make_player(config.policy, **player_options(config)) as agent:
        assert (agent.config.heading, agent.config.system) == ('You point at things.\n', False)
    assert f'--prompt {tmp_path}/own.txt' in bench_command('grounding', config)
