"GAE against the equation written out, against scipy's filter, and against torchrl."
import math

import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
from scipy.signal import lfilter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from uitars_nb.rl.gae import discounted_sum, gae, length_adaptive_lambda, place_rewards

NAN = float('nan')
unit = st.floats(0, 1)
number = st.floats(-3, 3)


def brute(rewards, values, last, gamma, lam):
    "The sum that the recursion stands for: A_t = sum over k of (gamma lambda)^k delta_(t+k)."
    nexts = [*values[1:], last]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, nexts, values)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@st.composite
def batches(draw):
    "Rewards, values, own tokens and last values of a ragged batch with gaps, padding, single tokens and empty rows; values that are not own are NaN."
    b, t = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    own = torch.tensor(draw(st.lists(st.lists(st.booleans(), min_size=t, max_size=t), min_size=b, max_size=b)))
    fill = lambda empty: torch.tensor(draw(st.lists(st.lists(number, min_size=t, max_size=t), min_size=b, max_size=b)), dtype=torch.float64).masked_fill(~own, empty)
    return fill(0.), fill(NAN), own, torch.tensor(draw(st.lists(number, min_size=b, max_size=b)), dtype=torch.float64)


@settings(max_examples=150)
@given(batches(), unit, unit, unit)
def test_equals_brute_force(batch, gamma, lam_policy, lam_value):
    rewards, values, own, last = batch
    out = gae(rewards, values, own, last, gamma, lam_policy, lam_value)
    for b in range(len(own)):
        r, v = rewards[b][own[b]].tolist(), values[b][own[b]].tolist()
        np.testing.assert_allclose(out.adv_BT[b][own[b]], brute(r, v, float(last[b]), gamma, lam_policy), atol=1e-9)
        np.testing.assert_allclose(out.ret_BT[b][own[b]], np.add(brute(r, v, float(last[b]), gamma, lam_value), v), atol=1e-9)
    assert out.adv_BT[~own].eq(0).all() and out.ret_BT[~own].eq(0).all()


@given(batches(), st.floats(.01, 1))
def test_length_adaptive_is_a_lambda_a_row(batch, alpha):
    rewards, values, own, last = batch
    out = gae(rewards, values, own, last, length_adaptive_alpha=alpha)
    for b in range(len(own)):
        n = int(own[b].sum())
        lam = max(0., 1 - 1 / (alpha * n)) if n else 0.
        np.testing.assert_allclose(out.adv_BT[b][own[b]], brute(rewards[b][own[b]].tolist(), values[b][own[b]].tolist(), float(last[b]), 1., lam), atol=1e-8)


@given(batches())
def test_monte_carlo_at_lambda_one(batch):
    rewards, values, own, last = batch
    ret = gae(rewards, values, own, last).ret_BT
    for b in range(len(own)):
        r = rewards[b][own[b]].numpy()
        np.testing.assert_allclose(ret[b][own[b]], np.cumsum(r[::-1])[::-1] + float(last[b]), atol=1e-9)


@given(batches(), st.integers(0, 5))
def test_gaps_and_padding_change_nothing(batch, extra):
    "The same own tokens with foreign ones strewn in, rows in another order."
    rewards, values, own, last = batch
    b, t = own.shape
    wide = torch.arange(t) * (extra + 1)
    def strewn(x, empty): return torch.full((b, t * (extra + 1)), empty, dtype=x.dtype).index_copy_(1, wide, x).flip(0)
    plain = gae(rewards, values, own, last, .9, .8, .7)
    other = gae(strewn(rewards, 0.), strewn(values, NAN), strewn(own, False), last.flip(0), .9, .8, .7)
    for x, y in zip(plain, other): torch.testing.assert_close(x, y.flip(0)[:, wide])


def test_equals_scipys_filter():
    rng = np.random.default_rng(0)
    r, v = rng.normal(size=(2, 5000))
    delta = r + .99 * np.append(v[1:], .3) - v
    expected = lfilter([1], [1, -.99 * .95], delta[::-1])[::-1]
    row = lambda x: torch.tensor(x)[None]
    out = gae(row(r), row(v), torch.ones(1, 5000, dtype=torch.bool), torch.tensor([.3], dtype=torch.float64), .99, .95)
    np.testing.assert_allclose(out.adv_BT[0], expected, atol=1e-9)


def test_equals_torchrl():
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate  # takes seconds
    x = torch.Generator().manual_seed(0)
    r, v, n = (torch.randn(7, 60, 1, dtype=torch.float64, generator=x) for _ in range(3))
    done = torch.zeros(7, 60, 1, dtype=torch.bool)
    done[:, -1] = True
    ended = done & (torch.rand(7, 60, 1, generator=x) < .5)
    n[:, :-1] = v[:, 1:]
    adv, ret = vec_generalized_advantage_estimate(.97, .9, v, n, r, done, ended)
    out = gae(r[..., 0], v[..., 0], torch.ones(7, 60, dtype=torch.bool), torch.where(ended[:, -1, 0], 0, n[:, -1, 0]), .97, .9, .9)
    close = dict(atol=2e-6, rtol=1e-6)  # torchrl cuts its filter off where it falls below 1e-7
    torch.testing.assert_close(out.adv_BT, adv[..., 0], **close)
    torch.testing.assert_close(out.ret_BT, ret[..., 0], **close)


@pytest.mark.parametrize('dtype, result', [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)])
def test_computes_in_float32_at_least(dtype, result):
    out = gae(torch.ones(2, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype), torch.ones(2, 3, dtype=torch.bool))
    assert {o.dtype for o in out} == {result}


def test_half_precision_does_not_blur_long_sums():
    "300 rewards of one: bfloat16 alone would stop counting at 256."
    out = gae(torch.ones(1, 300, dtype=torch.bfloat16), torch.zeros(1, 300, dtype=torch.bfloat16), torch.ones(1, 300, dtype=torch.bool))
    assert out.ret_BT[0, 0] == 300


def test_targets_carry_no_gradient():
    values = torch.zeros(1, 3, requires_grad=True)
    assert not any(o.requires_grad for o in gae(torch.ones(1, 3), values, torch.ones(1, 3, dtype=torch.bool)))


@pytest.mark.parametrize('shape', [(0, 5), (3, 0), (3, 4)])
def test_nothing_own_is_no_fault(shape):
    out = gae(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool), length_adaptive_alpha=.05)
    assert out.adv_BT.shape == shape and out.adv_BT.eq(0).all()


def test_lambda_stays_below_one():
    lam = length_adaptive_lambda(torch.tensor([0, 1, 19, 20, 21, 10**6], dtype=torch.float64))
    assert ((0 <= lam) & (lam < 1)).all() and lam[:4].eq(0).all() and lam[4] > 0


@settings(max_examples=30)
@given(st.integers(0, 3 * 64**2), st.integers(0, 2**32 - 1))
def test_blocks_are_joined_at_every_length(n, seed):
    "Lines of up to three levels of blocks, coefficients of any size up to 1 with ends strewn in, against the loop."
    rng = np.random.default_rng(seed)
    x, coef = rng.normal(size=n), rng.uniform(size=n) ** .01 * (rng.uniform(size=n) > .002)
    expected, after = np.zeros(n), 0.
    for i in reversed(range(n)): expected[i] = after = x[i] + coef[i] * after
    np.testing.assert_allclose(discounted_sum(torch.tensor(x), torch.tensor(coef)), expected, atol=1e-9)


def test_trajectories_do_not_touch():
    "Rows of a long batch, alone and in company."
    gen = torch.Generator().manual_seed(0)
    r, v = torch.randn(2, 40, 300, generator=gen, dtype=torch.float64)
    own = torch.arange(300) < torch.randint(0, 301, (40,), generator=gen)[:, None]
    r = r * own
    together = gae(r, v, own, length_adaptive_alpha=.05)
    for b in range(40):
        alone = gae(r[b:b + 1], v[b:b + 1], own[b:b + 1], length_adaptive_alpha=.05)
        for x, y in zip(together, alone): torch.testing.assert_close(x[b], y[0], atol=1e-12, rtol=0)


class Largest(TorchDispatchMode):
    "Bytes of the largest result, and of all results, of what runs inside."
    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in tree_leaves(out):
            if isinstance(o, torch.Tensor) and not o._is_view(): self.largest, self.total = max(self.largest, o.nbytes), self.total + o.nbytes
        return out


def test_memory_is_linear():
    "Four times as many trajectories, and trajectories four times as long, take four times as much; no single result is larger than ids of the padded batch."
    def taken(b, t):
        own = torch.arange(t) < torch.linspace(t // 25, t, b)[:, None]
        with Largest() as seen: gae(torch.zeros(b, t), torch.ones(b, t), own, length_adaptive_alpha=.05)
        return seen, b * t
    small, n = taken(64, 512)
    for more in (taken(256, 512), taken(64, 2048)):
        assert more[0].total <= 4.4 * small.total and more[0].largest <= 8 * more[1]


@pytest.mark.parametrize('rewards, values, says', [([0., 1, 0], [0., 0, 0], 'not the policy'), ([0., 0, NAN], [0., 0, 0], 'not a finite'), ([0., 0, 0], [0., 0, math.inf], 'not a finite')])
def test_what_would_spoil_a_batch_is_refused(rewards, values, says):
    with pytest.raises(ValueError, match=says): gae(torch.tensor([rewards]), torch.tensor([values]), torch.tensor([[True, False, True]]))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_rewards_lie_on_last_tokens_and_none_is_lost(rows, data):
    "Turns of 0 to 3 own tokens with a foreign one after each; turns without tokens have no signal."
    s, turns = max(map(len, rows)), [[x for i, n in enumerate(row) for x in [i] * n + [-1]] for row in rows]
    t = max(map(len, turns))
    turn = torch.tensor([row + [-1] * (t - len(row)) for row in turns])
    signal = torch.tensor([[data.draw(number) if i < len(row) and row[i] else 0. for i in range(s)] for row in rows], dtype=torch.float64)
    outcome = torch.tensor([data.draw(number) if any(row) else 0. for row in rows], dtype=torch.float64)
    placed = place_rewards(turn, outcome, signal)
    torch.testing.assert_close(placed.sum(1), outcome + signal.sum(1))
    ends = (turn >= 0) & (turn != torch.cat([turn[:, 1:], torch.full((len(turn), 1), -1)], 1))
    assert placed[~ends].eq(0).all()
