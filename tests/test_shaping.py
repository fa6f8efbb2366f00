"Shaping: the outcome dominates whatever the terms, and potentials leave the best policy the best."
import numpy as np
import pytest, torch
from hypothesis import assume, given, settings, strategies as st

from uitars_nb.rl.gae import gae, place_rewards
from uitars_nb.rl.shaping import Shaping, format_term, overlong_term, potential_signals, shape, step_term, terms

big = st.floats(-1e6, 1e6)
counts = st.integers(0, 10**6)


@given(st.floats(.01, 10), st.floats(.01, .99), big, big, st.floats(0, 1), st.floats(0, 1))
def test_every_success_is_above_every_failure(gap, reach, extra_won, extra_lost, more, less):
    "Outcomes at least `gap` apart, terms as large as they like."
    won, lost = torch.tensor([gap + more, -less], dtype=torch.float64)[:, None]
    shaped = shape(torch.cat([won, lost]), torch.tensor([extra_won, extra_lost], dtype=torch.float64), Shaping(gap=gap, reach=reach))
    assert shaped[0] - shaped[1] >= gap * (1 - reach) * .999


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=2, unique=True), st.floats(.01, 10), st.floats(.01, .99))
def test_terms_keep_their_order_among_equal_outcomes(extra, gap, reach):
    a, b = shape(torch.zeros(2, dtype=torch.float64), torch.tensor(extra, dtype=torch.float64), Shaping(gap=gap, reach=reach)).tolist()
    assert (a <= b) if extra[0] < extra[1] else (a >= b)


def test_small_terms_are_hardly_squashed():
    extra = torch.linspace(-.05, .05, 11, dtype=torch.float64)
    torch.testing.assert_close(shape(torch.zeros_like(extra), extra), extra, atol=1e-3, rtol=0)


@given(counts, counts, counts, st.integers(1, 10**5), st.integers(1, 10**5))
def test_terms_are_costs_within_one(good, bad, steps, limit, cache):
    assume(cache <= limit)
    one = lambda n: torch.tensor([n])
    for term in (format_term(one(good), one(good + bad)), step_term(one(steps), one(limit)), overlong_term(one(steps), limit, cache)):
        assert -1 <= float(term) <= 0 and torch.is_floating_point(term)


@given(st.integers(1, 500), st.integers(1, 500))
def test_overlong_is_daps_formula(limit, cache):
    assume(cache <= limit)
    tokens = torch.arange(0, 2 * limit)
    expected = [0 if n <= limit - cache else -1 if n > limit else (limit - cache - n) / cache for n in tokens.tolist()]
    np.testing.assert_allclose(overlong_term(tokens, limit, cache), expected, atol=1e-6)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 40), st.integers(0, 5000))
def test_the_sum_is_weighted(good, bad, budget, tokens):
    s, one = Shaping(form=.3, steps=.2, overlong=.1, limit=2000, cache=500), lambda n: torch.tensor([n])
    steps = good + bad
    by_hand = .3 * (good / steps - 1 if steps else 0) - .2 * min(1, steps / budget) + .1 * min(0, max(-1, (1500 - tokens) / 500))
    np.testing.assert_allclose(terms(s, one(good), one(steps), one(budget), one(tokens)), [by_hand], atol=1e-6)


@pytest.mark.parametrize('wrong', [dict(gap=0.), dict(gap=-1.), dict(reach=0.), dict(reach=1.), dict(reach=1.5), dict(form=-.1), dict(steps=-.1), dict(overlong=-.1)])
def test_settings_that_could_outweigh_the_outcome_are_refused(wrong):
    with pytest.raises(ValueError): Shaping(**wrong)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(.1, 1))
def test_signals_telescope(phi, gamma):
    signals = potential_signals(torch.tensor([phi], dtype=torch.float64), gamma)[0].numpy()
    assert len(signals) == len(phi) - 1
    np.testing.assert_allclose(sum(gamma ** s * f for s, f in enumerate(signals)), -phi[0], atol=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(.1, 1))
def test_signals_of_cut_off_episodes_keep_the_last_potential(phi, gamma):
    signals = potential_signals(torch.tensor([phi], dtype=torch.float64), gamma, torch.tensor([False]))[0].numpy()
    np.testing.assert_allclose(sum(gamma ** s * f for s, f in enumerate(signals)), gamma ** len(signals) * phi[-1] - phi[0], atol=1e-9)


def optimal(reward, after, gamma):
    "Values of each state and action of a deterministic episodic task, state n being the end."
    n, q = len(reward), np.zeros(reward.shape)
    for _ in range(3000):
        v = np.append(q.max(1), 0.)
        q, before = reward + gamma * v[after], q
        if np.abs(q - before).max() < 1e-12: break
    return q


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 3), st.floats(.3, .95))
def test_potentials_leave_every_choice_as_it_was(seed, n, k, gamma):
    "In random tasks, with loops in them, shaped values are the plain ones minus the potential: the same actions are best in every state."
    rng = np.random.default_rng(seed)
    reward, after, phi = rng.normal(size=(n, k)), rng.integers(0, n + 1, (n, k)), np.append(rng.normal(scale=3, size=n), 9.)
    pairs = torch.tensor(np.stack([np.broadcast_to(phi[:n, None], (n, k)), phi[after]], -1)).view(-1, 2)
    signals = potential_signals(pairs, gamma, torch.tensor(after.reshape(-1) == n)).view(n, k).numpy()
    plain, shaped = optimal(reward, after, gamma), optimal(reward + signals, after, gamma)
    np.testing.assert_allclose(shaped, plain - phi[:n, None], atol=1e-6)


@given(st.integers(0, 10**6), st.booleans())
def test_a_potential_only_moves_the_baseline(seed, ended):
    "With gamma and lambda 1 the policy's advantages over a critic are those over the critic minus the potential: nothing is learned that the outcome does not say."
    gen = torch.Generator().manual_seed(seed)
    turn = torch.tensor([[0, 0, -1, 1, 1, 1, -1, -1, 2]])
    phi, value, outcome = (torch.randn(n, dtype=torch.float64, generator=gen) for n in (4, 9, 1))
    over = torch.tensor([ended])
    last = None if ended else torch.tensor([.7], dtype=torch.float64)
    shaped_last = None if ended else last - phi[3:]
    signal = potential_signals(phi[None], 1., over)
    plain = gae(place_rewards(turn, outcome), value[None], turn >= 0, last, gae_lambda_policy=1.)
    potential = phi[turn.clamp(min=0)]
    shaped = gae(place_rewards(turn, outcome, signal), value[None] - potential, turn >= 0, shaped_last, gae_lambda_policy=1.)
    torch.testing.assert_close(shaped.adv_BT, plain.adv_BT)
