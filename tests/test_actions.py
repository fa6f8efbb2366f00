"The action space as data: validation, values as text, tools."
import json, math

import jsonschema, pytest
from hypothesis import given, strategies as st

from strategies import SPACE, actions, texts, values
from uitars_nb.core.actions import ACTION_SPACE, MODES, ActionSpace, Function
from uitars_nb.core.parameters import TYPES, Fault, FaultKind, Parameter
from uitars_nb.core.actions import arguments, from_tool, read_value, table, to_tool, validate, write_value
from uitars_nb.core.parameters import short
from uitars_nb.core.types import Action, from_plain, to_plain

PAPER = {  # function -> parameters, * required, as the report lists them
    'gui': 'click(point*) left_double(point*) right_single(point*) drag(start_point*,end_point*) scroll(direction*,point) move_to(point*) mouse_down(point,button) mouse_up(point,button)'
           ' hotkey(key*) press(key*) release(key*) type(content*) wait(time) navigate(content*) navigate_back()',
    'mobile': 'click(point*) long_press(point*) type(content*) scroll(direction*,point) drag(start_point*,end_point*) open_app(app_name*) press_home() press_back() wait(time)',
    'sdk': 'execute_bash(command*) execute_python(code*,timeout) str_replace_editor(command*,path*,file_text,old_str,new_str,insert_line,view_range) Search(query*) LinkReader(url*,description)',
    'ending': 'finished(content) call_user(content) infeasible(content)',
}
PAPER['game'] = ' '.join(o for o in PAPER['gui'].split() if not o.startswith('navigate'))


def signature(function): return f'{function.name}({",".join(p.name + "*" * p.required for p in function.parameters)})'


@pytest.mark.parametrize('mode', MODES)
def test_the_space_is_the_reports(mode):
    expected = {*PAPER[mode].split(), *PAPER['ending'].split()}
    assert {signature(o) for o in ACTION_SPACE.select(mode)} == expected


def test_every_function_has_a_mode_and_says_what_it_does():
    for o in ACTION_SPACE: assert o.modes and {*o.modes} <= {*MODES} and o.description.endswith('.') and all(p.description for p in o.parameters), o.name


def test_modes_can_be_joined():
    joined = ACTION_SPACE.select('game', 'sdk')
    assert 'execute_bash' in joined and 'click' in joined and 'navigate' not in joined
    with pytest.raises(ValueError, match='no mode guy'): ACTION_SPACE.select('guy')


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match='two functions'): ACTION_SPACE.extend(Function('click', ''))
    with pytest.raises(ValueError, match='two parameters'): Function('f', '', (Parameter('a', 'string'), Parameter('a', 'number')))


@pytest.mark.parametrize('name', ['', 'a b', '<x>', 'a=', "a'", 'a(', '1a', 'é', 'a' * 129, 'a\n'])
def test_names_fit_both_grammars(name):
    with pytest.raises(ValueError, match='is no name'): Function(name, '')


@given(actions)
def test_generated_actions_are_valid(action): assert validate(action, SPACE) is None


@given(actions)
def test_actions_survive_plain_data(action): assert from_plain(json.loads(json.dumps(to_plain(action))), Action) == action


BAD = [  # action, kind, what the message must name
    (Action('clikc', {}), 'unknown_function', 'click'),
    (Action('x' * 10**6, {}), 'unknown_function', 'finished'),
    (Action('click', {}), 'missing_parameter', 'point'),
    (Action('drag', dict(start_point=(1, 1))), 'missing_parameter', 'end_point'),
    (Action('click', dict(point=(1, 1), pint=1)), 'unknown_parameter', 'point'),
    (Action('navigate_back', dict(now=True)), 'unknown_parameter', 'none'),
    (Action('click', dict(point=(1001, 0))), 'off_grid', '1000'),
    (Action('click', dict(point=(0, -1))), 'off_grid', '-1'),
    (Action('click', dict(point=(1.5, 2))), 'bad_value', 'integers'),
    (Action('click', dict(point=(True, 2))), 'bad_value', 'integers'),
    (Action('click', dict(point=(1, 2, 3))), 'bad_value', 'integers'),
    (Action('click', dict(point='1 2')), 'bad_value', 'integers'),
    (Action('click', dict(point=None)), 'bad_value', 'integers'),
    (Action('scroll', dict(direction='down ')), 'bad_value', 'up, down, left, right'),
    (Action('scroll', dict(direction=['down'])), 'bad_value', 'text'),
    (Action('type', dict(content=5)), 'bad_value', 'text'),
    (Action('wait', dict(time='5')), 'bad_value', 'number'),
    (Action('wait', dict(time=True)), 'bad_value', 'number'),
    (Action('wait', dict(time=-.1)), 'bad_value', 'at least 0'),
    (Action('wait', dict(time=math.nan)), 'bad_value', 'number'),
    (Action('wait', dict(time=math.inf)), 'bad_value', 'number'),
    (Action('wait', dict(time=10**5000)), 'bad_value', 'digits'),
    (Action('str_replace_editor', dict(command='insert', path='/a', insert_line=1.)), 'bad_value', 'integer'),
    (Action('str_replace_editor', dict(command='view', path='/a', view_range='1-2')), 'bad_value', 'array'),
    (Action('str_replace_editor', dict(command='view', path='/a', view_range=[{1}])), 'bad_value', 'array'),
    (Action('mcp.every-type', dict(object={1: 2})), 'bad_value', 'object'),
    (Action('mcp.every-type', dict(boolean=1)), 'bad_value', 'true or false'),
    (Action('mcp.every-type', dict(json=b'')), 'bad_value', 'JSON'),
    (Action('type', dict(content='a\udfffb')), 'bad_value', r"'\udfff'"),
    (Action('str_replace_editor', dict(command='view', path='/home/user/\ud800')), 'bad_value', 'path'),
    (Action('mcp.every-type', dict(json=({'a': '\ud800'},))), 'bad_value', 'JSON'),
    (Action('mcp.every-type', dict(object={'\ud800': 1})), 'bad_value', 'object'),
]


@pytest.mark.parametrize('action, kind, names', BAD, ids=[f'{i} {action.name} {kind}' for i, (action, kind, _) in enumerate(BAD)])
def test_what_is_wrong_is_said(action, kind, names):
    fault = validate(action, SPACE)
    assert fault.kind is FaultKind(kind) and names in str(fault)
    assert len(str(fault)) < 1000
    if kind != 'unknown_function': assert str(fault).startswith(f'{action.name}: ')


def nested(levels):
    x = ()
    for _ in range(levels - 1): x = (x,)
    return x


def test_nesting_is_bounded():
    array = Parameter('a', 'array')
    assert array.fault(nested(32)) is None
    assert array.fault(nested(33)).kind is FaultKind.BAD_VALUE
    assert read_value(array, write_value(array, nested(32))) == nested(32)


@given(st.sampled_from([p for o in SPACE for p in o.parameters]), st.data())
def test_values_survive_as_text(parameter, draw):
    value = draw.draw(values(parameter))
    back = read_value(parameter, write_value(parameter, value))
    assert back == value and type(back) is type(value)


@given(st.sampled_from([Parameter(k, k) for k in TYPES]), texts)
def test_any_text_is_a_value_or_a_fault(parameter, text):
    value = read_value(parameter, text)
    assert isinstance(value, Fault) or parameter.fault(value) is None


JUNK = ['five', '1,5', '0x10', '1_000', 'NaN', 'Infinity', '-Infinity', '1e999', '', '5 6', '--1', '+1', '.5', '9' * 5000, '[' * 10**5, '{"a":' * 10**5, '\uff11', '٣', 'None', 'True', "'5'"]

@pytest.mark.parametrize('text', JUNK, ids=lambda o: ascii(o)[:20])
@pytest.mark.parametrize('kind', ['number', 'integer', 'boolean', 'point', 'array', 'object', 'json'])
def test_junk_is_no_value(kind, text):
    fault = read_value(Parameter('p', kind), text)
    assert isinstance(fault, Fault) and fault.kind is FaultKind.BAD_VALUE and len(fault.message) < 200


@pytest.mark.parametrize('text', ['{"a": 1, "a": 2}', '[{"a": 1, "a": 2}]'])
def test_a_key_that_occurs_twice_is_not_dropped(text): assert isinstance(read_value(Parameter('p', 'json'), text), Fault)


@pytest.mark.parametrize('text', ['<point>1.5 2</point>', '<point>1 2 3</point>', '<point>1</point>', '<point>1,2</point>', '(1, 2)', '1 2', '<point>1 2', '<point><point>1 2</point></point>', '<point>12345678901 2</point>'])
def test_a_point_has_one_form(text): assert read_value(Parameter('p', 'point'), text).kind is FaultKind.BAD_VALUE


def test_defaults_are_filled_in():
    assert arguments(Action('wait')) == {'time': 5}
    assert arguments(Action('wait', dict(time=0))) == {'time': 0}
    assert arguments(Action('scroll', dict(direction='up'))) == {'direction': 'up'}
    for o in ACTION_SPACE:
        for p in o.parameters: assert p.default is None or p.fault(p.default) is None and not p.required


@given(actions)
def test_tools_describe_what_is_valid(action):
    "JSON schema accepts every valid action; a point travels as its text."
    schema = to_tool(SPACE[action.name])['function']['parameters']
    known = SPACE[action.name].by_name
    jsonschema.validate({k: write_value(known[k], v) if known[k].type == 'point' else json.loads(json.dumps(v)) for k, v in action.args.items()}, schema)


@pytest.mark.parametrize('function', [o for o in SPACE if not any(p.type == 'point' for p in o.parameters)], ids=lambda o: o.name)
def test_tools_come_back_as_functions(function):
    tool = json.loads(json.dumps(to_tool(function)))['function']
    back = from_tool(tool['name'], tool['description'], tool['parameters'], function.modes)
    assert to_tool(back) == to_tool(function)
    for p, q in zip(function.parameters, back.parameters): assert (p.name, p.type, p.required, p.default, p.choices, p.minimum) == (q.name, q.type, q.required, q.default, q.choices, q.minimum)


SCHEMAS = {'{}': 'json', '{"type": "string"}': 'string', '{"type": ["integer", "null"]}': 'integer', '{"type": ["integer", "string"]}': 'json', '{"anyOf": [{"type": "number"}, {"type": "null"}]}': 'number',
           '{"anyOf": [{"type": "number"}, {"type": "string"}]}': 'json', '{"$ref": "#/$defs/X"}': 'json', '{"type": "null"}': 'json', '{"oneOf": [{"type": "string"}]}': 'json', 'true': 'json',
           '{"type": "string", "enum": ["a", "b"]}': 'string', '{"enum": [1, [2]]}': 'json', '{"anyOf": [true, {"type": "string"}]}': 'json'}

@pytest.mark.parametrize('schema', SCHEMAS)
def test_any_schema_becomes_a_parameter(schema):
    function = from_tool('f', '', {'properties': {'p': json.loads(schema)}})
    assert function.parameters[0].type == SCHEMAS[schema]
    assert to_tool(function)['function']['parameters']['properties']['p'] == json.loads(schema)


def test_a_tool_without_parameters():
    assert from_tool('f', '', {}).parameters == () and from_tool('f', '', {'type': 'object'}).parameters == ()


def test_a_foreign_point_is_not_ours():
    "A JSON schema cannot ask for a type that only this package knows."
    assert from_tool('f', '', {'properties': {'p': {'type': 'point'}}}).parameters[0].type == 'json'


def test_the_table_names_every_function():
    for o in ACTION_SPACE: assert f'`{o.name}(' in table(ACTION_SPACE)
    assert ActionSpace(())._repr_markdown_().count('\n') == 1
