"Online-Mind2Web: submissions of our trajectories, and WebJudge beside the benchmark's own (a copy of its repository in UITARS_BENCH_MIND2WEB)."
import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.evaluation.benchmarks.mind2web import (WebTask, action_text, clone_prompts, evaluate_mind2web, export_submissions, parse_points, parse_status, problems,
                                                      read_submission, read_web_tasks, webjudge, write_submission)

THEIRS = Path(os.environ.get('UITARS_BENCH_MIND2WEB', 'nowhere'))
TASK = WebTask('1b867afe', 'Find the cheapest red shoes.', 'https://shop.example', 5)


def shade(k, url='https://shop.example'): return Observation(np.full((72, 128, 3), 50 * k, np.uint8), url=url)


def trajectory(id='a', answer='Runner,\n19 dollars', stop=StopReason.FINISHED):
    end = (Action('finished', dict(content=answer)),) if stop is StopReason.FINISHED else (Action('wait', {}),)
    return Trajectory(id, TaskSpec('web/shoes', instruction=TASK.task), (
        Step(shade(0), 'Search.', (Action('click', dict(point=(500, 100))), Action('type', dict(content='red shoes\n')))), Step(shade(1), error='no call found'),
        Step(shade(1), 'Sort.', (Action('click', dict(point=(900, 200))), Action('scroll', dict(direction='down'))), error='nothing there'), Step(shade(2), 'Done.', end)),
        stop, None if stop.is_environment else 0., final=shade(3))


class Judge:
    "Answers each stage by a rule, in the benchmark's shapes; keeps what it was asked."
    model = 'rule'
    def __init__(self, status='"success"'): self.asked, self.status = [], status
    def say(self, messages):
        self.asked.append(messages)
        content = messages[-1]['content']
        texts = [content] if isinstance(content, str) else [o['text'] for o in content if o['type'] == 'text']
        images = [] if isinstance(content, str) else [o for o in content if o['type'] == 'image_url']
        if 'Action History' in texts[0]: return f'Thoughts: {len(images)} screenshots\nStatus: {self.status}'
        if not images: return '**Key Points**:\n1. red\n\n2. cheapest'
        return '**Reasoning**: it shows the shop\n\n**Score**: 4'
    async def ask(self, messages): return self.say(messages)
    def generate(self, messages, **options): return [self.say(messages)]


def test_a_submission_keeps_each_action_with_its_screenshot(tmp_path):
    path = write_submission(trajectory(), TASK, tmp_path)
    result = json.loads((path/'result.json').read_text())
    assert problems(result, os.listdir(path/'trajectory')) == []
    assert [o['action'] for o in result['action_history']] == ['CLICK coords(64, 7) -> click | SUCCESS', "TYPE :focus -> type 'red shoes' | SUCCESS", 'CLICK coords(115, 14) -> click | SUCCESS',
                                                              'SCROLL page -> scroll down | FAILED', 'TASK_COMPLETE -> ANSWER: Runner, 19 dollars']
    assert [np.asarray(Image.open(path/'trajectory'/o['screenshot'])).max() for o in result['action_history']] == [0, 0, 50, 50, 150]
    assert (result['reference_length'], result['agent_final_answer']) == (5, 'Runner, 19 dollars')
    read = read_submission(path)
    assert len(read.actions) == 4 and not any('Runner' in o for o in read.actions) and read.answer == 'Runner, 19 dollars'


def test_an_episode_without_an_end_has_no_answer(tmp_path):
    path = write_submission(trajectory(stop=StopReason.STEP_LIMIT), TASK, tmp_path)
    result = json.loads((path/'result.json').read_text())
    assert result['agent_final_answer'] is None and result['action_history'][-1]['action'].startswith('TASK_COMPLETE') and read_submission(path).answer == ''


@pytest.mark.parametrize('change, said', [
    (dict(schema_version='v1'), 'schema_version'), (dict(task_id='tasks/1b86'), 'task_id'), (dict(reference_length='5'), 'reference_length'), (dict(action_history=[]), 'empty'),
    (dict(agent_final_answer='another'), 'another answer'), (lambda o: o['action_history'].pop(), 'no TASK_COMPLETE'), (lambda o: o['action_history'][0].pop('thought'), 'no thought'),
    (lambda o: o['action_history'][1].update(step=7), 'its number is 7'), (lambda o: o['action_history'][0].update(action_status='FAILED'), 'not what its action says'),
    (lambda o: o['action_history'][0].update(screenshot='0009.png'), '0009.png is missing'), (lambda o: o['action_history'][0].update(screenshot='../a.png'), 'no file name'),
    (lambda o: o['action_history'][0].update(reason='x'), "unknown field 'reason'")])
def test_each_rule_of_the_schema_is_told(tmp_path, change, said):
    path = write_submission(trajectory(), TASK, tmp_path)
    result = json.loads((path/'result.json').read_text())
    change(result) if callable(change) else result.update(change)
    (path/'result.json').write_text(json.dumps(result))
    with pytest.raises(ValueError, match=said): read_submission(path)


def test_the_older_format_is_read_and_its_gaps_are_told(tmp_path):
    (tmp_path/'t1'/'trajectory').mkdir(parents=True)
    for k in (0, 2, 10): Image.new('RGB', (8, 8)).save(tmp_path/'t1'/'trajectory'/f'{k}_full_screenshot.png')
    result = dict(task='Find shoes.', action_history=['CLICK a -> b', 'TASK_COMPLETE -> ANSWER: 19'], thoughts=['x', 'y'])
    (tmp_path/'t1'/'result.json').write_text(json.dumps(result))
    read = read_submission(tmp_path/'t1')
    assert (read.actions, read.answer, [o.name[:2] for o in read.screenshots]) == (('CLICK a -> b',), '19', ['0_', '2_', '10'])
    (tmp_path/'t1'/'result.json').write_text(json.dumps(result | dict(thoughts=['x'])))
    with pytest.raises(ValueError, match='1 thoughts for 2 actions'): read_submission(tmp_path/'t1')


def test_a_store_is_exported_and_judged(tmp_path):
    (tmp_path/'tasks.json').write_text(json.dumps([dict(task_id=TASK.id, confirmed_task=TASK.task, website=TASK.website, reference_length=5, level='easy')]))
    store = Store(tmp_path/'store')
    store.extend([trajectory(), trajectory('b', stop=StopReason.ENV_CRASH)])
    paths = export_submissions(store, {'web/shoes': read_web_tasks(tmp_path/'tasks.json')[0]}, tmp_path/'out')
    assert [o.name for o in paths] == [TASK.id]
    judge = Judge('failure, not a success')
    table = asyncio.run(evaluate_mind2web(tmp_path/'out', judge, tmp_path/'run'))
    assert table.success.tolist() == [False] and table.scores.iloc[0] == [4] * 5
    asked = len(judge.asked)
    asyncio.run(evaluate_mind2web(tmp_path/'out', judge, tmp_path/'run'))
    assert len(judge.asked) == asked   # nothing is judged twice


def test_tools_have_no_verb():
    with pytest.raises(ValueError, match='execute_bash is no action of a browser'): action_text(Action('execute_bash', dict(command='ls')), (8, 8))


@pytest.mark.skipif(not (THEIRS/'src'/'methods').is_dir() or not importlib.util.find_spec('backoff'), reason='UITARS_BENCH_MIND2WEB names no copy of Online-Mind2Web, or backoff is not installed')
def test_webjudge_asks_as_the_benchmark_does(tmp_path):
    "Its own `WebJudge_Online_Mind2Web_eval` and ours, on the same submission: the same number of questions, texts and images, and verdicts."
    sys.path.insert(0, str(THEIRS/'src'))
    try: module, utils = importlib.import_module('methods.webjudge_online_mind2web'), importlib.import_module('utils')
    finally: sys.path.pop(0)
    read = read_submission(write_submission(trajectory(), TASK, tmp_path))
    theirs, ours = Judge(), Judge()
    messages, text, system, record, points = asyncio.run(module.WebJudge_Online_Mind2Web_eval(read.task, list(read.actions), [str(o) for o in read.screenshots], theirs, 3))
    said = theirs.say(messages)
    verdict = asyncio.run(webjudge(ours, read, 3, clone_prompts(THEIRS)))
    assert utils.extract_predication(said, 'WebJudge_Online_Mind2Web_eval') == verdict.success == 1
    assert [o['Score'] for o in record] == list(verdict.scores) and len(theirs.asked) == len(ours.asked) == 7
    assert parse_points(points) == verdict.key_points
    words = lambda o: [p['text'] for p in o['content'] if p['type'] == 'text'][0].split() if isinstance(o['content'], list) else o['content'].split()
    for a, b in zip(theirs.asked, ours.asked): assert [words(o) for o in a] == [words(o) for o in b]
    count = lambda o: sum(p['type'] == 'image_url' for p in o[-1]['content'] if isinstance(p, dict))
    assert [count(o) for o in theirs.asked] == [count(o) for o in ours.asked] == [0, 1, 1, 1, 1, 1, 5]
    for odd in ('Status: unsuccessful', 'Status: failure, no success'):   # what their parser counts as a success
        assert utils.extract_predication(odd, 'WebJudge_Online_Mind2Web_eval') == 1 and not parse_status(odd)
