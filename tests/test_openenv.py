"""OpenEnv: the environment in this process, and our server with OpenEnv's own client.

The tests of the server run where UITARS_BENCH_OPENENV names a Python with `uitars_nb[openenv]`'s requirements; it needs no torch.
"""
import base64
import json
import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.test_house import DEVELOPMENT, TORCH, import_without, package
from uitars_nb.agent.loop import OracleAgent
from uitars_nb.agent.suite_player import SuitePlayer, as_action, as_json, offered
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.types import Action, png_array
from uitars_nb.evaluation.benchmarks.openenv import SuiteEnvironment, opened, pick
from uitars_nb.sandbox.base import EnvironmentFailure, run
from uitars_nb.tasks.base import SUITES, split_of
from uitars_nb.tasks.session_pools import pool_for

root = Path(__file__).resolve().parents[1]
PYTHON = os.environ.get('UITARS_BENCH_OPENENV', '')
with_openenv = pytest.mark.skipif(not Path(PYTHON or '/none').is_file(), reason='UITARS_BENCH_OPENENV names no Python that has openenv-core')
NAMES = ['miniwob/click-test', 'miniwob/enter-text', 'files/copy-sdk']
MISS = dict(name='move_to', arguments=dict(point=[999, 999]))


def test_the_adapters_import_without_torch():
    import_without(TORCH | DEVELOPMENT, [package/o for o in ('agent/suite_player.py', 'evaluation/benchmarks/openenv.py')])


def test_every_action_survives_json():
    values = dict(string='a b', number=1.5, integer=3, point=(0, 1000), array=(1, 20))
    for o in ACTION_SPACE:
        action = Action(o.name, {p.name: p.choices[0] if p.choices else values[p.type] for p in o.parameters})
        assert as_action(action.name, json.loads(json.dumps(as_json(action))), ACTION_SPACE) == action


@pytest.mark.parametrize('name, args', [('click', dict(point='left')), ('click', {}), ('click', dict(point=[1, 2], x=1)), ('clikc', dict(point=[1, 2])), ('click', dict(point=[1, 2000])), ('click', dict(point={'x': 1}))])
def test_a_wrong_call_is_a_fault(name, args): assert not isinstance(as_action(name, args, ACTION_SPACE), Action)


def test_endings_are_offered_only_if_asked_for():
    for task in ('miniwob/click-test', 'files/copy-sdk'):
        assert {*offered(task).by_name} - {*offered(task, endings=False).by_name} == {'finished', 'call_user', 'infeasible'}


@pytest.mark.parametrize('split', ['train', 'test'])
def test_seeds_go_round_the_tasks_and_stay_in_the_split(split):
    names = SUITES['miniwob/quick']
    specs = [pick(names, split, k) for k in range(3 * len(names))]
    assert [o.name for o in specs] == 3 * names and len({o.id for o in specs}) == len(specs)
    assert {split_of(o.seed) for o in specs} == {o.split for o in specs} == {split}
    assert pick(names, split, 2, names[5]) == specs[2 * len(names) + 5]


@pytest.fixture
def environments():
    "Makes environments over one pool of two sessions."
    with opened(pool_for(NAMES[:2], 1, 2)) as pool, ExitStack() as stack:
        def make(**options):
            stack.callback((env := SuiteEnvironment(','.join(NAMES[:2]), pool=pool, **options)).close)
            return env
        yield make


def test_an_environment_asks_for_a_reset_first_and_closes_twice(environments):
    env = environments()
    with pytest.raises(RuntimeError, match='reset'): env.step(MISS)
    assert env.state == {}
    env.reset()
    env.close(); env.close()
    with pytest.raises(RuntimeError, match='reset'): env.step(MISS)


def test_limits_end_an_episode_as_in_the_agent_loop(environments):
    env = environments(max_steps=2)
    env.reset(seed=0)
    assert [(o['done'], o['stop'], o['reward']) for o in (env.step(MISS), env.step(dict(name='wait', arguments=dict(time=0))))] == [(False, '', 0.), (True, 'step_limit', 0.)]
    env = environments()
    env.reset(seed=0)
    ends = [env.step(o) for o in (dict(reply='hm'), dict(), dict(name='click', reply='both'))]
    assert [o['stop'] for o in ends] == ['', '', 'format_error'] and all(o['error'] for o in ends) and 'not both' in ends[-1]['error']


def test_an_answer_and_an_infeasible_task_end_the_episode(environments):
    env = environments()
    for name in ('finished', 'infeasible'):
        env.reset(seed=0)
        obs = env.step(dict(name=name, arguments=dict(content='no')))
        assert obs['done'] and obs['stop'] == name and not obs['success']


def test_a_session_is_given_back_at_the_next_reset_and_at_the_end(environments):
    one, two, three = (environments(wait=1.) for _ in range(3))
    for k in range(5): one.reset(seed=k)   # a lease that is not given back would block the third
    two.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match='env_resource: none of 2 sessions was free'): three.reset(seed=0)
    with pytest.raises(RuntimeError, match='call reset first'): three.step(MISS)
    assert three.state == {}
    assert one.step(dict(name='finished'))['done'] and three.reset(seed=0)['instruction'] and one.state['step_count'] == 1


def test_a_broken_session_is_no_reward_and_the_next_reset_mends_it(environments):
    env = environments()
    env.reset(seed=0)
    env.player.episode.session.browser.kill()
    with pytest.raises(EnvironmentFailure, match='env_crash'): [env.step(MISS) for _ in range(3)]
    with pytest.raises(RuntimeError, match='call reset first'): env.step(MISS)
    assert env.reset(seed=0)['reward'] is None and not env.step(MISS)['done']


def oracle_calls(spec):
    "What the oracle does in an instance, as calls in JSON."
    player, calls = SuitePlayer(spec), []
    player.reset()
    ep = player.episode
    agent = OracleAgent(ep.session, ep.task, ep.spec)
    try:
        while not ep.stop:
            (action,) = run(agent.act([], None)).actions
            calls.append(dict(name=action.name, arguments=as_json(action)))
            assert not player.act(action.name, calls[-1]['arguments'])
        assert player.outcome.success
    finally: player.close()
    return calls


CLIENT = '''
import asyncio, json, sys
from openenv import GenericEnvClient
url = sys.argv[1]

def told(result): return dict(result.observation, reward=result.reward, done=result.done)

async def attempt(coro):
    try: return told(await coro)
    except RuntimeError as e: return str(e)

async def play(plan):
    async with GenericEnvClient(url) as env:
        seen = [await attempt(env.reset(**plan['reset']))]
        for action in plan['actions']: seen.append(await attempt(env.step(action)))
        return dict(seen=seen, state=await env.state())

async def together(plans): return await asyncio.gather(*map(play, plans))

for line in sys.stdin: print(json.dumps(asyncio.run(together(json.loads(line)))), flush=True)
'''


def program(*command):
    "A program of the Python that has OpenEnv; speak to it by lines."
    return subprocess.Popen([PYTHON, *command], env=os.environ | dict(PYTHONPATH=str(root)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope='module')
def server():
    "The process of our server, and its URL."
    with program('-m', 'uitars_nb', 'bench', 'openenv', '--openenv.serve', '--openenv.suite', ','.join(NAMES), '--openenv.port', '0', '--openenv.sessions', '2') as process:
        try: yield process, re.match(r'(http://\S+) serves 3 tasks, 2 episodes', process.stdout.readline())[1]
        finally: process.kill()


@pytest.fixture(scope='module')
def clients(server):
    "Lets clients follow plans, all at once; gives what each sees. One process for all, because OpenEnv takes long to import."
    with program('-c', CLIENT, server[1]) as process:
        def play(*plans):
            print(json.dumps(plans), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())
        try: yield play
        finally: process.kill()


@with_openenv
@pytest.mark.timeout(300)
@pytest.mark.parametrize('task', NAMES)
def test_the_oracles_actions_earn_the_reward_after_a_wrong_one(clients, task):
    spec = pick(NAMES, 'train', 4, task)
    wrong = [dict(name='click', arguments=dict(point='left')), dict(reply='no call')]
    calls = oracle_calls(spec)
    (told,) = clients(dict(reset=dict(seed=4, task=task, episode_id='mine'), actions=wrong + calls))
    first, *errors = told['seen'][:3]
    assert first['reward'] is None and first['instruction'] and not first['done'] and png_array(base64.b64decode(first['screenshot'])).ndim == 3
    assert all(o['error'] and o['reward'] == 0 and not o['done'] for o in errors)
    assert [o['error'] for o in told['seen'][3:]] == [''] * len(calls)
    last, state = told['seen'][-1], told['state']
    assert (last['reward'], last['done'], last['success']) == (1., True, True) and last['stop'] in ('terminated', 'finished')
    assert (state['episode_id'], state['task'], state['seed'], state['step_count']) == ('mine', task, spec.seed, 2 + len(calls))
    assert ('execute_bash' in {o['name'] for o in state['functions']}) == task.startswith('files/') and 'seed:tool_call' in state['system']


@with_openenv
@pytest.mark.timeout(300)
def test_two_clients_at_once_see_what_each_sees_alone(clients):
    tasks = NAMES[:2]
    plans = [dict(reset=dict(seed=7, task=o), actions=[MISS, *oracle_calls(pick(NAMES, 'train', 7, o))]) for o in tasks]
    alone = [clients(o)[0]['seen'] for o in plans]
    assert [o['seen'] for o in clients(*plans)] == alone and all(o[-1]['reward'] == 1 for o in alone)
    group = clients(*[dict(reset=dict(seed=11), actions=[])] * 2)   # of GRPO
    assert group[0]['seen'] == group[1]['seen'] and group[0]['state']['seed'] == group[1]['state']['seed']


@with_openenv
@pytest.mark.timeout(300)
def test_misuse_is_told_and_does_not_end_the_session(clients):
    actions = [dict(nmae='click'), dict(name=3), MISS, dict(name='finished'), MISS]
    (told,) = clients(dict(reset=dict(seed=1, task=NAMES[0]), actions=actions))
    assert [isinstance(o, str) for o in told['seen']] == [False, True, True, False, False, True]
    assert 'VALIDATION_ERROR' in told['seen'][1] and 'call reset' in told['seen'][-1] and told['seen'][4]['stop'] == 'finished'
    (told,) = clients(dict(reset=dict(task='miniwob/chess'), actions=[MISS]))
    assert 'is not offered' in told['seen'][0] and 'call reset first' in told['seen'][1]


@with_openenv
@pytest.mark.timeout(300)
def test_clients_that_come_and_go_are_never_refused(clients):
    (told,) = clients(dict(reset=dict(seed=0), actions=[]))
    for _ in range(2):   # twice as many as there are sessions: those without one wait until an episode ends
        many = clients(*[dict(reset=dict(seed=0), actions=[dict(name='infeasible')])] * 4)
        assert {o['seen'][0]['screenshot'] for o in many} == {told['seen'][0]['screenshot']} and {o['seen'][1]['stop'] for o in many} == {'infeasible'}


@with_openenv
@pytest.mark.timeout(120)
def test_http_says_what_it_is(server):
    import httpx
    with httpx.Client(base_url=server[1], trust_env=False) as http:
        assert http.get('/health').json()['status'] == 'healthy' and http.get('/metadata').json()['name'] == 'uitars_nb'
        assert {'name', 'arguments', 'reply'} <= {*http.get('/schema').json()['action']['properties']}
        assert http.post('/reset', json=dict(seed=0)).json()['observation']['instruction']
        assert http.post('/reset', content=b'{' + b' ' * (2 << 20)).status_code == 413


@with_openenv
@pytest.mark.timeout(120)
def test_sigterm_closes_the_browsers(server):
    process, url = server
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0 and below
    assert not psutil.wait_procs(below, timeout=20)[1]
