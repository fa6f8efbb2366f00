"Both reply formats: exact round trips, a fault for everything else, in linear time, and agreement with the ui-tars package."
import ast, contextlib, io, re
from time import process_time

import pytest
import ui_tars.action_parser as peer
from hypothesis import assume, example, given, settings, strategies as st

from strategies import FRAGMENTS, SPACE, actions, replies, texts
from uitars_nb.core import grammar, grammar15
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.parameters import Fault, FaultKind
from uitars_nb.core.coordinates import GRID, grid_to_model, smart_resize, to_pixel
from uitars_nb.core.grammar import Parsed
from uitars_nb.core.types import Action

both = pytest.mark.parametrize('form', [grammar, grammar15], ids=['2', '1.5'])
CLICK = Action('click', dict(point=(500, 250)))
SUBMIT = '<think>Submit it.</think>\n<seed:tool_call><function=click><parameter=point><point>500 250</point></parameter></function></seed:tool_call>'
SUBMIT15 = "Thought: Submit it.\nAction: click(start_box='(500,250)')"


# Round trips

@both
@given(replies)
def test_what_is_printed_is_parsed(form, reply):
    thought, actions = reply
    assert form.parse(form.print_reply(thought, actions, SPACE), SPACE) == Parsed(thought.strip(), actions)


@given(texts)
def test_escapes_are_bijections(text):
    assert grammar.unescape(grammar.escape(text)) == text
    assert not grammar.TAG.search(grammar.escape(text))
    assert grammar15.unquote(grammar15.quote(text)[1:-1]) == text


@given(texts)
def test_text_without_tags_stands_as_it_is(text):
    assume('<' not in text)
    assert grammar.escape(text) == text


@given(texts)
def test_a_quoted_text_is_a_python_string(text):
    assert ast.literal_eval(grammar15.quote(text)) == text


@given(st.text(st.sampled_from('\\\'"nrtabfvx0u1Uz4NAé'), max_size=12))
def test_escapes_mean_what_they_mean_in_python(text):
    "Where both read a text they read the same; half an escape is refused by both."
    source = "'" + re.sub(r"(?<!\\)((?:\\\\)*)'", r"\1\\'", text) + "'"
    ours = grammar15.parse(f'Action: type(content={source})')
    try: theirs = ast.literal_eval(source)
    except (SyntaxError, ValueError): theirs = None
    if theirs is None: assert isinstance(ours, Fault)
    else: assert ours.actions[0].args['content'] == theirs


@given(st.tuples(st.integers(0, GRID), st.integers(0, GRID)), st.tuples(st.integers(28, 5000), st.integers(28, 5000)))
def test_resized_pixels_come_back(point, size):
    reply = grammar15.print_reply('', [Action('click', dict(point=point))], size=size)
    back = grammar15.parse(reply, size=size).actions[0].args['point']
    for g, h, side in zip(point, back, smart_resize(size)): assert abs(g - h) <= max(0, .5 * GRID / side + .5) and (side < GRID or g == h)
    assert grammar15.print_reply('', [Action('click', dict(point=back))], size=size) == reply or max(smart_resize(size)) > GRID


@both
def test_printing_refuses_what_parsing_would_refuse(form):
    with pytest.raises(ValueError, match='off the screen'): form.print_action(Action('click', dict(point=(0, 1001))))
    with pytest.raises(ValueError, match='no function'): form.print_action(CLICK, ACTION_SPACE.select('sdk'))
    with pytest.raises(ValueError, match='at least one'): form.print_reply('', [])


# Fuzzing

@st.composite
def mutated(draw, form):
    "A well-formed reply with some places changed."
    thought, actions = draw(replies)
    text = form.print_reply(thought, actions, SPACE)
    for _ in range(draw(st.integers(1, 3))):
        i, n = draw(st.integers(0, len(text))), draw(st.sampled_from([0, 0, 1, 2, 8, 40]))
        new = draw(st.sampled_from(['', *FRAGMENTS]) | st.text(max_size=2) | st.just(text[i:i + 40]))
        text = text[:i] + new + text[i + n:]
    return text


def check_honest(form, text):
    "Parsing gives a fault with a place in the text, or what prints and parses again."
    found = form.parse(text, SPACE)
    if isinstance(found, Fault):
        assert isinstance(found.kind, FaultKind) and found.message and len(found.message) < 1500
        assert 0 <= found.position <= len(text)
    else: assert form.parse(form.print_reply(found.thought, found.actions, SPACE), SPACE) == found


@both
@settings(max_examples=400)
@given(st.data())
def test_a_mutated_reply_is_a_fault_or_prints_again(form, draw): check_honest(form, draw.draw(mutated(form)))


@both
@given(texts)
def test_any_text_is_a_fault_or_prints_again(form, text): check_honest(form, text)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@both
@settings(max_examples=10_000)
@given(st.data())
def test_many_mutated_replies(form, draw): check_honest(form, draw.draw(mutated(form)))


@both
@given(texts, actions, st.data())
def test_a_cut_reply_is_never_taken_for_a_whole_one(form, thought, action, draw):
    text = form.print_reply(thought, [action], SPACE).rstrip()
    cut = draw.draw(st.integers(0, len(text) - 1))
    assert form.parse(text[:cut], SPACE).kind in (FaultKind.TRUNCATED, FaultKind.EMPTY)


# Faults

CALL = '<seed:tool_call>{}</seed:tool_call>'
VALUE = CALL.format('<function={}><parameter={}>{}</parameter></function>')
BAD = {  # a reply -> kind, what its message must say
    '': ('empty', '<function=NAME>'), ' \n': ('empty', '<function=NAME>'),
    '<think>Done.</think>': ('empty', 'calls no function'), CALL.format(''): ('empty', 'calls no function'), CALL.format(' \n'): ('empty', 'calls no function'),
    'Sure! ' + SUBMIT: ('syntax', "'Sure! "), SUBMIT + '.': ('syntax', 'nothing may follow'), SUBMIT + SUBMIT: ('syntax', 'nothing may follow'),
    SUBMIT.replace('</think>', '</think> So:'): ('syntax', "'So:"), SUBMIT.replace('</think>', ''): ('syntax', 'close it with </think>'),
    SUBMIT.replace('<think>', '<think><think>'): ('syntax', '<think> stands inside'), '<think>' + 'hm ' * 1000: ('truncated', 'never closed'),
    SUBMIT.replace('</parameter>', ''): ('syntax', 'close it with </parameter>'), SUBMIT.replace('</function>', ''): ('syntax', '</function>'),
    SUBMIT.replace('</seed:tool_call>', ''): ('truncated', '</seed:tool_call>'), SUBMIT.replace('</function>', '</functi>'): ('syntax', "'</functi>"),
    SUBMIT.replace('=click', '="click"'): ('unknown_function', 'click'), SUBMIT.replace('=click', ''): ('syntax', '<function=NAME>'), SUBMIT.replace('=click', '=' + 'x' * 10**6): ('syntax', 'xxx'),
    SUBMIT.replace('click', 'clik'): ('unknown_function', 'did you mean click'), SUBMIT.replace('=point', '=pint'): ('unknown_parameter', 'did you mean point'),
    SUBMIT.replace('<point>500 250</point>', '(500, 250)'): ('bad_value', '<point>x y</point>'), SUBMIT.replace('500', '1500'): ('off_grid', '1000'), SUBMIT.replace('500', '-5'): ('off_grid', '(-5, 250)'),
    SUBMIT.replace('500', '50.5'): ('bad_value', 'integers'), SUBMIT.replace('500', '٥٠٠'): ('bad_value', 'integers'), SUBMIT.replace('500', '5' * 10**6): ('bad_value', 'integers'),
    CALL.format('<function=click></function>'): ('missing_parameter', 'point'), CALL.format('<function=click>'): ('syntax', '<parameter=NAME>'),
    CALL.format('<function=wait>' + '<parameter=time>1</parameter>' * 2 + '</function>'): ('repeated_parameter', 'twice'),
    VALUE.format('wait', 'time', 'soon'): ('bad_value', "'soon'"), VALUE.format('wait', 'time', '-1'): ('bad_value', 'at least 0'), VALUE.format('scroll', 'direction', 'Down'): ('bad_value', 'up, down'),
    VALUE.format('type', 'content', '<function=wait></function>'): ('syntax', '<\\function='), CALL.format('click(500, 250)'): ('syntax', '<function=NAME>'),
    SUBMIT15: ('syntax', '<seed:tool_call>'),
}
BAD15 = {
    '': ('empty', 'Action:'), 'Thought: hm': ('empty', 'Action:'), 'Action:': ('empty', 'a call'), 'Thought: a\nAction: \n': ('empty', 'a call'), 'Thought: click. Action: wait()': ('empty', 'a line that begins'),
    'Sure!\n' + SUBMIT15: ('syntax', 'Thought: or Action:'), SUBMIT15 + '\n\nDone, I think.': ('syntax', '( after Done'), SUBMIT15 + '\nwait()': ('syntax', 'blank line'), SUBMIT15 + '\n\nAction: wait()': ('syntax', '( after Action'),
    SUBMIT15.replace('click', 'clik'): ('unknown_function', 'did you mean click'), SUBMIT15.replace('start_box', 'start_bx'): ('unknown_parameter', 'did you mean start_box'),
    SUBMIT15.replace('(500', '(1500'): ('off_grid', '1000'), SUBMIT15.replace('(500,250)', '500 250'): ('bad_value', "'(x,y)'"), SUBMIT15.replace('(500,250)', '(1,2,3)'): ('bad_value', 'integers'),
    SUBMIT15.replace('(500,250)', '(50.5,2)'): ('bad_value', 'integers'), SUBMIT15.replace("'", ''): ('syntax', 'in quotes'), 'Action: click': ('truncated', '( after click'), 'Action: click()': ('missing_parameter', 'point'),
    "Action: click(start_box='(1,2)', point='(1,2)')": ('repeated_parameter', 'twice'), "Action: type(content='the dogs' bone')": ('syntax', "\\'"), "Action: type(content='a', b')": ('syntax', '= after b'),
    "Action: type(content='a)": ('truncated', 'never closed'), "Action: type(content='a'": ('truncated', ''), "Action: type(content='a' 'b')": ('syntax', 'comma'), "Action: type('a')": ('syntax', "name='value'"),
    r"Action: type(content='\x4')": ('syntax', 'escape'), r"Action: type(content='\N{DASH}')": ('syntax', 'escape'), "Action: type(content='a\\\nb')": ('syntax', 'escape'), 'Action: type(content=5)': ('syntax', 'in quotes'),
    'Action: wait(time=five)': ('bad_value', "'five'"), 'Action: wait(,)': ('syntax', "name='value'"), 'Action: __import__("os").system("ls")': ('unknown_function', '__import__'),
    'Action: ' + '(' * 10**6: ('syntax', 'a call'), 'Action: ' + 'wait(' * 10**5: ('syntax', '= after'), SUBMIT: ('syntax', 'Thought: or Action:'),
}
cases = [(grammar, *o) for o in BAD.items()] + [(grammar15, *o) for o in BAD15.items()]


@pytest.mark.parametrize('form, text, expected', cases, ids=[f'{o.__name__[-9:]}-{ascii(text)[:40]}' for o, text, _ in cases])
def test_a_fault_says_what_is_wrong(form, text, expected):
    fault = form.parse(text)
    assert (fault.kind.value, expected[1] in fault.message) == (expected[0], True), fault


def test_the_position_is_where_it_happens():
    text = SUBMIT.replace('<point>500', '<point>1500')
    assert grammar.parse(text).position == text.index('<parameter=')
    assert grammar15.parse(SUBMIT15.replace('(500', '(1500')).position == SUBMIT15.index('start_box')
    assert grammar.parse(SUBMIT + ' !').position == len(SUBMIT) + 1


@pytest.mark.parametrize('opening, thought', [('Action_Summary: Submit it.', 'Submit it.'), ('Reflection: It failed.\nAction_Summary: Submit it.', 'It failed.\nSubmit it.'),
    ('Reflection: It failed. Action_Summary: Submit it.', 'It failed.\nSubmit it.'), ('Reflection: It failed.', 'It failed.'), ('Reflection:\nAction_Summary: Submit it.', 'Submit it.'),
    ('Thought: a\nAction_Summary: b', 'a\nAction_Summary: b'), ('Reflection: a\n\\Action: b\nAction_Summary: c', 'a\nAction: b\nc')])
def test_the_other_openings_of_ui_tars_1(opening, thought):
    "What is read is written as a thought, and read again as the same."
    read = grammar15.parse(f"{opening}\nAction: click(start_box='(500,250)')")
    assert read == Parsed(thought, (CLICK,)) == grammar15.parse(grammar15.print_reply(read.thought, read.actions))


def test_white_space_between_tags_means_nothing():
    spaced = re.sub(r'(?<=>)(?=<)', '\n  ', SUBMIT.replace('<point>500 250</point>', '\n<point> 500\t250 </point>'))
    assert grammar.parse(f'\n{spaced}\n') == grammar.parse(SUBMIT) == Parsed('Submit it.', (CLICK,))
    assert grammar15.parse("\nThought:  Submit it. \n\nAction:click( start_box = '( 500 , 250 )' , )\n") == Parsed('Submit it.', (CLICK,))


def test_white_space_in_a_text_means_what_it_is():
    assert grammar.parse(VALUE.format('type', 'content', '\n a\n')).actions[0].args == {'content': '\n a\n'}
    assert grammar15.parse("Action: type(content='\n a\n')").actions[0].args == {'content': '\n a\n'}


def test_other_ways_of_writing_a_point():
    for box in ("start_box='(500,250)'", "point='<point>500 250</point>'", 'point="(500, 250)"', "start_box='<|box_start|>(500,250)<|box_end|>'"):
        assert grammar15.parse(f'Action: click({box})').actions == (CLICK,)


# Time

MEGABYTES = {  # n -> about n characters
    grammar: [
        lambda n: 'x' * n, lambda n: ' ' * n, lambda n: '<' * n, lambda n: '<think>' + '<' * n, lambda n: '<think>' + '<\\/think>' * (n // 9), lambda n: '<think>' + '\\' * n, lambda n: '<seed:tool_call>' * (n // 16),
        lambda n: CALL.format(' ' * n), lambda n: CALL.format('<function=wait></function>' * (n // 26)), lambda n: CALL.format('<function=' * (n // 10)), lambda n: CALL.format('<function=' + 'a' * n),
        lambda n: VALUE.format('type', 'content', '<\\' * (n // 2)), lambda n: VALUE.format('type', 'content', '<' + '\\' * n), lambda n: VALUE.format('type', 'content', '</parameter' * (n // 11)),
        lambda n: VALUE.format('click', 'point', '<point>' + ' ' * n), lambda n: VALUE.format('click', 'point', '<point>1' + ' ' * n + 'x'), lambda n: VALUE.format('wait', 'time', '9' * n),
        lambda n: VALUE.format('wait', 'time', '1.' + '9' * n), lambda n: VALUE.format('wait', 'time', ' ' * n + '1'), lambda n: VALUE.format('str_replace_editor', 'view_range', '[' * n),
        lambda n: VALUE.format('str_replace_editor', 'view_range', '[' + '1,' * (n // 2) + '1]'), lambda n: VALUE.format('str_replace_editor', 'view_range', '{"a":' * (n // 5)),
        lambda n: CALL.format('<function=wait>' + '<parameter=time>1</parameter>' * (n // 29)), lambda n: VALUE.format('click' * (n // 5), 'point', ''), lambda n: VALUE.format('click', 'point' * (n // 5), ''),
    ],
    grammar15: [
        lambda n: 'x' * n, lambda n: '\n' * n, lambda n: 'Thought: ' + '\nAction' * (n // 7), lambda n: 'Thought: ' + '\n\\' * (n // 2), lambda n: 'Thought: ' + '\\' * n, lambda n: 'Action: ' + 'wait()\n\n' * (n // 8),
        lambda n: 'Thought: ' + '\n\\Action:' * (n // 9) + '\nAction: wait()', lambda n: 'Thought: ' + '\n' + '\\' * n + 'Action:\nAction: wait()', lambda n: 'Action: wait()' + '\n' * n + '!', lambda n: 'Action: ' + 'a' * n,
        lambda n: "Action: type(content='" + '\\' * n, lambda n: "Action: type(content='" + "\\'" * (n // 2), lambda n: "Action: type(content='" + '\\x41' * (n // 4) + "')", lambda n: "Action: type(content='" + '"' * n,
        lambda n: 'Action: type(' + 'content=' * (n // 8), lambda n: "Action: click(point='" + '(' * n + "')", lambda n: "Action: click(point='( " + ' ' * n + "')", lambda n: "Action: click(point='(1" + ' ' * n + "x')",
        lambda n: 'Action: wait(time=' + '9' * n + ')', lambda n: 'Action: wait(' + ' ' * n, lambda n: 'Action: wait(' + ',' * n, lambda n: "Action: wait(time='" + '[' * n + "')",
    ],
}


@pytest.mark.parametrize('form, make', [(form, o) for form, all in MEGABYTES.items() for o in all])
def test_time_is_bounded(form, make):
    "Two megabytes of what hurts; a quadratic parser would take many minutes."
    text = make(2 * 10**6)
    start = process_time()
    form.parse(text)
    assert process_time() - start < 20


@both
def test_a_reply_as_models_write_them_is_parsed_in_no_time(form):
    text = form.print_reply('I see a form with three fields. ' * 20, [CLICK, Action('type', dict(content='hello\n'))])
    start = process_time()
    for _ in range(100): form.parse(text)
    assert process_time() - start < 1


# Agreement with ui-tars 0.5.1

def peer_parse(text, size, model):
    "What ui-tars reads: thought, and (function, arguments) of each action."
    with contextlib.redirect_stdout(io.StringIO()): found = peer.parse_action_to_structure_output(text, GRID, size[1], size[0], model)
    return found[0]['thought'], [(o['action_type'], o['action_inputs']) for o in found], found


PEER_FUNCTIONS = [o for o in ACTION_SPACE.select('gui', 'mobile') if o.name != 'wait' and o.parameters and all(p.required or p.type == 'point' for p in o.parameters)]
# what ui-tars changes inside of a text is listed in the grammar15 notebook, with the reason
peer_texts = st.text(st.characters(exclude_categories=['Cs']), min_size=1).filter(
    lambda s: not re.search(r"'\)|\)\n\n|point=|<point>|\[EOS\]|Action: |^\s", s) and '\\' not in s)


def peer_values(parameter):
    if parameter.type == 'point': return st.tuples(st.integers(0, GRID), st.integers(0, GRID))
    return st.sampled_from(parameter.choices) if parameter.choices else peer_texts


peer_actions = st.sampled_from(PEER_FUNCTIONS).flatmap(lambda f: st.fixed_dictionaries({p.name: peer_values(p) for p in f.parameters}).map(lambda args: Action(f.name, args)))
peer_thoughts = st.text(st.characters(exclude_categories=['Cs'])).filter(lambda s: not re.search(r'Action:|point=|<point>|\[EOS\]|Thought:|Reflection:|Action_Summary:', s)).map(str.strip)
peer_sizes = st.tuples(st.integers(28, 5000), st.integers(28, 5000))


def as_tagged(text): return re.sub(r"(start|end)_box='\((\d+),(\d+)\)'", lambda m: f"{'point' if m[1] == 'start' else 'end_point'}='<point>{m[2]} {m[3]}</point>'", text)


@given(peer_thoughts, st.lists(peer_actions, min_size=1, max_size=3), peer_sizes, st.sampled_from(['qwen25vl', 'qwen2vl']))
def test_agrees_with_ui_tars(thought, actions, size, model):
    ours_size = size if model == 'qwen25vl' else None
    text = grammar15.print_reply(thought, actions, size=ours_size)
    ours = grammar15.parse(text, size=ours_size)
    theirs_thought, theirs, _ = peer_parse(text, size, model)
    assert (theirs_thought or '') == ours.thought
    assert [name for name, _ in theirs] == [o.name for o in ours.actions]
    for (_, inputs), action in zip(theirs, ours.actions):
        known = ACTION_SPACE[action.name].by_name
        assert {*inputs} == {grammar15.written_name(known[k]) for k in action.args}
        for k, v in action.args.items():
            found = inputs[grammar15.written_name(known[k])]
            if known[k].type != 'point': assert found == v
            else: assert all(abs(GRID * f - g) <= .5 + 1e-9 for f, g in zip(ast.literal_eval(found), (*v, *v), strict=True))


WELL_FORMED = [  # replies as the models write them
    SUBMIT15, "Thought: 点击按钮\nAction: click(point='<point>500 250</point>')", "Action: click(start_box='(500, 250)')", "Thought: a\nb\nAction: left_double(start_box='(1,1)')\n\nright_single(start_box='(0,1000)')",
    "Thought: d\nAction: drag(start_box='(10,20)', end_box='(30,40)')", "Thought: d\nAction: drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')", "Thought: s\nAction: scroll(point='<point>5 6</point>', direction='down')",
    "Thought: s\nAction: scroll(direction='left', start_box='(5,6)')", r"Thought: t\nAction: type(content='x')".replace(r'\n', '\n'), r"Action: type(content='it\'s \"so\"\n')", r"Action: type(content='C:\\dir\\new')", "Action: finished(content='two\nlines')",
    r"Action: type(content='a\d+b')", r"Action: type(content='\u4f60\x41\101')", "Thought: k\nAction: hotkey(key='ctrl a')", "Action: press(key='shift')\n\nrelease(key='shift')", 'Thought: w\nAction: wait()', "Action: finished(content='42')",
    'Action: finished(content="it\'s")', 'Action: call_user()', "Action: open_app(app_name='Maps')", 'Action: press_home()', "Action: long_press(point='<point>1 2</point>')", "Thought: t\n\nAction: type(content='(a)')\n\nclick(start_box='(3,4)')",
]

@pytest.mark.parametrize('text', WELL_FORMED)
def test_agrees_on_what_models_write(text):
    ours, (thought, theirs, _) = grammar15.parse(text), peer_parse(text, (1000, 1000), 'qwen2vl')
    assert (thought or '') == ours.thought
    for (name, inputs), action in zip(theirs, ours.actions, strict=True):
        assert name == action.name
        aliases = {v: k for k, v in grammar15.names(ACTION_SPACE[name]).items() if k in ('start_box', 'end_box')}
        known = {aliases.get(k, k): v for k, v in action.args.items()}
        assert {*known} == {*inputs}
        for k, v in inputs.items(): assert known[k] == (tuple(round(GRID * x) for x in ast.literal_eval(v)[:2]) if k in ('start_box', 'end_box') else v)


def program(text): return peer.parsing_response_to_pyautogui_code(peer_parse(text, (1000, 1000), 'qwen2vl')[2], 1000, 1000, scale_factor=1)


@pytest.mark.parametrize('text', ["click(start_box='(100,200,110,220)')", "drag(start_box='(0,0,10,20)', end_box='(30,40,50,60)')", "left_single(start_box='(1,2)')", "hotkey(hotkey='ctrl c')",
                                  "type(content='don't')", r"type(content='it's \'so\'\n')", "Thought: It's ours.\nAction: type(content='l'été')"])
def test_reads_what_ui_tars_reads(text):
    text = text if 'Action:' in text else f'Action: {text}'
    read = grammar15.parse(text)
    assert program(text) == program(grammar15.print_reply(read.thought, read.actions))


@given(st.tuples(st.integers(0, GRID), st.integers(0, GRID)), peer_sizes, st.sampled_from(['click', 'left_double', 'right_single']))
@example((1000, 1000), (1920, 1080), 'click')
def test_both_click_on_the_same_pixel(point, size, name):
    "End to end, from the model's text to the screen: ui-tars with scale_factor=1 since its parser already gives fractions."
    text = grammar15.print_reply('Click.', [Action(name, dict(point=point))], size=size)
    code = peer.parsing_response_to_pyautogui_code(peer_parse(text, size, 'qwen25vl')[2], size[1], size[0], scale_factor=1)
    theirs = tuple(map(float, re.search(r'\(([\d.e-]+), ([\d.e-]+), button', code).groups()))
    ours = to_pixel(grammar15.parse(text, size=size).actions[0].args['point'], size)
    for x, y, side in zip(ours, theirs, size): assert abs(x - y) <= side / GRID / 2 + 1e-3


def test_where_ui_tars_differs():
    "The table of the grammar15 notebook, so that it stays true; the second half of a box is lost on scroll alone."
    def theirs(text): return peer_parse(text, (1000, 1000), 'qwen2vl')[1]
    def ours(text): return grammar15.parse(text)
    assert theirs("Action: finished(content='<point>1 2</point>')") == [('finished', {'content': '(1,2)'})]
    assert theirs("Action: finished(content='point=3')") == [('finished', {'content': 'start_box=3'})]
    assert theirs("Action: type(content=' a')") == [('type', {'content': 'a'})]
    assert theirs("Action: finished(content='')") == [('finished', {})]
    assert theirs("Action: type(content='the dogs' bone')") == [('type', {'content': "the dogs' bone"})]
    code = peer.parsing_response_to_pyautogui_code(peer_parse("Action: scroll(start_box='(100,200,110,220)', direction='down')", (1000, 1000), 'qwen2vl')[2], 1000, 1000, scale_factor=1)
    assert 'x=0.1, y=0.2' in code
    assert theirs("Action: clik(start_box='(5000,1)')") == [('clik', {'start_box': '[5.0, 0.001, 5.0, 0.001]'})]
    assert theirs("Action: click(start_box='(1,2,3,4)')") == [('click', {'start_box': '[0.001, 0.002, 0.003, 0.004]'})]
    assert theirs('Hm. Action: wait()\n\nAction: wait()') == theirs('Thought: Hm. Action: wait()') == [('wait', {})]
    assert theirs("Action: finished(content='a\\\nb')") == [('finished', {'content': 'a\\nb'})]
    for text in ("Action: finished(content='it's')", "Action: type(content='Action: wait()')", "Action: finished(content='a)\n\nb')", "Action: type(content='a\nb')", 'Action: type(content="a")', 'Action: wait(time=3)', "Action: click(start_box='<|box_start|>(1,2)<|box_end|>')"):
        assert isinstance(ours(text), Parsed)
        with pytest.raises(Exception): theirs(text)


# Prompts

@both
@pytest.mark.parametrize('mode', ['gui', 'game', 'mobile', 'sdk'])
def test_a_prompt_names_every_function_and_parameter(form, mode):
    space = ACTION_SPACE.select(mode)
    prompt = form.describe(space)
    for function in space:
        line = next(o for o in prompt.splitlines() if o.startswith(f'{function.name}(') or f'"name": "{function.name}"' in o)
        for p in function.parameters: assert (p.name if form is grammar else grammar15.written_name(p)) in line
    for function in ACTION_SPACE:
        if function.name not in space: assert f'\n{function.name}(' not in prompt and f'"name": "{function.name}"' not in prompt


def test_the_form_in_the_prompt_is_the_form():
    "The example that the prompt shows is read as a call; only its names are unknown."
    example = '\n'.join(grammar.FORM.splitlines()[1:3])
    assert grammar.parse(example).kind is FaultKind.UNKNOWN_FUNCTION
