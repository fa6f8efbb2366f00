"`uitars-nb train`, from labelled pages to a checkpoint that loads."
from pathlib import Path

import numpy as np, pytest

from uitars_nb.cli.main import main
from uitars_nb.pipelines.rl import RLJob, check_rl
from uitars_nb.rl.shaping_config import Shaping
from uitars_nb.flywheel.perception.labels import Element, LabelledPage, save_pages
from uitars_nb.model.policy import Policy
from uitars_nb.tasks.base import seeds
from uitars_nb.train.sft import read_metrics


def page(seed):
    "A word and a square, drawn by hand."
    screen = np.full((210, 160, 3), 255, np.uint8)
    screen[100:132, 64:96] = (0, 0, 255)
    chars = np.array([[ord(c), 20 + 8 * i, 40, 28 + 8 * i, 52] for i, c in enumerate('qTxe')], np.int32)
    return LabelledPage(screen, chars, (Element('text', (20, 40, 52, 52), 'qTxe'), Element('square', (64, 100, 96, 132), colour='blue')), seed=seed)


def words(tmp_path, pages): return ['train', str(tmp_path/'run'), '--pages', str(pages), '--steps', '2', '--batch', '2', '--questions', '2']


@pytest.mark.timeout(200)
def test_pages_become_a_policy_and_a_second_call_has_nothing_to_do(tmp_path, capsys):
    (tmp_path/'pages').mkdir()
    save_pages(tmp_path/'pages'/'sheets_000.npz', [page(seed) for seed in (1, 2, 3)])
    assert main(words(tmp_path, tmp_path/'pages')) == 0, capsys.readouterr().err
    first = Policy.from_pretrained(tmp_path/'run'/'policy').model.state_dict()
    assert main(words(tmp_path, tmp_path/'pages')) == 0
    second = Policy.from_pretrained(tmp_path/'run'/'policy').model.state_dict()
    assert all((first[k] == second[k]).all() for k in first)


@pytest.mark.timeout(200)
def test_pages_of_the_validation_split_are_watched(tmp_path, capsys):
    "The loss on them by kind of question; pages of the training split are refused, and nothing is made of pages of the test split."
    for split in ('train', 'validation'):
        (tmp_path/split).mkdir()
        save_pages(tmp_path/split/'sheets_000.npz', [page(seed) for seed in seeds(split, 3, 'sheet')])
    watch = lambda split: [*words(tmp_path, tmp_path/'train'), '--validation', str(tmp_path/split), '--validate_every', '1']
    assert main(watch('train')) == 1 and 'train' in capsys.readouterr().err
    assert main(watch('validation')) == 0, capsys.readouterr().err
    assert any(o.startswith('val/loss/') for o in read_metrics(tmp_path/'run').dropna(axis=1, how='all'))
    assert main(['pages', str(tmp_path/'test'), '--split', 'test']) == 2 and 'train' in capsys.readouterr().err


def test_nothing_to_learn_from_is_said(tmp_path, capsys):
    assert main(words(tmp_path, tmp_path)) == 1
    assert 'uitars-nb pages' in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_demonstrations_with_unseen_ones_and_episodes_beside_them(tmp_path, capsys):
    for split in ('train', 'validation'):
        assert main(['eval', '--suite', 'miniwob/click-test', '--policy', 'demonstrator', '--split', split, '--episodes', '2', '--out', str(tmp_path/split)]) == 0, capsys.readouterr().err
    fine = ['train', str(tmp_path/'run'), '--demonstrations', str(tmp_path/'train'), '--validation', str(tmp_path/'validation'), '--validate_every', '2', '--play_every', '2', '--play_suite', 'miniwob/click-test',
            '--steps', '2', '--batch', '2']
    assert main(fine) == 0, capsys.readouterr().err
    known = read_metrics(tmp_path/'run').dropna(axis=1, how='all')
    assert {'val/loss/miniwob/click-test', 'online/success/miniwob/click-test'} <= {*known}, known
    assert main([*fine[:5], str(tmp_path/'train'), *fine[6:]]) == 1   # demonstrations of the training split are not unseen
    assert 'validation' in capsys.readouterr().err


def test_practice_with_a_slope_behind_the_wall_is_refused_before_anything_is_played():
    with pytest.raises(ValueError, match='episodes end after 32768 tokens'): check_rl(RLJob(shaping=Shaping(max_tokens=65536)))
    check_rl(RLJob())
