"A model as an agent: what it is shown, what becomes of its replies, whose fault a failure is, and the tokens of real processors."
import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tiny_models import write_checkpoint

from uitars_nb.agent.loop import EPISODE, EpisodeLimits, run_episode, exhausted_budget
from uitars_nb.agent.memory import SMALL, Memory, MemoryConfig, estimate_tokens
from uitars_nb.agent.policy_agent import PolicyAgent, count_tokens, turn_seed
from uitars_nb.agent.rollout import Rollout, play
from uitars_nb.core.types import Action, Completion, ContextExceeded, ContextTooSmall, Observation, RequestFailed, Step, StopReason, TaskSpec
from uitars_nb.model.dialects import get_dialect
from uitars_nb.model.policy import Policy
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.sandbox.base import ActionError
from uitars_nb.tasks.base import Outcome, register, suite

DIALECT = get_dialect('ui-tars-2')


def say(*actions, thought='I go on.', dialect=DIALECT, size=(160, 210)): return dialect.write(thought, actions, size)
def click(x=500, y=500): return Action('click', dict(point=(x, y)))
def completion(text): return Completion(text, np.zeros(0, np.int32), np.frombuffer(text.encode(), np.uint8).astype(np.int32), *(np.zeros(len(text.encode()), t) for t in (np.float32, np.int32)))


class Counter:
    "Counts clicks in its right half."
    id = 'counter'
    def __init__(self, size=(160, 210)): self.size, self.n, self.done = size, 0, []
    async def reset(self): self.n, self.done = 0, []
    async def observe(self): return Observation(np.full((*self.size[::-1], 3), self.n * 40, np.uint8))
    async def close(self): pass
    async def act(self, action):
        await asyncio.sleep(0)
        if action.name not in ('click', 'wait'): raise ActionError(f'a counter cannot {action.name}')
        self.done.append(action)
        if action.name == 'click' and action.args['point'][0] >= 500: self.n += 1


class UpToThree:
    name, max_steps = 'counting/three', 12
    async def setup(self, session, spec):
        await session.reset()
        return replace(spec, instruction=f'Click three times ({spec.seed}).', max_steps=self.max_steps)
    async def verify(self, session, spec): return Outcome(float(session.n == 3), session.n == 3, session.n >= 3)

TASK = register(UpToThree())


class Counters:
    size = 4
    @asynccontextmanager
    async def session(self): yield Counter()


class Script:
    "Gives its replies in turn, to each episode from the first."
    def __init__(self, *replies): self.replies, self.seen = replies, []
    async def complete(self, messages, sampling, key=''):
        n = sum(k == key for *_, k in self.seen)
        self.seen.append((messages, sampling, key))
        await asyncio.sleep(0)
        reply = self.replies[n % len(self.replies)]
        if isinstance(reply, BaseException): raise reply
        return completion(reply)


def policy(*replies, config=MemoryConfig(), **kw): return PolicyAgent(Script(*replies), kw.pop('dialect', DIALECT), kw.pop('sampling', Sampling(max_tokens=64)), config, **kw)
async def episode(agent, session=None, limits=EpisodeLimits(), **kw): return await run_episode(session or Counter(), TASK, TaskSpec(TASK.name, **kw), agent, limits)
def words(messages): return '\n'.join(p['text'] for m in messages for p in m['content'] if p['type'] != 'image')


async def test_steps_keep_what_was_said_and_what_was_seen():
    agent = policy(say(click(), thought='First.'), say(click(), thought='Again.'))
    traj = await episode(agent)
    assert traj.success and [s.thought for s in traj.steps] == ['First.', 'Again.', 'First.']
    assert [s.completion.image_steps for s in traj.steps] == [(0,), (0, 1), (0, 1, 2)]
    for step, (messages, *_) in zip(traj.steps, agent.engine.seen, strict=True):
        assert messages[-1]['content'][-1]['image'] is step.observation.screenshot
        assert 'Click three times (0).' in words(messages)


async def test_several_actions_in_one_step():
    session = Counter()
    traj = await episode(policy(say(click(), Action('wait', dict(time=1)), click(), click(), click())), session)
    assert traj.stop is StopReason.TERMINATED and len(traj.steps) == 1
    assert [a.name for a in session.done] == ['click', 'wait', 'click', 'click'] and len(traj.steps[0].actions) == 4


async def test_a_refused_action_names_what_was_not_done():
    agent = policy(say(click(), Action('navigate_back'), click(), Action('wait')), say(click(), click()))
    traj = await episode(agent)
    assert [a.name for a in traj.steps[0].actions] == ['click', 'navigate_back']
    assert traj.steps[0].error == 'a counter cannot navigate_back; not done: click, wait'
    assert 'navigate_back was refused: a counter cannot navigate_back; not done: click, wait' in words(agent.engine.seen[1][0])
    assert traj.success and len(traj.steps) == 2


async def test_format_errors_come_back_and_end_the_episode():
    agent = policy('Let me think.', say(click()), '<think>never closed')
    traj = await episode(agent)
    assert [bool(s.error) for s in traj.steps] == [True, False, True] * 2 + [True, False]
    assert 'expected <think> or <seed:tool_call>' in words(agent.engine.seen[1][0]) and 'never closed by </think>' in words(agent.engine.seen[3][0])
    assert traj.steps[0].completion.text == 'Let me think.' and traj.steps[0].actions == ()
    assert (await episode(policy('Hm.'))).stop is StopReason.FORMAT_ERROR


async def test_a_reply_that_was_cut_off_is_told_as_such():
    agent = policy('<think>and so', say(click()))
    cut, whole = agent.engine.complete, replace(completion('<think>and so'), finish='length')
    async def complete(*args, **kw): return whole if (c := await cut(*args, **kw)).text == whole.text else replace(c, finish='length')
    agent.engine.complete = complete
    traj = await episode(agent)
    assert traj.steps[0].error.endswith(f'(cut off after {len(whole.ids)} tokens)') and not traj.steps[1].error
    assert 'tokens)' in words(agent.engine.seen[1][0])
    whole = replace(whole, ids=np.zeros(0, np.int32), logps=np.zeros(0, np.float32), versions=np.zeros(0, np.int32))   # a server that tells of no tokens
    assert (await episode(agent)).steps[0].error.endswith('(cut off after 64 tokens)')
    assert 'cut off' not in (await episode(policy('<think>and so', say(click())))).steps[0].error


async def test_loops_are_hinted_at_and_then_ended():
    agent = policy(say(click(0, 0)))
    traj = await episode(agent, limits=EpisodeLimits(repeats=4))
    assert traj.stop is StopReason.LOOP and len(traj.steps) == 4
    assert ['has not changed' in words(m) for m, *_ in agent.engine.seen] == [False, True, True, True]
    assert 'You did the same 3 times' in words(agent.engine.seen[3][0])


async def test_token_budget():
    traj = await episode(policy(say(click(0, 0)), say(click(1, 1))), limits=EpisodeLimits(tokens=3 * len(say(click()))))
    assert traj.stop is StopReason.TOKEN_LIMIT and 2 <= len(traj.steps) <= 4 and not traj.success


@pytest.mark.parametrize('name', ['ui-tars-1.5', 'ui-tars-1', 'ui-tars-2'])
async def test_every_dialect_clicks_where_it_says(name):
    "Points go through the dialect's own unit and land on the grid."
    dialect, size = get_dialect(name), (1920, 1080)
    session = Counter(size)
    traj = await episode(policy(say(click(750, 250), dialect=dialect, size=size), dialect=dialect, config=MemoryConfig(images=1)), session)
    assert traj.success and all(abs(a - b) <= 1 for act in session.done for a, b in zip(act.args['point'], (750, 250)))


# --- whose fault it is

async def test_an_engine_that_hangs_is_the_environments_time_out():
    "Nothing that a policy should be punished for, or learn from: its replies are bounded in tokens."
    released = asyncio.Event()
    class Hung:
        async def complete(self, messages, sampling, key=''):
            try: await asyncio.sleep(60)
            finally: released.set()
    traj = await episode(PolicyAgent(Hung(), DIALECT, Sampling()), limits=EpisodeLimits(think_seconds=.05))
    assert (traj.stop, traj.reward, len(traj.steps)) == (StopReason.ENV_TIMEOUT, None, 0) and 'no reply within 0.05 s' in traj.info['error']
    assert released.is_set(), 'the request was left running'


async def test_an_episode_that_outgrows_its_models_context_ends_there_and_one_that_cannot_begin_is_given_up():
    traj = await episode(policy(say(click(100)), say(click(200)), ContextExceeded('4097 tokens')))
    assert (traj.stop, traj.reward, len(traj.steps)) == (StopReason.TOKEN_LIMIT, 0., 2)
    traj = await episode(policy(ContextExceeded('4097 tokens')))
    assert (traj.stop, traj.reward, traj.info['error']) == (StopReason.ENV_RESOURCE, None, '4097 tokens')


@pytest.mark.parametrize('error, reason', [(ConnectionRefusedError('no'), StopReason.ENV_CRASH), (TimeoutError('late'), StopReason.ENV_TIMEOUT), (BrokenPipeError(), StopReason.ENV_CRASH), (RequestFailed('no memory'), StopReason.ENV_RESOURCE)])
async def test_an_engine_that_cannot_answer_is_the_environments(error, reason):
    traj = await episode(policy(say(click()), error))
    assert traj.stop is reason and traj.reward is None and 'engine' in traj.info['error']


async def test_what_the_engine_broke_is_played_again_and_counted():
    class Flaky(Script):
        async def complete(self, messages, sampling, key=''):
            if key.endswith('.0') and len(messages) > 3: raise ConnectionResetError('gone')
            return await super().complete(messages, sampling, key)
    agent = PolicyAgent(Flaky(say(click())), DIALECT, Sampling(max_tokens=64))
    rollout = Rollout(Counters(), suite(TASK.name, n=5), agent, 'flaky')
    trajs = await play(rollout, progress=False)
    assert (rollout.done, rollout.failures, rollout.lost) == (5, 5, 0)
    assert sorted(t.success for t in trajs if t.reward is not None) == [True] * 5 and sum(t.reward is None for t in trajs) == 5


async def test_a_bug_of_the_engine_is_not_hidden():
    with pytest.raises(ZeroDivisionError): await episode(policy(ZeroDivisionError()))


async def test_a_context_that_is_too_short_is_told_at_once():
    "No screen fits: nothing of an episode's making. One instruction that is too long is its own episode's."
    with pytest.raises(ContextTooSmall, match='longer context'): await episode(policy(say(click()), config=MemoryConfig(context=200)))


class Slow(Counter):
    "A session on real time, whose hands are stuck after so many waits."
    stuck = 99
    async def act(self, action):
        if action.name == 'wait': self.stuck -= 1; await asyncio.sleep(action.args['time'] if self.stuck >= 0 else 9)
        else: await super().act(action)


async def test_a_policy_that_waits_has_failed_itself():
    "Several waits in a reply, and one that is longer than the environment may take for anything else, are no failure of the environment."
    wait = lambda s: Action('wait', dict(time=s))
    agent = policy(say(*[wait(.06)] * 4, wait(.2)), say(Action('finished')))
    traj = await episode(agent, Slow(), EpisodeLimits(seconds=.1))
    assert (traj.stop, traj.success, len(traj.steps[0].actions)) == (StopReason.FINISHED, False, 5)
    traj = await episode(policy(say(*[wait(.06)] * 4)), Slow(), EpisodeLimits(seconds=.1, session_ms=200))
    assert (traj.stop, len(traj.steps[0].actions)) == (StopReason.POLICY_TIMEOUT, 3)
    stuck = Slow(); stuck.stuck = 1
    traj = await episode(policy(say(*[wait(.06)] * 4)), stuck, EpisodeLimits(seconds=.1))
    assert traj.stop is StopReason.ENV_TIMEOUT


async def test_no_character_of_a_page_ends_an_evaluation():
    "The renderer's own mark and half a surrogate pair, in a thought and on the screen."
    class Odd(Counter):
        async def observe(self): return replace(await super().observe(), text='\ue0f0 \ue0f1 \ud83d')
    model = Policy(*_nano(), 'ui-tars-2')
    agent = policy(say(click(), thought='\ue0f0'), count=count_tokens(model))
    traj = await episode(agent, Odd())
    assert traj.success and len(traj.steps) == 3
    for messages, *_ in agent.engine.seen: assert len(model.render(messages).images) == len([p for m in messages for p in m['content'] if p['type'] == 'image'])


# --- seeds and episodes

async def test_samples_are_seeded_by_episode_and_turn():
    agent = policy(say(click(), thought='a'), say(click(), thought='b'), sampling=Sampling(max_tokens=64, seed=7))
    def played():
        seeds = {}
        for _, s, key in agent.engine.seen: seeds.setdefault(key, []).append(s.seed)
        agent.engine.seen.clear()
        return seeds
    specs = suite(TASK.name, n=4)
    await play(Rollout(Counters(), specs, agent, 'one', samples=2), progress=False)
    first = played()
    await play(Rollout(Counters(), specs[::-1], agent, 'one', samples=2), progress=False)
    assert first == played() and len(first) == 8
    await play(Rollout(Counters(), specs, agent, 'elsewhere/one', samples=2), progress=False)
    assert {k.removeprefix('elsewhere/'): v for k, v in played().items()} == first   # of the same weights in another folder
    for id in ('run/000001-0.0', 'run/000001-1.0'): await run_episode(Counter(), TASK, specs[0], agent, id=id)   # as practice names them
    assert len({s for seeds in played().values() for s in seeds}) == 6
    every = [s for seeds in first.values() for s in seeds]
    assert len(set(every)) == len(every) == 24
    assert turn_seed(None, 'x', 1) is None and turn_seed(1, 'x', 1) != turn_seed(2, 'x', 1)


async def test_each_episode_knows_its_own_name():
    names = {}
    class Nosy:
        def __init__(self, session, task, spec): names[spec.seed] = EPISODE.get()
        async def act(self, steps, obs): await asyncio.sleep(0); return await Script(say(click())).complete([], None) and replace(REPLY)
    from uitars_nb.agent.loop import Reply
    REPLY = Reply(actions=(click(),))
    specs = suite(TASK.name, n=8)
    await play(Rollout(Counters(), specs, Nosy, 'nosy'), progress=False)
    assert names == {s.seed: f'nosy/{s.id}/0.0' for s in specs}


# --- summaries that the model writes

class Scribe(Script):
    asked = 0
    summary = 'Clicked on the left; nothing happened.'
    async def complete(self, messages, sampling, key=''):
        if 'Summarise these steps' not in words(messages): return await super().complete(messages, sampling, key)
        self.asked += 1
        return completion(self.summary)


@pytest.mark.parametrize('summary', [Scribe.summary, ''])
async def test_each_chunk_is_summarised_once(summary):
    engine = Scribe(*[say(click(i, i), thought=f'Try {i}.') for i in range(12)])
    engine.summary = summary
    agent = PolicyAgent(engine, DIALECT, Sampling(max_tokens=64), MemoryConfig(images=1, steps=2, chunk=3, system=False), written=True)
    traj = await episode(agent)
    assert len(traj.steps) == 12 and engine.asked == 3
    assert [c.text.startswith(summary) for s in traj.steps for c in s.aside] == [True] * 3
    said = sum(len(c.ids) for s in traj.steps for c in (s.completion, *s.aside))
    assert exhausted_budget(traj.steps, traj.final, traj.task, EpisodeLimits(tokens=said)) is StopReason.TOKEN_LIMIT and exhausted_budget(traj.steps, traj.final, traj.task, EpisodeLimits(tokens=said + 1)) is not StopReason.TOKEN_LIMIT   # summaries count
    last = words(engine.seen[-1][0])
    assert (f'1-9. {summary}' in last and 'Try 4' not in last) if summary else ('5. Try 4.' in last)


@pytest.mark.parametrize('summaries, asked, told', [('', 0, '5. Try 4.'), ('lines', 0, '5. Try 4.'), ('written', 3, f'1-9. {Scribe.summary}'), ('none', 0, '')])
async def test_the_same_model_with_another_memory(summaries, asked, told):
    engine = Scribe(*[say(click(i, i), thought=f'Try {i}.') for i in range(12)])
    agent = PolicyAgent(engine, DIALECT, Sampling(max_tokens=64), MemoryConfig(images=1, steps=2, chunk=3, system=False)).remembering(2, summaries)
    await episode(agent)
    last = engine.seen[-1][0]
    assert engine.asked == asked and sum(p['type'] == 'image' for m in last for p in m['content']) == 2
    assert told in words(last) and ('Earlier steps' in words(last)) == bool(told)


def test_summaries_that_there_are_not():
    with pytest.raises(ValueError, match='lines, written, none'): policy().remembering(summaries='long')


# --- tokens of real processors

@pytest.fixture(scope='module')
def qwen(tmp_path_factory): return Policy.from_pretrained(write_checkpoint(tmp_path_factory.mktemp('qwen')/'model', 'UI-TARS-1.5-7B'))


def _nano():
    from uitars_nb.core.actions import ACTION_SPACE
    from uitars_nb.core.grammar import describe
    from uitars_nb.model.nano.nano import NanoVLForConditionalGeneration, NanoVLImageProcessor, NanoVLProcessor, nano_config
    from uitars_nb.model.nano.tokenizer import make_tokenizer
    tok = make_tokenizer([describe(ACTION_SPACE), *[say(click(i, i)) for i in range(0, 1000, 50)]])
    config = nano_config(tok, hidden=32, layers=1, heads=2)
    return NanoVLForConditionalGeneration(config), NanoVLProcessor(NanoVLImageProcessor(), tok)


@pytest.fixture(scope='module')
def nano(): return Policy(*_nano(), 'ui-tars-2')


def spoken(policy, text):
    "A completion as an engine gives it: the policy's own ids, the end of the turn included."
    ids = np.append(policy.encode(text), policy.processor.tokenizer.eos_token_id).astype(np.int32)
    return Completion(policy.decode(ids), np.zeros(0, np.int32), ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))


def screens(n, size=(160, 210)): return [Observation(np.full((*size[::-1], 3), 9 * i, np.uint8)) for i in range(n)]


@pytest.mark.parametrize('which', ['qwen', 'nano'])
def test_a_prompt_begins_with_the_last_one_and_the_sampled_reply(which, request):
    "Token for token: what the model has read and said is what it reads again. Only a screenshot that leaves changes the past."
    model = request.getfixturevalue(which)
    memory = Memory(MemoryConfig(images=99, context=10**6), model.dialect, count_tokens(model))
    obs, steps, before = screens(6), [], None
    for i, o in enumerate(obs):
        c = memory.recall('Find it.', steps, o)
        ids = model.render(c.messages).ids
        assert c.tokens == len(ids)
        if before is not None: assert ids[:len(before)].tolist() == before.tolist()
        reply = spoken(model, say(click(10 * i, 20), thought=f'Take {i}.', dialect=model.dialect))
        before = np.concatenate([ids, reply.ids])
        steps.append(Step(o, f'Take {i}.', (click(10 * i, 20),), reply))


@pytest.mark.parametrize('which, config', [('qwen', MemoryConfig(images=3, context=2600, system=False)), ('nano', replace(SMALL, context=600))])
def test_real_prompts_fit(which, config, request):
    model = request.getfixturevalue(which)
    memory, obs, steps, starts = Memory(config, model.dialect, count_tokens(model)), screens(28), [], []
    for i, o in enumerate(obs):
        c = memory.recall('Find it.', steps, o, reply=64)
        prompt = model.render(c.messages)
        assert len(prompt.ids) == c.tokens <= config.context - 64 and prompt.images[-1] is o.screenshot
        starts.append(c.start)
        steps.append(Step(o, f'Take {i}.', (click(10 * i, 20),), spoken(model, say(click(10 * i, 20), thought=f'Take number {i}.', dialect=model.dialect))))
    assert starts[0] == 0 and starts[-1] > 0 and starts == sorted(starts)


def test_the_estimate_is_not_too_low(qwen):
    memory = Memory(MemoryConfig(), qwen.dialect, estimate_tokens)
    steps = [Step(o, 'Ich öffne die Seite.', (click(),), error='是错误的' if i % 2 else '') for i, o in enumerate(screens(7, (640, 480)))]
    c = memory.recall('Finde die Bestellung.', steps, screens(8, (640, 480))[-1])
    from collections import Counter as Bag
    images = sum(v for k, v in Bag(qwen.render(c.messages).ids.tolist()).items() if k == qwen.processor.image_token_id)
    text = sum(2 + len(p['text'].encode()) / 2 for m in c.messages for p in m['content'] if p['type'] == 'text')
    assert images + text <= c.tokens
    digits = [dict(role='user', content=[dict(type='text', text='0123456789' * 100)])]
    assert len(qwen.render(digits).ids) >= 1000 and estimate_tokens(digits) >= 1000      # a token each, in all of these models


@pytest.mark.parametrize('size', [(160, 210), (640, 480), (800, 600)])
@pytest.mark.parametrize('which', ['qwen', 'nano'])
def test_a_served_model_is_estimated_as_what_it_is(which, size, request):
    model = request.getfixturevalue(which)
    agent = PolicyAgent.served(Script(), dict(dialect=model.dialect.name, model_type=model.model.config.model_type), Sampling())
    chat = [dict(role='user', content=[dict(type='text', text='Click on the "Submit" button.\n'), dict(type='image', image=np.zeros((*size[::-1], 3), np.uint8))])]
    images = int((model.render(chat).ids == model.processor.image_token_id).sum())
    assert images < agent.count(chat) <= images + 60
    if which == 'nano': assert agent.count(chat) >= len(model.render(chat).ids)


def test_what_a_small_vocabulary_spells_is_counted(nano):
    "Its words are those of its lessons: of others each character may be a token."
    agent = PolicyAgent.served(Script(), dict(dialect=nano.dialect.name, model_type='nano_vl'), Sampling())
    chat = [dict(role='user', content=[dict(type='text', text='xqzjvk WQXJZ \u00e9\u4e2d\u6587 ' * 9)])]
    assert agent.count(chat) >= len(nano.render(chat).ids) > 150


@pytest.mark.parametrize('reported, asked, used', [(512, 0, 512), (32768, 8192, 8192), (512, 8192, 512), (None, 600, 600)])
def test_the_context_that_is_asked_for_is_used_unless_the_server_has_less(nano, reported, asked, used):
    about = dict(dialect=nano.dialect.name, model_type='nano_vl') | (dict(max_model_len=reported) if reported else {})
    assert PolicyAgent.served(Script(), about, Sampling(), context=asked).config.context == used


def test_memory_settings_that_a_server_reports_are_used_or_refused(nano):
    about = dict(dialect=nano.dialect.name, model_type='nano_vl')
    assert PolicyAgent.served(Script(), about | dict(memory=dict(chunk=1)), Sampling()).config.chunk == 1
    with pytest.raises(ValueError, match='do not exist: lines; there are images'):
        PolicyAgent.served(Script(), about | dict(memory=dict(lines=1)), Sampling())


@pytest.mark.parametrize('name', ['COMPUTER_USE_DOUBAO', 'MOBILE_USE_DOUBAO', 'GROUNDING_DOUBAO'])
async def test_the_prompt_of_the_models_authors_takes_the_place_of_ours(qwen, tmp_path, name):
    theirs = getattr(pytest.importorskip('ui_tars.prompt'), name).replace('{language}', 'English')
    (tmp_path/'prompt.txt').write_text(theirs)
    engine = Script(say(click()))
    agent = PolicyAgent(engine, DIALECT, Sampling(max_tokens=8)).remembering(prompt=str(tmp_path/'prompt.txt'))
    await agent(None, None, TaskSpec('counting/three', 0, 'Open the door.')).act((), Observation(np.zeros((210, 160, 3), np.uint8)))
    first, *rest = engine.seen[0][0]
    assert first['role'] == 'user' and not rest
    assert first['content'][0]['text'].strip() == theirs.format(instruction='Open the door.').strip()


@pytest.mark.parametrize('text, why', [
    ('Do what is asked.', r'has to end with \{instruction\}'), ('{instruction} Now act.', r'has to end with \{instruction\}'),
    ('Think in {language}. {instruction}', r'still holds \{language\}')])
def test_a_prompt_file_that_cannot_be_used_is_refused_before_an_episode(tmp_path, text, why):
    (tmp_path/'prompt.txt').write_text(text)
    with pytest.raises(ValueError, match=why): policy().remembering(prompt=str(tmp_path/'prompt.txt'))


def test_two_threads_may_render_at_once(qwen):
    "An engine renders on its own thread while memory counts on the loop's."
    messages = [dict(role='user', content=[dict(type='text', text='a <|im_end|> b ' * 200)])]
    wanted, wrong = qwen.render(messages).ids, []
    def work():
        for _ in range(60): wrong.extend([1] * (not np.array_equal(qwen.render(messages).ids, wanted)))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong


async def test_a_real_engine_plays_many_episodes(nano):
    "A random small policy: its replies are nonsense, and every episode ends as such, with the ids that it sampled and the context that it was sampled in."
    from uitars_nb.model.engine.engine import Engine
    torch.manual_seed(0)
    async with Engine(nano, max_batch=4) as engine:
        engine.complete = None   # what memory has rendered is not rendered again
        agent = PolicyAgent(engine, nano.dialect, Sampling(max_tokens=12, seed=3), SMALL, count_tokens(nano))
        trajs = await play(Rollout(Counters(), suite(TASK.name, n=4), agent, 'nano'), progress=False)
    assert [t.stop for t in trajs] == [StopReason.FORMAT_ERROR] * 4
    for t in trajs:
        for k, s in enumerate(t.steps):
            prompt = nano.render(agent.memory.recall(t.task.instruction, t.steps[:k], s.observation, 12).messages)
            assert np.array_equal(prompt.ids, s.completion.prompt_ids) and s.completion.image_steps == (k,)
            assert 0 < len(s.completion.ids) <= 12 and (s.completion.logps <= 0).all()
