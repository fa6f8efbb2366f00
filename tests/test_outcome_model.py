"A judge of outcomes sees what there was to see and nothing of the verdict, whatever the length of an episode and whoever spoke in it."
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.sft_run import small_policy
from tests.test_datasets import episode
from uitars_nb.cli.main import main
from uitars_nb.core.store import Store
from uitars_nb.core.types import Completion, StopReason
from uitars_nb.flywheel.outcome_model import FILE, QUESTION, OutcomeModel, outcome_messages, choose_threshold, detection, judge_memory, outcome_examples, p_done
from uitars_nb.flywheel.reward_names import named_reward
from uitars_nb.model.policy import Policy
from uitars_nb.tasks.base import seeds
from uitars_nb.train.reinforce import _named


@pytest.fixture(scope='module')
def policy(): return small_policy()


def test_a_run_knows_its_judge_again(policy, tmp_path):
    policy.save(tmp_path/'judge')
    (tmp_path/'judge'/FILE).write_text(json.dumps(dict(threshold=.4, images=2)))
    notes = {_named(OutcomeModel.load(tmp_path/'judge')) for _ in range(2)}
    assert len(notes) == 1 and ' at 0x' not in (note := notes.pop()) and '0.4' in note and Policy.from_pretrained(tmp_path/'judge').weights in note


def verdict(traj, success): return replace(traj, success=success, reward=float(success), info=dict(verdict=dict(said=str(success))))


def test_the_verdict_is_not_in_the_question(policy):
    "Nor why the episode ended, nor what the verifier noted."
    memory = judge_memory(policy)
    one, other = (policy.render(outcome_messages(verdict(episode(3), o), policy, memory)) for o in (True, False))
    timed = policy.render(outcome_messages(replace(verdict(episode(3), False), stop=StopReason.STEP_LIMIT), policy, memory))
    assert (one.ids == other.ids).all() and (one.ids == timed.ids).all()
    assert policy.decode(one.ids).rstrip().endswith(policy.decode(policy.render([dict(role='user', content=[dict(type='text', text=QUESTION)])]).ids).rstrip()[-20:])


@pytest.mark.parametrize('images', [1, 3])
def test_the_newest_screens_are_shown_the_last_among_them(policy, images):
    traj = episode(5)
    shown = policy.render(outcome_messages(traj, policy, judge_memory(policy, images))).images
    wanted = [*(s.observation.screenshot for s in traj.steps), traj.final.screenshot][-images:]
    assert len(shown) == images and all((a == b).all() for a, b in zip(shown, wanted))


def test_an_episode_of_any_length_fits(policy):
    "Question and answer included, with nothing of the instruction or the last screen left out."
    traj, memory = episode(2), judge_memory(policy)
    memory = replace(memory, config=replace(memory.config, context=400))
    long = replace(traj, steps=traj.steps * 60)
    prompt = policy.render(outcome_messages(long, policy, memory))
    assert len(prompt.ids) < 400 and traj.task.instruction in policy.decode(prompt.ids) and (prompt.images[-1] == traj.final.screenshot).all()
    assert QUESTION.split()[-1] in policy.decode(prompt.ids)


def test_what_another_model_said_is_read_in_the_judges_own_tokens(policy):
    foreign = Completion('I click it<|im_end|>', np.int32([151001]), np.int32([151001, 9]), np.zeros(2, np.float32), np.zeros(2, np.int32))
    traj = episode(3)
    score = p_done(policy, [replace(traj, steps=(replace(traj.steps[0], completion=foreign), *traj.steps[1:]))], judge_memory(policy))
    assert 0 < score[0] < 1


def test_alone_or_with_others_the_answer_is_the_same(policy):
    trajs = [episode(k) for k in (2, 6, 3, 4)]
    alone = [p_done(policy, [o], judge_memory(policy))[0] for o in trajs]
    assert np.allclose(p_done(policy, trajs, judge_memory(policy), batch=3), alone, atol=1e-5) and len({*np.round(alone, 6)}) > 1
    assert p_done(policy, [], judge_memory(policy)).shape == (0,)


@given(st.lists(st.tuples(st.integers(0, 6).map(lambda o: o / 6), st.booleans()), min_size=2).filter(lambda o: len({b for _, b in o}) == 2), st.sampled_from([0, .5, .8, 1]))
def test_thresholds_are_those_that_counting_finds(some, precision):
    scores, done = zip(*some)
    def count(t):
        said = [s >= t for s in scores]
        tp = sum(a and b for a, b in zip(said, done))
        return tp / sum(said), tp / sum(done), 2 * tp / (sum(said) + sum(done)), sum(a and not b for a, b in zip(said, done)) / (len(done) - sum(done))
    able = {t: count(t) for t in {*scores} if count(t)[0] >= precision}
    if not able:
        with pytest.raises(ValueError, match='no threshold'): choose_threshold(scores, done, precision)
        return
    found = choose_threshold(scores, done, precision)
    assert (found.precision, found.recall, found.f1, found.false_positive_rate) == pytest.approx(able[found.threshold])
    assert found.f1 == pytest.approx(max(o[2] for o in able.values()))


def test_whoever_calls_nothing_done_has_no_precision():
    found = detection([.1, .2], [True, False], .5)
    assert np.isnan(found.precision) and found.recall == found.false_positive_rate == 0


async def test_from_episodes_to_a_reward(tmp_path, capsys):
    "By the commands: a judge is taught, its threshold chosen on validation episodes and measured on test episodes, and its word is a reward."
    for split in ('train', 'validation', 'test'):
        Store(tmp_path/split).extend(replace(verdict(episode(2 + i), bool(i % 2)), id=f'{split}{i}', task=replace(episode(1).task, seed=s, split=split)) for i, s in enumerate(seeds(split, 4)))
    small_policy().save(tmp_path/'start')
    run, judge = str(tmp_path/'run'), str(tmp_path/'run/policy')
    assert main(['train', run, '--start', str(tmp_path/'start'), '--outcomes', str(tmp_path/'train'), '--steps', '2', '--batch', '2']) == 0
    assert main(['judge', judge, '--measure', str(tmp_path/'test')]) == 1 and '--choose' in capsys.readouterr().err
    assert main(['judge', judge, '--choose', str(tmp_path/'test')]) == 1 and 'split test' in capsys.readouterr().err
    assert not (tmp_path/'run/policy'/FILE).exists()
    assert main(['judge', judge, '--choose', str(tmp_path/'validation'), '--measure', str(tmp_path/'test'), '--images', '2']) == 0
    assert 'failures passed' in capsys.readouterr().out
    kept = json.loads((tmp_path/'run/policy'/FILE).read_text())
    source = named_reward(f'outcome:{judge}')
    assert kept['images'] == source.memory.config.images == 2 and kept['n'] == 4
    told = await source(episode(3))
    assert told.source == 'outcome model' and told.success == (told.outcome == 1) == (told.info['p_done'] >= round(kept['threshold'], 4))
    with pytest.raises(ValueError, match='what the environment broke'): await source(replace(episode(3), stop=StopReason.ENV_CRASH, reward=None, success=False))
    with pytest.raises(FileNotFoundError, match='uitars-nb judge'): OutcomeModel.load(tmp_path/'start')


def test_no_held_out_episode_is_a_lesson(policy, tmp_path):
    store = Store(tmp_path)
    store.append(replace(episode(2), task=replace(episode(2).task, seed=seeds('test', 1)[0], split='test')))
    with pytest.raises(ValueError, match="split 'test'"): outcome_examples(store, policy, judge_memory(policy))
