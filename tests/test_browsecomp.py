"BrowseComp: cipher, replies and verdicts; with UITARS_BENCH_SIMPLE_EVALS and UITARS_BENCH_BROWSECOMP_PLUS (copies of the repositories) against their own code."
import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from uitars_nb.core.runs import read_json
from uitars_nb.core.types import Action, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.evaluation.benchmarks.browsecomp import (JUDGE_PROMPT, WebQuestion, calibration_error, decrypt, encrypt, evaluate_browsecomp, judge_reply, parse_reply,
                                                        parse_verdict, plus_corpus, plus_run, question_prompt, read_qrels, read_questions, retrieval_recall, write_plus)
from uitars_nb.evaluation.benchmarks.judges import ChatJudge, constant_of, user_message
from uitars_nb.model.remote import RemoteError
from uitars_nb.sandbox.tools.search import PageCorpus, search_text

SIMPLE, PLUS = (Path(os.environ.get(o, 'nowhere')) for o in ('UITARS_BENCH_SIMPLE_EVALS', 'UITARS_BENCH_BROWSECOMP_PLUS'))
with_simple = pytest.mark.skipif(not (SIMPLE/'browsecomp_eval.py').is_file(), reason='UITARS_BENCH_SIMPLE_EVALS names no copy of openai/simple-evals')
with_plus = pytest.mark.skipif(not (PLUS/'scripts_evaluation').is_dir(), reason='UITARS_BENCH_BROWSECOMP_PLUS names no copy of texttron/BrowseComp-Plus')
QUESTIONS = [WebQuestion('0', 'Which moon of Mars is the larger one?', 'Phobos'), WebQuestion('1', 'How many days has a year on Mars?', '687')]


def verdict_of(prompt):
    "A judge that compares letter by letter."
    right = re.findall(r'\[correct_answer\]: (.*)', prompt)[0]
    return f'extracted_final_answer: compared\nreasoning: letter by letter\ncorrect: {"yes" if f"Exact Answer: {right}" in prompt else "no"}\nconfidence: 90%'


class Endpoint(BaseHTTPRequestHandler):
    "OpenAI's two ways to ask a model."
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if self.path.endswith('/responses'):
            text = dict(type='output_text', text=verdict_of(said['input']), annotations=[])
            self.answer(dict(id='r', object='response', created_at=0, status='completed', model=said['model'], tools=[], tool_choice='auto', parallel_tool_calls=True,
                             output=[dict(type='message', id='m', role='assistant', status='completed', content=[text])]))
        else: self.answer(dict(choices=[dict(message=dict(role='assistant', content=verdict_of(said['messages'][-1]['content'])), finish_reason='stop')]))
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        for k, v in (('Content-Type', 'application/json'), ('Content-Length', str(len(data)))): self.send_header(k, v)
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args): pass


@pytest.fixture(scope='module')
def url():
    server = ThreadingHTTPServer(('127.0.0.1', 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/v1'
    server.shutdown()


def reply(answer, confidence=90): return f'Explanation: as page [17] says\nExact Answer: {answer}\nConfidence: {confidence}%'


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_cipher_is_its_own_inverse(text, canary): assert decrypt(encrypt(text, canary), canary) == text


@pytest.mark.parametrize('text, answer, confidence', [
    (reply('Phobos'), 'Phobos', 90), ('**Exact Answer**: Phobos \n**Confidence**: 75.5 %', 'Phobos', 75.5), ('exact answer: 1: 2\nconfidence: 300', '1: 2', 100),
    ('Exact Answer: a\nExact Answer: b', 'b', 100), ('no parts', '', 100), ('### Exact Answer: Phobos\n### Confidence: low', 'Phobos', 100)])
def test_replies_are_read_in_the_shapes_that_models_write(text, answer, confidence):
    found = parse_reply(text)
    assert (found.answer, found.confidence) == (answer, confidence)


def test_a_repeated_reply_is_no_verdict():
    assert parse_verdict('reasoning: the response says "correct: yes"\n**correct**: no') is False
    assert parse_verdict('incorrect: yes') is None and parse_verdict('[correct_answer]: yes') is None and parse_verdict('correct_answer: yes') is None


def test_calibration_by_hand():
    "Two bins of 100: 50 % sure and 40 % right, 90 % sure and 100 % right: the root of the mean of .1² and .1²."
    confidence, correct = [50] * 100 + [90] * 100, [True] * 40 + [False] * 60 + [True] * 100
    assert calibration_error(confidence, correct) == pytest.approx(10)
    assert np.isnan(calibration_error([50] * 99, [True] * 99))


def test_a_run_is_judged_once_and_a_missing_reply_is_wrong(url, tmp_path):
    async def main():
        async with ChatJudge(url, 'rule') as judge: return await evaluate_browsecomp(QUESTIONS, {'0': reply('Phobos')}, judge, tmp_path)
    table = asyncio.run(main())
    assert table.correct.tolist() == [True, False] and read_json(tmp_path/'summary.json')['accuracy']['value'] == .5
    first = (tmp_path/'verdicts.jsonl').read_text()
    asyncio.run(main())
    assert (tmp_path/'verdicts.jsonl').read_text() == first


def test_an_endpoint_that_is_none_says_so(url):
    async def main():
        async with ChatJudge(url.replace('/v1', '/models/none'), patience=.1) as judge: await judge.ask([user_message('hello')])
    with pytest.raises(RemoteError), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        asyncio.run(main())


def trajectory(id, answer, found, stop=StopReason.FINISHED):
    screen = np.zeros((4, 4, 3), np.uint8)
    end = (Action('finished', dict(content=answer)),) if stop is StopReason.FINISHED else (Action('wait', {}),)
    steps = (Step(Observation(screen), actions=(Action('Search', dict(query='moons')),)), Step(Observation(screen, text=found), actions=end))
    return Trajectory(id, TaskSpec('web/q'), steps, stop, 0., policy='me')


def own_runs(tmp_path):
    "Two run files: a right answer that found one of two documents, and an episode out of steps."
    corpus = PageCorpus(plus_corpus([dict(docid='17', text='Moons\n\nPhobos and Deimos are moons.'), dict(docid='4', text='Sand\n\nOnly sand.')], tmp_path/'pages.jsonl'))
    found = search_text(asyncio.run(corpus.search('moons', 8)), 'moons')
    runs = [plus_run(trajectory('a', reply('Phobos'), found), '0'), plus_run(trajectory('b', '', found, StopReason.STEP_LIMIT), '1')]
    (tmp_path/'qrels.txt').write_text('0 Q0 17 1\n0 Q0 99 1\n1 Q0 4 1\n')
    return runs


def test_run_files_hold_what_searches_found(tmp_path):
    one, two = own_runs(tmp_path)
    assert (one['status'], one['retrieved_docids'], one['tool_call_counts']) == ('completed', ['17'], dict(search=1, get_document=0))
    assert (two['status'], two['result'][-1]['output']) == ('step_limit', '')
    assert retrieval_recall([one, two], read_qrels(tmp_path/'qrels.txt')) == .25


@with_simple
def test_simple_evals_decrypts_what_we_encrypt_and_its_grader_never_says_yes(url):
    spec = importlib.util.spec_from_file_location('simple_evals_copy', SIMPLE/'__init__.py', submodule_search_locations=[str(SIMPLE)])
    package = importlib.util.module_from_spec(importlib.machinery.ModuleSpec('simple_evals_copy', None, is_package=True))
    package.__path__ = [str(SIMPLE)]
    sys.modules['simple_evals_copy'] = package
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')   # its template holds an unknown escape
        theirs = importlib.import_module('simple_evals_copy.browsecomp_eval')
    for text in ('Phobos', 'é' * 100, 'x' * 31): assert theirs.decrypt(encrypt(text, 'a canary'), 'a canary') == text
    template = constant_of(SIMPLE/'browsecomp_eval.py', 'GRADER_TEMPLATE')
    assert template == theirs.GRADER_TEMPLATE and constant_of(SIMPLE/'browsecomp_eval.py', 'QUERY_TEMPLATE') == theirs.QUERY_TEMPLATE
    assert 'Exact Answer: {your succinct, final answer}' in question_prompt('Q?', theirs.QUERY_TEMPLATE)
    grader = theirs.BrowseCompEval.__new__(theirs.BrowseCompEval)   # without its download
    class Sampler:
        def _pack_message(self, content, role): return dict(content=content, role=role)
        def __call__(self, messages): return SimpleNamespace(response_text=verdict_of(messages[0]['content']))
    grader.grader_model = Sampler()
    said = grader.grade_sample(QUESTIONS[0].question, 'Phobos', reply('Phobos'))
    assert said == 'correct: yes' and said != 'yes'   # which their `is_correct = grade_result == "yes"` scores 0

    async def ours():
        async with ChatJudge(url, 'rule') as judge: return [(await judge_reply(judge, QUESTIONS[0], reply(o), template))[0] for o in ('Phobos', 'Deimos')]
    assert asyncio.run(ours()) == [True, False]


@with_plus
def test_browsecomp_plus_evaluates_our_run_as_we_do(url, tmp_path):
    "Its `evaluate_with_openai.py`, unchanged, with its OpenAI client pointed at the same judge."
    runs = own_runs(tmp_path)
    write_plus(runs, tmp_path/'runs'/'ours')
    (tmp_path/'truth.jsonl').write_text(''.join(json.dumps(dict(query_id=o.id, query=o.question, answer=o.answer)) + '\n' for o in QUESTIONS))
    command = [sys.executable, str(PLUS/'scripts_evaluation'/'evaluate_with_openai.py'), '--input_dir', str(tmp_path/'runs'/'ours'), '--ground_truth', str(tmp_path/'truth.jsonl'),
               '--eval_dir', str(tmp_path/'evals'), '--qrel_evidence', str(tmp_path/'qrels.txt'), '--model', 'rule']
    done = subprocess.run(command, env=os.environ | dict(OPENAI_API_KEY='none', OPENAI_BASE_URL=url), cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(next((tmp_path/'evals').rglob('evaluation_summary.json')).read_text())

    async def ours():
        replies = {o['query_id']: o['result'][-1]['output'] for o in runs}
        async with ChatJudge(url, 'rule') as judge: return await evaluate_browsecomp(read_questions(tmp_path/'truth.jsonl'), replies, judge, tmp_path/'graded')
    table = asyncio.run(ours())
    assert theirs['Accuracy (%)'] == 50 == 100 * table.correct.mean()
    assert theirs['Recall (%)'] == 25 == 100 * retrieval_recall(runs, read_qrels(tmp_path/'qrels.txt'))
    assert theirs['LLM'] == 'me' and theirs['avg_tool_stats']['search'] == 1


@with_plus
def test_its_parser_of_verdicts_agrees():
    "On judgements in the shapes that it expects; ours is stricter on a reply repeated within a line."
    sys.path.insert(0, str(PLUS))
    try:
        spec = importlib.util.spec_from_file_location('evaluate_with_openai', PLUS/'scripts_evaluation'/'evaluate_with_openai.py')
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            spec.loader.exec_module(module)
    finally: sys.path.pop(0)
    for text in ('correct: yes', 'correct: no', '**correct:** yes', '**correct**: No', 'reasoning: a\ncorrect: Yes\nconfidence: 5%', 'nothing'):
        assert module.parse_judge_response(text)['correct'] == parse_verdict(text)
    repeated = 'reasoning: it says correct: yes\ncorrect: no'
    assert module.parse_judge_response(repeated)['correct'] is True and parse_verdict(repeated) is False
    assert module.load_qrel_data(PLUS/'topics-qrels'/'qrel_golds.txt').keys() == read_qrels(PLUS/'topics-qrels'/'qrel_golds.txt').keys()
