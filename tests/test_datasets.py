"From episodes to batches: the prompts that the agent saw, corpora that give back what they took, streams that any kill leaves in place, and no held-out seed anywhere."
import pickle
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from tests.tiny_models import write_checkpoint

from uitars_nb.agent.memory import SMALL, Memory, MemoryConfig
from uitars_nb.agent.policy_agent import PolicyAgent, count_tokens
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, Completion, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.flywheel.corpus import Corpus, vocabulary, write_corpus
from uitars_nb.flywheel.datasets import points_of, prompt_of, read_examples, own_reply, same_vocabulary, trajectory_examples
from uitars_nb.flywheel.examples import IGNORE, ExampleFacts, TrainingExample, ExampleList, check_split, facts_of, of_split
from uitars_nb.flywheel.streams import Batches, Collate, BatchNumbers, OnePass, Stream, make_batches, record_draws, image_rows, loader, padding, quotas, token_rows
from uitars_nb.model.checkpoints import load_processor
from uitars_nb.model.dialects import get_dialect
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.remote import fit_image
from uitars_nb.model.rendering import Example, Prompt, render
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.nano.tokenizer import make_tokenizer
from uitars_nb.tasks.base import SPLITS, seeds

torch.set_num_threads(1)
few = settings(max_examples=25, deadline=None)


@cache
def small_policy():
    made = new_policy(make_tokenizer(['Click on the "Ok" button.', 'Enter "a b" and submit.']), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    return Policy(*made, 'ui-tars-2', 'small')


def episode(n, seed=3, split='train', id='demo', **kw):
    "A demonstration of `n` steps, points off the small policy's grid."
    rng = np.random.default_rng(seed % 1000)
    look = lambda: Observation(rng.integers(0, 255, (48, 64, 3), np.uint8))
    act = lambda i: Action('type', dict(content=f'wörd {i}')) if i % 3 == 2 else Action('click', dict(point=tuple(map(int, rng.integers(0, 1001, 2)))))
    steps = tuple(Step(look(), f'do step {i}', (act(i),)) for i in range(n))
    spec = TaskSpec('miniwob/demo', seed, 'Click "Ok", then submit.', split)
    return Trajectory(id, spec, steps, StopReason.TERMINATED, 1., True, look(), 'oracle', **kw)


# from episodes

class Repeating:
    "An engine whose replies are known: it renders the prompt as the real one does, and says what comes next."
    def __init__(self, policy, replies): self.policy, self.replies, self.prompts = policy, iter(replies), []

    async def complete(self, messages, sampling, key=''):
        ids, prompt = next(self.replies), self.policy.render(messages)
        self.prompts.append(prompt)
        return Completion(self.policy.decode(ids), prompt.ids, ids, np.full(len(ids), -.5, np.float32), np.zeros(len(ids), np.int32))


@pytest.mark.parametrize('config', [SMALL, MemoryConfig(images=3, system=False), replace(SMALL, context=260)], ids=['small', 'three screens', 'a full context'])
async def test_a_demonstration_is_seen_as_the_agent_sees_it(config):
    "The agent acts with replies that are the demonstration's; the prompts it sent are the prompts of the records."
    policy, demo = small_policy(), episode(9)
    said = [own_reply(s, policy) for s in demo.steps]
    engine = Repeating(policy, [s.completion.ids for s in said])
    agent = PolicyAgent(engine, policy.dialect, Sampling(max_tokens=64), config, count_tokens(policy))
    react, steps = agent(None, None, demo.task), []
    for s in demo.steps:
        reply = await react.act(steps, s.observation)
        assert not reply.error
        steps.append(Step(s.observation, reply.thought, reply.actions, reply.completion))
    sampled = replace(demo, steps=tuple(steps), policy='small')
    for traj in demo, sampled:
        records = trajectory_examples(traj, policy, agent.memory, reply=64)
        assert len(records) == len(engine.prompts) == 9
        for r, p, s in zip(records, engine.prompts, said):
            np.testing.assert_array_equal(r.example.prompt.ids, p.ids)
            np.testing.assert_array_equal(r.example.reply, s.completion.ids)
            assert len(r.example.prompt.images) == len(p.images) and all(map(np.array_equal, r.example.prompt.images, p.images))


def test_replies_are_read_back_with_points_on_the_grid():
    policy = small_policy()
    for s in episode(9).steps:
        said = own_reply(s, policy)
        assert said.completion.ids[-1] in policy.eos_ids
        assert policy.dialect.parse(said.completion.text, (64, 48)).actions == said.actions
        for k, (x, y) in points_of(said.actions[0]).items():
            a, b = s.actions[0].args[k]
            assert x % 5 == y % 5 == 0 and abs(x - a) <= 2.5 and abs(y - b) <= 2.5
        assert said.actions == s.actions or points_of(s.actions[0])


def test_replies_of_another_vocabulary_are_written_anew():
    policy, (s, *_) = small_policy(), episode(1).steps
    foreign = Completion('<think>x</think>', np.int32([1]), np.int32([3, 4]), np.zeros(2, np.float32), np.zeros(2, np.int32))
    assert own_reply(replace(s, completion=foreign), policy).completion.text == own_reply(s, policy).completion.text


@pytest.mark.parametrize('ids', [[-1, -1], [151001, 9], [3, 4]], ids=['not told', 'beyond the vocabulary', 'others'])
def test_what_another_model_said_without_an_action_stands_in_prompts_in_its_words(ids):
    policy, demo = small_policy(), episode(3)
    foreign = Completion('I cannot <|image_pad|> see it<|im_end|>', np.int32([151001]), np.int32(ids), np.zeros(2, np.float32), np.zeros(2, np.int32))
    steps = (replace(demo.steps[0], completion=foreign), replace(demo.steps[1], actions=(), completion=foreign, error='no call'), replace(demo.steps[2], completion=foreign))
    records = trajectory_examples(replace(demo, steps=steps), policy, Memory(SMALL, policy.dialect, count_tokens(policy)))
    assert len(records) == 2
    for o in records: assert 0 <= min(o.example.prompt.ids) and max(o.example.prompt.ids) < len(policy.processor.tokenizer)
    assert 'I cannot <|image_pad|> see it' in policy.decode(records[1].example.prompt.ids)
    assert torch.isfinite(policy.logps(policy.collate([o.example for o in records]))).all()


def test_what_only_a_session_offers_is_no_lesson_and_stands_in_prompts():
    policy, demo = small_policy(), episode(3)
    memory = Memory(SMALL, policy.dialect, count_tokens(policy))
    called = replace(demo.steps[1], thought='I look it up.', actions=(Action('wiki_search', dict(query='Ada')),))
    records = trajectory_examples(replace(demo, steps=(demo.steps[0], called, demo.steps[2])), policy, memory)
    assert len(records) == 2 and "I look it up.\nwiki_search(query='Ada')" in policy.decode(records[1].example.prompt.ids)
    own = replace(called, completion=own_reply(called, policy).completion)   # where it speaks so itself, it learns from it
    assert len(trajectory_examples(replace(demo, steps=tuple(own_reply(s, policy) for s in (demo.steps[0], own, demo.steps[2]))), policy, memory)) == 3


def test_what_a_script_said_when_its_code_failed_is_no_lesson():
    policy, demo = small_policy(), episode(4)
    memory = Memory(SMALL, policy.dialect, count_tokens(policy))
    gave_up = replace(demo.steps[-1], thought='RuntimeError: no such node', actions=(Action('infeasible'),))
    whole, scripted = (trajectory_examples(replace(demo, steps=o, success=False), policy, memory) for o in (demo.steps, (*demo.steps[:-1], gave_up)))
    assert len(scripted) == len(whole) - 1
    said = replace(gave_up, completion=own_reply(gave_up, policy).completion)   # a policy's own words are another matter
    own = tuple(own_reply(s, policy) for s in demo.steps[:-1])
    assert len(trajectory_examples(replace(demo, steps=(*own, said), success=False), policy, memory)) == len(whole)
    assert len(trajectory_examples(replace(demo, steps=(*demo.steps[:-1], gave_up)), policy, memory)) == len(whole), 'of a task that cannot be done, giving up is the lesson'


@pytest.fixture(scope='module')
def tars(tmp_path_factory): return write_checkpoint(tmp_path_factory.mktemp('tars')/'model', 'UI-TARS-1.5-7B')


def test_a_reply_in_the_units_of_another_dialect_is_written_anew(tars, tmp_path):
    "UI-TARS-7B and UI-TARS-1.5 share their vocabulary, not their coordinates: (800, 400) of a thousand is another place in pixels."
    other, policy = (Policy.from_pretrained(o) for o in (write_checkpoint(tmp_path/'other', 'UI-TARS-7B'), tars))
    size, click = (1344, 756), Action('click', dict(point=(800, 400)))
    ids = other.encode(other.dialect.write('There.', [click], size)).astype(np.int32)
    said = Completion(other.decode(ids), np.int32([1]), ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))
    step = Step(Observation(np.full((756, 1344, 3), 200, np.uint8)), 'There.', (click,), said)
    assert same_vocabulary(policy, said) and own_reply(step, other) is step
    taught = own_reply(step, policy)
    (x, y), = (policy.dialect.parse(taught.completion.text, size).actions[0].args.values())
    assert abs(x - 800) <= 1 and abs(y - 400) <= 1


def test_a_thought_is_remembered_as_it_was_said():
    "Points that it names lie on the small policy's grid in both, or older steps would read differently in lessons and in play."
    policy, (step, *_) = small_policy(), episode(1).steps
    said = own_reply(replace(step, thought='It is at <point>333 17</point>.'), policy)
    assert said.thought == policy.dialect.parse(said.completion.text, (64, 48)).thought == 'It is at <point>335 15</point>.'


def served_step(policy, folder, resized):
    "A step that a model took behind a server with the published processor."
    screen, published = np.full((210, 160, 3), 200, np.uint8), load_processor(folder)
    image = fit_image(screen, policy.dialect) if resized else screen
    prompt = render(published, [dict(role='user', content=[dict(type='text', text='Click.'), dict(type='image', image=image)])])
    text = policy.dialect.write('There.', [Action('click', dict(point=(500, 552)))], (160, 210))
    ids = np.append(policy.encode(text), policy.processor.tokenizer.eos_token_id).astype(np.int32)
    said = Completion(text, prompt.ids, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), image_steps=(0,))
    return Step(Observation(screen), 'There.', (Action('click', dict(point=(500, 552))),), said)


def test_what_a_server_saw_in_other_sizes_is_refused_and_what_it_saw_in_ours_is_learned(tars):
    policy = Policy.from_pretrained(tars)
    memory = Memory(MemoryConfig(), policy.dialect, count_tokens(policy))
    prompt = prompt_of([step := served_step(policy, tars, True)], 0, 'Click.', policy, memory)
    with torch.no_grad(): assert torch.isfinite(policy.logps(policy.collate([Example(prompt, step.completion.ids)]))).all()
    with pytest.raises(ValueError, match='48 image tokens, and this policy sees 108'): prompt_of([served_step(policy, tars, False)], 0, 'Click.', policy, memory)


def test_where_somebody_took_over_only_that_is_taught():
    "The policy's own steps before stand in the prompts, in its own tokens."
    policy, demo = small_policy(), episode(4)
    memory = Memory(SMALL, policy.dialect, count_tokens(policy))
    own = tuple(own_reply(s, policy) for s in demo.steps)
    mixed = trajectory_examples(replace(demo, steps=(*own[:2], *demo.steps[2:])), policy, memory)
    whole = trajectory_examples(replace(demo, steps=own), policy, memory)
    assert len(whole) == len(demo.steps) > len(mixed) == len(demo.steps) - 2 > 0
    assert all((a.example.prompt.ids == b.example.prompt.ids).all() and (a.example.reply == b.example.reply).all() for a, b in zip(mixed, whole[2:]))


def test_refused_steps_are_context_and_not_examples():
    policy, demo = small_policy(), episode(4)
    memory = Memory(SMALL, policy.dialect, count_tokens(policy))
    steps = list(demo.steps)
    steps[1] = replace(steps[1], error='there is no such key')
    records = trajectory_examples(replace(demo, steps=tuple(steps)), policy, memory)
    assert len(records) == 3
    assert 'there is no such key' in policy.decode(records[1].example.prompt.ids)


# held-out seeds

@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path/'store')
    store.extend([episode(2, s, id=f'train {s}') for s in seeds('train', 3)] + [episode(2, s, id=f'lost {s}') for s in seeds('train', 2, start=3)])
    return store


@pytest.mark.parametrize('split', ['validation', 'test'])
@pytest.mark.parametrize('honest', [True, False])
def test_no_held_out_episode_is_read(store, split, honest):
    policy = small_policy()
    memory = Memory(SMALL, policy.dialect, count_tokens(policy))
    assert len([*read_examples(store, policy, memory)]) == 10
    store.append(episode(2, seeds(split, 1)[0], split if honest else 'train', 'held'))
    with pytest.raises(ValueError, match=f"of the split '{split}'"): read_examples(store, policy, memory)
    with pytest.raises(ValueError): read_examples(store, policy, memory, 'validation')
    with pytest.raises(ValueError, match='only played'): read_examples(store, policy, memory, 'test')


@pytest.mark.parametrize('split', ['validation', 'test'])
def test_no_held_out_record_gets_into_a_corpus_or_out_of_one(split, tmp_path, monkeypatch):
    record = lambda s: TrainingExample(Example(Prompt(np.int32([1, 2])), np.int32([3])), 'x', s)
    records = [record(s) for s in (*seeds('train', 3), seeds(split, 1)[0])]
    with pytest.raises(ValueError, match=f'of the {split} split'): write_corpus(tmp_path/'a', records)
    assert not (tmp_path/'a').exists()
    with monkeypatch.context() as m:   # a file that lies, or comes from elsewhere
        m.setattr('uitars_nb.flywheel.corpus.check_split', lambda facts, split: facts)
        write_corpus(tmp_path/'b', records)
    with pytest.raises(ValueError, match=f'of the {split} split'): Corpus(tmp_path/'b')
    with pytest.raises(ValueError): Corpus(tmp_path/'b', 'validation')


def test_borders_of_the_splits():
    facts = lambda s: ExampleFacts(np.int32([3]), np.int32([1]), np.int64([s]), np.int32([0]), ('x',))
    room = SPLITS['train']
    for s in room.start, room.stop - 1: check_split(facts(s))
    for s in room.start - 1, room.stop:
        with pytest.raises(ValueError): check_split(facts(s))
    with pytest.raises(ValueError): of_split([TaskSpec('x', 5, split='validation')])


# corpora

images = arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))
ids = lambda least: st.lists(st.integers(0, 2**31 - 1), min_size=least, max_size=6).map(np.int32)
dense = st.dictionaries(st.sampled_from(['reads', 'targets']), st.one_of(arrays(np.int8, (2, 3)), arrays(np.float32, (3,), elements=st.floats(0, 1, width=32))))
records = st.lists(st.builds(lambda p, im, r, t, s, d: TrainingExample(Example(Prompt(p, tuple(im)), r), t, s, d), ids(1), st.lists(images, max_size=3), ids(1),
                             st.sampled_from(['a', 'b/ü', '']), st.integers(0, 10**9 - 1), dense), min_size=1, max_size=12)


def same(a, b):
    assert (a.task, a.seed) == (b.task, b.seed) and a.targets.keys() == b.targets.keys()
    for x, y in [(a.example.prompt.ids, b.example.prompt.ids), (a.example.reply, b.example.reply), *zip(a.example.prompt.images, b.example.prompt.images, strict=True),
                 *((a.targets[k], b.targets[k]) for k in a.targets)]:
        assert x.dtype == y.dtype and np.array_equal(x, y)


@few
@given(records, st.integers(1, 5))
def test_a_corpus_gives_back_what_it_took(tmp_path_factory, records, size):
    path = tmp_path_factory.mktemp('corpus')
    write_corpus(path, records, size=size)
    corpus = pickle.loads(pickle.dumps(Corpus(path)))
    assert len(corpus) == len(records)
    for a, b in zip(records, corpus, strict=True): same(a, b)
    for k in ('length', 'own', 'seed'): np.testing.assert_array_equal(getattr(corpus.facts, k), getattr(facts_of(records), k))
    assert [corpus.facts.names[i] for i in corpus.facts.task] == [r.task for r in records]


def test_questions_about_one_screen_share_it(tmp_path):
    screen = np.random.default_rng(0).integers(0, 255, (210, 160, 3), np.uint8)
    ask = lambda n: [TrainingExample(Example(Prompt(np.int32([1, i]), (screen.copy(),)), np.int32([i])), 'ask', i) for i in range(n)]
    one, many = (write_corpus(tmp_path/str(n), ask(n))[0].stat().st_size for n in (1, 50))
    assert many < one + 50 * 100


def test_vocabularies_are_told_apart():
    a, b = (new_policy(make_tokenizer([text]), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1)[1] for text in ('Click here there', 'other words altogether'))
    assert vocabulary(a) == vocabulary(a) != vocabulary(b)


def test_a_half_written_shard_is_refused(tmp_path):
    path, = write_corpus(tmp_path, [TrainingExample(Example(Prompt(np.arange(99, dtype=np.int32)), np.int32([1])), 'x', 1)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError): Corpus(tmp_path)


# streams

def listed(n, task='t', length=lambda i: 20 + i % 7, first=0):
    return ExampleList(TrainingExample(Example(Prompt(np.full(length(i), first + i, np.int32)), np.full(1 + i % 3, first + i, np.int32)), task, first + i) for i in range(n))


@few
@given(st.integers(1, 30), st.integers(0, 50), st.integers(0, 90), st.integers(0, 5))
def test_each_record_once_before_any_twice(n, start, count, seed):
    whole = record_draws(n, 0, start + count, seed, 0)
    np.testing.assert_array_equal(record_draws(n, start, count, seed, 0), whole[start:])
    for i in range(0, len(whole), n): assert len(set(whole[i:i + n])) == len(whole[i:i + n])


@few
@given(st.lists(st.floats(0, 9), min_size=1, max_size=6).filter(lambda w: sum(w) > 0), st.integers(0, 500))
def test_quotas_are_the_weights(weights, total):
    parts, share = quotas(weights, total, range(400)), np.array(weights) / sum(weights) * total
    assert (parts >= 0).all() and (parts.sum(1) == total).all() and (np.abs(parts - share) < 1 + 1e-6).all()
    assert (np.abs(parts.mean(0) - share) < .02).all()   # a source that is too small for every pool has its share over many


def test_a_stream_keeps_its_weights_and_wastes_nothing():
    a, b = listed(500, 'a', lambda i: 150 + i % 60), listed(200, 'b', lambda i: 160 + i % 300, first=1000)
    stream = Stream(dict(a=a, b=b), dict(a=3, b=1), batch=16, pool=32)
    rows = np.stack([stream[k] for k in range(128)])
    tasks = Counter('ab'[int(i >= 500)] for i in rows.ravel())
    assert tasks['a'] == 3 * tasks['b']
    assert Counter(Counter(rows[rows < 500].tolist()).values()).keys() <= {3, 4}   # 1536 draws of 500
    assert padding(stream.facts.length[rows]) < .07 < padding(np.random.default_rng(0).permutation(stream.facts.length[rows.ravel()]).reshape(rows.shape))
    for k in 0, 1, 31, 32, 100:   # the second of two readings, in any order, by a copy
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream))[k], rows[k])
    mixed = [len({int(i >= 500) for i in row}) for row in rows]
    assert np.mean(mixed) > 1.3   # batches are not of one source each


def test_small_batches_see_every_source():
    "With one record a batch and sixty sources, some of which are too small for a record in each pool."
    sources = {f's{i}': listed(5, f's{i}', first=9 * i) for i in range(60)}
    stream = Stream(sources, {k: 1 if i else 9 for i, k in enumerate(sources)}, batch=1, pool=64)
    seen = Counter(int(stream[k][0]) // 5 for k in range(68 * 40))
    assert abs(seen[0] - 360) <= 2 and all(abs(seen[i] - 40) <= 2 for i in range(1, 60))
    places = [int(stream[k][0]) for k in range(68 * 40)]
    assert Counter(Counter(p for p in places if p // 5 == 7).values()).keys() <= {7, 8, 9}   # each record once before any twice


def test_batches_are_not_of_one_length():
    length = np.random.default_rng(0).integers(160, 176, 2048)
    dealt = length[make_batches(length, 32, np.random.default_rng(1))]
    assert (dealt.max(1) > dealt.min(1)).mean() > .9


@pytest.mark.parametrize('workers', [0, 1, 3])
def test_loading_resumes_exactly(workers, tmp_path):
    "Batches 0 to 11 in one go, or with a stop after any of them, whoever loads."
    write_corpus(tmp_path, listed(60, length=lambda i: 20 + i))
    policy, stream = small_policy(), Stream(dict(c=Corpus(tmp_path)), batch=4, pool=4)
    batches = Batches(stream, Collate(policy.processor, stream.facts.names))
    whole = [batches[k] for k in range(12)]
    for stop in (0, 5, 8):
        for k, b in zip(range(stop, 12), loader(batches, BatchNumbers(stop), workers)):
            assert b.keys() == whole[k].keys()
            for name, v in b.items(): assert torch.equal(v, whole[k][name]) if torch.is_tensor(v) else v == whole[k][name], (k, name)


def test_devices_share_the_stream():
    policy, stream = small_policy(), Stream(dict(t=listed(60)), batch=4, pool=8)
    collate = Collate(policy.processor, stream.facts.names)
    took = [[b['input_ids'][:, 0].tolist() for b in islice(loader(Batches(stream, collate, 3), BatchNumbers(r, 3)), 5)] for r in range(3)]
    alone = [b['input_ids'][:, 0].tolist() for b in islice(loader(Batches(stream, collate), BatchNumbers()), 15)]
    assert [took[k % 3][k // 3] for k in range(15)] == alone
    for k in range(9): assert Batches(stream, collate, 3)[k]['mean_own'] == pytest.approx(sum(int(Batches(stream, collate)[j]['own'].sum()) for j in range(k - k % 3, k - k % 3 + 3)) / 3)


def test_dense_targets_stand_at_the_newest_image():
    policy = small_policy()
    image, old, new = policy.processor.image_token_id, np.zeros((16, 32, 3), np.uint8), np.ones((32, 16, 3), np.uint8)
    two = TrainingExample(Example(Prompt(np.int32([1, image, image, 2, image, image, 3]), (old, new)), np.int32([4])), 't', 0, dict(reads=np.full((8, 7), 5, np.uint8), targets=np.float32([.25, 1])))
    none = TrainingExample(Example(Prompt(np.int32([1, image, image]), (new,)), np.int32([4])), 't', 0)
    reads, goal = image_rows([none, two], 'reads'), token_rows([none, two], 'targets', image, 9)
    assert reads.shape == (3, 8, 7) and (reads[:2] == IGNORE).all() and (reads[2] == 5).all()
    assert goal[1].tolist() == [IGNORE] * 4 + [.25, 1] + [IGNORE] * 3 and (goal[0] == IGNORE).all()
    assert image_rows([none], 'reads') is None and token_rows([none], 'targets', image, 9) is None


def test_once_is_every_record_once():
    source = listed(45)
    once = OnePass(source, Collate(small_policy().processor, ('t',)), batch=8)
    assert sorted(np.concatenate(once.rows)) == [*range(45)] and len(once) == 6
    assert sum(len(b['own']) for b in loader(once, range(len(once)))) == 45


def test_streams_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match='weights are for'): Stream(dict(a=listed(3)), dict(b=1))
    with pytest.raises(ValueError, match='a holds no records'): Stream(dict(a=ExampleList(), b=listed(3)), dict(a=1, b=1))
    with pytest.raises(ValueError, match='not all zero'): Stream(dict(a=listed(3)), dict(a=0))


def test_a_reply_without_its_end_in_the_text_is_the_policys_own():
    "As a server gives it: ids with the token that ended the reply, the text without."
    policy = small_policy()
    ids = np.append(policy.encode('click'), policy.processor.tokenizer.eos_token_id).astype(np.int32)
    said = lambda text: Completion(text, np.zeros(0, np.int32), ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))
    assert same_vocabulary(policy, said(policy.decode(ids))) and same_vocabulary(policy, said('click')) and not same_vocabulary(policy, said('clack'))
