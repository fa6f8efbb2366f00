"Whatever an episode was like, its prompt holds the instruction and the newest screen, fits, and says nothing that did not happen."
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from uitars_nb.agent.loop import EpisodeLimits, repeated, exhausted_budget
from uitars_nb.agent.memory import SMALL, Memory, MemoryConfig, Plan, estimate_tokens, drop_middle, merge_repeats, plans, step_line
from uitars_nb.agent.turns import cut_middle, feedback, reply_part, spoken_ids, describe_observation, same_screen
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.grammar import parse
from uitars_nb.core.types import Action, Completion, Event, EventKind, Observation, Step, StopReason, TaskSpec
from uitars_nb.model.dialects import DIALECTS, get_dialect

DIALECT = get_dialect('ui-tars-2')
CLICK, SCROLL = Action('click', dict(point=(500, 500))), Action('scroll', dict(direction='down'))


def screen(i, **kw):
    "The i-th of many different screens."
    return Observation(np.full((56, 84, 3), (i % 256, i // 256 % 256, 7), np.uint8), **kw)


def completion(text, ends='<|im_end|>'):
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    ids = np.append(ids, [300] * bool(ends)).astype(np.int32)
    return Completion(text + ends, np.zeros(0, np.int32), ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))


def parts(messages, kind): return [p for m in messages for p in m['content'] if p['type'] == kind]
def words(messages): return '\n'.join(p['text'] for m in messages for p in m['content'] if p['type'] != 'image')


# any episode that the loop can leave behind: what a model said or a demonstration, with errors, output and events
texts = st.text(st.characters(exclude_categories=['Cs']), max_size=80)
calls = st.sampled_from([CLICK, SCROLL, Action('type', dict(content='<think>\n')), Action('hotkey', dict(key='ctrl c')), Action('wait')])
events = st.lists(st.builds(Event, st.sampled_from(list(EventKind)), texts), max_size=2).map(tuple)
observations = st.builds(screen, st.integers(0, 5), text=texts | texts.map(lambda t: t * 200), events=events, title=texts)


@st.composite
def turns(draw):
    "A step: a readable reply with or without a model behind it, or an unreadable one."
    obs, thought, actions = draw(observations), draw(texts), tuple(draw(st.lists(calls, max_size=3)))
    error = draw(texts) if actions else draw(texts.filter(bool))
    spoken = draw(st.none() | texts.map(completion)) if actions else completion(thought)
    return Step(obs, thought, actions, spoken, error)


episodes = st.lists(turns(), max_size=30)
configs = st.builds(MemoryConfig, images=st.integers(1, 6), spare=st.integers(0, 4), steps=st.none() | st.integers(0, 8), episodic=st.booleans(), context=st.integers(300, 6000), chunk=st.integers(1, 9),
                    summary=st.integers(0, 3000), line=st.integers(0, 200), text=st.integers(0, 2000), system=st.booleans(), heading=st.sampled_from(['', '## Task\n']),
                    placeholder=st.sampled_from(['', '(gone)']))
counters = st.sampled_from([estimate_tokens, lambda m: sum(len(p.get('text', '')) + 500 * (p['type'] == 'image') for x in m for p in x['content'])])


@settings(max_examples=250)
@given(episodes, observations, configs, counters, st.integers(0, 200), st.dictionaries(st.integers(0, 5), texts))
def test_every_prompt_fits_and_keeps_what_it_must(steps, obs, config, count, reply, written):
    memory, task = Memory(config, DIALECT, count, ACTION_SPACE), 'Do THIS, exactly.'
    room = config.context - reply
    least = count(memory.messages(task, [*steps, Step(obs)], Plan(len(steps), 1, 0.)))
    if least > room:
        with pytest.raises(ValueError, match='longer context'): memory.recall(task, steps, obs, reply, written)
        return
    c = memory.recall(task, steps, obs, reply, written)
    assert c.tokens == count(c.messages) <= room
    users = [m for m in c.messages if m['role'] == 'user']
    assert (config.heading + task) in users[0]['content'][0]['text']
    images = parts(c.messages, 'image')
    assert images[-1]['image'] is obs.screenshot and c.messages[-1]['content'][-1] is images[-1]
    screens = [*(s.observation.screenshot for s in steps), obs.screenshot]
    assert len(images) <= config.shown(len(steps) + 1) <= config.images + config.spare and all(p['image'] is screens[i] for p, i in zip(images, c.image_steps, strict=True))
    assert c.image_steps == tuple(range(len(steps) + 1 - len(images), len(steps) + 1))
    roles = [m['role'] for m in c.messages if m['role'] != 'system']
    assert roles == ['user', 'assistant'] * (len(steps) - c.start) + ['user']
    assert config.steps is None or len(steps) - c.start <= config.steps
    replies = [m['content'] for m in c.messages if m['role'] == 'assistant']
    assert [len(r) for r in replies] == [1] * len(replies)
    for [part], step in zip(replies, steps[c.start:], strict=True):
        if step.completion: assert part['type'] == 'ids' and np.array_equal(part['ids'], step.completion.ids[:-1])
        elif step.actions: assert parse(part['text']).actions == step.actions


@settings(max_examples=100)
@given(episodes, observations, configs)
def test_nothing_poorer_is_taken_where_everything_fits(steps, obs, config):
    c = Memory(replace(config, context=10**9, system=False), DIALECT, estimate_tokens).recall('x', steps, obs)
    wanted = plans(config, len(steps))[0]
    assert (c.start, len(c.image_steps)) == (wanted.start, wanted.images)
    assert config.steps is not None or c.start == 0
    assert len(c.image_steps) == min(config.shown(len(steps) + 1), len(steps) - c.start + 1)


@settings(max_examples=60)
@given(st.integers(0, 25), st.integers(250, 3000), st.integers(1, 5), st.integers(1, 9))
def test_the_next_richer_plan_would_not_have_fitted(n, context, images, chunk):
    config = MemoryConfig(images=images, chunk=chunk, context=context, system=False)
    memory, steps, obs = Memory(config, DIALECT, estimate_tokens), [Step(screen(i), f'This is thought {i}.', (CLICK,)) for i in range(n)], screen(n)
    lengths = [estimate_tokens(memory.messages('task', [*steps, Step(obs)], p)) for p in plans(config, n)]
    c = memory.recall('task', steps, obs)
    i = lengths.index(c.tokens)
    assert i == 0 or lengths[i - 1] > context


@given(configs, st.integers(0, 60))
def test_plans_fall_from_everything_to_the_newest_screen(config, n):
    options = plans(config, n)
    keys = [(p.start, -p.images, -p.share) for p in options]
    assert keys == sorted(keys) and len(set(options)) == len(options)
    assert options[-1] == Plan(n, 1, 0.)
    assert all(0 <= p.start <= n and 1 <= p.images <= min(config.shown(n + 1), n - p.start + 1) for p in options)


@pytest.mark.parametrize('chunk, changes', [(8, 8), (1, 40)])
def test_prompts_grow_in_place_between_chunks(chunk, changes):
    "With one screenshot, the messages before the last two stay what they were until a chunk leaves working memory."
    memory = Memory(MemoryConfig(images=1, chunk=chunk, context=2700, system=False), DIALECT, estimate_tokens)
    steps = [Step(screen(i), f'thought {i}', (CLICK,)) for i in range(60)]
    recalled = [memory.recall('task', steps[:n], screen(n)) for n in range(60)]
    moved = 0
    for before, after in zip(recalled, recalled[1:]):
        if before.start != after.start: moved += 1; continue
        assert str(after.messages[:len(before.messages) - 1]) == str(before.messages[:-1])
    assert 0 < moved <= changes


@pytest.mark.parametrize('spare, most', [(0, .6), (4, .9)])
def test_spare_screenshots_keep_beginnings(spare, most):
    "Five screenshots of a desktop, in a context that is never full: the share of a prompt that begins as the one before, on average over the steps from the twentieth on."
    memory = Memory(MemoryConfig(images=5, spare=spare), DIALECT, estimate_tokens)
    look = lambda i: Observation(np.full((720, 1280, 3), i, np.uint8))
    steps = [Step(look(i), f'thought {i}', (CLICK,)) for i in range(30)]
    def reused(n):
        before, after = (memory.recall('task', steps[:k], look(k)).messages for k in (n - 1, n))
        same = next((i for i, (a, b) in enumerate(zip(before, after)) if str(a) != str(b) or any(p['type'] == 'image' and not np.array_equal(p['image'], q['image']) for p, q in zip(a['content'], b['content']))), len(before))
        return estimate_tokens(after[:same]) / estimate_tokens(after)
    share = np.mean([reused(n) for n in range(20, 30)])
    assert most - .2 < share < most
    assert all(5 <= len(parts(memory.recall('task', steps[:n], look(n)).messages, 'image')) <= 5 + spare for n in range(5, 30))


def test_the_oldest_note_survives_in_the_summary_alone():
    steps = [Step(screen(0), 'The code is KXRT.', (CLICK,)), *[Step(screen(i), f'Page {i}.', (CLICK,)) for i in range(1, 40)]]
    at = lambda **kw: words(Memory(MemoryConfig(system=False, **kw), DIALECT, estimate_tokens).recall('task', steps, screen(40)).messages)
    assert 'KXRT' in at(context=1200) and 'KXRT' not in at(context=1200, episodic=False)
    assert 'KXRT' in at(context=10**6, episodic=False)


def test_a_summary_that_is_too_long_keeps_both_ends():
    steps = [Step(screen(i), f'I note {i:03}.', (CLICK,)) for i in range(200)]
    text = words(Memory(MemoryConfig(images=1, steps=0, summary=1000, system=False), DIALECT, estimate_tokens).recall('task', steps, screen(1)).messages)
    assert 'I note 000.' in text and 'I note 199.' in text and 'I note 100.' not in text
    left = int(text.split('(... ')[1].split(' lines')[0])
    assert text.count('I note') + left == 200


@given(st.lists(st.text(st.characters(exclude_characters='\n'), max_size=40), max_size=30), st.integers(0, 600))
def test_fold_keeps_the_order_and_the_length(lines, most):
    kept = drop_middle(lines, most)
    if sum(len(o) + 1 for o in lines) <= most: assert kept == lines; return
    assert sum(len(o) + 1 for o in kept) <= max(most, 0)
    gap = f'(... {len(lines) - len(kept) + 1} lines)'
    splits = [kept[:i] == lines[:i] and kept[i] == gap and kept[i + 1:] == lines[len(lines) - (len(kept) - i - 1):] for i in range(len(kept))]
    assert any(splits) or not kept


def test_equal_lines_in_a_row_are_one():
    assert merge_repeats([(1, 1, 'a'), (2, 2, 'b'), (3, 3, 'b'), (4, 8, 'b'), (9, 9, 'a')]) == ['1. a', '2-8. b', '9. a']
    assert merge_repeats([]) == []


@given(st.text(max_size=300), st.integers(0, 120))
def test_clip(text, most):
    short = cut_middle(text, most)
    assert len(short) <= most or text == short
    if len(text) <= most: assert short == text
    elif most > 20: assert short[0] == text[0] and short[-1] == text[-1] and ' [...] ' in short


def test_a_line_tells_intention_action_and_outcome():
    cfg = MemoryConfig()
    done = Step(screen(1, title='Shop'), 'I save\nthe page.', (Action('type', dict(content='x')), CLICK))
    assert step_line(done, screen(2, title='Cart'), cfg) == 'I save the page. | type "x", click -> now at "Cart"'
    assert step_line(done, screen(2, title='Cart'), replace(cfg, titles=False)) == 'I save the page. | type "x", click'
    assert step_line(done, screen(1, title='Shop'), cfg).endswith('-> no change')
    assert step_line(replace(done, error='no such key'), screen(2), cfg).endswith('-> failed: no such key')
    assert step_line(done, screen(2, text='4 files'), cfg).endswith('-> 4 files')
    assert step_line(Step(screen(1), error='the reply calls no function'), screen(1), cfg) == ' -> failed: the reply calls no function'


def test_what_a_model_wrote_stands_for_whole_chunks_only():
    memory = Memory(MemoryConfig(chunk=4, images=1, steps=2, system=False), DIALECT, estimate_tokens)
    steps = [Step(screen(i), f'thought {i}', (CLICK,)) for i in range(8)]
    text = words(memory.recall('task', steps, screen(9), written={0: 'the first four', 1: 'never whole'}).messages)
    assert '1-4. the first four' in text and 'thought 3' not in text
    assert '5. thought 4' in text and 'never whole' not in text
    assert 'thought 3' in words(memory.recall('task', steps, screen(9), written={0: ''}).messages)


def test_a_written_summary_cannot_blow_the_budget():
    memory = Memory(MemoryConfig(chunk=2, images=1, steps=2, context=600, system=False), DIALECT, estimate_tokens)
    steps = [Step(screen(i), 'x', (CLICK,)) for i in range(9)]
    assert memory.recall('task', steps, screen(9), written={c: 'word ' * 5000 for c in range(4)}).tokens <= 600


# --- what the policy is told

def test_ids_lose_the_ends_of_the_turn_and_nothing_else():
    for ends, n in (('', 0), ('<|im_end|>', 1), ('<|im_end|><|endoftext|>', 2)):
        c = replace(completion('abc', ''), text='abc' + ends, ids=np.arange(3 + n, dtype=np.int32), logps=np.zeros(3 + n, np.float32), versions=np.zeros(3 + n, np.int32))
        assert spoken_ids(c).tolist() == [0, 1, 2]
    middle = replace(completion('a<|im_end|>b', ''))
    assert len(spoken_ids(middle)) == len(middle.ids)


def test_replies_without_ids_stand_as_text():
    "A server that returns no ids."
    c = replace(completion('hello', ''), text='hello<|im_end|>', ids=np.zeros(0, np.int32), logps=np.zeros(0, np.float32), versions=np.zeros(0, np.int32))
    assert reply_part(Step(screen(0), 'x', (CLICK,), c), DIALECT) == dict(type='text', text='hello')
    assert reply_part(Step(screen(0), 'Hm.', error='nothing called'), DIALECT) == dict(type='text', text='Hm.')


@pytest.mark.parametrize('name', DIALECTS)
@pytest.mark.parametrize('size', [(160, 210), (1000, 1000), (1920, 1080)])
def test_demonstrations_are_written_so_that_the_dialect_reads_them_back(name, size):
    "Points are written for the screenshot of their own step, whatever size the newest has."
    dialect, obs = get_dialect(name), Observation(np.zeros((size[1], size[0], 3), np.uint8))
    action = Action('click', dict(point=(120, 870)))
    text = reply_part(Step(obs, 'There.', (action,)), dialect)['text']
    parsed = dialect.parse(text, size)
    assert parsed.thought == 'There.' and max(abs(a - b) for a, b in zip(parsed.actions[0].args['point'], (120, 870))) <= math.ceil(500 / 224)


def test_hints_come_before_the_loop_ends_the_episode():
    obs, limits, spec = screen(1), EpisodeLimits(repeats=5), TaskSpec('x', max_steps=99)
    steps, hints = [], []
    for _ in range(9):
        steps.append(Step(obs, actions=(CLICK,)))
        if exhausted_budget(steps, obs, spec, limits): break
        hints.append(feedback(steps, obs))
    assert len(steps) == 5 and exhausted_budget(steps, obs, spec, limits) is StopReason.LOOP
    assert hints[0] == 'The screen has not changed.' and ['2 times' in hints[1], '3 times' in hints[2], '4 times' in hints[3]] == [True] * 3


def test_a_refusal_that_repeats_is_shown_as_a_loop_before_it_ends_as_one():
    obs, refused = screen(1), Step(screen(1), actions=(CLICK,), error='nothing there')
    assert feedback([refused], obs) == 'click was refused: nothing there'
    assert feedback([refused] * 3, obs).splitlines() == ['click was refused: nothing there', 'You did the same 3 times and the screen has not changed. Try something else.']
    assert feedback([refused] * 3, screen(2)) == 'click was refused: nothing there'


def test_no_hint_where_something_changed():
    obs = screen(1)
    assert feedback([Step(obs, actions=(CLICK,))] * 3, screen(2)) == ''
    assert feedback([Step(obs, actions=(Action('wait'),))] * 3, obs) == ''
    assert feedback([Step(obs, actions=(CLICK,)), Step(obs, actions=(SCROLL,))], obs) == 'The screen has not changed.'
    assert feedback([], obs) == ''
    assert repeated([Step(screen(2), actions=(CLICK,)), Step(obs, actions=(CLICK,)), Step(obs, actions=(CLICK,))]) == 2


def test_errors_of_every_step_in_memory_are_told():
    steps = [Step(screen(0), error='no call found', completion=completion('?')), Step(screen(1), actions=(CLICK, SCROLL), error='nothing there; not done: type')]
    text = words(Memory(MemoryConfig(system=False), DIALECT, estimate_tokens).recall('task', steps, screen(2)).messages)
    assert 'Your reply was not understood: no call found' in text and 'scroll was refused: nothing there; not done: type' in text


def test_output_and_events_are_told_and_clipped():
    events = tuple(Event(k, f'about {k.value}') for k in EventKind)
    text = describe_observation(screen(0, text='z' * 9000, events=events), most=1000)
    assert 'dialog: about dialog' in text and 'download: about download' in text and 'navigation' not in text and 'console' not in text
    assert 990 < text.count('z') <= 1000
    assert describe_observation(screen(0, events=events), events=()) == ''


def test_the_small_policy_sees_pixels_and_its_instruction_only():
    obs = screen(3, title='secret title', url='file:///secret', text='', events=(Event(EventKind.DIALOG, 'secret dialog'), Event(EventKind.CONSOLE_ERROR, 'secret error')))
    steps = [Step(replace(obs, title=f'secret {i}'), 'I go on.', (CLICK,), completion('reply')) for i in range(40)]
    c = Memory(SMALL, DIALECT, estimate_tokens).recall('Click the button.', steps, screen(4))
    assert 'secret' not in words(c.messages) and len(parts(c.messages, 'image')) == 1
    assert c.messages[0]['role'] == 'user' and c.messages[0]['content'][0]['text'].startswith('Click the button.')


def test_unchanged_sees_one_pixel():
    a = np.zeros((300, 300, 3), np.uint8)
    b = a.copy()
    assert same_screen(a, b)
    b[299, 7, 1] = 1
    assert not same_screen(a, b) and not same_screen(a, a[:-1])


def test_a_policy_must_see_something():
    with pytest.raises(ValueError, match='images is 0'): MemoryConfig(images=0)


def test_each_number_of_the_memory_is_checked_by_name():
    for name, value in dict(spare=-1, chunk=0, context=0, steps=-1, summary=-1, line=-1, text=-1).items():
        with pytest.raises(ValueError, match=f'{name} is {value}, and has to be'): MemoryConfig(**{name: value})
