"In-situ annotation: events fold into the actions that made them, on real displays too; words find their deeds; what was recorded can be done again."
import asyncio
import re
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.waiting import until
from uitars_nb.core.actions import ACTION_SPACE, validate
from uitars_nb.core.coordinates import to_pixel
from uitars_nb.core.runs import read_json
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, StopReason
from uitars_nb.flywheel.annotation.in_situ import read_recorded, replay, trajectory_of
from uitars_nb.flywheel.annotation.recorder import RecordingFolder, Recorder
from uitars_nb.flywheel.annotation.think_aloud import Utterance, subtitles, words_beside, clean_speech
from uitars_nb.flywheel.annotation.ui_events import RecordedAction, UIEvent, recorded_actions
from uitars_nb.sandbox.desktop.session import DesktopConfig, DesktopSession
from uitars_nb.sandbox.desktop.remote import LookTiming
from uitars_nb.sandbox.desktop.xserver import XServer

SIZE = 1000, 500
missing = [o for o in ('Xvfb', 'openbox', 'tint2', 'mousepad') if not shutil.which(o)]
display = pytest.mark.skipif(bool(missing), reason=f'the desktop needs {", ".join(missing)}: make setup installs them')


# Folding: what hands would do for an action is folded into it again

points = st.tuples(st.integers(0, 1000), st.integers(0, 1000))
far = st.tuples(points, points).filter(lambda o: abs(o[0][0] - o[1][0]) > 50)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
actions = st.one_of(
    *(points.map(lambda p, n=n: Action(n, dict(point=p))) for n in ('click', 'left_double', 'right_single')), far.map(lambda o: Action('drag', dict(start_point=o[0], end_point=o[1]))),
    st.tuples(texts, st.booleans()).map(lambda o: Action('type', dict(content=o[0] + '\n' * o[1]))), st.tuples(st.sampled_from(['up', 'down', 'left', 'right']), points).map(lambda o: Action('scroll', dict(direction=o[0], point=o[1]))),
    st.sampled_from(['enter', 'arrowup', 'ctrl a', 'ctrl shift t', 'alt f4', 'shift tab', 'meta']).map(lambda k: Action('hotkey', dict(key=k))))


def press(at, key, text=''): return [UIEvent(at, 'press', key=key, text=text), UIEvent(at + .01, 'release', key=key)]


def unfold(action, at):
    "What a hand would do, from a moment on."
    args, here = action.args, lambda k: to_pixel(action.args[k], SIZE)
    click = lambda at, p, button: [UIEvent(at, 'down', *p, button), UIEvent(at + .02, 'up', *p, button)]
    if action.name == 'drag': return [UIEvent(at, 'down', *here('start_point'), 'left'), UIEvent(at + .1, 'up', *here('end_point'), 'left')]
    if action.name == 'scroll': return [UIEvent(at + .02 * i, 'wheel', *here('point'), args['direction']) for i in range(5)]
    if action.name == 'type': return [e for i, c in enumerate(args['content']) for e in press(at + .05 * i, 'enter' if c == '\n' else c, '' if c == '\n' else c)]
    if action.name == 'hotkey':
        keys = args['key'].split()
        return [UIEvent(at + .01 * i, 'press', key=k, text=k if len(k) == 1 else '') for i, k in enumerate(keys)] + [UIEvent(at + .1 + .01 * i, 'release', key=k) for i, k in enumerate(reversed(keys))]
    return [e for i in range(1 + (action.name == 'left_double')) for e in click(at + .1 * i, here('point'), 'right' if action.name == 'right_single' else 'left')]


@settings(max_examples=200)
@given(st.lists(actions, max_size=8))
def test_what_hands_do_is_folded_into_the_actions_that_it_came_from(todo):
    events = [e for i, action in enumerate(todo) for e in unfold(action, 10. * i)]
    assert [o for deed in recorded_actions(events, SIZE) for o in deed.actions] == todo


@settings(max_examples=200)
@given(st.lists(st.builds(UIEvent, st.floats(0, 20), st.sampled_from(['move', 'down', 'up', 'wheel', 'press', 'release']), st.floats(-50, 1100), st.floats(-50, 600),
                          st.sampled_from(['left', 'middle', 'right']), st.sampled_from(['a', 'shift', 'ctrl', 'enter', 'backspace', 'arrowup']), st.sampled_from(['', 'a'])), max_size=30))
def test_any_events_give_actions_that_may_be_called(events):
    events = [UIEvent(e.at, 'move', e.x, e.y) if e.kind == 'wheel' and e.button == 'middle' else UIEvent(e.at, e.kind, e.x, e.y, 'up' if e.kind == 'wheel' else e.button, e.key, e.text) for e in events]
    deeds = recorded_actions(events, SIZE)
    assert not [fault for deed in deeds for o in deed.actions if (fault := validate(o, ACTION_SPACE))]
    assert all(o.start <= o.end for o in deeds)


# Words

@given(st.lists(st.floats(0, 50), max_size=6), st.lists(st.tuples(st.floats(0, 60), st.floats(0, 5), texts.filter(str.strip)), max_size=8))
def test_all_that_was_said_is_kept_once_and_in_order(ends, said):
    deeds = [RecordedAction(t, t, (Action('wait'),)) for t in sorted(ends)]
    said = sorted((Utterance(a, a + d, ' '.join(w.split())) for a, d, w in said), key=lambda o: o.start + o.end)
    assert ' '.join(o for o in words_beside(deeds, said) if o) == ' '.join(o.text for o in said)


def test_a_deed_gets_what_was_said_before_and_during_it():
    deeds = [RecordedAction(2., 3., (Action('wait'),)), RecordedAction(6., 7., (Action('wait'),))]
    said = [Utterance(0, 1, 'before'), Utterance(2.5, 3.2, 'during'), Utterance(2.9, 5, 'next'), Utterance(8, 9, 'end')]
    assert words_beside(deeds, said) == ['before during', 'next', 'end']


def test_hours_numbers_and_tags_of_subtitles():
    text = '7\r\n01:00:00,250 --> 01:00:01,5\r\n<i>one</i>\r\ntwo\r\n\r\n8\r\n01:00:02,000 --> 01:00:03,000\r\n \r\n'
    assert subtitles(text) == [Utterance(3600.25, 3601.5, 'one two')]


@given(st.text(max_size=60))
@example(':0 0:')   # found by hypothesis: no repetition
def test_what_is_written_down_has_no_words_that_were_not_said(spoken):
    words = lambda text: {*re.findall(r'\w+', text.casefold())}   # 'a,a' says 'a'
    assert words(clean_speech(spoken)) <= words(spoken)


@pytest.mark.parametrize('spoken, cleaned', [(':er', ':er.'), ('the co-er', 'The co-er.'), ('er, no', 'No.'), ('um... yes', 'Yes.'), ('so, uhm', 'So.')])
def test_fillers_are_whole_words(spoken, cleaned): assert clean_speech(spoken) == cleaned


# What may be learned from

def recorded_at(folder, x, ended):
    "A recording of one click, ended by whoever worked or cut off by a kill."
    notes = RecordingFolder(folder, f'Click at {x}.', 'ann', (90, 60))
    notes.frame(0., np.full((60, 90, 3), 255, np.uint8))
    for e in (UIEvent(1., 'down', x, 15, 'left'), UIEvent(1.05, 'up', x, 15, 'left')): notes.event(e)
    if ended: notes.say(seconds=3.)


def test_only_what_passed_and_was_finished_leaves_the_recordings(tmp_path, monkeypatch, capsys):
    from uitars_nb.cli.main import main
    monkeypatch.chdir(tmp_path)
    for x, name in enumerate(['passed', 'rejected', 'open', 'cut'], 1): recorded_at(tmp_path/'recorded'/name, 20 * x, name != 'cut')
    def review(id, by, how, note=''): assert main(['review', 'recorded', id, '--as', by, how, '--note', note]) == 0
    for by in ('bea', 'cem'):
        for id in ('passed', 'cut'): review(id, by, '--accept')
    review('rejected', 'bea', '--reject', 'a password is in it')
    assert main(['recordings', 'recorded', '--into', 'data']) == 0
    held = {name: [o.id for o in Store(f'data/0/{name}')] for name in ('ct', 'sft')}
    assert held == dict(ct=[], sft=['passed'])
    store = Store('recorded/store')
    assert sorted(o.id for o in store) == ['cut', 'open', 'passed']
    assert store['cut'].stop is StopReason.ENV_CRASH and [a.name for s in store['cut'].steps for a in s.actions] == ['click']
    assert 'the recorder was killed' in store['cut'].info['broken_off'] and 'passed, broken off' in capsys.readouterr().out
    for by in ('bea', 'cem'): review('open', by, '--accept')
    review('passed', 'cem', '--reject', 'a password, seen late')
    assert main(['recordings', 'recorded', '--into', 'data']) == 0
    assert [o.id for o in Store('data/0/sft')] == ['passed', 'open']
    assert 'passed was rejected, and lies in data/0/sft' in capsys.readouterr().out


# On real displays

@pytest.fixture
async def desk():
    async with asyncio.timeout(120): session = await opened()
    yield session
    await session.close()


async def opened():
    "A desktop with an editor."
    session = await DesktopSession(DesktopConfig(size=(640, 480), jail=None, looking=LookTiming(quiet=.3, most=4, timeout=60), start_timeout=90)).start()
    await session.begin(['mousepad'])
    while not [o for o in await session.windows() if 'mousepad' in o.program.lower()]: await asyncio.sleep(.1)
    await session.observe()
    return session


@display
async def test_somebody_at_work_is_recorded_and_it_can_be_done_again(desk, tmp_path, monkeypatch):
    "The hands of the sandbox are somebody's: what the recorder makes of them are the actions that they were told."
    monkeypatch.setenv('XAUTHORITY', f'{desk.folder}/Xauthority')
    todo = [Action('click', dict(point=(500, 500))), Action('type', dict(content='Grüße, 12 €\n')), Action('hotkey', dict(key='ctrl a')), Action('type', dict(content='Bye')),
            Action('left_double', dict(point=(100, 300))), Action('scroll', dict(direction='down', point=(500, 500))), Action('right_single', dict(point=(600, 600))), Action('hotkey', dict(key='escape'))]
    recorder = Recorder(tmp_path/'ann-1', 'Say goodbye.', 'ann', fps=10, key='f9', display=desk.place.env['DISPLAY']).start()
    recorder.toggle()
    for action in todo:
        await asyncio.sleep(.8)   # a look at least, and more than belongs to one hotkey or double click
        await desk.act(action)
        await desk.observe()
    await asyncio.sleep(.5)
    recorder.stop()
    assert recorder.trouble is None
    traj = trajectory_of(read_recorded(tmp_path/'ann-1'))
    assert [o.actions for o in traj.steps] == [*((o,) for o in todo), (Action('finished'),)]
    seen = [o.observation.screenshot for o in traj.steps]
    assert seen[0].shape == (480, 640, 3) and (seen[0] != seen[2]).any() and (seen[2] != seen[4]).any()
    other = await opened()
    try: done = await replay(traj, other)
    finally: await other.close()
    assert done.followed(.9), done


@display
def test_a_display_that_goes_ends_the_recording_and_leaves_what_there_was(tmp_path, monkeypatch):
    (tmp_path/'x').mkdir()
    server = XServer((320, 240), str(tmp_path/'x'))
    for k, v in server.env.items(): monkeypatch.setenv(k, v)
    recorder = Recorder(tmp_path/'one', 'Nothing.', 'ann', fps=20, key='f9').start()
    recorder.toggle()
    until_now(lambda: recorder.notes.frames)
    server.close()
    until_now(lambda: recorder.trouble)
    assert recorder.stop() == tmp_path/'one' and (tmp_path/'one'/'frames'/'000001.png').exists()
    assert read_json(tmp_path/'one'/'record.json')['broken']


def until_now(condition):
    "Wait for it, off any event loop."
    async def wait(): return await until(condition)
    return asyncio.run(wait())


def test_words_of_a_pause_are_left_out():
    from uitars_nb.flywheel.annotation.in_situ import _ran
    pauses = [dict(at=1., running=True), dict(at=5., running=False), dict(at=9., running=True)]
    assert [_ran(pauses, at) for at in (.5, 2., 6., 10.)] == [False, True, False, True]
    assert _ran([], 3.)   # a recording of before pauses were noted
