"""Terminal-Bench: the jail as harbor's environment, and harbor itself with its oracle and our agent.

Harbor needs Python 3.12. Where UITARS_BENCH_HARBOR names a Python that has it (python3.12 -m venv, pip install harbor and this package's
requirements), its own code runs the jobs; everything else runs without it.
"""
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action
from uitars_nb.evaluation.benchmarks.harbor_jail import check_task, download, execute, open_jail, upload
from uitars_nb.evaluation.benchmarks.terminal_bench import read_trials, solve
from uitars_nb.evaluation.evaluate import by_task

root = Path(__file__).resolve().parents[1]
HARBOR = os.environ.get('UITARS_BENCH_HARBOR', '')
with_harbor = pytest.mark.skipif(not Path(HARBOR or '/none').is_file(), reason='UITARS_BENCH_HARBOR names no Python that has harbor')


def write_task(folder, seconds=60, extra=''):
    files = {'task.toml': f'[environment]\nnetwork_mode = "no-network"\n{extra}\n[agent]\ntimeout_sec = {seconds}\n[verifier]\ntimeout_sec = 60\n',
             'instruction.md': 'Write the number of words of notes.txt into count.txt.\n', 'environment/notes.txt': 'three words here\n',
             'tests/test.sh': '[ "$(tr -d "[:space:]" < /app/count.txt)" = 3 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
             'solution/solve.sh': 'wc -w < notes.txt > count.txt\n'}
    for name, text in files.items():
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        (folder/name).write_text(text)
    return folder


class Commands:
    "An agent that types what the task's instruction has in lines that begin with $."
    def __init__(self, session, task, spec): self.left = ['cat notes.txt', 'cd /tmp', 'cd -', 'wc -w < notes.txt > count.txt']
    async def act(self, steps, obs):
        if not self.left: return Reply(actions=(Action('finished'),))
        return Reply('Count.', (Action('execute_bash', dict(command=self.left.pop(0))),))


class Idle(Commands):
    def __init__(self, *_): self.left = []


class Slow(Commands):
    def __init__(self, *_): self.left = ['sleep 300']


class Lost(Commands):
    async def act(self, steps, obs):
        if steps: raise OSError('the engine is gone')
        return await super().act(steps, obs)


@pytest.fixture
async def jail(tmp_path):
    (tmp_path/'jail').mkdir()
    jail = await open_jail(tmp_path/'jail')
    yield jail
    await jail.close()


async def test_a_cancelled_command_does_not_go_on_beside_the_verifier(jail):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1): await execute(jail, 'sleep 2; touch /app/late; sleep 60')
    await asyncio.sleep(2)
    assert 'late' not in await jail.listing('/app')


async def test_a_server_in_the_background_does_not_hold_the_call(jail):
    async with asyncio.timeout(10): code, out = await execute(jail, 'sleep 60 & echo started')
    assert (code, out) == (0, 'started\n')


async def test_folders_keep_modes_and_links_do_not_leave_the_target(jail, tmp_path):
    (tmp_path/'a'/'b').mkdir(parents=True)
    (tmp_path/'a'/'b'/'run').write_text('echo hi')
    (tmp_path/'a'/'b'/'run').chmod(0o755)
    await upload(jail, tmp_path/'a', '/solution')
    assert (await execute(jail, '/solution/b/run'))[1] == 'hi\n'
    await execute(jail, 'ln -s /etc/passwd /app/link; mkfifo /app/pipe; echo x > /app/file')
    await download(jail, '/app', tmp_path/'back')
    assert {o.name for o in (tmp_path/'back').iterdir()} == {'file'}


def test_a_task_that_needs_an_image_is_refused(tmp_path):
    task = write_task(tmp_path/'t')
    check_task(task/'environment')
    (task/'environment/Dockerfile').write_text('FROM debian')
    with pytest.raises(ValueError, match='needs an image'): check_task(task/'environment')


async def test_a_lost_engine_is_no_zero(jail):
    class Exec:
        async def exec(self, command):
            code, out = await execute(jail, command)
            return type('Result', (), dict(stdout=out, stderr=None, return_code=code))
    class Gone(Exec):
        n = 0
        async def exec(self, command):
            if (self := type(self)).n: raise OSError('connection lost')
            self.n += 1
            return type('Result', (), dict(stdout='', stderr=None, return_code=0))
    policy = f'{__name__}:Commands'
    assert (await solve(Exec(), 'Count.', policy, lambda *_: None)).stop.value == 'finished'
    with pytest.raises(RuntimeError, match='env_crash.*connection lost'): await solve(Gone(), 'Count.', policy, lambda *_: None)


def job(path, policy, out, name='job', **options):
    "Run tasks under harbor in its own Python; returns the index that this Python reads."
    code = f'import asyncio\nfrom uitars_nb.evaluation.benchmarks.terminal_bench import run_tasks\nasyncio.run(run_tasks({str(path)!r}, {policy!r}, {str(out)!r}, {name!r}, **{options!r}))'
    done = subprocess.run([HARBOR, '-c', code], env=os.environ | dict(PYTHONPATH=f'{root}:{out}'), cwd=out, capture_output=True, text=True, timeout=200)
    assert not done.returncode, done.stderr[-3000:]
    return read_trials(out/name)


@pytest.fixture
def agents(tmp_path):
    source = Path(__file__).read_text()
    first, last = source.index('class Commands'), source.index('@pytest.fixture\nasync def jail')
    (tmp_path/'bench_agents.py').write_text('from uitars_nb.agent.loop import Reply\nfrom uitars_nb.core.types import Action\n\n' + source[first:last])
    return tmp_path


@with_harbor
def test_the_oracle_of_harbor_solves_our_task(agents):
    table = by_task(job(write_task(agents/'count-words'), 'oracle', agents, attempts=2))
    assert (table.n.item(), table.success.item(), table.env_failures.item()) == (2, 1., 0)


@with_harbor
def test_our_agent_plays_under_harbor_and_its_records_are_valid(agents):
    task = write_task(agents/'count-words')
    index = job(task, 'bench_agents:Commands', agents)
    assert (index.success.item(), index.n_steps.item(), index.stop.item()) == (True, 5, 'finished')
    (path,) = (agents/'job').glob('*/agent/trajectory.json')
    check = ('import json, sys; from harbor.models.trajectories.trajectory import Trajectory\n'
             't = Trajectory.model_validate(json.load(open(sys.argv[1]))); print(len(t.steps))')
    done = subprocess.run([HARBOR, '-c', check, str(path)], capture_output=True, text=True)
    assert done.stdout.strip() == '6', done.stderr
    assert not job(task, 'bench_agents:Idle', agents, 'idle').success.item()


@with_harbor
def test_failures_of_harbor_are_told_apart(agents):
    slow = job(write_task(agents/'slow', seconds=4), 'bench_agents:Slow', agents, 'slow-job')
    assert (slow.stop.item(), slow.env_failure.item()) == ('policy_timeout', False)
    lost = write_task(agents/'lost')
    (lost/'tests/test.sh').write_text('true\n')   # a verifier that writes no reward
    assert job(lost, 'bench_agents:Idle', agents, 'lost-job').stop.item() == 'env_verifier'
    image = write_task(agents/'image')
    (image/'environment/Dockerfile').write_text('FROM debian')
    with pytest.raises(AssertionError, match='image needs an image'): job(image, 'oracle', agents, 'image-job')


@with_harbor
def test_token_records_pass_the_schema_of_harbor():
    code = '''
import numpy as np
from types import SimpleNamespace
from pathlib import Path
from harbor.models.agent.context import AgentContext
from harbor.models.trajectories.trajectory import Trajectory
from uitars_nb.core.types import Action, Completion, Observation, Step
from uitars_nb.evaluation.benchmarks.terminal_bench import atif, record
import tempfile
c = Completion('ls', np.arange(4, dtype=np.int32), np.array([7, 8], np.int32), np.array([-.5, -.25], np.float32), np.zeros(2, np.int32))
obs = Observation(np.zeros((4, 4, 3), np.uint8), text='notes.txt')
steps = [Step(obs, 'Look.', (Action('execute_bash', dict(command='ls')),), c, aside=(c,)), Step(obs, error='no call found', completion=c)]
context = AgentContext()
record(context, tempfile.mkdtemp(), 'List.', steps, obs, 'm', 's')
context = AgentContext.model_validate_json(context.model_dump_json())
assert context.rollout_details[0]['completion_token_ids'] == [[7, 8], [7, 8]] and len(context.rollout_details) == 2
assert context.n_output_tokens == 6
t = Trajectory.model_validate(atif('List.', steps, 'end', 'm'))
assert t.steps[1].llm_call_count == 2 and t.steps[1].metrics.logprobs == [-.5, -.25]
'''
    done = subprocess.run([HARBOR, '-c', code], env=os.environ | dict(PYTHONPATH=str(root)), capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr[-2000:]
