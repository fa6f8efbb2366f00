"Grounding benchmarks: formats, the metric against ScreenSpot-Pro's own evaluation (its folder in UITARS_BENCH_SCREENSPOT_PRO), and our own set under real policies."
import asyncio
import importlib.util
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action
from uitars_nb.evaluation.benchmarks.grounding import PointAnswer, Target, ask_target, by_kind, evaluate_grounding, grade, in_polygon, read_answers, read_targets, render_targets

THEIRS = Path(os.environ.get('UITARS_BENCH_SCREENSPOT_PRO', 'nowhere'))
GROUPS = ['CAD', 'Dev', 'OS']


def pro_entries(n, seed=0):
    "Entries in ScreenSpot-Pro's format."
    rng, entries = random.Random(seed), []
    for i in range(n):
        w, h = rng.choice([(1920, 1080), (3840, 2160)])
        x, y = rng.randrange(w - 200), rng.randrange(h - 100)
        entries.append(dict(id=f'app_{i}', img_filename=f'{i}.png', bbox=[x, y, x + rng.randint(5, 190), y + rng.randint(5, 90)], instruction=f'element {i}', instruction_cn='',
                            application=f'app{i % 4}', platform=rng.choice(['windows', 'macos']), group=rng.choice(GROUPS), ui_type=rng.choice(['text', 'icon']), img_size=[w, h]))
    return entries


@pytest.mark.skipif(not (THEIRS/'eval_screenspot_pro.py').is_file(), reason="UITARS_BENCH_SCREENSPOT_PRO names no copy of ScreenSpot-Pro's repository")
def test_the_metric_agrees_with_screenspot_pro(tmp_path):
    "Its `eval_sample_positive_gt` and `evaluate` on 400 answers: in the box, on each edge, just outside, and no point."
    sys.path.insert(0, str(THEIRS))
    try:
        spec = importlib.util.spec_from_file_location('eval_screenspot_pro', THEIRS/'eval_screenspot_pro.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally: sys.path.pop(0)
    entries, rng = pro_entries(400), random.Random(1)
    (tmp_path/'app_windows.json').write_text(json.dumps(entries))
    targets, answers, results = read_targets(tmp_path, tmp_path), [], []
    for o, target in zip(entries, targets):
        l, t, r, b = o['bbox']
        point = rng.choice([((l + r) / 2, (t + b) / 2), (l, t), (r, b), (r + 1, b), (l, t - 1), None, (0, 0)])
        response = dict(point=point and [point[0] / o['img_size'][0], point[1] / o['img_size'][1]])
        results.append(o | dict(correctness=module.eval_sample_positive_gt(o, response), gt_type='positive', instruction_style='instruction', language='en'))
        answers.append(PointAnswer(target.id, point))
    assert [grade(t, a) for t, a in zip(targets, answers)] == [o['correctness'] for o in results]
    report, table = module.evaluate(results)['metrics'], by_kind(targets, answers, 'group')
    assert table.loc[('all', ''), 'accuracy'] == report['overall']['action_acc'] and table.loc[('all', ''), 'wrong_format'] == report['overall']['wrong_format_num'] / 400
    for group in GROUPS:
        for kind in ('text', 'icon'): assert table.loc[(group, kind), 'accuracy'] == report['leaderboard_simple_style'][f'group:{group}'][f'{kind}_acc']
    names = dict(correct='negative', wrong='positive', wrong_format='wrong_format')   # an element that is not there
    missing, said = Target('m', Path('m.png'), 'none'), (PointAnswer('m', refused=True), PointAnswer('m', (1, 1)), PointAnswer('m'))
    for o in said: assert grade(missing, o) == module.eval_sample_negative_gt({}, dict(result=names[grade(missing, o)]))


def test_each_format_reads_its_boxes(tmp_path):
    "The same box in all formats, and what only OSWorld-G has."
    (tmp_path/'screenspot_desktop.json').write_text(json.dumps([dict(img_filename='a.png', bbox=[10, 20, 30, 40], instruction='a', data_type='text', data_source='windows')]))
    (tmp_path/'screenspot_web_v2.json').write_text(json.dumps([dict(img_filename='a.png', bbox=[10, 20, 30, 40], instruction='a', data_type='icon', data_source='shop')]))
    (tmp_path/'vscode_macos.json').write_text(json.dumps([pro_entries(1)[0] | dict(id='p', bbox=[10, 20, 40, 60])]))
    osworld = [dict(id=k, image_path='a.png', image_size=[100, 100], instruction='a', box_type=t, box_coordinates=c, GUI_types=['Icon', 'Button'])
               for k, t, c in (('o', 'bbox', [10, 20, 30, 40]), ('poly', 'polygon', [0, 0, 10, 0, 10, 10]), ('no', 'refusal', [-1, -1, -1, -1]))]
    (tmp_path/'OSWorld-G_refined.json').write_text(json.dumps(osworld))
    (tmp_path/'classification_result.json').write_text('{"classified": {}}')
    found = {o.id: o for o in read_targets(tmp_path, tmp_path/'images')}
    assert {found[k].box for k in ('screenspot_desktop:0', 'screenspot_web_v2:0', 'p', 'o')} == {(10, 20, 40, 60)}
    assert (found['screenspot_web_v2:0'].platform, found['screenspot_web_v2:0'].group, found['screenspot_web_v2:0'].kinds) == ('web', 'shop', ('icon',))
    assert found['poly'].contains((8, 4)) and not found['poly'].contains((2, 8)) and not found['poly'].refusal
    assert found['no'].refusal and found['no'].kinds == ('refusal',) and found['o'].image == tmp_path/'images'/'a.png'
    with pytest.raises(ValueError, match='none of the fields'): (tmp_path/'other.json').write_text('[{"x": 1}]') and read_targets(tmp_path/'other.json', tmp_path)
    with pytest.raises(FileNotFoundError): read_targets(tmp_path/'classification_result.json', tmp_path)


def test_polygons_against_sampling():
    "In a triangle, by its barycentric coordinates."
    rng, corners = np.random.default_rng(0), ((3., 1.), (40., 9.), (12., 33.))
    (ax, ay), (bx, by), (cx, cy) = corners
    area = lambda p, q, r: (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
    for point in rng.uniform(0, 40, (300, 2)):
        signs = {area(p, q, point) > 0 for p, q in zip(corners, corners[1:] + corners[:1])}
        assert in_polygon(tuple(point), corners) == (len(signs) == 1)


def test_the_first_point_of_a_reply_counts(tmp_path):
    Image.new('RGB', (200, 100)).save(tmp_path/'a.png')
    target = Target('a', tmp_path/'a.png', 'x', (90, 40, 110, 60))

    class Says:
        def __init__(self, *actions): self.actions = actions
        async def act(self, steps, obs): return Reply('thought', tuple(self.actions), error='' if self.actions else 'no call found')
    ask = lambda *actions: asyncio.run(ask_target(lambda *_: Says(*actions), target))
    assert ask(Action('wait', {}), Action('click', dict(point=(500, 500))), Action('click', dict(point=(0, 0)))).point == (100, 50)
    assert ask(Action('infeasible')).refused and ask().text == 'no call found' and ask().point is None


def test_our_own_set_measures_a_checkpoint(tmp_path):
    "The shipped policy clicks better than chance on our own pages, and the oracle is always right."
    targets = asyncio.run(render_targets(tmp_path/'set', 60))
    assert len(targets) > 45 and sum(o.refusal for o in targets) > 5 and {k for o in targets for k in o.kinds} == {'text', 'icon', 'refusal'}
    score = {p: asyncio.run(evaluate_grounding(targets, tmp_path/p, p)).loc[('all', ''), 'accuracy'] for p in ('oracle', 'random', 'pix2act59')}
    assert score['oracle'] == 1 and score['random'] < .2 < score['pix2act59'], score
    assert len(read_answers(tmp_path/'pix2act59'/'answers.jsonl')) == len(targets)
