"`uitars-nb train`, from labelled pages to a checkpoint that loads."
import numpy as np, pytest

from uitars_nb.cli.main import main
from uitars_nb.flywheel.labels import Element, LabelledPage, save_pages
from uitars_nb.model.policy import Policy


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


def test_nothing_to_learn_from_is_said(tmp_path, capsys):
    assert main(words(tmp_path, tmp_path)) == 1
    assert 'uitars-nb pages' in capsys.readouterr().err
