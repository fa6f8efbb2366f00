"Shaping against its bounds, its formulas written out, and small decision processes solved exactly."
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from uitars_nb.rl.gae import gae, place_rewards
from uitars_nb.rl.shaping import PENALTIES, Shaping, penalty_levels, potential_rewards, shape_rewards, soft_overlong

torch.set_num_threads(1)
unit = st.floats(0, 1)


@st.composite
def weights(draw):
    "Six weights that stay below a success, and budgets of tokens."
    parts = np.array(draw(st.lists(unit, min_size=6, max_size=6)))
    parts = parts / max(parts.sum(), 1e-3) * draw(st.floats(0, .999))
    most = draw(st.integers(1, 60))
    return Shaping(*map(float, parts), max_tokens=most, cache_tokens=draw(st.integers(1, most)))


@st.composite
def episodes(draw):
    "A batch of trajectories of 0 to 8 steps, padded; budgets may be overrun."
    b, s = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    table = lambda kind: torch.tensor(draw(st.lists(st.lists(kind, min_size=s, max_size=s), min_size=b, max_size=b)))
    steps = torch.tensor(draw(st.lists(st.integers(0, s), min_size=b, max_size=b)))
    own = torch.arange(s) < steps[:, None]
    return dict(malformed_BS=table(st.booleans()) & own, tokens_BS=table(st.integers(1, 30)) * own, signal_BS=table(st.floats(-2, 2)).double() * own,
                max_steps_B=torch.tensor(draw(st.lists(st.integers(1, 10), min_size=b, max_size=b))))


@settings(max_examples=200)
@given(episodes(), weights())
def test_no_failure_is_worth_a_success(batch, shaping):
    "Any trajectory of the batch with outcome 1 against any with outcome 0."
    extra = shape_rewards(**batch, shaping=shaping).reward_BS.sum(1)
    lowest = -sum(getattr(shaping, k) for k in PENALTIES)
    assert (extra <= shaping.signal + 1e-9).all() and (extra >= lowest - 1e-9).all()
    assert 1 + extra.min() - extra.max() >= shaping.margin - 1e-9 and shaping.margin > 0


def rewards_by_hand(malformed, tokens, signals, max_steps, w):
    "One trajectory: what stands at each step, as the difference of two totals."
    last = max((k for k, t in enumerate(tokens, 1) if t), default=0)
    early = lambda k: 0 < last <= k and last < max_steps   # it failed and ended before its budget
    def total(k):
        l, low = sum(tokens[:k]), w.max_tokens - w.cache_tokens
        late = 0. if l <= low else min(1., (l - low) / w.cache_tokens)
        bad, seen, paid = sum(malformed[:k]) / max_steps, sum(t > 0 for t in tokens[:k]) / max_steps, sum(signals[:k])
        return w.signal * min(1., max(0., paid)) - w.format * min(1., bad) - w.length * min(1., l / w.max_tokens) - w.step * min(1., seen) - w.overlong * late - w.early * early(k)
    return [total(k + 1) - total(k) for k in range(len(tokens))]


@given(episodes(), weights())
def test_rewards_are_what_the_formulas_say(batch, shaping):
    shaped = shape_rewards(**batch, shaping=shaping)
    expected = [rewards_by_hand(*(o.tolist() for o in row), shaping) for row in zip(*batch.values())]
    np.testing.assert_allclose(shaped.reward_BS, expected, atol=1e-9)
    np.testing.assert_allclose(shaped.reward_BS.sum(1), sum(shaped.terms.values()), atol=1e-9)
    assert shaped.reward_BS[batch['tokens_BS'] == 0].eq(0).all()


@given(episodes(), weights())
def test_potentials_guide_and_leave_nothing(batch, shaping):
    "Paid as signals are, up to the last step, which gives back all; so failures of the same behaviour are worth the same, whatever they earned on the way."
    paid, guided = shape_rewards(**batch, shaping=shaping), shape_rewards(**batch, shaping=(potential := replace(shaping, potential=True)))
    steps = (batch['tokens_BS'] > 0).sum(1)
    before_last = torch.arange(paid.reward_BS.shape[1]) < steps[:, None] - 1
    torch.testing.assert_close(guided.reward_BS[before_last], paid.reward_BS[before_last])
    np.testing.assert_allclose(guided.terms['signal'], 0., atol=1e-9)
    np.testing.assert_allclose(guided.reward_BS.sum(1), sum(v for k, v in paid.terms.items() if k != 'signal'), atol=1e-9)
    assert 1 + guided.reward_BS.sum(1).min() - guided.reward_BS.sum(1).max() >= potential.margin - 1e-9


@given(episodes(), weights(), st.integers(1, 4))
def test_padding_changes_nothing(batch, shaping, more):
    wide = {k: torch.nn.functional.pad(v, (0, more)) if k.endswith('_BS') else v for k, v in batch.items()}
    a, b = shape_rewards(**batch, shaping=shaping), shape_rewards(**wide, shaping=shaping)
    torch.testing.assert_close(b.reward_BS, torch.nn.functional.pad(a.reward_BS, (0, more)))


@given(episodes(), weights())
def test_levels_are_shares(batch, shaping):
    found = penalty_levels(**batch, shaping=shaping)
    assert set(found) == {*PENALTIES, 'signal'}
    assert all((0 <= v).all() and (v <= 1).all() for v in found.values())
    assert all((v.diff(dim=1) >= 0).all() for k, v in found.items() if k != 'signal')


def test_an_idle_step_does_not_make_a_malformed_one_cheaper():
    only_format = Shaping(format=.5, overlong=0., signal=0.)
    def total(replies):
        malformed = torch.tensor([replies])
        return shape_rewards(malformed, 5 * torch.ones_like(malformed).int(), torch.zeros(malformed.shape), torch.tensor([10]), only_format).reward_BS.sum()
    assert total([True]) == total([True, False, False, False])
    assert total([True, True]) < total([True])


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rewards_keep_the_signals_precision(dtype):
    shaped = shape_rewards(torch.zeros(1, 2).bool(), torch.ones(1, 2).int(), torch.zeros(1, 2, dtype=dtype), torch.tensor([5]))
    assert {shaped.reward_BS.dtype, *(v.dtype for v in shaped.terms.values())} == {dtype}


@pytest.mark.parametrize('shape', [(0, 3), (2, 0)])
def test_nothing_to_shape_is_no_fault(shape):
    shaped = shape_rewards(torch.zeros(shape).bool(), torch.zeros(shape).int(), torch.zeros(shape), torch.ones(shape[0]).int())
    assert shaped.reward_BS.shape == shape and all(v.eq(0).all() and len(v) == shape[0] for v in shaped.terms.values())


@pytest.mark.parametrize('wrong, says', [
    (dict(signal=.8, overlong=.2), 'below a success'), (dict(format=-.1), 'at least 0'), (dict(step=float('nan')), 'at least 0'),
    (dict(cache_tokens=0), 'within the limit'), (dict(max_tokens=100, cache_tokens=101), 'within the limit')])
def test_weights_that_break_the_promise_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says): Shaping(**wrong)


@pytest.mark.parametrize('wrong, says', [
    (dict(signal_BS=torch.tensor([[0., float('nan')]])), 'not a finite number'), (dict(signal_BS=torch.tensor([[0., .1]])), 'without response tokens'),
    (dict(malformed_BS=torch.tensor([[False, True]])), 'without response tokens')])
def test_what_cannot_be_placed_is_refused(wrong, says):
    batch = dict(malformed_BS=torch.zeros(1, 2).bool(), tokens_BS=torch.tensor([[3, 0]]), signal_BS=torch.zeros(1, 2), max_steps_B=torch.tensor([5]))
    with pytest.raises(ValueError, match=says): shape_rewards(**batch | wrong)


@given(st.integers(0, 300), st.integers(1, 200), st.data())
def test_soft_overlong_has_dapos_three_cases(length, most, data):
    cache = data.draw(st.integers(1, most))
    expected = 0 if length <= most - cache else (most - cache - length) / cache if length <= most else -1
    assert soft_overlong(torch.tensor(length), most, cache).item() == pytest.approx(expected, abs=1e-6)


class Process:
    "A random decision process: a few states, the last of them the end, stochastic moves, rewards of any sign."
    def __init__(self, seed, states=5, actions=3):
        rng = np.random.default_rng(seed)
        self.p = rng.dirichlet(np.full(states, .5), size=(states - 1, actions))   # (S-1, A, S)
        self.r = rng.normal(size=(states - 1, actions, states))
        self.phi, self.gamma = np.append(rng.normal(size=states - 1) * 3, 0.), rng.uniform(.3, .95)

    def q_values(self, r):
        "Optimal Q (S-1, A) by value iteration."
        value = np.zeros(self.p.shape[2])
        for _ in range(1000):
            q = (self.p * (r + self.gamma * value)).sum(2)
            value[:-1] = q.max(1)
        return q

    def shaped(self):
        "Rewards with the potential's, each asked for as a trajectory of this one step: ended, or cut off in the next state."
        r, end = self.r.copy(), self.p.shape[2] - 1
        for s, to in itertools.product(range(end), range(end + 1)):
            last = None if to == end else torch.tensor([self.phi[to]])
            r[s, :, to] += potential_rewards(torch.tensor([[self.phi[s]]]), torch.tensor([1]), last, self.gamma).item()
        return r


@pytest.mark.parametrize('seed', range(10))
def test_a_potential_leaves_the_optimum_alone(seed):
    "Value iteration with and without: the same best actions, and every Q lower by the state's potential."
    process = Process(seed)
    plain, shaped = process.q_values(process.r), process.q_values(process.shaped())
    np.testing.assert_array_equal(plain.argmax(1), shaped.argmax(1))
    np.testing.assert_allclose(shaped, plain - process.phi[:-1, None], atol=1e-9)


def test_an_ordinary_bonus_does_not():
    "The check above can fail: the same numbers, paid on arrival, change what is best in most of these processes."
    processes = [Process(seed) for seed in range(10)]
    assert sum((o.q_values(o.r).argmax(1) != o.q_values(o.r + o.phi).argmax(1)).any() for o in processes) >= 5


@given(st.data())
def test_discounted_potentials_telescope(data):
    "Whole trajectories of uneven length, ended or cut off: only first and last state are left; padding may hold anything."
    b, s, gamma = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8)), data.draw(st.floats(.1, 1))
    numbers = lambda n: torch.tensor(data.draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n)), dtype=torch.float64)
    steps, last = torch.tensor(data.draw(st.lists(st.integers(1, s), min_size=b, max_size=b))), numbers(b)
    phi = numbers(b * s).view(b, s).masked_fill(torch.arange(s) >= steps[:, None], float('nan'))
    discount = gamma ** torch.arange(s, dtype=torch.float64)
    cut, ended = (potential_rewards(phi, steps, o, gamma) for o in (last, None))
    torch.testing.assert_close((discount * cut).sum(1), gamma ** steps.double() * last - phi[:, 0])
    torch.testing.assert_close((discount * ended).sum(1), -phi[:, 0])
    assert cut[torch.arange(s) >= steps[:, None]].eq(0).all()


@given(st.integers(0, 10**6), st.booleans())
def test_a_potential_only_moves_the_baseline(seed, ended):
    "The policy's advantages over a critic are those over the critic minus the potential: nothing is learned that the outcome does not say."
    gen = torch.Generator().manual_seed(seed)
    turn = torch.tensor([[0, 0, -1, 1, 1, 1, -1, -1, 2]])
    phi, value, outcome = (torch.randn(n, dtype=torch.float64, generator=gen) for n in (4, 9, 1))
    last, last_phi = (None, None) if ended else (torch.tensor([.7], dtype=torch.float64), phi[3:])
    signal = potential_rewards(phi[None, :3], torch.tensor([3]), last_phi)
    plain = gae(place_rewards(turn, outcome), value[None], turn >= 0, last, gae_lambda_policy=1.)
    shaped = gae(place_rewards(turn, outcome, signal), value[None] - phi[turn.clamp(min=0)], turn >= 0, None if ended else last - last_phi, gae_lambda_policy=1.)
    torch.testing.assert_close(shaped.adv_BT, plain.adv_BT)
