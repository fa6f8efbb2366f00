"Lessons, probes and demonstrators' thoughts in each policy's own dialect."
import random, re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tests.tiny_models import write_checkpoint

from uitars_nb.cli.main import main
from uitars_nb.core.coordinates import GRID, smart_resize, to_pixel
from uitars_nb.core.types import Action, Observation, Step
from uitars_nb.evaluation import probing
from uitars_nb.flywheel.datasets import own_reply
from uitars_nb.flywheel.perception.labels import Element, LabelledPage
from uitars_nb.flywheel.perception.examples import page_examples
from uitars_nb.flywheel.perception.probes import Probe, is_right, tally
from uitars_nb.flywheel.perception.questions import ask
from uitars_nb.flywheel.perception.words import FAMILIES, hits
from uitars_nb.model.dialects import DIALECTS
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.nano.tokenizer import make_tokenizer

torch.set_num_threads(1)
every = pytest.mark.parametrize('name', DIALECTS)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp('models')
    return {'ui-tars-1.5': write_checkpoint(home/'tars15', 'UI-TARS-1.5-7B'), 'ui-tars-1': write_checkpoint(home/'tars', 'UI-TARS-7B')}


@pytest.fixture(scope='module')
def policies(folders):
    "A policy of each dialect; that of UI-TARS-2 is the small one."
    small = Policy(*new_policy(make_tokenizer(['Click on the "Ok" button.']), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2', 'small')
    return {'ui-tars-2': small} | {k: Policy.from_pretrained(o) for k, o in folders.items()}


def page(seed=7):
    "A word, and two shapes at places of the seed."
    screen, rng = np.full((210, 160, 3), 255, np.uint8), random.Random(seed)
    chars = np.array([[ord(c), 20 + 8 * i, 40, 28 + 8 * i, 52] for i, c in enumerate('qTxe')], np.int32)
    boxes = [(x, y, x + 12, y + 12) for x, y in ((rng.randrange(5, 60), rng.randrange(60, 190)), (rng.randrange(75, 145), rng.randrange(60, 190)))]
    shapes = [Element('square', boxes[0], colour='blue'), Element('circle', boxes[1], colour='red')]
    return LabelledPage(screen, chars, (Element('text', (20, 40, 52, 52), 'qTxe'), *shapes), seed=seed)


def center(box, size): return tuple(round(GRID * (a + b) / 2 / side) for a, b, side in zip(box[:2], box[2:], size))


def as_points(text, dialect, size):
    "The points in a text, on the grid, as the dialect's own parser reads them."
    found = re.findall(r'<point>[0-9]+ [0-9]+</point>' if dialect.name == 'ui-tars-2' else r'\([0-9]+,[0-9]+\)', text)
    call = '<seed:tool_call><function=click><parameter=point>{}</parameter></function></seed:tool_call>' if dialect.name == 'ui-tars-2' else "Action: click(start_box='{}')"
    return [dialect.parse(call.format(o), size).actions[0].args['point'] for o in found]


@every
def test_lessons_point_in_the_dialect_that_acts(policies, name):
    "A click of a reply is in the box, and so is every point of an instruction or of a drill."
    policy, kinds = policies[name], set()
    dialect = policy.dialect
    for p in map(page, range(12)):
        asked = ask(p, random.Random(p.seed), 12)
        for q, record in zip(asked, page_examples([p], policy, 12), strict=True):
            reply = policy.decode(record.example.reply).removesuffix('<|im_end|>')
            prompt = policy.decode(record.example.prompt.ids)
            assert name == 'ui-tars-2' or '<point>' not in prompt + reply
            if q.action:
                action, = dialect.parse(reply, p.size).actions
                assert action.name == 'click' and hits(action.args['point'], q.box, p.size)
            elif q.kind == 'locate': assert hits(*as_points(reply, dialect, p.size), q.box, p.size)
            if '<point>' in q.instruction: assert hits(*as_points(prompt, dialect, p.size), q.about, p.size)
            kinds.add(q.kind)
    assert {'locate', 'point_word', 'point_shape', 'name', 'colour_at'} <= kinds


@every
def test_a_probe_takes_the_right_click_of_its_dialect_and_no_other(name):
    dialect, p = DIALECTS[name], page()
    probes = [Probe(kind, p, q) for kind in ('point_word', 'point_shape') for q in ask(p, random.Random(0), 9, [kind])]
    assert len(probes) == 3
    for probe in probes:
        click = lambda point: dialect.write('Here.', [Action('click', dict(point=point))], p.size)
        assert is_right(probe, click(center(probe.question.box, p.size)), dialect) and not is_right(probe, click((5, 5)), dialect)
    assert tally(probes, [o.question.reply(dialect, p.size) for o in probes], dialect) == dict(point_word=(1, 1), point_shape=(2, 2))


async def test_a_model_is_asked_in_its_dialect(policies, monkeypatch):
    p, asked = page(), []
    async def replies(policy, contents, **kwargs): asked.extend(o[0]['text'] for o in contents); return [''] * len(contents)
    monkeypatch.setattr(probing, 'probe_replies', replies)
    suite = [Probe('colour_at', p, q) for q in ask(p, random.Random(0), 2, ['colour_at'])]
    for policy in policies.values(): await probing.probe_policy(policy, suite)
    assert [sum('<point>' in o for o in asked[i:i + 2]) for i in (0, 2, 4)] == [2, 0, 0] and len(asked) == 6


@every
@pytest.mark.parametrize('size', [(160, 210), (640, 480), (1920, 1080)])
def test_a_demonstrators_thought_and_action_are_in_one_system_of_coordinates(policies, name, size):
    policy, rng = policies[name], random.Random(3)
    for _ in range(8):
        a, b = (tuple(rng.randrange(0, GRID + 1, 5) for _ in 'xy') for _ in 'ab')
        thought = 'from <point>{} {}</point> to <point>{} {}</point>; drag it, not (a,b)'.format(*a, *b)
        step = own_reply(Step(Observation(np.zeros((*size[::-1], 3), np.uint8)), thought, (Action('drag', dict(start_point=a, end_point=b)),)), policy)
        told = policy.dialect.parse(step.completion.text, size)
        assert told.thought == step.thought and told.thought.endswith('; drag it, not (a,b)')
        allowed = [.5 * GRID / side + .5 if policy.dialect.pixels and side < GRID else .5 for side in smart_resize(size)]   # half a grid cell, or half a pixel of the image where that is more
        for want, got, acted in zip((a, b), as_points(told.thought, policy.dialect, size), told.actions[0].args.values(), strict=True):
            assert got == acted and all(abs(x - y) <= o for x, y, o in zip(want, got, allowed))


@pytest.mark.parametrize('given, dtype', [([], 'float32'), (['--dtype', 'auto'], 'auto')])
def test_a_checkpoint_is_probed_where_it_would_play(folders, policies, monkeypatch, capsys, given, dtype):
    "On a GPU where there is one, in 32 bits unless something else is said."
    loaded = []
    def to_play(name, dtype='auto'): loaded.append((name, dtype)); return policies['ui-tars-1.5']
    async def reckoning(policy, n, split): return dict(a_sum=(1, 2))
    monkeypatch.setattr(Policy, 'to_play', to_play)
    monkeypatch.setattr(probing, 'arithmetic_accuracy', reckoning)
    assert main(['probe', 'somewhere', '--arithmetic', *given]) == 0
    assert loaded == [('somewhere', dtype)] and 'a_sum' in capsys.readouterr().out
