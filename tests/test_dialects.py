"Dialects: exact round trips on the grid, half a cell in pixels, ends of turns, agreement with what the model sees."
import pytest
from hypothesis import given, strategies as st

from strategies import SPACE, actions, replies, texts
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.parameters import Fault, FaultKind
from uitars_nb.core.coordinates import GRID, smart_resize
from uitars_nb.core.grammar import Parsed
from uitars_nb.core.types import Action
from uitars_nb.model.dialects import DIALECTS, ENDS, get_dialect, strip_ends

every = pytest.mark.parametrize('dialect', DIALECTS.values(), ids=DIALECTS)
on_grid = pytest.mark.parametrize('dialect', [o for o in DIALECTS.values() if not o.pixels], ids=[k for k, o in DIALECTS.items() if not o.pixels])
sizes = st.tuples(st.integers(28, 5000), st.integers(28, 5000))
ends = st.lists(st.sampled_from(ENDS), max_size=3).map(''.join)


@on_grid
@given(replies, sizes, ends)
def test_what_is_written_is_parsed(dialect, reply, size, end):
    thought, acts = reply
    assert dialect.parse(dialect.write(thought, acts, size, SPACE) + end, size, SPACE) == Parsed(thought.strip(), acts)


def points(action): return [v for p in SPACE[action.name].parameters if p.type == 'point' for v in action.args.get(p.name, ())]
def others(action): return {k: v for k, v in action.args.items() if SPACE[action.name].by_name[k].type != 'point'}


@given(replies, sizes, ends)
def test_in_pixels_a_point_comes_back_as_near_as_the_image_allows(reply, size, end):
    dialect, (thought, acts) = get_dialect('ui-tars-1.5'), reply
    back = dialect.parse(dialect.write(thought, acts, size, SPACE) + end, size, SPACE)
    assert (back.thought, [(o.name, others(o)) for o in back.actions]) == (thought.strip(), [(o.name, others(o)) for o in acts])
    allowed = [.5 * GRID / side + .5 if side < GRID else 0 for side in smart_resize(size)]
    for a, b in zip(acts, back.actions):
        for i, (x, y) in enumerate(zip(points(a), points(b), strict=True)): assert abs(x - y) <= allowed[i % 2]


@given(sizes)
def test_corners_of_the_image_are_corners_of_the_screen(size):
    dialect, (w, h) = get_dialect('ui-tars-1.5'), smart_resize(size)
    for x, y in ((0, 0), (w, 0), (0, h), (w, h)):
        assert dialect.parse(f"Action: click(start_box='({x},{y})')", size).actions[0].args['point'] == (x // w * GRID, y // h * GRID)
    for x, y in ((w + 1, 0), (0, h + 1)): assert dialect.parse(f"Action: click(start_box='({x},{y})')", size).kind is FaultKind.OFF_GRID


@every
@given(texts, sizes)
def test_any_text_is_parsed_or_a_fault(dialect, text, size): assert isinstance(dialect.parse(text, size), (Parsed, Fault))


@every
@given(actions)
def test_only_what_the_space_has_is_written_and_read(dialect, action):
    small = ACTION_SPACE.select('game')
    text = dialect.write('', [action], (800, 600), SPACE)
    if action.name in small: return
    assert dialect.parse(text, (800, 600), small).kind is FaultKind.UNKNOWN_FUNCTION
    with pytest.raises(ValueError, match='no function'): dialect.write('', [action], (800, 600), small)


@given(texts, ends)
def test_only_ends_come_off(text, end):
    found = strip_ends(text + end)
    assert (text + end).startswith(found) and not found.endswith(ENDS)
    assert not (text + end)[len(found):].replace(ENDS[0], '').replace(ENDS[1], '')


def test_a_megabyte_of_ends_takes_no_time():
    assert strip_ends('a' + ENDS[0] * 100_000) == 'a'


@every
@pytest.mark.parametrize('mode', ['gui', 'mobile', 'sdk'])
def test_the_prompt_tells_of_the_space_and_the_form(dialect, mode):
    space = ACTION_SPACE.select(mode)
    prompt = dialect.system(space)
    assert prompt.startswith(dialect.opening) and all(o.name in prompt for o in space)
    assert ('Action:' if dialect.name.startswith('ui-tars-1') else '<seed:tool_call>') in prompt
    assert ('long_press' in prompt) == (mode == 'mobile')


def test_the_same_text_is_read_in_the_unit_of_the_dialect():
    text = "Thought: Ok.\nAction: click(start_box='(966,546)')"
    assert get_dialect('ui-tars-1').parse(text, (1920, 1080)).actions == (Action('click', dict(point=(966, 546))),)
    assert get_dialect('ui-tars-1.5').parse(text, (1920, 1080)).actions == (Action('click', dict(point=(500, 500))),)
    assert get_dialect('ui-tars-2').parse(text, (1920, 1080)).kind is FaultKind.SYNTAX


def test_an_unknown_dialect_is_refused():
    with pytest.raises(ValueError, match='ui-tars-2, ui-tars-1.5, ui-tars-1'): get_dialect('tars')
