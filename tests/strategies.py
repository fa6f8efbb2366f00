"Hypothesis strategies over the whole action space."
import re

from hypothesis import strategies as st

from uitars_nb.core.actions import ACTION_SPACE, Function
from uitars_nb.core.parameters import TYPES, Parameter
from uitars_nb.core.coordinates import GRID
from uitars_nb.core.types import Action, freeze

EVERY = Function('mcp.every-type', 'One parameter of each type.', tuple(Parameter(k, k, required=False) for k in TYPES))
SPACE = ACTION_SPACE.extend(EVERY)

FRAGMENTS = ['<think>', '</think>', '<seed:tool_call>', '</seed:tool_call>', '<function=click>', '</function>', '<parameter=point>', '</parameter>', '<point>1 2</point>', '<\\/parameter>',
             'Thought: ', 'Action: ', '\nAction: ', '\n\\Action:', "click(start_box='(1,2)')", "')", "')\n\n", '\\', '\\\\', '\\n', "'", '"', "\\'", '<', '>', '=', ',', '(', ')', '\n', '\n\n', '\r', '\t', '\0', ' ',
             '[', '{', '&lt;', '<|box_start|>', '<|im_end|>', '\u2028', '\x85', '\ud800', '漢', '🙂', 'true', '-1', '1e9', '1001']
characters = st.characters()  # surrogates and controls too
texts = st.text(characters) | st.lists(st.sampled_from(FRAGMENTS) | st.text(characters, max_size=3), max_size=12).map(''.join)
words = texts.map(lambda s: re.sub(r'[\ud800-\udfff]', '', s))   # what a value may hold
integers = st.integers(-2**63, 2**63 - 1)
numbers = integers | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | words
data = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6).map(freeze)

BY_TYPE = {
    'point': st.tuples(st.integers(0, GRID), st.integers(0, GRID)),
    'string': words, 'number': numbers, 'integer': integers, 'boolean': st.booleans(), 'json': data,
    'array': st.lists(data, max_size=3).map(freeze), 'object': st.dictionaries(words, data, max_size=3),
}


def values(parameter):
    "Valid values of a parameter."
    if parameter.choices: return st.sampled_from(parameter.choices)
    found = BY_TYPE[parameter.type]
    return found if parameter.minimum is None else found.filter(lambda v: v >= parameter.minimum)


def calls(function):
    "Valid calls of a function."
    required = {p.name: values(p) for p in function.parameters if p.required}
    optional = {p.name: values(p) for p in function.parameters if not p.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda args: Action(function.name, args))


actions = st.sampled_from(SPACE.functions).flatmap(calls)
replies = st.tuples(texts, st.lists(actions, min_size=1, max_size=4).map(tuple))  # thought, actions
