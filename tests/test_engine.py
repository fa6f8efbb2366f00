"The engine: log-probabilities of a plain forward pass however requests are batched, faults that stay with their request, weights that change in flight."
import asyncio
import threading
import time
from functools import cache

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers.utils import logging

from tests.tiny_models import write_checkpoint
from uitars_nb.agent.policy_agent import PolicyAgent
from uitars_nb.core.store import Store
from uitars_nb.core.types import RequestFailed
from uitars_nb.model.engine.batching import RunningBatch, load_weights, shelf_bytes
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.engine.images import ImageCache
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.engine.passes import make_request
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example, Prompt
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.nano.tokenizer import make_tokenizer

torch.set_num_threads(1)
logging.disable_progress_bar()
DIALECTS = {'Qwen2.5-VL': 'ui-tars-1.5', 'Qwen3-VL': 'ui-tars-2', 'nano': 'ui-tars-2'}
kinds = pytest.mark.parametrize('kind', DIALECTS)


@pytest.fixture(scope='module')
def make(tmp_path_factory):
    "A function that gives the policy of a kind, fp32, random."
    home = tmp_path_factory.mktemp('checkpoints')
    @cache
    def made(kind):
        if kind == 'nano': return Policy(*new_policy(make_tokenizer(['Click on the button.', 'Enter text.']), hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2', kind)
        return Policy.from_pretrained(write_checkpoint(home/kind, kind), DIALECTS[kind], dtype=torch.float32)
    return made


@pytest.fixture
def never_ends(make):
    "The small policy, whose replies end at their limit only."
    policy = make('nano')
    eos, policy.eos_ids = policy.eos_ids, frozenset()
    yield policy
    policy.eos_ids = eos


def screen(seed, size=(60, 90)): return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def chat(text, *images, replies=()):
    "Instruction and first screen; then a reply and a screen for each turn."
    turns = [dict(role='user', content=[dict(type='text', text=text), *(dict(type='image', image=o) for o in images[:1])])]
    for ids, image in zip(replies, images[1:]):
        turns += [dict(role='assistant', content=[dict(type='ids', ids=ids, text='')]), dict(role='user', content=[dict(type='image', image=image)])]
    return turns


@torch.inference_mode()
def truth(policy, prompt, ids, temperature=1.):
    "Log-probabilities of a reply by one plain forward pass."
    batch = policy.collate([Example(prompt, ids)])
    logp = torch.log_softmax(policy.logits(batch).float().cpu() / temperature, -1)
    return logp.gather(1, torch.from_numpy(ids.astype(np.int64))[:, None])[:, 0].numpy()


def check(policy, prompt, c, temperature=1.):
    assert np.array_equal(c.prompt_ids, prompt.ids) and len(c.ids) == len(c.versions) > 0
    assert np.abs(c.logps - truth(policy, prompt, c.ids, temperature)).max() < 1e-4


class Wide(TorchFunctionMode):
    "What asks for fp32 gets fp64."
    def __torch_function__(self, func, types, args=(), kwargs=None):
        swap = lambda o: torch.float64 if o is torch.float32 else o
        if func is torch.Tensor.float: func = torch.Tensor.double
        if func is torch.Tensor.to: args, kwargs = tuple(map(swap, args)), {k: swap(v) for k, v in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def exact(name):
    "The policy in fp64, norms and attention included."
    policy = Policy.from_pretrained(name, dtype='float32')
    policy.model.double()
    return policy


def exactly(policy, prompt, ids):
    with Wide(): return truth(policy, prompt, ids)


@pytest.mark.parametrize('name', ['ct', 'pix2act59'])
async def test_log_probs_of_the_policies_that_ship(name):
    "Against fp64. Where a glimpse looks, its attention carries the rounding of the layers before it into a place, and the waves of places multiply it: a few tokens are further off than fp32 is elsewhere."
    policy = Policy.from_pretrained(name, dtype='float32')
    memory = PolicyAgent.of(policy, None, Sampling(max_tokens=40)).memory
    prompts = [memory.recall(o.task.instruction, o.steps[:k], o.steps[k].observation, 40).messages for o in Store('reports/cloning/films') for k in range(min(2, len(o.steps)))]
    async with Engine(policy, max_batch=8) as engine:
        said = await asyncio.gather(*(engine.complete(o, Sampling(max_tokens=40, seed=i), key=str(i)) for i, o in enumerate(prompts)))
    assert len(said) > 10
    wide = exact(name)
    right = [exactly(wide, p, c.ids) for p, c in zip(map(policy.render, prompts), said)]
    for pass_, of in ((lambda prompt, c: c.logps, 'engine'), (lambda prompt, c: truth(policy, prompt, c.ids), 'plain pass')):
        off = np.concatenate([np.abs(pass_(p, c) - r) for p, c, r in zip(map(policy.render, prompts), said, right)])
        assert off.max() < 3e-4 and (off ** 2).mean() ** .5 < 3e-5, (of, off.max(), (off ** 2).mean() ** .5)


@kinds
@pytest.mark.parametrize('together', [1, 3, 7])
async def test_log_probs_are_those_of_a_plain_forward_pass(make, kind, together):
    "Prompts of all lengths, without an image and with several of different sizes; different temperatures and nuclei in one batch."
    policy, rng = make(kind), np.random.default_rng(together)
    chats = [chat('go ' * (1 + 4 * i), *(screen(k, (40 + 8 * k, 60 + 20 * k)) for k in range(i % 3)), replies=[np.int32([70, 71])]) for i in range(7)]
    wants = [Sampling([1., .5, 0, 2.][i % 4], [1., .8][i % 2], 3 + 2 * i, seed=i) for i in range(7)]
    async with Engine(policy, max_batch=together) as engine:
        async def one(i):
            await asyncio.sleep(.01 * rng.random())
            return await engine.complete(chats[i], wants[i])
        done = await asyncio.gather(*map(one, range(7)))
    for messages, want, c in zip(chats, wants, done): check(policy, policy.render(messages), c, want.temperature or 1.)


@kinds
async def test_turns_reuse_their_prefix_and_log_probs_stay(make, kind):
    policy = make(kind)
    async def episode(engine, key, base):
        images, replies, done = [screen(base)], [], []
        for turn in range(3):
            messages = chat(f'click {key}', *images, replies=replies)
            c = await engine.complete(messages, Sampling(max_tokens=6, seed=base + turn), key)
            done.append((policy.render(messages), c))
            replies.append(c.ids)
            images.append(images[-1] if turn else screen(base + 1))  # the third look is the second
        return done
    async with Engine(policy) as engine:
        all_ = await asyncio.gather(*(episode(engine, f'trajectory {i}', 10 * i) for i in range(4)))
        stats = engine.stats()
    for prompt, c in sum(all_, []): check(policy, prompt, c)
    shared = sum(len(p.ids) + len(c.ids) - 1 for done in all_ for p, c in done[:-1])
    assert 0 <= shared - stats['reused_tokens'] <= 4 * 2 * 3, 'all of the turn before, but for the mark that ends it'
    assert stats['encoded_images'] == 8


async def test_another_image_is_no_shared_prefix(make):
    "Its placeholder tokens are equal, its features are not."
    policy = make('nano')
    async with Engine(policy) as engine:
        for seed in (1, 2):
            messages = chat('click', screen(seed))
            check(policy, policy.render(messages), await engine.complete(messages, Sampling(max_tokens=5, seed=0), 'one key'))
        assert engine.stats()['reused_tokens'] < len(policy.render(messages).ids) - 20


async def test_a_seed_gives_the_same_reply_alone_and_in_company(make):
    policy = make('nano')
    async with Engine(policy) as engine:
        ask = lambda i: engine.complete(chat('go ' * i, screen(i)), Sampling(max_tokens=12, seed=i))
        alone = [await ask(i) for i in range(6)]
        for a, b in zip(alone, await asyncio.gather(*map(ask, range(6)))): assert np.array_equal(a.ids, b.ids)
        free = await asyncio.gather(*(engine.complete(chat('go', screen(0)), Sampling(max_tokens=12)) for _ in range(4)))
        assert len({tuple(c.ids) for c in free}) > 1


async def test_greedy_is_what_generate_gives(never_ends):
    policy = never_ends
    prompt = policy.render(chat('click', screen(3)))
    inputs = policy.collate([Example(prompt, np.zeros(0, np.int32))])
    inputs.pop('own')
    ids = policy.model.generate(**inputs, max_new_tokens=10, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, len(prompt.ids):]
    async with Engine(policy) as engine: c = await engine.generate(prompt, Sampling(0, max_tokens=10))
    assert c.ids.tolist() == ids.tolist() and c.finish == 'length'


async def test_replies_end_at_end_tokens_stop_texts_and_limits(make):
    policy = make('nano')
    prompt = policy.render(chat('click', screen(1)))
    async with Engine(policy, context=len(prompt.ids) + 9) as engine:
        c = await engine.generate(prompt, Sampling(0, max_tokens=100))
        assert (c.finish, len(c.ids)) == ('length', 9), 'the context ends it'
        word = policy.decode(c.ids[3:5])
        first = next(k for k in range(9) if word in policy.decode(c.ids[:k + 1]))
        stopped = await engine.generate(prompt, Sampling(0, stop=('never seen', word)))
        assert (stopped.finish, stopped.ids.tolist()) == ('stop', c.ids[:first + 1].tolist())
        engine.worker.batch.ends = {int(c.ids[2])}
        ended = await engine.generate(prompt, Sampling(0))
        assert (ended.finish, ended.ids[-1]) == ('stop', c.ids[2]) and len(ended.ids) <= 3
        assert ended.text == policy.decode(ended.ids) and set(ended.seconds) == {'door', 'prepare', 'wait', 'prompt', 'reply'}


async def test_placeholders_of_images_are_never_drawn(make):
    policy = make('nano')
    async with Engine(policy) as engine:
        wants = [Sampling(100., max_tokens=60, seed=i) for i in range(20)]  # nearly uniform
        done = await asyncio.gather(*(engine.complete(chat('go', screen(0)), o) for o in wants))
    drawn = np.concatenate([c.ids for c in done])
    assert len(set(drawn.tolist())) > 200 and policy.model.config.image_token_id not in drawn


async def test_a_faulty_request_harms_no_other(never_ends):
    policy = never_ends
    good, image = chat('click', screen(1)), screen(2)
    bad = {'does not fit a context': chat('go ' * 3000, image), 'an image is a uint8 array': chat('go', image.astype(float)), "not 'sound'": [dict(role='user', content=[dict(type='sound')])]}
    lying = Prompt(np.repeat(policy.render(good).ids, 2), (image,))
    async with Engine(policy) as engine:
        tasks = [asyncio.create_task(engine.complete(good, Sampling(max_tokens=30, seed=i))) for i in range(3)]
        for why, messages in bad.items():
            with pytest.raises(ValueError, match=why): await engine.complete(messages)
        with pytest.raises(ValueError, match='image tokens, but its 1 images take'): await engine.generate(lying)
        for c in await asyncio.gather(*tasks): check(policy, policy.render(good), c)


async def test_a_pass_that_fails_is_tried_again_request_by_request(never_ends, monkeypatch):
    "An encoder that breaks on one image, met in one pass with two others."
    policy, encode = never_ends, ImageCache.encode
    def broken(self, model, sights):
        if any(o.image[0, 0, 0] == 255 for o in sights): raise RuntimeError('the encoder broke')
        return encode(self, model, sights)
    monkeypatch.setattr(ImageCache, 'encode', broken)
    images = [screen(i) for i in range(3)]
    for i, o in enumerate(images): o[0, 0, 0] = 255 if i == 1 else 0
    sights = ImageCache(policy.processor)
    batch = RunningBatch(policy, sights)
    jobs = [make_request(policy.model, sights, policy.render(chat('go', o)), Sampling(max_tokens=4)) for o in images]
    batch.join(jobs)
    while batch.jobs: batch.step()
    with pytest.raises(RuntimeError, match='the encoder broke'): jobs[1].future.result(0)
    for i in (0, 2): check(policy, jobs[i].prompt, jobs[i].future.result(0))


@torch.inference_mode()
def test_a_step_that_fails_costs_the_longest_alone(never_ends, monkeypatch):
    "Passes that hold more tokens than there is memory for, as when a cache cannot grow."
    policy, sights = never_ends, ImageCache(never_ends.processor)
    batch = RunningBatch(policy, sights)
    jobs = [make_request(policy.model, sights, policy.render(chat('go ' * n, screen(n))), Sampling(max_tokens=4)) for n in (1, 40, 8)]
    batch.join(jobs)
    run = type(batch.passes).__call__
    def tight(self, group, at):
        if max(o.filled for o in group) > len(jobs[1].prompt.ids): raise MemoryError('no room')
        return run(self, group, at)
    batch.step()
    monkeypatch.setattr(type(batch.passes), '__call__', tight)
    while batch.jobs: batch.step()
    with pytest.raises(RequestFailed, match='no room'): jobs[1].future.result(0)
    for i in (0, 2): check(policy, jobs[i].prompt, jobs[i].future.result(0))


@torch.inference_mode()
def test_a_prefix_for_which_there_is_no_memory_is_not_kept_and_costs_no_reply(never_ends, monkeypatch):
    policy, sights = never_ends, ImageCache(never_ends.processor)
    batch = RunningBatch(policy, sights)
    jobs = [make_request(policy.model, sights, policy.render(chat('go', screen(n))), Sampling(max_tokens=2 + n), f'k{n}') for n in range(3)]
    def scarce(*args): raise torch.OutOfMemoryError('no room')
    monkeypatch.setattr(batch.prefixes, 'keep', scarce)
    batch.join(jobs)
    while batch.jobs: batch.step()
    for o in jobs: check(policy, o.prompt, o.future.result(0))


@torch.inference_mode()
def test_whoever_is_lost_in_a_change_of_weights_is_told(never_ends, monkeypatch):
    "The first group ends in it and something breaks: those of the later groups are in no list."
    policy, sights = never_ends, ImageCache(never_ends.processor)
    batch = RunningBatch(policy, sights, pass_tokens=1)
    jobs = [make_request(policy.model, sights, policy.render(chat('go', screen(n))), Sampling(max_tokens=2 + n), f'k{n}') for n in range(3)]
    batch.join(jobs)
    begin = batch._begin
    def breaks(group):
        begin(group)
        raise ZeroDivisionError
    monkeypatch.setattr(batch, '_begin', breaks)
    with pytest.raises(ZeroDivisionError): batch.load(dict(policy.model.state_dict()), 1)
    assert jobs[0].future.done() and [type(o.future.exception(0)) for o in jobs[1:]] == [ZeroDivisionError] * 2


def test_images_that_were_encoded_together_are_forgotten_one_by_one(never_ends):
    "What one survivor holds is its own features, not those of all."
    sights = ImageCache(never_ends.processor)
    with torch.inference_mode(): sights.encode(never_ends.model, seen := [sights.look(screen(n)) for n in range(4)])
    for o in seen:
        flat = [t for v in o.features.values() for t in (v if isinstance(v, list) else [v]) if torch.is_tensor(t)]
        assert flat and all(t.untyped_storage().nbytes() == t.nbytes for t in flat)


@torch.inference_mode()
def test_a_beginning_that_cannot_be_found_fails_its_request(never_ends, monkeypatch):
    policy, sights = never_ends, ImageCache(never_ends.processor)
    batch = RunningBatch(policy, sights)
    jobs = [make_request(policy.model, sights, policy.render(chat('go', screen(n))), Sampling(max_tokens=4), f'k{n}') for n in range(3)]
    find = batch.prefixes.find
    monkeypatch.setattr(batch.prefixes, 'find', lambda job: find(job) if job is not jobs[1] else 1 / 0)
    batch.join(jobs)
    while batch.jobs: batch.step()
    with pytest.raises(ZeroDivisionError): jobs[1].future.result(0)
    for i in (0, 2): check(policy, jobs[i].prompt, jobs[i].future.result(0))


async def test_a_cancelled_request_leaves_the_batch(never_ends):
    policy = never_ends
    async with Engine(policy, max_batch=2) as engine:
        tasks = [asyncio.create_task(engine.complete(chat('go', screen(i)), Sampling(max_tokens=3000))) for i in range(3)]
        while engine.stats()['running'] < 2: await asyncio.sleep(.001)
        tasks[0].cancel(); tasks[2].cancel()  # one that runs, and one that waits
        c = await engine.complete(chat('quick', screen(5)), Sampling(max_tokens=3), 'k')
        assert not tasks[1].done()
        check(policy, policy.render(chat('quick', screen(5))), c)
        tasks[1].cancel()
        while engine.stats()['running']: await asyncio.sleep(.001)
        assert engine.stats()['waiting'] == 0 and all(t.cancelled() for t in await _settled(tasks))


async def _settled(tasks):
    await asyncio.wait(tasks)
    return tasks


async def test_more_requests_than_the_queue_holds_wait_at_the_door(never_ends, monkeypatch):
    policy = never_ends
    rendered, render = [], policy.render
    monkeypatch.setattr(policy, 'render', lambda m: rendered.append(m) or render(m), raising=False)
    async with Engine(policy, max_batch=1, queue=2) as engine:
        tasks = [asyncio.create_task(engine.complete(chat('go', screen(i)), Sampling(max_tokens=300))) for i in range(6)]
        while not engine.stats()['running']: await asyncio.sleep(.001)
        await asyncio.sleep(.05)
        assert len(rendered) == 2 and not any(t.done() for t in tasks)
        tasks[5].cancel()
        assert [len(c.ids) for c in await asyncio.gather(*tasks[:5])] == [300] * 5
        assert len(rendered) == 5


@kinds
async def test_new_weights_in_flight(make, kind):
    "No request is lost; each token has the version and the log-probability of the weights that drew it, given all before it; old prefixes are gone."
    policy = make(kind)
    ends, policy.eos_ids = policy.eos_ids, frozenset()
    states = [{k: v.clone() for k, v in policy.model.state_dict().items()}]
    torch.manual_seed(0)
    states += [{k: v + (.02 * torch.randn_like(v) if v.is_floating_point() else 0) for k, v in states[0].items()} for _ in range(2)]
    for o in states[1:]:
        if policy.model.config.tie_word_embeddings: o.pop('lm_head.weight')
    chats = [chat('go ' * (i + 1), screen(i)) for i in range(4)]
    async with Engine(policy, max_batch=3) as engine:
        tasks = [asyncio.create_task(engine.complete(o, Sampling(max_tokens=150, seed=i), f'k{i}')) for i, o in enumerate(chats)]
        for version in (1, 2):
            seen = engine.stats()['reply_tokens']
            while engine.stats()['reply_tokens'] < seen + 20: await asyncio.sleep(.001)
            await engine.load(states[version], version)
        done = await asyncio.gather(*tasks)
        assert set(done[0].versions) == {0, 1, 2} and set(done[3].versions) == {2}
        again = await engine.complete(chats[0], Sampling(max_tokens=5, seed=9), 'k0')
        assert set(again.versions) == {2}
        with pytest.raises(ValueError, match='surplus extra'): await engine.load(states[1] | dict(extra=torch.zeros(1)), 3)
        assert engine.version == 2
    for version, state in enumerate(states):
        policy.model.load_state_dict(state, strict=False)
        for messages, c in zip(chats, done):
            mine = c.versions == version
            if mine.any(): assert np.abs(c.logps - truth(policy, policy.render(messages), c.ids))[mine].max() < 1e-4
    check(policy, policy.render(chats[0]), again)
    policy.model.load_state_dict(states[0])
    policy.eos_ids = ends


async def test_weights_that_give_no_numbers_are_named(never_ends):
    policy = never_ends
    good = {k: v.clone() for k, v in policy.model.state_dict().items()}
    async with Engine(policy) as engine:
        await engine.load({k: v * float('nan') if 'norm' in k else v for k, v in good.items()}, 7)
        short, long = (chat('go ' * n, screen(n)) for n in (1, 90))
        for o in (short, long):
            with pytest.raises(FloatingPointError, match='version 7'): await engine.complete(o)
        await engine.load(good, 8)
        first = asyncio.create_task(engine.complete(short, Sampling(max_tokens=300)))   # in the slot where the long one left no numbers
        while not engine.stats()['running']: await asyncio.sleep(.001)
        check(policy, policy.render(long), await engine.complete(long, Sampling(max_tokens=4)))
        check(policy, policy.render(short), await first)


async def test_ids_of_another_tokenizer_harm_nobody(make):
    policy = make('nano')
    most = policy.model.get_input_embeddings().num_embeddings
    said = lambda id: [*chat('go'), dict(role='assistant', content=[dict(type='ids', ids=np.int32([id]), text='')]), *chat('on')]
    async with Engine(policy) as engine:
        for id in (most, -1):
            with pytest.raises(ValueError, match=f'0 to {most - 1}'): await engine.complete(said(id), Sampling(max_tokens=1))
        assert await engine.complete(said(most - 1), Sampling(max_tokens=1))


async def test_weights_of_an_offloaded_model_are_not_swapped(make):
    model = make('nano').model
    state = {k: v.clone() for k, v in model.state_dict().items()}
    apart = type('Apart', (), dict(state_dict=lambda self: {k: v.to('meta') if 'layers.0' in k else v for k, v in model.state_dict().items()}))()
    with pytest.raises(ValueError, match='offloaded.*layers.0'): load_weights(apart, {k: v + 1 for k, v in state.items()})
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


async def test_bf16(make):
    "Near the fp32 pass, and exact where the trainer computes in bf16 too, up to the rounding of different batches."
    policy = make('nano')
    with torch.no_grad():
        state = {k: v.clone() for k, v in policy.model.state_dict().items()}
        policy.model.to(torch.bfloat16)
        try:
            async with Engine(policy) as engine:
                done = await asyncio.gather(*(engine.complete(chat('go ' * i, screen(i)), Sampling(max_tokens=8, seed=i)) for i in range(4)))
            for i, c in enumerate(done): assert np.abs(c.logps - truth(policy, policy.render(chat('go ' * i, screen(i))), c.ids)).max() < .05
        finally: policy.model.to(torch.float32).load_state_dict(state)


async def test_the_event_loop_stays_free(never_ends):
    "While the engine works, the loop turns: forward passes run elsewhere."
    policy = never_ends
    async with Engine(policy) as engine:
        task = asyncio.create_task(engine.complete(chat('go', screen(0)), Sampling(max_tokens=400)))
        turns = 0
        while not task.done(): await asyncio.sleep(0); turns += 1
        assert turns > 10 * 400 / 16
        assert threading.current_thread() is not engine.worker


async def test_closing_fails_what_runs_and_refuses_what_comes(never_ends):
    engine = Engine(never_ends)
    task = asyncio.create_task(engine.complete(chat('go', screen(0)), Sampling(max_tokens=3000)))
    while not engine.stats()['running']: await asyncio.sleep(.001)
    await asyncio.to_thread(engine.close)
    with pytest.raises(RuntimeError, match='closed'): await task
    with pytest.raises(RuntimeError, match='closed'): await engine.complete(chat('go', screen(0)))
    assert not engine.worker.is_alive()


def test_several_event_loops_share_an_engine(never_ends):
    engine = Engine(never_ends, queue=2)
    results = []
    def loop(i): results.append(asyncio.run(many(i)))
    async def many(i): return await asyncio.gather(*(engine.complete(chat('go', screen(i)), Sampling(max_tokens=5, seed=k)) for k in range(5)))
    threads = [threading.Thread(target=loop, args=(i,)) for i in range(3)]
    for t in threads: t.start()
    for t in threads: t.join(60)
    assert [len(o) for o in results] == [5] * 3
    engine.close()


def test_prefixes_are_kept_within_their_bytes(never_ends):
    policy, sights = never_ends, ImageCache(never_ends.processor)
    def play(limit):
        batch = RunningBatch(policy, sights, prefix_bytes=limit)
        for i in range(6):
            batch.join([make_request(policy.model, sights, policy.render(chat('go', screen(i))), Sampling(max_tokens=2), f'k{i}')])
            while batch.jobs: batch.step()
        return batch.prefixes
    size = play(1 << 30).nbytes // 6
    shelf = play(int(2.5 * size))
    assert len(shelf) == 2 and shelf.nbytes <= 2.5 * size and ('k5', 'first') in shelf and ('k0', 'first') not in shelf
    assert len(play(0)) == 0


@kinds
@pytest.mark.parametrize('apart', [0., .02])
async def test_samples_of_an_instance_compute_their_prompt_once(make, kind, apart):
    "Whether they come together, beside each other or after each other; a reply may end with its first token."
    policy, messages = make(kind), chat('click the one that says so ' * 3, screen(1))
    prompt = policy.render(messages)
    async with Engine(policy, max_batch=4) as engine:
        async def one(i):
            await asyncio.sleep(apart * i)
            return await engine.complete(messages, Sampling(max_tokens=1 + i % 5, seed=i), f'sample {i}')
        done = await asyncio.gather(*map(one, range(9)))
        stats = engine.stats()
        alone = [await engine.complete(messages, Sampling(max_tokens=1 + i % 5, seed=i)) for i in range(9)]
    for c, o in zip(done, alone):
        check(policy, prompt, c)
        assert np.array_equal(c.ids, o.ids)
    assert stats['prompt_tokens'] == len(prompt.ids) + 8 and stats['reused_tokens'] == 8 * (len(prompt.ids) - 1) and stats['encoded_images'] == 1


async def test_a_request_too_large_for_the_memory_leaves_the_engine_whole(never_ends, monkeypatch):
    "The second layer finds no room for what the first has grown to already."
    from uitars_nb.model.engine.cache import SlotLayer
    policy, make, grown = never_ends, SlotLayer._make, []
    def scarce(layer, *args):
        grown.append(args[3])
        if args[3] > 1000 and grown.count(args[3]) > 1: raise RuntimeError("can't allocate memory")
        make(layer, *args)
    monkeypatch.setattr(SlotLayer, '_make', scarce)
    async with Engine(policy, max_batch=2) as engine:
        check(policy, policy.render(chat('go', screen(0))), await engine.complete(chat('go', screen(0)), Sampling(max_tokens=5, seed=0)))
        with pytest.raises(RequestFailed, match='too many for the memory.*allocate memory'): await engine.complete(chat('go ' * 1200, screen(0)), Sampling(max_tokens=5, seed=0))
        for n in (90, 200): check(policy, policy.render(chat('go ' * n, screen(0))), await engine.complete(chat('go ' * n, screen(0)), Sampling(max_tokens=5, seed=0)))


@pytest.mark.parametrize('kept', [0, 60_000, 1 << 30])
def test_whatever_is_shared_log_probs_stay(never_ends, kept):
    "Turns of many trajectories with equal and unequal beginnings, on a shelf of any size, with new weights between."
    policy, sights, rng = never_ends, ImageCache(never_ends.processor), np.random.default_rng(0)
    batch, jobs = RunningBatch(policy, sights, prefix_bytes=kept, pass_tokens=300), []
    def fresh():
        messages = chat('go ' * int(rng.integers(1, 40)), *(screen(int(k)) for k in rng.integers(0, 2, rng.integers(0, 3))), replies=[np.int32([70, 71])])
        return make_request(policy.model, sights, policy.render(messages), Sampling(max_tokens=int(rng.integers(1, 9)), seed=int(rng.integers(99))), ['', 'a', 'b', 'c', 'd'][rng.integers(5)])
    for turn in range(12):
        batch.join(some := [fresh() for _ in range(rng.integers(1, 6))])
        jobs += some
        for _ in range(rng.integers(0, 4)):
            if batch.jobs: batch.step()
        if turn == 6: batch.load(policy.model.state_dict(), 1)
    while batch.jobs: batch.step()
    for job in jobs: check(policy, job.prompt, job.future.result())
    assert batch.count['reused_tokens'] > 0 and batch.prefixes.nbytes <= kept
    assert len(batch.prefixes.places) == 0 or kept


def test_a_gpu_has_room_for_more_than_one_trajectory(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'mem_get_info', lambda device: (60 << 30, 80 << 30))
    assert shelf_bytes(torch.device('cuda', 0)) == 12 << 30 and shelf_bytes(torch.device('cpu')) == 1 << 28
