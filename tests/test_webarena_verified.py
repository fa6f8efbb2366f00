"""WebArena-Verified: HAR files of our browser sessions, graded by the benchmark's own evaluator.

Where UITARS_BENCH_WEBARENA_VERIFIED is the program webarena-verified (python3.12 -m venv VENV; VENV/bin/pip install webarena-verified), it grades
episodes on a small site of our own, which answers at the addresses of some of its tasks. The expected values are read from the package.
"""
import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from uitars_nb.agent.loop import Reply
from uitars_nb.core.runs import read_json, write_json
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, StopReason
from uitars_nb.evaluation.benchmarks.har import Hop, HarRecorder, har, real_headers
from uitars_nb.evaluation.benchmarks.webarena_verified import PROGRAM, VerifiedEntry, grade_verified, play_verified, read_verified, verified_index
from uitars_nb.evaluation.evaluate import by_task
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.tasks.oracle_helpers import click_on, type_into

program = os.environ.get(PROGRAM, '')
with_program = pytest.mark.skipif(not Path(program or '/none').is_file(), reason=f'{PROGRAM} names no program webarena-verified')
WISH = 'Colgate <b>toothpaste</b> has been added to your wish list.'
FIELD, USER = 'user_biography[biography]', 'MarvelsGrantMan136'
PAGE = f'''<script>fetch('/totals').then(o => o.json()).then(o => document.title = o.n)</script>
<a id=product href="/teeth-guard.html">Guard</a> <a id=tab href="/in-a-tab" target=_blank>Tab</a> <a id=hops href="/hop/2">Hops</a>
<form method=post action="/user/{USER}/edit_biography"><input id=bio name="{FIELD}"><button id=save>Save</button></form>
<form method=post action="/wishlist/index/add/" enctype="multipart/form-data"><input type=hidden name=product value=7><button id=wish>Wish</button></form>'''


class Site(BaseHTTPRequestHandler):
    "Shop and forum at once."
    def do_GET(self):
        if self.path.startswith('/hop/') and self.path != '/hop/0': return self.answer(302, {'Location': f'/hop/{int(self.path[-1]) - 1}', 'Set-Cookie': f'hop={self.path[-1]}'})
        if self.path == '/totals': return self.answer(200, {'Content-Type': 'application/json'}, b'{"n": 3}')
        self.answer(200, {'Content-Type': 'text/html; charset=utf-8', 'X-Cookie': self.headers.get('Cookie', ''), 'X-Login': self.headers.get('X-M2-Admin-Auto-Login', '')}, PAGE.encode())
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        from urllib.parse import quote
        cookie = {'Set-Cookie': f'mage-messages={quote(WISH)}; Path=/'} if 'wishlist' in self.path else {}
        self.answer(302, {'Location': '/'} | cookie)
    def answer(self, status, headers, body=b''):
        self.send_response(status)
        for k, v in (headers | {'Content-Length': str(len(body))}).items(): self.send_header(k, v)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass


@pytest.fixture
def site(tmp_path):
    "The site under two names of the benchmark, and its configuration file."
    servers = [ThreadingHTTPServer(('127.0.0.1', 0), Site) for _ in range(2)]
    for o in servers: threading.Thread(target=o.serve_forever, daemon=True).start()
    shop, forum = (f'http://127.0.0.1:{o.server_port}' for o in servers)
    login = dict(use_header_login=True, credentials=dict(username='ada', password='x'))
    write_json(tmp_path/'config.json', dict(environments=dict(__SHOPPING__=dict(urls=[shop]) | login, __REDDIT__=dict(urls=[forum]))))
    yield shop
    for o in servers: o.shutdown()


class Worker:
    "Does what `WORK` says for the task, then says `SAYS`."
    WORK, SAYS = {}, {}
    def __init__(self, session, task, spec):
        self.id, self.session = task.entry.task_id, session
        self.left = self.acts()
    async def acts(self):
        for what, *args in self.WORK.get(self.id, ()):
            if what == 'click': yield await click_on(self.session, f"$('#{args[0]}')")
            elif what == 'crash': raise EnvironmentFailure(StopReason.ENV_CRASH, 'the engine is gone')
            else:
                async for action in type_into(self.session, f"$('#{args[0]}')", args[1]): yield action
    async def act(self, steps, obs):
        said = self.SAYS.get(self.id, dict(task_type='navigate', status='SUCCESS', retrieved_data=None))
        return Reply(actions=(await anext(self.left, Action('finished', dict(content=said if isinstance(said, str) else json.dumps(said)))),))


def entries_of(har_file): return read_json(har_file)['log']['entries']
def headers(entry, side): return {o['name'].lower(): o['value'] for o in entry[side]['headers']}


async def test_requests_of_all_tabs_redirects_bodies_and_logins(site, tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, 'WORK', {1: [('click', 'hops'), ('type', 'bio', 'grün'), ('click', 'save'), ('click', 'wish'), ('click', 'tab')]})
    state = dict(cookies=[dict(name='session', value='kept', domain='127.0.0.1', path='/', expires=-1, httpOnly=True, secure=False, sameSite='Lax')])
    write_json(tmp_path/'state.json', state)
    entry = VerifiedEntry(1, ('shopping',), (f'{site}/', f'{site}/second'), 'Work')
    folder = await play_verified([entry], tmp_path/'config.json', f'{__name__}:Worker', tmp_path/'run', storage_state=tmp_path/'state.json')
    found = entries_of(folder/'1/network.har')
    paths = [(o['request']['method'], urlsplit(o['request']['url']).path) for o in found if o['request']['url'].startswith(site) and 'totals' not in o['request']['url']]
    assert paths == [('GET', '/'), ('GET', '/second'), ('GET', '/hop/2'), ('GET', '/hop/1'), ('GET', '/hop/0'), ('POST', f'/user/{USER}/edit_biography'), ('GET', '/'),
                     ('POST', '/wishlist/index/add/'), ('GET', '/'), ('GET', '/in-a-tab')]
    by = {(o['request']['method'], urlsplit(o['request']['url']).path): o for o in found}
    hop, bio, wish, last = by['GET', '/hop/2'], by['POST', f'/user/{USER}/edit_biography'], by['POST', '/wishlist/index/add/'], by['GET', '/in-a-tab']
    assert (hop['response']['status'], hop['response']['redirectURL'], hop['response']['cookies']) == (302, f'{site}/hop/1', [dict(name='hop', value='2')])
    assert by['GET', '/hop/1']['response']['cookies'] == [dict(name='hop', value='1')] and not by['GET', '/hop/0']['response']['cookies']
    assert bio['request']['postData'] == dict(mimeType='application/x-www-form-urlencoded', text='user_biography%5Bbiography%5D=gr%C3%BCn')
    assert 'name="product"' in wish['request']['postData']['text'] and 'boundary=' in wish['request']['postData']['mimeType']
    assert headers(last, 'response')['x-login'] == 'ada:x' and 'session=kept' in headers(last, 'response')['x-cookie'] and headers(last, 'request')['sec-fetch-dest'] == 'document'
    assert {o['response']['content'].get('text') for o in found if o['request']['url'].endswith('totals')} >= {'{"n": 3}'}


async def test_a_broken_episode_has_no_output_and_is_played_again(site, tmp_path, monkeypatch):
    entry = VerifiedEntry(1, ('shopping',), (f'{site}/',), 'Work')
    again = lambda: play_verified([entry], tmp_path/'config.json', f'{__name__}:Worker', tmp_path/'run')
    monkeypatch.setattr(Worker, 'WORK', {1: [('crash',)]})
    folder = await again()
    assert not (folder/'1').exists() and by_task(verified_index(tmp_path/'run')).env_failures.tolist() == [1]
    monkeypatch.setattr(Worker, 'WORK', {})
    await again()
    assert (folder/'1/network.har').exists() and len(Store(tmp_path/'run/store')) == 2
    assert verified_index(tmp_path/'run').stop.tolist() == ['env_verifier'], 'not graded yet'
    write_json(folder/'1/eval_result.json', dict(sites=['shopping'], status='partial_match', score=.5))
    row = verified_index(tmp_path/'run').iloc[0]
    assert (row.stop, row.env_failure, row.success, row.reward) == ('finished', False, False, .5)


def test_hops_without_real_headers_shift_nothing():
    hops = [Hop({}, 0., extra=False), Hop({}, 0.), Hop({}, 0.)]
    assert real_headers(hops, [dict(a='1')]) == [{}, dict(a='1'), {}]


async def test_an_empty_recording_is_a_valid_archive(): assert (await har(HarRecorder()))['log']['entries'] == []


@with_program
async def test_their_evaluator_grades_our_episodes(site, tmp_path, monkeypatch):
    run = lambda *words: subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True)
    config = tmp_path/'config.json'
    ids = 118, 27, 399, 512, 158, 400, 28
    run('agent-input-get', '--task-ids', ','.join(map(str, ids)), '--config', config, '--output', tmp_path/'tasks.json')
    run('dataset-get', '--task-ids', '27,28', '--output', tmp_path/'data.json')
    right = {o['task_id']: o['eval'][0]['expected'] for o in read_json(tmp_path/'data.json')}
    mutate = dict(task_type='mutate', status='SUCCESS', retrieved_data=None)
    monkeypatch.setattr(Worker, 'WORK', {118: [('click', 'product')], 399: [('type', 'bio', 'I am a robot'), ('click', 'save')], 512: [('click', 'wish')],
                                         400: [('type', 'bio', 'I am no robot'), ('click', 'save')]})
    monkeypatch.setattr(Worker, 'SAYS', {27: '```json\n' + json.dumps(right[27]) + '\n```', 399: mutate, 512: mutate, 400: mutate, 28: 'It was nobody.'})
    entries = read_verified(tmp_path/'tasks.json', [118, 27, 399, 512, 158, 400, 28])
    folder = await play_verified(entries, config, f'{__name__}:Worker', tmp_path/'run')
    grade_verified(folder, config, program)
    index = verified_index(tmp_path/'run').set_index('seed')
    why = {o.parent.name: (o.read_text()[:3000]) for o in folder.glob('*/eval_result.json')}
    assert {k: bool(v) for k, v in index.success.items()} == {'118': True, '27': True, '399': True, '512': True, '158': False, '400': False, '28': False}, why
    assert not index.env_failure.any() and {*index.task} == {'webarena-verified/shopping', 'webarena-verified/reddit'}, index
