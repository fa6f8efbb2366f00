"The actor's loss against its formula, token by token; what was drawn from a part of the vocabulary; verdicts that are kept; weights with tied heads and without."
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import lightning as L
import numpy as np, pytest, torch

from uitars_nb.core.types import Completion, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.flywheel.rewards import Reward
from uitars_nb.model.engine.batching import load_weights
from uitars_nb.model.engine.sampling import nucleus
from uitars_nb.model.value import Critic
from uitars_nb.train.collector import RolloutBatch, Collector
from uitars_nb.rl.shaping import Shaping
from uitars_nb.train import passes, ppo, update
from uitars_nb.train.experience import build_experience, group_advantages, minibatches, outcome_rewards, micro_batches, token_rewards, turn_advantages
from uitars_nb.train.rollout_metrics import reduce_metrics
from uitars_nb.train.ppo import PPO, PPOConfig, batch_targets
from uitars_nb.train.reinforce import _latest
from uitars_nb.train.passes import collate_micro_batch, old_logps, part_logits
from uitars_nb.train.update import Objective, Targets, actor_loss, nucleus_correction, token_weights, loss_normalisers

from tests import sft_run


def step(policy, i, k, error=''):
    screen = np.full((32, 48, 3), 40 * i + 9 * k, np.uint8)
    prompt = policy.render([dict(role='user', content=[dict(type='text', text='Click Ok.'), dict(type='image', image=screen)])])
    ids = policy.encode('abc' * (1 + (i + k) % 3))
    return Step(Observation(screen), completion=Completion('', prompt.ids, ids, np.full(len(ids), -5., np.float32), np.zeros(len(ids), np.int32), (0,) if not k else (k,)), error=error)


def trajectory(policy, i, success, malformed=()):
    "Three decisions, some of which were no action."
    steps = tuple(step(policy, i, k, 'expected a call' if k in malformed else '') for k in range(3))
    return Trajectory(str(i), TaskSpec('miniwob/click-test', 7), steps, StopReason.TERMINATED, reward=float(success), success=success)


@pytest.fixture(scope='module')
def policy():
    policy = sft_run.small_policy(0.)
    policy.model.eval()
    return policy


@pytest.fixture(scope='module')
def exp(policy):
    trajs = [trajectory(policy, 0, True, malformed=[1]), trajectory(policy, 1, False), trajectory(policy, 2, True)]
    return build_experience(trajs, [Reward(float(o.success), o.success) for o in trajs])


def test_malformed_tokens_are_those_of_malformed_replies(exp):
    row = torch.repeat_interleave(torch.arange(9), exp.length_R)
    assert exp.malformed_N.tolist() == [int(r) == 1 for r in row]


@pytest.mark.parametrize('mean', ['token', 'sequence'])
def test_what_stands_beside_the_surrogate_by_hand(mean, policy, exp):
    "Each term alone: the loss with it less the loss without, against the formula, and its gradient too."
    n = len(exp.behaviour_N)
    old = old_logps(policy, exp)
    targets = Targets(old, torch.linspace(-1, 1, n), reference_N=old + torch.linspace(-.5, .5, n))
    part, = micro_batches(exp, np.arange(9), 1 << 20)
    def terms(**weights):
        policy.model.zero_grad()
        actor_loss(policy, exp, part, targets, Objective(mean=mean, **weights), *loss_normalisers(exp, [part], mean)).loss.backward()
        return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    logits, ids = part_logits(policy, collate_micro_batch(policy, exp, part), 1.)
    logp_nV = logits.log_softmax(-1)
    logp = logp_nV[torch.arange(n), ids]
    traj = exp.traj_R.repeat_interleave(exp.length_R)[part.at]
    share = torch.tensor([1 / sum(exp.length_R[exp.traj_R == b].sum() for b in [t]) for t in traj.tolist()]) if mean == 'sequence' else torch.ones(n)
    won = torch.tensor([bool(exp.success_B[t]) and not bad for t, bad in zip(traj.tolist(), exp.malformed_N[part.at].tolist())])
    gap, total = targets.reference_N[part.at] - logp, 3 if mean == 'sequence' else n
    wanted = dict(positive_nll=-(share * logp * won).sum() / (share * won).sum(), entropy=(share * (logp_nV.exp() * logp_nV).sum(-1)).sum() / total, kl=(share * (gap.exp() - 1 - gap)).sum() / total)
    plain = terms()
    for name, loss in wanted.items():
        policy.model.zero_grad()
        loss.backward(retain_graph=True)
        slope = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
        assert slope.norm() > 1e-4 and (terms(**{name: .5}) - plain - .5 * slope).norm() < 1e-3 * slope.norm(), name


@pytest.mark.parametrize('mean', ['token', 'sequence'])
@pytest.mark.parametrize('n', [1, 2, 4])
def test_what_is_alike_has_its_own_mean_in_every_minibatch(mean, n, exp):
    "Also where the turns of a trajectory lie in several."
    whole = 0.
    for some in minibatches(exp, n, 1, np.random.default_rng(0)):
        total, won = loss_normalisers(exp, some, mean)
        assert sum(float(token_weights(exp, o, mean).sum()) for o in some) / total == pytest.approx(1.) and won <= total
        whole += total
    assert whole == pytest.approx(len(exp) if mean == 'sequence' else len(exp.behaviour_N))


@pytest.mark.parametrize('algorithm', ['ppo', 'reinforce++'])
def test_advantages_are_whitened_over_all_devices(algorithm, policy, monkeypatch):
    "One device (a thread here) won everything and the other nothing: each alone would learn nothing."
    sides = [[trajectory(policy, k, won) for k in some] for some, won in (((0, 1), True), ((2, 3), False))]
    def found(trajs):
        exp = build_experience(trajs, [Reward(float(o.success), o.success) for o in trajs])
        values = torch.full((len(exp.behaviour_N),), .5)
        return batch_targets(exp, values, values, PPOConfig(algorithm)).adv_N
    whole, numbers, meet = found(sum(sides, [])), {}, threading.Barrier(2, timeout=30)
    def mean(x):
        numbers[threading.get_ident()] = x
        meet.wait()
        out = sum(numbers.values()) / 2
        meet.wait()
        return out
    monkeypatch.setattr(ppo, 'reduce_over_devices', mean)
    with ThreadPoolExecutor(2) as pool: each = torch.cat([*pool.map(found, sides)])
    assert whole.abs().min() > .1
    torch.testing.assert_close(each, whole)


def test_two_visits_to_an_instance_are_two_groups(policy):
    "What other weights sampled of the same instance, later, is no baseline: the one failure of the first visit is judged by its own three successes."
    wins = [(True, True, True, False), (True, False, False, False)]
    trajs = [replace(trajectory(policy, k, won), id=f'rl/{visit:06}-{k}.0') for visit, some in zip((1, 9), wins) for k, won in enumerate(some)]
    exp = build_experience(trajs, [Reward(float(o.success), o.success) for o in trajs])
    assert exp.group_B.tolist() == [0] * 4 + [1] * 4
    adv_B = [float(group_advantages(exp)[exp.traj_R.repeat_interleave(exp.length_R) == b].mean()) for b in range(8)]
    assert adv_B[3] == pytest.approx(-1.5, abs=.01) and adv_B[4] == pytest.approx(1.5, abs=.01)


def test_each_turn_is_judged_by_its_own_signal(exp, policy):
    "Neither outcome nor other turns matter; a malformed reply is never called good, and a device of its own does not set the mean."
    rewards = torch.tensor([[.5, 0., 0.], [0., .01, 0.], [3., 0., 0.]])[:, :exp.signal_BS.shape[1]]
    other = replace(exp, signal_BS=rewards, malformed_BS=torch.zeros_like(exp.malformed_BS))
    adv = turn_advantages(other)
    again = turn_advantages(replace(other, success_B=~other.success_B, outcome_B=1 - other.outcome_B))
    assert torch.equal(adv, again)
    paid = (rewards > 0)[other.traj_R, other.turn_R].repeat_interleave(other.length_R)
    assert (adv[paid] > 0).all() and (adv[~paid] < 0).all() and adv[paid].unique().numel() == 1
    assert (turn_advantages(replace(other, malformed_BS=torch.ones_like(exp.malformed_BS))) <= 0).all()
    assert torch.allclose(turn_advantages(other, over=lambda x: x / 2), adv), 'the same on two devices of half the turns each'


def test_replies_that_were_no_action_are_never_called_good(exp):
    "All are of one group, in which the first and the last succeeded."
    for scale in (True, False):
        adv = group_advantages(exp, scale=scale)
        traj = exp.traj_R.repeat_interleave(exp.length_R)
        assert (adv[(traj == 0) & exp.malformed_N] <= 0).all() and (adv[(traj == 0) & ~exp.malformed_N] > 0).all() and (adv[traj == 1] < 0).all()


def test_what_is_drawn_from_a_nucleus_teaches_nothing_where_all_is_alike():
    "The expected gradient under an advantage that is the same for all that is drawn: 0, and not 0 for the log-probabilities of the whole vocabulary."
    gen = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(40, generator=gen)).requires_grad_()
    p = logits.detach().softmax(-1)
    q = nucleus(p[None], torch.tensor([.9]))[0]
    assert 1 < (q > 0).sum() < 40
    q = q / q.sum()
    logp = logits.log_softmax(-1)
    drawn = logp - nucleus_correction(logits[None], .9)
    assert torch.equal(drawn, logp)     # ratios stay what they are
    slope = lambda x: torch.autograd.grad((q * x).sum(), logits, retain_graph=True)[0]
    assert slope(drawn).norm() < 1e-6 < 1e-2 < slope(logp).norm()
    assert nucleus_correction(logits[None], 1.) == 0


def test_a_policy_that_earns_alike_does_not_spread():
    "Steps on what is drawn from the nucleus, each a little bad: the entropy stays, and grows where gradients are of the whole vocabulary."
    def after(honest):
        torch.manual_seed(0)
        logits = torch.zeros(32).index_fill(0, torch.arange(3), 3.).requires_grad_()
        for _ in range(300):
            ids = torch.multinomial(nucleus(logits.detach().softmax(-1)[None], torch.tensor([.8]))[0], 64, replacement=True)
            logp = logits.log_softmax(-1) - (nucleus_correction(logits[None], .8) if honest else 0)
            slope, = torch.autograd.grad(.2 * logp[ids].mean(), logits)   # the loss of an advantage of -.2
            logits = (logits - slope).detach().requires_grad_()
        return torch.distributions.Categorical(logits=logits).entropy().item()
    start = torch.distributions.Categorical(logits=torch.zeros(32).index_fill(0, torch.arange(3), 3.)).entropy().item()
    assert abs(after(True) - start) < .2 and after(False) > start + .5


def test_how_far_an_update_has_moved(exp, monkeypatch):
    "Nothing before a step, though a single step's own sum is nothing too; after it what the formula says of the rows that are looked at, here all of them."
    monkeypatch.setattr(ppo, 'FEWEST', 9)
    policy = sft_run.small_policy(0.)
    policy.model.eval()
    module = PPO(policy, None, PPOConfig(algorithm='grpo'))
    old = old_logps(policy, exp)
    targets = Targets(old, old)
    assert module.moved(exp, targets, np.random.default_rng(0)) < 1e-9
    with torch.no_grad():
        for p in policy.model.parameters(): p.add_(.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    gap = old_logps(policy, exp) - old
    assert abs(module.moved(exp, targets, np.random.default_rng(0)) / (gap.exp() - 1 - gap).mean().item() - 1) < 1e-3 and gap.abs().max() > .1


def test_a_small_batch_is_not_looked_at_twice(monkeypatch):
    "An eighth of the rows, not fewer than 8 and not more than 64."
    looked = []
    monkeypatch.setattr(ppo, 'micro_batches', lambda exp, rows, tokens: looked.append({*rows.tolist()}) or 1 / 0)
    module = PPO(sft_run.small_policy(0.), None, PPOConfig(algorithm='grpo'))
    for n in (5, 12, 64, 200, 5000):
        with pytest.raises(ZeroDivisionError): module.moved(SimpleNamespace(examples=range(n)), None, np.random.default_rng(0))
        assert looked[-1] <= {*range(n)}
    assert [*map(len, looked)] == [5, 8, 8, 25, 64]


@pytest.mark.parametrize('algorithm', ['ppo', 'grpo', 'reinforce++'])
def test_trifles_are_not_blown_up(algorithm, policy):
    "Four successes that the critic foresaw, of which one had a malformed reply."
    trajs = [trajectory(policy, 0, True, malformed=[1] if i == 2 else ()) for i in range(4)]
    exp = build_experience(trajs, [Reward(1., True)] * 4)
    none = torch.zeros_like(exp.behaviour_N)
    config = PPOConfig(algorithm, shaping=Shaping(format=.01 * exp.max_steps_B[0].item(), overlong=0.))
    adv = batch_targets(exp, none, none + 1, config).adv_N.abs()
    assert 0 < adv.max() < .2


def earned(exp, shaping=Shaping()): return token_rewards(exp, shaping).sum(1).tolist()


@pytest.mark.parametrize('shaping', [Shaping(), Shaping(potential=True), Shaping(format=.3, length=.1, step=.1, overlong=.1, signal=.35, max_tokens=8, cache_tokens=8)])
@pytest.mark.parametrize('won, lost', [(1 / 8, 0.), (.1, .9), (0., 1.)])
def test_no_failure_is_worth_a_graded_success(won, lost, shaping, exp):
    "A success of which shaping takes everything, and a failure to which it gives everything."
    worst = replace(exp, success_B=torch.tensor([True, False, False]), outcome_B=torch.tensor([won, lost, 0.]), max_steps_B=torch.full((3,), 3),
                    malformed_BS=torch.tensor([[True] * 3, [False] * 3, [False] * 3]), signal_BS=torch.tensor([[0.] * 3, [.9, .1, 0.], [0.] * 3]))
    success, failure, _ = earned(worst, shaping)
    assert success > failure + .01


def test_the_verifiers_outcomes_are_what_they_are(exp):
    assert earned(exp, Shaping(format=0., overlong=0., signal=0.)) == [1., 0., 1.] and outcome_rewards(exp).tolist() == [1., 0., 1.]
    better = replace(exp, success_B=torch.tensor([True, True, False]), outcome_B=torch.tensor([.5, .25, .25]))
    assert outcome_rewards(better).diff().max() < 0      # grades still tell


def test_numbers_of_several_devices_become_one_row():
    "Counts are added, shares of nothing are 0, what one device alone knows is its own."
    rows = [{'response_tokens': 3, 'env_failures/env_crash': 1, 'reward': 1., 'tokens_per_s': 2., 'value_loss': float('nan')},
            {'response_tokens': 4, 'env_failures/lost_guest': 2, 'reward': 0., 'tokens_per_s': 3., 'value_loss': float('nan'), 'stop/answer': .5, 'success/a': .25}, {'response_tokens': 5, 'reward': .5, 'tokens_per_s': 4., 'dropped': 2, 'value_loss': float('nan')}]
    one = reduce_metrics(rows)
    assert np.isnan(one.pop('value_loss'))
    assert one == {'response_tokens': 12, 'env_failures/env_crash': 1, 'env_failures/lost_guest': 2, 'reward': .5, 'tokens_per_s': 9., 'dropped': 2, 'stop/answer': .5 / 3, 'success/a': .25}


async def moody(traj):
    "A judge that says something else each time."
    moody.asked += 1
    return Reward(float(moody.asked % 2), bool(moody.asked % 2), 'moody')


def test_verdicts_are_kept_with_the_batch(policy, tmp_path):
    moody.asked = 0
    def source(first): return [replace(trajectory(policy, i % 3, True), id=f'rl/{i:06}-0.0', task=TaskSpec('miniwob/click-test', i)) for i in range(first, first + 4)]
    said = [o.rewards for o in Collector(source(0), tmp_path, 2, reward=moody)]
    assert [[r.outcome for r in o] for o in said] == [[1., 0.], [1., 0.]]
    moody.asked = 1
    again = [o.rewards for o in Collector([], tmp_path, 2, reward=moody)]
    assert again == said and moody.asked == 1


@pytest.mark.parametrize('layout', ['tied', 'untied'])
def test_an_actor_goes_on_with_the_last_checkpoint(layout, tmp_path):
    policy = sft_run.small_policy(0.)
    if layout == 'untied':
        head = policy.model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach() + 1)
    from safetensors.torch import load_file
    torch.save(dict(state_dict=PPO(policy, None, PPOConfig(algorithm='grpo')).state_dict()), tmp_path/'last.ckpt')
    state = load_file(_latest(tmp_path, 1, tmp_path/'last.ckpt'))
    wanted = {k: v.clone() for k, v in policy.model.state_dict().items()}
    with torch.no_grad():
        for p in policy.model.parameters(): p.zero_()
    load_weights(policy.model, state)
    assert all(torch.equal(v, wanted[k]) for k, v in policy.model.state_dict().items())


def one_update(looks, gae_lambda_value, precision='32-true'):
    "Weights of actor and critic before and after an update, and the rows that were looked at without a gradient in it."
    torch.manual_seed(0)
    policy = sft_run.small_policy(0.)
    policy.model.eval()
    critic = Critic.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight)
    config = PPOConfig(updates=1, warmup=1, lr=1e-2, critic_lr=1e-2, epochs=2, minibatches=3, micro_batch_tokens=1, value_clip=.2, gae_lambda_value=gae_lambda_value, shaping=Shaping(overlong=0.))
    trajs = [trajectory(policy, i, i != 1, malformed=[1] if i == 0 else ()) for i in range(3)]
    flat = lambda: torch.cat([p.detach().flatten() for p in (*policy.model.parameters(), *critic.parameters())])
    rows, before = [], flat()
    with pytest.MonkeyPatch.context() as m:
        seen = passes.over_micro_batches
        m.setattr(passes, 'over_micro_batches', lambda policy, exp, tokens, model, ask, which=None: rows.append(9 if which is None else len(which)) or seen(policy, exp, tokens, model, ask, which))
        for module in (update, ppo): m.setattr(module, 'off_policy_rows', looks)
        trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator='cpu', precision=precision)
        trainer.fit(PPO(policy, critic, config), torch.utils.data.DataLoader([RolloutBatch(0, trajs, [Reward(float(o.success), o.success) for o in trajs])], batch_size=None))
    return before, flat(), rows


@pytest.mark.parametrize('gae_lambda_value', [1., .9])
def test_the_first_minibatch_needs_no_look_of_its_own(gae_lambda_value):
    "Of nine rows three are of the first step; returns that are made of values need all of them."
    _, every, rows = one_update(lambda steps: np.arange(9), gae_lambda_value)
    _, later, fewer = one_update(update.off_policy_rows, gae_lambda_value)
    assert fewer == [6, 6 if gae_lambda_value == 1 else 9] and sum(rows) == 18
    assert (every - later).abs().max() < 1e-4   # of some hundredths


def test_an_update_in_mixed_precision_goes_where_one_in_fp32_goes():
    "With weights in fp32; the processor may have to imitate bf16."
    before, whole, _ = one_update(update.off_policy_rows, 1.)
    again, mixed, _ = one_update(update.off_policy_rows, 1., 'bf16-mixed')
    assert torch.equal(before, again) and mixed.dtype == torch.float32 and mixed.isfinite().all()
    assert torch.cosine_similarity(mixed - before, whole - before, dim=0) > .8


def test_what_was_said_first_stays(policy, exp):
    part = micro_batches(exp, np.arange(9), 1)[0]
    x, n = torch.full((len(exp.behaviour_N),), torch.nan), len(part.at)
    assert update.from_update_start(x, part, torch.zeros(n)).tolist() == [0.] * n == update.from_update_start(x, part, torch.ones(n)).tolist()
    assert x.isnan().sum() == len(x) - n


def slopes(exp, again):
    "Gradients of actor and critic, and how often their first layers computed."
    policy = sft_run.small_policy(0.)
    policy.model.eval()
    critic = Critic.from_policy(policy)
    torch.nn.init.ones_(critic.head.weight)
    PPO(policy, critic, PPOConfig(checkpointing=again))
    seen, part, n = [], micro_batches(exp, np.arange(9), 1 << 20)[0], len(exp.behaviour_N)
    for o in (policy.model, critic.model): o.get_decoder().layers[0].self_attn.register_forward_hook(lambda *_: seen.append(1))
    actor_loss(policy, exp, part, Targets(torch.zeros(n), torch.linspace(-1, 1, n)), Objective(), n, 0.).loss.backward()
    update.critic_loss(critic, policy, exp, part, update.Returns(torch.ones(n), torch.zeros(n)), n).backward()
    return torch.cat([p.grad.flatten() for o in (policy.model, critic) for p in o.parameters() if p.grad is not None]), len(seen)


def test_layers_that_are_computed_again_teach_the_same(exp):
    "In evaluation mode, as practice has its models."
    (kept, once), (again, twice) = slopes(exp, False), slopes(exp, True)
    assert (once, twice) == (2, 4)
    torch.testing.assert_close(again, kept)
