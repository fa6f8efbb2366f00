"The HTTP service with the `openai` client over a real port, and the remote engine against it and against servers that misbehave."
import asyncio
import inspect
import re
from contextlib import asynccontextmanager

import httpx
import numpy as np
import openai
import pytest
import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from tests.tiny_models import write_checkpoint
from transformers import AutoImageProcessor

from uitars_nb.agent.policy_agent import PolicyAgent, ask
from uitars_nb.core.coordinates import smart_resize
from uitars_nb.core.types import Action, Completion, ContextExceeded, Observation, RequestFailed, Step, TaskSpec
from uitars_nb.evaluation.policies import make_player
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.remote import RemoteEngine, RemoteError
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.server import _unless_gone, data_url, make_app, serving, url_image
from uitars_nb.model.nano.tokenizer import make_tokenizer

torch.set_num_threads(1)
SCREEN = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
ASK = [dict(role='system', content='You act.'), dict(role='user', content=[dict(type='text', text='click'), dict(type='image_url', image_url=dict(url=data_url(SCREEN)))])]
CHAT = [dict(role='system', content='You act.'), dict(role='user', content=[dict(type='text', text='click'), dict(type='image', image=SCREEN)])]


@pytest.fixture(scope='module')
def policy(): return Policy(*new_policy(make_tokenizer(['Click on the button.']), hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2', 'nano')


@asynccontextmanager
async def service(policy, **kwargs):
    async with Engine(policy, **kwargs) as engine, serving(engine) as (url, token):
        async with openai.AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as client: yield engine, url, token, client


async def test_the_openai_client_gets_what_the_engine_gives(policy):
    async with service(policy, version=4) as (engine, url, token, client):
        want = Sampling(.7, .9, max_tokens=12, seed=5)
        direct = await engine.complete(CHAT, want)
        got = await client.chat.completions.create(model='nano', messages=ASK, temperature=.7, top_p=.9, max_tokens=12, seed=5, logprobs=True, extra_body=dict(return_token_ids=True))
        choice = got.choices[0]
        assert choice.token_ids == direct.ids.tolist() and got.prompt_token_ids == direct.prompt_ids.tolist()
        assert np.allclose([o.logprob for o in choice.logprobs.content], direct.logps, atol=1e-5)
        assert choice.finish_reason == direct.finish and choice.token_versions == [4] * len(direct.ids)
        assert got.usage.prompt_tokens == len(direct.prompt_ids) and got.usage.completion_tokens == len(direct.ids)
        assert direct.text.startswith(choice.message.content)
        assert [o.id for o in (await client.models.list()).data] == ['nano']


async def test_several_replies_differ_and_follow_their_seeds(policy):
    async with service(policy) as (engine, url, token, client):
        got = await client.chat.completions.create(model='nano', messages=ASK, max_tokens=8, seed=5, n=3, extra_body=dict(return_token_ids=True))
        for i, o in enumerate(got.choices): assert o.token_ids == (await engine.complete(CHAT, Sampling(max_tokens=8, seed=5 + i))).ids.tolist()
        assert engine.stats()['encoded_images'] == 1


async def test_stop_texts_are_cut_off_and_ids_are_not(policy):
    async with service(policy) as (engine, url, token, client):
        free = (await engine.complete(CHAT, Sampling(0, max_tokens=9))).text
        stop = free[len(free) // 2:][:2]
        got = await client.chat.completions.create(model='nano', messages=ASK, max_tokens=9, temperature=0, stop=[stop], extra_body=dict(return_token_ids=True))
        assert got.choices[0].finish_reason == 'stop' and stop not in got.choices[0].message.content
        assert stop in policy.decode(got.choices[0].token_ids)


async def test_any_model_name_means_the_one_that_is_served(policy):
    async with service(policy) as (engine, url, token, client):
        got = await client.chat.completions.create(model='gpt', messages=ASK, max_tokens=2)
        assert got.model == 'nano' and got.choices


async def test_refusals_say_why(policy):
    async with service(policy, context=300) as (engine, url, token, client):
        async def refused(kind, match, **kwargs):
            with pytest.raises(kind, match=match): await client.chat.completions.create(**dict(model='nano', messages=ASK) | kwargs)
        picture = lambda u: [dict(role='user', content=[dict(type='image_url', image_url=dict(url=u))])]
        bad = openai.BadRequestError
        await refused(bad, 'does not fit a context of 300', messages=[dict(role='user', content='go ' * 400)])
        await refused(bad, 'others are not fetched', messages=picture('http://127.0.0.1/secret.png'))
        await refused(bad, 'others are not fetched', messages=picture('file:///etc/passwd'))
        await refused(bad, 'cannot be read', messages=picture('data:image/png;base64,aGVsbG8='))
        await refused(bad, "not 'video'", messages=[dict(role='user', content=[dict(type='video')])])
        await refused(bad, 'temperature', temperature=-1)
        await refused(bad, 'streamed', stream=True)
        await refused(bad, 'tools', tools=[dict(type='function', function=dict(name='f'))])
        assert engine.stats()['reply_tokens'] == 0
        async with httpx.AsyncClient() as bare:
            for headers in ({}, dict(authorization='Bearer wrong'), dict(authorization=token), dict(authorization='Bearer t')):
                for path in ('models', 'chat/completions', 'nothing'): assert (await bare.get(f'{url}/{path}', headers=headers)).status_code == 401
        with pytest.raises(ValueError, match='needs a token'): make_app(engine, '')


async def test_a_client_that_hangs_up_leaves_the_batch(policy, monkeypatch):
    monkeypatch.setattr(policy, 'eos_ids', frozenset())
    async with service(policy) as (engine, url, token, client):
        task = asyncio.create_task(client.chat.completions.create(model='nano', messages=ASK, max_tokens=3900))
        while not engine.stats()['running']: await asyncio.sleep(.005)
        task.cancel()
        drawn = engine.stats()['reply_tokens']
        async with asyncio.timeout(30):
            while engine.stats()['running']: await asyncio.sleep(.005)
        assert engine.stats()['reply_tokens'] < 3800 + drawn


ECHO = dict(role='assistant', content='Done.', refusal=None, tool_calls=None, function_call=None)   # what OpenAI's client makes of a reply


@pytest.mark.parametrize('field, message', [
    ('tool_calls', dict(role='assistant', content='', tool_calls=[dict(id='a')])), ('function_call', dict(role='assistant', content='', function_call=dict(name='f'))),
    ('name', dict(role='user', content='A', name='bob')), ('reasoning_content', dict(role='assistant', content='A', reasoning_content='B')), ('contnet', dict(role='user', contnet='A')),
    ('content', dict(role='user')), ('content', dict(role='user', content=None)), ('int', dict(role='user', content=0)), ('bool', dict(role='user', content=False)), ('dict', dict(role='user', content={})),
    ('cache_control', dict(role='user', content=[dict(type='text', text='A', cache_control=dict(type='ephemeral'))])),
    ('low', dict(role='user', content=[dict(type='image_url', image_url=dict(url=data_url(SCREEN), detail='low'))]))])
async def test_what_a_message_holds_is_read_or_refused_by_name(policy, field, message):
    async with Engine(policy) as engine, serving(engine, 'secret') as (url, _), httpx.AsyncClient(base_url=url, headers=dict(authorization='Bearer secret')) as client:
        ask = lambda *messages: client.post('/chat/completions', json=dict(messages=list(messages), max_tokens=1))
        refused, fine = await ask(message, dict(role='user', content='go')), await ask(ECHO, dict(role='user', content=''))
    assert refused.status_code == 400 and field in refused.json()['error']['message'] and fine.status_code == 200


@pytest.mark.parametrize('content, why', [([dict(type='ids', ids=[1 << 31])], 'list of token ids'), ([dict(type='ids', ids=[999999])], 'another tokenizer'), ([dict(type='ids', ids=[-1])], 'list of token ids'), ([dict(type='ids')], 'list of token ids'),
    ([dict(type='ids', ids=None)], 'list of token ids'), ([dict(type='image_url', image_url=dict(url=None))], 'image_url with its url'), ([dict(type='image_url')], 'image_url with its url'), ([7], 'not .int'), (7, 'list of parts, not int')])
async def test_what_no_model_can_take_is_the_clients_fault(policy, content, why):
    async with Engine(policy) as engine, httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine, 't')), base_url='http://here', headers=dict(authorization='Bearer t')) as client:
        answer = await client.post('/v1/chat/completions', json=dict(messages=[dict(role='user', content=content)], max_tokens=1))
        assert answer.status_code == 400 and re.search(why, answer.json()['error']['message'])


async def test_a_bug_of_the_server_is_not_the_clients_fault(policy, monkeypatch):
    async with Engine(policy) as engine, httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine, 't')), base_url='http://here', headers=dict(authorization='Bearer t')) as client:
        async def complete(*args): raise KeyError('layer')
        monkeypatch.setattr(engine, 'complete', complete)
        answer = await client.post('/v1/chat/completions', json=dict(messages=ASK, max_tokens=1))
        assert answer.status_code == 500 and 'KeyError' in answer.json()['error']['message']


async def test_where_one_of_several_replies_fails_the_others_leave_the_batch(policy, monkeypatch):
    monkeypatch.setattr(policy, 'eos_ids', frozenset())
    async with Engine(policy) as engine, httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine, 't')), base_url='http://here', headers=dict(authorization='Bearer t')) as client:
        complete, asked = engine.complete, []
        async def one_fails(*args):
            asked.append(args)
            if len(asked) < 3: return await complete(*args)
            while engine.stats()['running'] < 2: await asyncio.sleep(.005)
            raise RequestFailed('too long for the memory')
        monkeypatch.setattr(engine, 'complete', one_fails)
        answer = await client.post('/v1/chat/completions', json=dict(messages=ASK, max_tokens=3900, n=3))
        assert answer.status_code == 413 and len(asked) == 3
        async with asyncio.timeout(30):
            while engine.stats()['running']: await asyncio.sleep(.005)
        assert engine.stats()['reply_tokens'] < 3800


async def test_nobody_is_answered_who_has_gone():
    async def slow(): await asyncio.sleep(60)
    class Gone:
        async def receive(self): return dict(type='http.disconnect')
    assert await _unless_gone(Gone(), asyncio.gather(slow(), slow())) is None


@pytest.mark.parametrize('ask', [dict(messages=[]), dict(max_tokens=0), dict(max_completion_tokens=0)])
async def test_what_cannot_be_answered_is_refused(policy, ask):
    async with Engine(policy) as engine, httpx.AsyncClient(transport=httpx.ASGITransport(make_app(engine, 't')), base_url='http://here', headers=dict(authorization='Bearer t')) as client:
        answer = await client.post('/v1/chat/completions', json=dict(messages=ASK) | ask)
        assert answer.status_code == 400


async def test_a_full_server_says_so(policy, monkeypatch):
    monkeypatch.setattr(policy, 'eos_ids', frozenset())
    async with Engine(policy) as engine:
        app = make_app(engine, 't', limit=1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url='http://here', headers=dict(authorization='Bearer t'), timeout=60) as client:
            post = lambda n: client.post('/v1/chat/completions', json=dict(messages=ASK, max_tokens=n))
            first = asyncio.create_task(post(500))
            while not engine.stats()['running']: await asyncio.sleep(.002)
            assert (await post(1)).status_code == 503
            assert (await first).status_code == 200 and (await post(1)).status_code == 200


async def test_the_remote_engine_gives_the_same_completions(policy):
    replies = [np.int32([70, 71, 300]), np.int32([72])]
    chat = CHAT + [dict(role='assistant', content=[dict(type='ids', ids=replies[0], text='x')]), dict(role='user', content=[dict(type='image', image=SCREEN)])]
    async with service(policy, version=2) as (engine, url, token, _), RemoteEngine(url, 'nano', token, token_parts=True) as remote:
        for i in range(3):
            want = Sampling(.8, max_tokens=7, seed=i)
            a, b = await engine.complete(chat, want), await remote.complete(chat, want, 'episode')
            for k in ('prompt_ids', 'ids', 'versions'): assert np.array_equal(getattr(a, k), getattr(b, k)) and getattr(a, k).dtype == getattr(b, k).dtype
            assert np.allclose(a.logps, b.logps, atol=1e-5) and a.finish == b.finish
        assert ('episode', 'last') in engine.worker.batch.prefixes, 'the key has reached the engine'


async def test_a_policy_acts_behind_our_server_as_it_does_in_process(policy, monkeypatch):
    "Past replies are the tokens that they were, however their text would be tokenised; and prompts fit what the server takes."
    spelled = np.int32([policy.encode(o)[0] for o in 'button'])
    assert len(policy.encode('button')) < len(spelled), 'one text in two ways'
    monkeypatch.setattr(policy, 'memory', dict(chunk=3))
    said = Completion(policy.decode(spelled), np.zeros(0, np.int32), spelled, np.zeros(6, np.float32), np.zeros(6, np.int32))
    steps = [Step(Observation(SCREEN), '', (Action('wait', {}),), said)]
    async with service(policy, context=600) as (engine, url, token, _):
        monkeypatch.setenv('UITARS_TOKEN', token)
        seen = []
        async with make_player(f'{url}#nano', max_tokens=5) as make:
            assert (make.config.context, make.config.chunk) == (600, 3)
            for agent in (make, PolicyAgent.of(policy, engine, Sampling(0, max_tokens=5, seed=0))):
                reply = await agent(None, None, TaskSpec('miniwob/click-test', 0, 'Click "Submit".')).act(steps, Observation(SCREEN))
                seen.append(reply.completion)
    assert np.array_equal(seen[0].prompt_ids, seen[1].prompt_ids) and np.array_equal(seen[0].ids, seen[1].ids)
    assert spelled.tolist() in [seen[0].prompt_ids[i:i + 6].tolist() for i in range(len(seen[0].prompt_ids))]


@asynccontextmanager
async def misbehaving(answer):
    "A server of one function; gives its URL and the requests that it has seen."
    app, seen = FastAPI(), []
    @app.post('/v1/chat/completions')
    async def chat(request: Request):
        seen.append(await request.json())
        said = answer(len(seen))
        return await said if inspect.isawaitable(said) else said
    config = uvicorn.Config(app, '127.0.0.1', 0, log_level='error', lifespan='off')
    server, sock = uvicorn.Server(config), config.bind_socket()
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started: await asyncio.sleep(.01)
    try: yield f'http://127.0.0.1:{sock.getsockname()[1]}/v1', seen
    finally: server.should_exit = True; await task


def vllm(ids=(5, 6), logps=(-.1, -.2), **kwargs):
    content = [dict(token='a', logprob=o, bytes=[97], top_logprobs=[]) for o in logps]
    return dict(id='x', object='chat.completion', choices=[dict(index=0, message=dict(role='assistant', content='ab'), finish_reason='length', stop_reason=None, logprobs=dict(content=content), token_ids=list(ids))],
                prompt_token_ids=[1, 2, 3]) | kwargs


async def test_failures_that_pass_are_tried_again():
    async with misbehaving(lambda n: JSONResponse({}, 503) if n < 3 else JSONResponse(vllm())) as (url, seen), RemoteEngine(url, 'm', version=7, extra=dict(top_k=-1)) as remote:
        c = await remote.complete(CHAT, Sampling(seed=3, stop=('x',)), 'k')
    assert len(seen) == 3 and seen[0] == seen[2]
    assert {k: seen[0][k] for k in ('model', 'seed', 'stop', 'top_k', 'prompt_cache_key', 'logprobs', 'return_token_ids')} == dict(model='m', seed=3, stop=['x'], top_k=-1, prompt_cache_key='k', logprobs=True, return_token_ids=True)
    assert seen[0]['messages'][1]['content'][1]['image_url']['url'] == data_url(SCREEN)
    assert (c.text, c.finish, c.ids.tolist(), c.prompt_ids.tolist(), c.versions.tolist()) == ('ab', 'length', [5, 6], [1, 2, 3], [7, 7]) and c.seconds['remote'] > .25


async def test_an_answer_that_stalls_is_asked_for_again():
    "Also where one answer may take longer than patience lasts."
    again = asyncio.Event()
    async def late(n):
        if n == 1: await again.wait()
        again.set()
        return JSONResponse(vllm())
    async with misbehaving(late) as (url, seen), RemoteEngine(url, 'm', timeout=5, patience=1) as remote:
        with pytest.warns(UserWarning, match='ReadTimeout'): await remote.complete(CHAT)
    assert len(seen) == 2


async def test_what_a_server_refuses_between_answers_is_one_requests_failure():
    "The first request that is refused is an error of whoever asks; a later one costs its episode."
    async with misbehaving(lambda n: JSONResponse(vllm()) if n % 2 else JSONResponse(dict(error=dict(message='no such part')), 422)) as (url, _), RemoteEngine(url, 'm') as remote:
        await ask(remote, CHAT, Sampling(), 'k')
        with pytest.raises(EnvironmentFailure, match='failed at this request.*no such part'): await ask(remote, CHAT, Sampling(), 'k')
        await ask(remote, CHAT, Sampling(), 'k')


@pytest.mark.parametrize('nonsense, why', [(PlainTextResponse('<html>'), 'did not answer in JSON'), (JSONResponse(dict(choices=[])), 'other than a chat completion')])
async def test_nonsense_between_answers_is_one_requests_failure(nonsense, why):
    async with misbehaving(lambda n: JSONResponse(vllm()) if n % 2 else nonsense) as (url, _), RemoteEngine(url, 'm') as remote:
        await ask(remote, CHAT, Sampling(), 'k')
        with pytest.raises(EnvironmentFailure, match=why): await ask(remote, CHAT, Sampling(), 'k')
        await ask(remote, CHAT, Sampling(), 'k')


@pytest.mark.parametrize('answer, why, tries', [
    (JSONResponse(dict(error=dict(message='no such model')), 404), 'status 404.*no such model', 1),
    (PlainTextResponse('hello'), 'did not answer in JSON', 1),
    (JSONResponse(dict(choices=[])), 'other than a chat completion', 1),
    (JSONResponse(vllm(ids=(5,))), '1 ids and 2 log-probabilities', 1),
    (JSONResponse({}, 500), 'no answer within 1 s', 2)])
async def test_what_does_not_pass_is_raised(answer, why, tries):
    async with misbehaving(lambda n: answer) as (url, seen), RemoteEngine(url, 'm', patience=1) as remote:
        with pytest.raises(RemoteError, match=why): await remote.complete(CHAT)
    assert tries == len(seen) if tries == 1 else len(seen) >= tries


@pytest.mark.parametrize('message', ["This model's maximum context length is 4096 tokens. However, you requested 5000", 'a prompt of 5000 tokens does not fit a context of 4096: it needs 1 to 4095', 'context_length_exceeded',
    "The input (61709 tokens) is longer than the model's context length (40960 tokens)."])
async def test_a_prompt_that_is_too_long_for_a_server_is_told_from_other_refusals(message):
    async with misbehaving(lambda n: JSONResponse(dict(error=dict(message=message)), 400)) as (url, _), RemoteEngine(url, 'm') as remote:
        with pytest.raises(ContextExceeded, match='takes no prompt of that length'): await ask(remote, CHAT, Sampling(), 'k')
    async with misbehaving(lambda n: JSONResponse(dict(error=dict(message='no such role')), 400)) as (url, _), RemoteEngine(url, 'm') as remote:
        with pytest.raises(RemoteError, match='no such role'): await ask(remote, CHAT, Sampling(), 'k')


async def test_a_server_that_stays_away_is_the_environments_failure_and_a_refusal_is_not():
    async with RemoteEngine('http://127.0.0.1:9/v1', 'm', patience=.3) as remote:
        with pytest.warns(UserWarning, match='does not answer'), pytest.raises(EnvironmentFailure, match='cannot be reached'): await ask(remote, CHAT, Sampling(), 'k')
    async with misbehaving(lambda n: JSONResponse({}, 404)) as (url, _), RemoteEngine(url, 'm') as remote:
        with pytest.raises(RemoteError, match='refused'): await ask(remote, CHAT, Sampling(), 'k')


async def test_servers_without_ids_or_log_probs(policy):
    bare = vllm()
    del bare['choices'][0]['token_ids'], bare['prompt_token_ids']
    async with misbehaving(lambda n: JSONResponse(bare)) as (url, _), RemoteEngine(url, 'm') as remote: c = await remote.complete(CHAT)
    assert c.ids.tolist() == [-1, -1] and len(c.prompt_ids) == 0 and np.allclose(c.logps, [-.1, -.2])


@pytest.fixture(scope='module')
def tars(tmp_path_factory): return write_checkpoint(tmp_path_factory.mktemp('tars')/'model', 'UI-TARS-1.5-7B')


def sent(remote, screen):
    "The image of a request, as the server decodes it."
    part, = remote._body([dict(role='user', content=[dict(type='image', image=screen)])], Sampling(), '')['messages'][0]['content']
    return url_image(part['image_url']['url'])


@pytest.mark.parametrize('size', [(160, 210), (240, 240), (320, 200), (1920, 1080), (2560, 90)])
async def test_a_server_with_the_published_processor_sees_the_image_that_points_are_counted_in(tars, size):
    published, screen = AutoImageProcessor.from_pretrained(tars), np.random.default_rng(1).integers(0, 256, (*size[::-1], 3), np.uint8)
    async with RemoteEngine('http://127.0.0.1:9/v1', 'm') as remote:
        agent = PolicyAgent.served(remote, {}, Sampling(), 'ui-tars-1.5')
        got = published(images=[sent(remote, screen)], return_tensors='pt')
    assert tuple(int(o) * 14 for o in got['image_grid_thw'][0, [2, 1]]) == smart_resize(size)
    assert agent.dialect.parse("Action: click(start_box='({},{})')".format(*(o // 2 for o in smart_resize(size))), size).actions[0].args['point'] == (500, 500)
    ours = Policy.from_pretrained(tars).processor.image_processor(images=[screen], return_tensors='pt')   # what training makes of the same screenshot
    assert torch.equal(ours['pixel_values'], got['pixel_values'])


@pytest.mark.parametrize('dialect', ['', 'ui-tars-1', 'ui-tars-2'])
async def test_where_points_are_on_the_grid_screenshots_go_out_as_they_are(dialect):
    async with RemoteEngine('http://127.0.0.1:9/v1', 'm', dialect=dialect) as remote: assert np.array_equal(sent(remote, SCREEN), SCREEN)
