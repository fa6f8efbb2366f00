"OCR of screens: lines, labelled pages, shards of stored episodes, and the commands."
import subprocess, sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip('rapidocr')
from uitars_nb.cli.main import main
from uitars_nb.core.store import Store
from uitars_nb.core.types import Action, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.flywheel.perception.labels import load_pages
from uitars_nb.flywheel.perception.ocr import ScreenOCR, TextLine, char_boxes, ocr_page, ocr_scale, ocr_shards, save_shard, word_at
from uitars_nb.flywheel.perception.words import words
from uitars_nb.tasks.base import seeds

TEXTS = 'Open the settings', 'Account: anna@example.org', 'Delete 12 files?', 'Cancel'


def drawn(size, texts=TEXTS, ink='black', ground='white', height=13):
    "A screen with lines of text, and the box of each."
    image, boxes = Image.new('RGB', size, ground), []
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(height)
    for k, text in enumerate(texts):
        at = size[0] // 20, (size[1] // (len(texts) + 1)) * (k + 1) - height
        draw.text(at, text, ink, font)
        boxes.append(draw.textbbox(at, text, font))
    return np.asarray(image), boxes


@pytest.fixture(scope='module')
def read(): return ScreenOCR(threads=1)


@pytest.mark.parametrize('size, height', [((200, 200), 13), ((500, 400), 14), ((1024, 768), 18)])
@pytest.mark.parametrize('ink, ground', [('black', 'white'), ('white', '#224466')])
def test_text_is_read_where_it_stands(read, size, height, ink, ground):
    screen, boxes = drawn(size, ink=ink, ground=ground, height=height)
    lines = read(screen)
    assert [o.text for o in lines] == [*TEXTS] and min(o.confidence for o in lines) > .6
    for line, box in zip(lines, boxes): assert np.abs(np.subtract(line.box, box)).max() <= max(6, height / 2)
    assert [[w for w, _ in o.words] for o in lines] == [o.split() for o in TEXTS]
    assert word_at(lines, (boxes[1][2] - 3, boxes[1][3] - 3)) == 'anna@example.org'


def test_an_empty_screen_has_no_lines(read):
    assert read(np.full((210, 160, 3), 255, np.uint8)) == [] and word_at([], (3, 3)) == ''
    page = ocr_page([], np.zeros((10, 12, 3), np.uint8))
    assert page.elements == () and page.chars.shape == (0, 5) and page.size == (12, 10)


def test_characters_share_the_word_by_their_widths():
    chars = char_boxes('will', (10, 20, 50, 30))
    assert ''.join(map(chr, chars[:, 0])) == 'will' and chars[0, 1] == 10 and chars[-1, 3] == 50
    assert (chars[1:, 1] == chars[:-1, 3]).all() and (chars[:, [2, 4]] == [20, 30]).all()
    assert (chars[0, 3] - chars[0, 1]) > 2 * (chars[1, 3] - chars[1, 1])   # w is wider than i
    assert [ocr_scale(o) for o in ((160, 210), (500, 400), (1024, 768))] == [3, 2, 1]


def test_the_words_of_a_page_are_those_of_its_lines(read):
    page = ocr_page(read(drawn((300, 200))[0]), drawn((300, 200))[0], source='in-situ/work', seed=3)
    assert [o.text for o in words(page)] == ' '.join(TEXTS).split()


def episode(id, split, *screens):
    steps = tuple(Step(Observation(o), actions=(Action('wait'),)) for o in screens)
    return Trajectory(id, TaskSpec('in-situ/work', seeds(split, 1, id)[0], 'Open the settings.', split), steps, StopReason.FINISHED, 1., True, Observation(screens[-1]))


def test_stored_screens_become_shards_by_size(read, tmp_path):
    small, large, blank = drawn((200, 200))[0], drawn((320, 240))[0], np.zeros((200, 200, 3), np.uint8)
    Store(tmp_path/'store').extend([episode('a', 'train', small, small, blank, small), episode('b', 'train', large), episode('c', 'test', large)])
    made = ocr_shards(tmp_path/'read', Store(tmp_path/'store'), read, per=1)
    pages = [o for path in made for o in load_pages(path)]
    assert sorted((o.size, o.step) for o in pages) == [((200, 200), 0), ((200, 200), 3), ((320, 240), 0)] and len(made) == 3
    assert {o.instruction for o in pages} == {'Open the settings.'}
    stamps = [o.stat().st_mtime_ns for o in made]
    assert ocr_shards(tmp_path/'read', Store(tmp_path/'store'), read, per=1) == made and [o.stat().st_mtime_ns for o in made] == stamps   # not read again
    assert all(o.partial for o in pages)
    Store(tmp_path/'second').extend([episode('d', 'train', large)])
    assert len(ocr_shards(tmp_path/'read', Store(tmp_path/'second'), read)) == 1 and [o.stat().st_mtime_ns for o in made] == stamps
    assert len(ocr_shards(tmp_path/'read', Store(tmp_path/'second'), read, 'test')) == 0
    Store(tmp_path/'store').extend([episode('e', 'train', small)])   # it has grown, and an interrupted reading left a shard
    (tmp_path/'read'/f'{made[0].stem[:12]}_0099.npz').write_bytes(b'')
    again = ocr_shards(tmp_path/'read', Store(tmp_path/'store'), read, per=2)
    assert {o for o in (tmp_path/'read').glob(f'{made[0].stem[:12]}_*')} == {*again} and sum(len(load_pages(o)) for o in again) == 4


def test_screens_of_many_colours_take_several_shards(tmp_path):
    rng, size = np.random.default_rng(0), (256, 256)
    pages = [ocr_page([TextLine('a', (1, 1, 9, 9), 1., (('a', (1, 1, 9, 9)),))], rng.integers(0, 256, (32, 32, 3), np.uint8).repeat(8, 0).repeat(8, 1), source='x', seed=0) for _ in range(70)]
    made = save_shard(tmp_path/'s.npz', pages)
    assert len(made) > 1 and sum(len(load_pages(o)) for o in made) == 70 and load_pages(made[0])[0].size == size


def test_what_ocr_missed_is_no_label(tmp_path):
    from uitars_nb.flywheel.perception.examples import page_examples
    from uitars_nb.model.nano.nano import new_policy
    from uitars_nb.model.nano.tokenizer import make_tokenizer
    from uitars_nb.model.policy import Policy
    from uitars_nb.train.perception import whole_pages
    policy = Policy(*new_policy(make_tokenizer(['Click on the button.']), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2', 'nano')
    page = ocr_page([TextLine('Save all', (10, 10, 60, 22), 1., (('Save', (10, 10, 34, 22)), ('all', (40, 10, 60, 22))))], np.full((210, 160, 3), 255, np.uint8), source='x', seed=1)
    found = list(page_examples([page, replace(page, step=1)], policy))
    assert 'changes' not in {o.task for o in found}
    assert found and not any('reads' in o.targets for o in found)
    save_shard(tmp_path/'s.npz', [page])
    with pytest.raises(ValueError, match='read by OCR'): whole_pages(tmp_path/'s.npz')


def test_the_command_labels_what_training_reads(tmp_path, capsys):
    Store(tmp_path/'run'/'store').extend([episode('a', 'train', drawn((160, 210))[0])])
    assert not main(['ocr', str(tmp_path/'read'), str(tmp_path/'run')])
    assert '1 shards' in capsys.readouterr().out and len(load_pages(next((tmp_path/'read').glob('*.npz')))) == 1
    assert not main(['ocr', str(tmp_path/'other'), str(tmp_path/'run'), '--split', 'validation'])
    assert 'no validation episode shows any text' in capsys.readouterr().out
    for args, why in ((['ocr', 'x'], 'name one or more'), (['ocr', 'x', str(tmp_path)], 'holds no episodes'), (['probe', 'ocr', '--arithmetic'], 'does no arithmetic')):
        assert main(args) and why in capsys.readouterr().err


def test_without_rapidocr_the_error_says_what_to_install():
    code = "import sys; sys.modules['rapidocr'] = None\nfrom uitars_nb.flywheel.perception.ocr import ScreenOCR\ntry: ScreenOCR()\nexcept ImportError as e: print(e)"
    assert 'uitars_nb[ocr]' in subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout
