"Losses against their formulas, written out token by token in float64, values and gradients; and against torch's own distributions."
import math

import numpy as np
import pytest, torch
from hypothesis import given, strategies as st
from torch.distributions import Categorical, kl_divergence

from uitars_nb.rl.losses import (entropy, explained_variance, grpo_advantages, kl_estimate, masked_mean, policy_loss, positive_nll, reinforce_pp_advantages, stale_weights,
                                 value_loss, whiten)

NAN = float('nan')
B, T = 3, 4
means = pytest.mark.parametrize('mean', ['token', 'sequence'])
seeds = st.integers(0, 2**31 - 1)


def batch(seed, full=False):
    "A generator, a mask with an empty row now and then, and a maker of numbers that are NaN where they are not own."
    gen = torch.Generator().manual_seed(seed)
    own = torch.ones(B, T, dtype=torch.bool) if full else torch.rand(B, T, generator=gen) < .6
    own[0, 0] = True
    return gen, own, lambda scale=1.: (scale * torch.randn(B, T, generator=gen, dtype=torch.float64)).masked_fill(~own, NAN)


def mean_of(terms, own, mean):
    "The mean of `terms[b][t]` over own tokens, or over rows."
    rows = [[terms[b][t] for t in range(T) if own[b, t]] for b in range(B)]
    if mean == 'token': return sum(sum(row) for row in rows) / int(own.sum())
    return sum(sum(row) / len(row) for row in rows if row) / sum(map(bool, rows))


def same(loss, formula, x, own):
    "Equal values, equal gradients, and no gradient where nothing is own."
    ours, = torch.autograd.grad(loss, x, retain_graph=True)
    theirs, = torch.autograd.grad(formula, x)
    torch.testing.assert_close(loss, formula)
    torch.testing.assert_close(ours[own], theirs[own])
    assert ours[~own].eq(0).all()


@means
@given(seed=seeds, low=st.floats(0, .5), high=st.floats(0, .5), weighted=st.booleans())
def test_policy_loss_is_its_formula(mean, seed, low, high, weighted):
    _, own, fill = batch(seed)
    old, adv, logp, weight = fill(), fill(), fill(), fill().abs()
    logp = (old + .4 * logp).requires_grad_()
    def term(b, t):
        r, a = torch.exp(logp[b, t] - old[b, t]), adv[b, t]
        clipped = torch.clamp(r, 1 - low, 1 + high)
        return torch.min(r * a, clipped * a) * (weight[b, t] if weighted else 1)
    formula = -mean_of([[term(b, t) for t in range(T)] for b in range(B)], own, mean)
    same(policy_loss(logp, old, adv, own, low, high, weight if weighted else None, mean).loss, formula, logp, own)


@pytest.mark.parametrize('ratio, adv, loss, slope, clipped', [
    (1.0, 1., -1.0, -1.0, None), (1.0, -1., 1.0, 1.0, None),     # at the old policy: plain policy gradient
    (1.5, 1., -1.28, 0.0, 'high'), (1.2, 1., -1.2, -1.2, None),  # a gain counts up to 1 + eps_high
    (0.5, -1., 0.8, 0.0, 'low'), (0.9, -1., 0.9, 0.9, None),     # a fall counts down to 1 - eps_low
    (1.5, -1., 1.5, 1.5, None), (0.5, 1., -0.5, -0.5, None)])    # what went the wrong way is never clipped
def test_known_cases(ratio, adv, loss, slope, clipped):
    old, own = torch.tensor([[-1.]]), torch.tensor([[True]])
    logp = (old + math.log(ratio)).requires_grad_()
    out = policy_loss(logp, old, torch.tensor([[adv]]), own)
    out.loss.backward()
    assert math.isclose(out.loss.item(), loss, rel_tol=1e-5) and math.isclose(logp.grad, slope, rel_tol=1e-5, abs_tol=1e-7)
    assert (float(out.clip_high), float(out.clip_low)) == (clipped == 'high', clipped == 'low')


@means
@given(seed=seeds, clipped=st.booleans(), eps=st.floats(0, 1))
def test_value_loss_is_its_formula(mean, seed, clipped, eps):
    _, own, fill = batch(seed)
    value, old, ret = fill().requires_grad_(), fill(), fill()
    def term(b, t):
        v, o, r = value[b, t], old[b, t], ret[b, t]
        return .5 * (torch.max((v - r) ** 2, (torch.clamp(v, o - eps, o + eps) - r) ** 2) if clipped else (v - r) ** 2)
    formula = mean_of([[term(b, t) for t in range(T)] for b in range(B)], own, mean)
    same(value_loss(value, ret, own, old if clipped else None, eps, mean), formula, value, own)


def test_gradients_by_finite_differences():
    gen, own, fill = batch(3)
    x, old, adv = (torch.where(own, fill(), 0) for _ in range(3))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, adv, own).loss, x)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, adv, own, old), x)
    assert torch.autograd.gradcheck(lambda x: positive_nll(x, own, torch.tensor([True, False, True])), x)
    assert torch.autograd.gradcheck(entropy, torch.randn(2, 3, 5, dtype=torch.float64, generator=gen, requires_grad=True))


@means
@given(seed=seeds)
def test_parts_of_a_batch_add_up(mean, seed):
    "Micro-batches that are given the whole batch's number have its gradient together."
    _, own, fill = batch(seed)
    logp, old, adv = fill().requires_grad_(), fill(), fill()
    total = int(own.sum() if mean == 'token' else own.any(1).sum())
    whole, = torch.autograd.grad(policy_loss(logp, old, adv, own, mean=mean).loss, logp)
    parts = sum(policy_loss(logp[b:b + 1], old[b:b + 1], adv[b:b + 1], own[b:b + 1], mean=mean, total=total).loss for b in range(B))
    torch.testing.assert_close(torch.autograd.grad(parts, logp)[0], whole)


@given(seeds)
def test_a_trajectory_may_lie_over_several_rows(seed):
    "One row a trajectory, or a row for each of its decisions with the length of the whole: the same loss and gradient."
    _, own, fill = batch(seed)
    logp, old, adv = fill().requires_grad_(), fill(), fill()
    total, length = int(own.any(1).sum()), own.sum(1)
    whole = policy_loss(logp, old, adv, own, mean='sequence').loss
    halves = [policy_loss(logp[:, s], old[:, s], adv[:, s], own[:, s], mean='sequence', total=total, length_B=length).loss for s in (slice(0, 2), slice(2, T))]
    torch.testing.assert_close(sum(halves), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(halves), logp)[0], torch.autograd.grad(whole, logp)[0])
    critic = [value_loss(logp[:, s], adv[:, s], own[:, s], mean='sequence', total=total, length_B=length) for s in (slice(0, 2), slice(2, T))]
    torch.testing.assert_close(sum(critic), value_loss(logp, adv, own, mean='sequence'))


@pytest.mark.parametrize('adv', [-1., 0., 1.])
@pytest.mark.parametrize('gone', [-200., 200.])
def test_ratios_out_of_range_leave_finite_gradients(gone, adv):
    logp = torch.tensor([[gone, -1.]], requires_grad=True)
    out = policy_loss(logp, torch.tensor([[0., -1.]]), torch.tensor([[adv, 1.]]), torch.ones(1, 2, dtype=torch.bool))
    out.loss.backward()
    assert all(o.isfinite() for o in out) and logp.grad.isfinite().all() and logp.grad[0, 1] == -.5


@given(seed=seeds, cap=st.floats(1, 5))
def test_stale_weights(seed, cap):
    _, own, fill = batch(seed)
    old, behaviour = fill().requires_grad_(), fill()
    weight = stale_weights(old, behaviour, own, cap)
    assert not weight.requires_grad and weight[~own].eq(0).all()
    torch.testing.assert_close(weight[own], torch.tensor([min(math.exp(a - b), cap) for a, b in zip(old[own].tolist(), behaviour[own].tolist())], dtype=torch.float64))
    assert stale_weights(old, old, own, cap)[own].eq(1).all()


@given(seeds)
def test_a_fresh_policy_gets_the_plain_policy_gradient(seed):
    "At the old policy the surrogate's gradient is that of -E[A log pi]."
    _, own, fill = batch(seed)
    old, adv = fill(), fill()
    logp = old.clone().requires_grad_()
    ours, = torch.autograd.grad(policy_loss(logp, old, adv, own).loss, logp)
    torch.testing.assert_close(ours, torch.where(own, -adv / own.sum(), 0))


def test_entropy_is_torchs():
    logits = 4 * torch.randn(2, 5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entropy(logits), Categorical(logits=logits).entropy())


def test_entropy_has_a_gradient_where_tokens_are_ruled_out():
    logits = torch.tensor([0., 1., -torch.inf], requires_grad=True)
    entropy(logits).backward()
    assert logits.grad.isfinite().all() and logits.grad[0] > 0 > logits.grad[1] and logits.grad[2] == 0


def test_kl_estimate_is_unbiased_and_never_negative():
    gen = torch.Generator().manual_seed(0)
    p, q = (Categorical(logits=torch.randn(6, dtype=torch.float64, generator=gen)) for _ in range(2))
    estimates = kl_estimate(q.logits - p.logits)
    assert (estimates >= 0).all() and kl_estimate(torch.zeros(3)).eq(0).all()
    torch.testing.assert_close((p.probs * estimates).sum(), kl_divergence(p, q))


def test_as_a_loss_the_kl_estimate_pulls_towards_the_reference():
    "Its expected gradient is that of KL(reference || policy)."
    gen = torch.Generator().manual_seed(2)
    logits, ref = (torch.randn(6, dtype=torch.float64, generator=gen) for _ in range(2))
    logits.requires_grad_()
    logp, ref = logits.log_softmax(0), Categorical(logits=ref)
    ours, = torch.autograd.grad((logp.exp().detach() * kl_estimate(ref.logits - logp)).sum(), logits, retain_graph=True)
    theirs, = torch.autograd.grad(kl_divergence(ref, Categorical(logits=logits)), logits)
    torch.testing.assert_close(ours, theirs)


def test_the_reported_divergence_is_from_the_old_policy():
    "Over all tokens of a distribution, weighted by the old policy, it is KL(old || new) exactly."
    gen = torch.Generator().manual_seed(1)
    old, new = (Categorical(logits=torch.randn(6, dtype=torch.float64, generator=gen)) for _ in range(2))
    own = torch.ones(6, 1, dtype=torch.bool)
    kls = [policy_loss(new.logits[i].view(1, 1), old.logits[i].view(1, 1), torch.zeros(1, 1), own[:1]).kl for i in range(6)]
    torch.testing.assert_close((old.probs * torch.stack(kls)).sum(), kl_divergence(old, new))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1., 0., .25, 1.])), min_size=1, max_size=12), st.booleans())
def test_grpo_by_hand(pairs, scale):
    group, reward = torch.tensor([g for g, _ in pairs]), torch.tensor([r for _, r in pairs], dtype=torch.float64)
    for g, r, adv in zip(group.tolist(), reward.tolist(), grpo_advantages(reward, group, scale).tolist()):
        of = np.array([x for h, x in pairs if h == g])
        spread = of.std(ddof=1) if len(of) > 1 else 0.
        expected = 0. if spread == 0 else (r - of.mean()) / (spread if scale else 1)
        assert math.isclose(adv, expected, abs_tol=1e-9)


@given(st.floats(2 ** -10, 1e6, width=32), st.integers(1, 9), st.booleans())
def test_equal_rewards_of_any_size_teach_nothing(reward, n, scale):
    "A mean of equal fp32 numbers may differ from them."
    reward = torch.tensor([reward] * n + [0., 1.])
    adv = grpo_advantages(reward, torch.tensor([0] * n + [1, 1]), scale)
    assert (adv[:n] == 0).all() and adv[n] == -adv[n + 1] != 0


@given(st.floats(-1e3, 1e3), st.sampled_from([1e-9, 1., 1e6]))
def test_scaled_advantages_do_not_depend_on_the_unit_of_rewards(base, unit):
    group, reward = torch.zeros(4, dtype=torch.int64), torch.tensor([0., 1, 1, 3], dtype=torch.float64)
    torch.testing.assert_close(grpo_advantages((base + reward) * unit, group), grpo_advantages(reward, group), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('odd', [math.nan, math.inf, -math.inf])
def test_rewards_that_are_no_numbers_are_named(odd):
    with pytest.raises(ValueError, match=f'trajectory 2, in group 7, is {odd}'): grpo_advantages(torch.tensor([0., 1, odd]), torch.tensor([3, 7, 7]))


@given(seeds)
def test_reinforce_pp_is_whitened_return_to_go(seed):
    _, own, fill = batch(seed)
    reward = fill()
    flat = np.concatenate([np.cumsum(reward[b][own[b]].numpy()[::-1])[::-1] for b in range(B)])
    expected = (flat - flat.mean()) / (flat.std() + 1e-8)
    np.testing.assert_allclose(reinforce_pp_advantages(reward, own)[own], expected, atol=1e-6)


@given(seeds)
def test_whitened(seed):
    _, own, fill = batch(seed, full=True)
    x = whiten(100 + 5 * fill(), own)
    assert abs(float(x.mean())) < 1e-6 and abs(float(x.std(correction=0)) - 1) < 1e-6


@pytest.mark.parametrize('values, expected', [(lambda r: r, 1.), (lambda r: r + 7, 1.), (lambda r: 0 * r, 0.), (lambda r: -r, -3.)])
def test_explained_variance(values, expected):
    _, own, fill = batch(0)
    ret = fill()
    assert math.isclose(explained_variance(values(ret), ret, own), expected, abs_tol=1e-9)


def test_explained_variance_of_constant_returns_is_no_number():
    ones = torch.ones(2, 3)
    assert math.isnan(explained_variance(0 * ones, ones, ones.bool())) and math.isnan(explained_variance(ones, ones, ~ones.bool()))
    rounded = ones + torch.finfo(torch.float32).eps * (torch.arange(ones.numel()).view_as(ones) % 3)
    assert rounded.var() > 0 and math.isnan(explained_variance(0 * ones, rounded, ones.bool()))
    assert explained_variance(0 * ones, ones - .01 * (torch.arange(ones.numel()).view_as(ones) == 0), ones.bool()) < .1   # a hundredth is a difference
    assert math.isnan(explained_variance(ones, rounded - 1, ones.bool()))   # rounded at the size of the values


def test_nothing_own_gives_zero():
    none, x = torch.zeros(2, 3, dtype=torch.bool), torch.full((2, 3), NAN, requires_grad=True)
    for loss in (policy_loss(x, x.detach(), x.detach(), none).loss, value_loss(x, x.detach(), none), positive_nll(x, none, torch.tensor([True, True])), masked_mean(x, none, 'sequence')):
        assert loss == 0 and torch.autograd.grad(loss, x)[0].eq(0).all()


def test_the_surrogate_climbs():
    "A softmax policy on a bandit learns its best arm from sampled advantages."
    gen, logits = torch.Generator().manual_seed(0), torch.zeros(4, requires_grad=True)
    opt, reward = torch.optim.Adam([logits], .05), torch.tensor([0., .2, 1., .4])
    for _ in range(60):
        acts = torch.multinomial(logits.detach().softmax(0), 64, replacement=True, generator=gen)
        old, adv, own = logits.detach().log_softmax(0)[acts][:, None], (reward[acts] - reward[acts].mean())[:, None], torch.ones(64, 1, dtype=torch.bool)
        for _ in range(4):
            opt.zero_grad()
            policy_loss(logits.log_softmax(0)[acts][:, None], old, adv, own).loss.backward()
            opt.step()
    assert logits.softmax(0)[2] > .9
