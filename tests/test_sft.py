"Supervised training: losses against plain sums, the optimiser against PyTorch's own, a run that is killed and goes on to the same bits, several processes, published layouts."
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests import sft_run
from tests.scripts import script
from tests.tiny_models import write_checkpoint
from uitars_nb.pipelines.policies import adapter_of, first_policy
from uitars_nb.flywheel.perception.labels import Element, LabelledPage, save_pages
from uitars_nb.flywheel.examples import IGNORE, TrainingExample, ExampleList
from uitars_nb.flywheel.streams import Collate, Stream
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.value import Critic
from uitars_nb.tasks.base import seeds
from uitars_nb.train import optim, sft
from uitars_nb.train.callbacks import Progress
from uitars_nb.train.devices import in_precision
from uitars_nb.train.feed import Feed
from uitars_nb.train.losses import response_loss, character_loss, target_loss
from uitars_nb.train.optim import MuonAdamW, groups, orthogonalise
from uitars_nb.train.ppo import PPO, PPOConfig
from uitars_nb.train.perception import PerceptionConfig, pretrain_perception
from uitars_nb.train.sft import SFTConfig, fit, read_metrics
from uitars_nb.train.supervised import batch_losses, run_policy, task_counts, task_metrics

torch.set_num_threads(1)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A run that nobody interrupted."
    path = tmp_path_factory.mktemp('whole')/'run'
    sft_run.train(path)
    return path


def weights(path): return Policy.from_pretrained(path).model.state_dict()


def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# losses

def test_only_own_tokens_count():
    policy = sft_run.small_policy(0.)
    records = [sft_run.grey(policy, i, i) for i in range(6)]
    collate = Collate(policy.processor, ('grey/0', 'grey/1'))
    batch = collate(records) | dict(mean_own=float(sum(len(r.example.reply) for r in records)))
    with torch.no_grad():
        loss = batch_losses(run_policy(policy, batch), batch)['own'].item()
        nats = []
        for r in records:   # one by one, every logit, by hand
            one = collate([r])
            logp = policy.model(**policy.inputs(one)).logits[0].log_softmax(-1)
            at = len(r.example.prompt.ids) + np.arange(len(r.example.reply))
            nats += [-logp[t - 1, one['input_ids'][0, t]].item() for t in at]
    assert loss == pytest.approx(np.mean(nats), abs=1e-5)


def test_what_is_not_own_has_no_effect():
    policy = sft_run.small_policy(0.)
    batch = Collate(policy.processor, ('grey/0', 'grey/1'))([sft_run.grey(policy, i, i) for i in range(4)]) | dict(mean_own=1.)
    logits = torch.randn(int(batch['own'].sum()), 50)
    other = dict(batch, input_ids=torch.where(batch['own'], batch['input_ids'], 3))
    counts = task_counts(logits, batch | dict(input_ids=batch['input_ids'] % 50), 2)
    assert torch.equal(counts, task_counts(logits, other | dict(input_ids=other['input_ids'] % 50), 2))
    assert counts[:, 2].sum() == 4 and counts[:, 1].sum() == batch['own'].sum()


def test_read_loss_by_hand():
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([[16, 16], [32, 16], [16, 16]])
    reads = [torch.randn(2, 97, 4, 8, generator=g), torch.randn(1, 97, 8, 8, generator=g)]
    chars = torch.randint(0, 97, (3, 8, 8), generator=g)
    chars[0, 2:] = IGNORE
    chars[2], chars[:2, 0] = IGNORE, 0
    nats = [-reads[0][0].log_softmax(0)[chars[0, y, x], y, x] for y in range(2) for x in range(8)]
    nats += [-reads[1][0].log_softmax(0)[chars[1, y, x], y, x] for y in range(8) for x in range(8)]
    weight = torch.tensor([1. if c else .25 for part in (chars[0, :2], chars[1]) for c in part.flatten()])
    assert character_loss(reads, sizes, chars) == pytest.approx(((torch.stack(nats) * weight).sum() / weight.sum()).item(), abs=1e-5)


def test_target_loss_by_hand():
    x, goal = torch.tensor([[.3, -1., 2., .5]]), torch.tensor([[IGNORE, 1., .25, 0.]])
    inside = -(nn.functional.logsigmoid(x[0, 1]) + .25 * nn.functional.logsigmoid(x[0, 2])) / 1.25
    outside = -(.75 * nn.functional.logsigmoid(-x[0, 2]) + nn.functional.logsigmoid(-x[0, 3])) / 1.75
    assert target_loss(x, goal).item() == pytest.approx((inside + outside).item() / 2)


def test_task_metrics_by_hand():
    own = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1]]).bool()
    ids = torch.tensor([[0, 1, 2], [0, 3, 0], [0, 1, 1]])
    logits = torch.zeros(5, 4)
    logits[0, 1] = logits[1, 2] = logits[2, 3] = logits[3, 1] = logits[4, 0] = 2.   # the last token is wrong
    m = task_metrics(task_counts(logits, dict(own=own, input_ids=ids, task=torch.tensor([0, 1, 1])), 3), ['a', 'b', 'never'])
    right, wrong = (-logits[0].log_softmax(0)[k].item() for k in (1, 0))
    assert m['right/a'] == 1 and m['right/b'] == .5 and m['right'] == .75 and 'loss/never' not in m
    assert m['loss/a'] == pytest.approx(right, abs=1e-5) and m['loss/b'] == pytest.approx((2 * right + wrong) / 3, abs=1e-5)


# optimiser

def test_orthogonal_keeps_the_directions():
    torch.manual_seed(0)
    for shape in (3, 40, 24), (2, 16, 64):
        m = torch.randn(shape)
        u, _, v = torch.linalg.svd(m, full_matrices=False)
        exact, ours = u @ v, orthogonalise(m).float()
        cosine = (exact * ours).sum((1, 2)) / (exact.norm(dim=(1, 2)) * ours.norm(dim=(1, 2)))
        assert cosine.min() > .95, cosine


def test_muon_and_adamw_are_pytorchs(monkeypatch):
    monkeypatch.setattr(optim, 'usable', lambda dtype, kind: dtype)   # PyTorch's computes in bf16 everywhere
    def net():
        torch.manual_seed(1)
        return nn.ModuleDict(dict(embed=nn.Embedding(30, 16), inner=nn.Linear(16, 24), outer=nn.Linear(24, 16), lm_head=nn.Linear(16, 30)))
    loss = lambda n: n['lm_head'](n['outer'](n['inner'](n['embed'](torch.arange(30)).tanh()).tanh()).tanh()).square().mean()
    ours, theirs = net(), net()
    opt = MuonAdamW(groups(ours.named_parameters(), .01, .1, outer=1.))
    matrices = [theirs['inner'].weight, theirs['outer'].weight]
    others = [p for p in theirs.parameters() if not any(p is m for m in matrices)]
    adamw = [dict(params=[p for p in others if p.ndim > 1], weight_decay=.1), dict(params=[p for p in others if p.ndim == 1], weight_decay=0.)]
    peers = [torch.optim.Muon(matrices, .01, .1, momentum=.95, adjust_lr_fn='match_rms_adamw'), torch.optim.AdamW(adamw, .01, betas=(.9, .95))]
    for _ in range(4):
        for n, steps in (ours, [opt]), (theirs, peers):
            n.zero_grad()
            loss(n).backward()
            for o in steps: o.step()
    for (k, a), b in zip(ours.named_parameters(), theirs.parameters()): torch.testing.assert_close(a, b, atol=2e-4 if a.ndim > 1 else 1e-5, rtol=0, msg=k)


def test_an_overflow_under_a_gradient_scaler_skips_the_whole_step():
    "Muon's matrices as well; and what is clipped is the gradient itself."
    net = nn.ModuleDict(dict(embed=nn.Embedding(30, 16), inner=nn.Linear(16, 24), lm_head=nn.Linear(24, 30)))
    opt, scaler = MuonAdamW(groups(net.named_parameters(), .01)), torch.amp.GradScaler('cpu', init_scale=65536)
    loss = lambda: net['lm_head'](net['inner'](net['embed'](torch.arange(30))).tanh()).square().mean()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    for broken in (True, False):
        opt.zero_grad()
        scaler.scale(loss()).backward()
        if broken: net['embed'].weight.grad[0, 0] = torch.inf
        scaler.unscale_(opt)
        if not broken: assert torch.nn.utils.get_total_norm(p.grad for p in net.parameters()) < 10
        scaler.step(opt)
        scaler.update()
        moved = [not torch.equal(v, before[k]) for k, v in net.state_dict().items()]
        assert not any(moved) if broken else all(moved)
    assert all(torch.isfinite(v).all() for v in net.state_dict().values())


class Overflow(L.Callback):
    "An infinite gradient at a step."
    def __init__(self, step): self.step = step

    def on_after_backward(self, trainer, module):
        if trainer.global_step == self.step: next(p.grad for p in module.parameters() if p.grad is not None).view(-1)[0] = torch.inf


def test_a_gradient_that_is_not_finite_ends_a_run_and_leaves_its_checkpoint(tmp_path):
    with pytest.raises(FloatingPointError, match='a lower lr'): sft_run.train(tmp_path/'run', callbacks=[Overflow(4)])
    kept = torch.load(tmp_path/'run'/'last.ckpt', weights_only=False)
    assert kept['global_step'] == 3 and all(torch.isfinite(v).all() for v in kept['state_dict'].values()) and not (tmp_path/'run'/'policy').exists()


def test_learning_to_read_minds_its_gradient_as_well(tmp_path):
    policy, screen = sft_run.small_policy(), np.full((64, 96, 3), 255, np.uint8)
    screen[8:24, 16:40] = 0
    page = LabelledPage(screen, np.array([[ord('a'), 16, 8, 40, 24]], np.int32), (Element('text', (16, 8, 40, 24), 'a', ink='black'),), seed=seeds('train', 1)[0])
    save_pages(tmp_path/'pages.npz', [page] * 4)
    with pytest.raises(FloatingPointError, match='a lower lr'): pretrain_perception(policy, [tmp_path/'pages.npz'], tmp_path/'run', PerceptionConfig(steps=4, batch=2, keep_every=1, precision='32-true'), progress=False, callbacks=[Overflow(2)])
    kept = torch.load(tmp_path/'run'/'last.ckpt', weights_only=False)
    assert kept['global_step'] == 2 and all(torch.isfinite(v).all() for v in kept['state_dict'].values())


def test_what_cannot_learn_to_read_is_told_before_anything_is_written(tmp_path):
    for odd in (dict(lr=0.), dict(lr=-1.), dict(every=0), dict(warmup=2.)):
        with pytest.raises(ValueError, match=next(iter(odd))): PerceptionConfig(**odd)
    policy = sft_run.small_policy()
    del policy.model.stem
    with pytest.raises(ValueError, match='no stem.*train --pages'): pretrain_perception(policy, [tmp_path/'pages.npz'], tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()


class Broken(L.Callback):
    "Ends the run within a validation, as a kill would."
    def on_validation_start(self, trainer, module):
        if trainer.global_step == 8: raise ConnectionResetError('killed')


def test_a_run_that_is_killed_while_it_validates_validates_again(whole, tmp_path):
    "The checkpoint of a step whose validation was due is written behind it."
    with pytest.raises(ConnectionResetError): sft_run.train(tmp_path/'run', keep_every=4, callbacks=[Broken()])
    assert torch.load(tmp_path/'run'/'last.ckpt', weights_only=False)['global_step'] == 4
    sft_run.train(tmp_path/'run', keep_every=4)
    ours, theirs = (read_metrics(o).filter(like='val/').dropna(how='all') for o in (tmp_path/'run', whole))
    assert ours.index.tolist() == theirs.index.tolist() and len(ours) == 3
    np.testing.assert_allclose(ours, theirs[ours.columns])
    assert equal(weights(tmp_path/'run'/'policy'), weights(whole/'policy'))


def test_every_parameter_is_in_one_group():
    model = sft_run.small_policy().model
    made = groups(model.named_parameters(), .01, .1)
    assert sorted(id(p) for g in made for p in g['params']) == sorted(map(id, model.parameters()))
    muon = {id(p) for g in made if g['muon'] for p in g['params']}
    names = {k for k, p in model.named_parameters() if id(p) in muon}
    assert any('q_proj' in k for k in names) and any('stem.patch' in k for k in names)
    assert not [k for k in names if 'embed' in k or 'norm' in k or 'lm_head' in k or 'reads' in k]


# a run

def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path):
    done = script('sft_run', tmp_path/'run', '--die', 7)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert torch.load(tmp_path/'run'/'last.ckpt')['global_step'] == 6 and not (tmp_path/'run'/'policy').exists()
    again = sft_run.train(tmp_path/'run')
    assert equal(weights(again), weights(whole/'policy'))
    a, b = (read_metrics(o) for o in (whole, tmp_path/'run'))
    same = [c for c in a if not c.startswith('speed/')]
    assert len(same) > 8
    np.testing.assert_array_equal(a[same], b[same])


@pytest.mark.parametrize('accumulate', [1, 2])
def test_the_bar_of_a_resumed_run_begins_where_that_stood(accumulate, tmp_path, monkeypatch):
    bars = []
    class Seen(Progress):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            bar = self.train_progress_bar
            bars.append((batch_idx, bar.initial, bar.total, bar.desc))
    monkeypatch.setattr(sft, 'Progress', Seen)
    class Stop(sft.KeepCheckpoints):
        def act(self, trainer, module): super().act(trainer, module); raise RuntimeError('killed')
    policy = sft_run.small_policy()
    data, config = sft_run.sources(policy, 24)[0], SFTConfig(6, 4, precision='32-true', keep_every=2, accumulate=accumulate)
    with monkeypatch.context() as once, pytest.raises(RuntimeError, match='killed'):
        once.setattr(sft, 'KeepCheckpoints', Stop)
        fit(policy, data, tmp_path/'run', config)
    first = len(bars)
    fit(sft_run.small_policy(), data, tmp_path/'run', config)
    done, whole = 2 * accumulate, 6 * accumulate
    assert bars[0] == (0, 0, whole, 'Epoch 0: ') and bars[first] == (done, done, whole, 'Epoch 0: ')


def test_idle_memory_is_looked_for_after_every_batch(tmp_path, monkeypatch):
    "What is given back then: nbs/30_model/04_allocation.ipynb."
    from uitars_nb.train import callbacks
    looks = []
    monkeypatch.setattr(callbacks, 'release_memory', lambda: looks.append(1))
    sft_run.train(tmp_path/'run', steps=3)
    assert len(looks) == 3


def test_training_outlives_an_evaluation_that_breaks(whole, tmp_path, capsys):
    async def broken(policy): raise RuntimeError('Chromium did not come up')
    saved = sft_run.train(tmp_path/'run', evaluate=broken, online_every=5)
    assert equal(weights(saved), weights(whole/'policy'))
    assert read_metrics(tmp_path/'run')['online/failed'].sum() == 2
    assert 'not evaluated at step 5: RuntimeError: Chromium did not come up' in capsys.readouterr().err


def test_dropout_is_on_and_the_seed_matters(whole, tmp_path):
    "What the test above relies on: other random numbers or another order give other weights."
    for name, kw in dict(dropout=dict(dropout=0.), seed=dict(seed=1)).items():
        assert not equal(weights(sft_run.train(tmp_path/name, validate_every=0, **kw)), weights(whole/'policy')), name


def test_what_a_run_leaves(whole):
    m = read_metrics(whole)
    assert {'train/own', 'train/reads', 'train/targets', 'train/grad_norm', 'train/lr', 'val/loss', 'val/loss/grey/0', 'val/right/grey/1', 'speed/samples_per_s', 'speed/tokens_per_s'} <= {*m.columns}
    assert m['val/loss'].notna().sum() == 3 and m['speed/samples_per_s'].min() > 0
    assert list((whole/'tensorboard').rglob('events.*')) and json.loads((whole/'summary.json').read_text()) == dict(step=12)
    assert json.loads((whole/'config.json').read_text())['parameters']['lr'] == SFTConfig().lr


def test_accumulated_batches_have_the_gradient_of_all_their_tokens(tmp_path):
    "Two batches a step: the mean over all own tokens of both, not the mean of two means."
    sft_run.train(tmp_path, accumulate=2, steps=1, dropout=0., validate_every=0, clip=0., reads=0., targets=0.)
    ours, policy = torch.load(tmp_path/'gradient.pt'), sft_run.small_policy(0.)
    stream = Stream(sft_run.sources(policy)[0], dict(pages=2, play=1), 4, 0)
    assert stream.own(0) != stream.own(1)
    collate, rows = Collate(policy.processor, stream.facts.names), np.concatenate([stream[0], stream[1]])
    batch = collate([stream.record(i) for i in rows]) | dict(mean_own=float(stream.own(0, 2)))
    policy.model.train()
    batch_losses(run_policy(policy, batch), batch)['own'].backward()
    for k, p in policy.model.named_parameters():
        if p.grad is not None: torch.testing.assert_close(ours[k], p.grad, atol=1e-5, rtol=1e-3, msg=k)


def test_online_evaluation_sees_the_policy_at_rest(tmp_path):
    seen = []
    async def evaluate(policy):
        seen.append((policy.model.training, policy.logps(policy.collate([sft_run.grey(policy, 1, 0).example])).sum().item()))
        return dict(success=len(seen) / 10)
    sft_run.train(tmp_path/'run', steps=4, online_every=2, evaluate=evaluate)
    assert [o[0] for o in seen] == [False, False] and seen[0][1] != seen[1][1]
    assert read_metrics(tmp_path/'run')['online/success'].dropna().to_dict() == {2: .1, 4: .2}


@pytest.mark.skipif(not shutil.which('g++'), reason='compiling for a processor needs a C++ compiler')
@pytest.mark.slow
def test_compiled_layers_learn_the_same_and_are_left_as_they_were(tmp_path):
    made = []
    async def evaluate(policy):
        made.append(counters['stats']['unique_graphs'])
        policy.logps(policy.collate([sft_run.grey(policy, 1, 0).example]))   # another shape, without gradients
        return dict(graphs=counters['stats']['unique_graphs'] - made[-1])
    policies = {o: sft_run.small_policy(dropout=0.) for o in (False, True)}
    for wanted, policy in policies.items():
        config = SFTConfig(3, 8, seed=1, precision='32-true', compile=wanted, online_every=2)
        fit(policy, sft_run.sources(policy, 24)[0], tmp_path/str(wanted), config, evaluate=evaluate, progress=False)
    assert made[0] == 0 and made[1] > 0
    assert read_metrics(tmp_path/'True')['online/graphs'].dropna().tolist() == [0]   # who plays meanwhile compiles nothing
    assert all(o._compiled_call_impl is None for o in policies[True].model.modules())
    plain, compiled = (o.model.state_dict() for o in policies.values())
    for k in plain: torch.testing.assert_close(plain[k], compiled[k], atol=2e-3, rtol=0)


def test_half_parameters_leave_what_is_computed_on_the_way_alone():
    "Positions and rewards; and a critic reads its states in full precision."
    plugin = in_precision('bf16-true')['plugins'][0]
    with plugin.forward_context(): assert torch.linspace(0, 1, 3).dtype == torch.float32
    policy = sft_run.small_policy(0.)
    critic = plugin.convert_module(Critic.from_policy(policy))
    values = critic.values(policy.collate([sft_run.grey(policy, i, i).example for i in range(2)]))
    assert values.dtype == torch.float32 and critic.head.weight.dtype == torch.bfloat16


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    io, path = in_precision('32-true')['plugins'][-1], tmp_path/'last.ckpt'
    io.save_checkpoint(dict(step=1), path)
    def dies(x, f):
        f.write(b'half of it')
        raise KeyboardInterrupt
    monkeypatch.setattr(torch, 'save', dies)
    with pytest.raises(KeyboardInterrupt): io.save_checkpoint(dict(step=2), path)
    assert torch.load(path) == dict(step=1)


def test_every_device_has_something_to_validate():
    policy = sft_run.small_policy()
    data, held = sft_run.sources(policy)   # twelve of them
    feed = Feed(Stream(data, dict(pages=1, play=1), 32, 0), policy.processor, validation=held)
    for world in (1, 4, 12):
        seen = []
        for rank in range(world):
            feed.trainer = SimpleNamespace(world_size=world, global_rank=rank, strategy=SimpleNamespace(root_device=torch.device('cpu')))
            seen.append(sum(len(o['input_ids']) for o in feed.val_dataloader()))
        assert min(seen) > 0 and sum(seen) == 12
    feed.trainer.world_size = 13
    with pytest.raises(ValueError, match='12 validation records are too few for 13 devices'): feed.val_dataloader()


def test_in_half_precision_positions_stay_whole(tmp_path):
    "A model of which all is bf16 but the frequencies of its positions learns, and is what it was saved as."
    base = write_checkpoint(tmp_path/'base', 'Qwen3-VL')
    policy = Policy.from_pretrained(base)
    before = {k: v.clone() for k, v in policy.model.named_buffers()}
    data, _ = sft_run.sources(policy)
    saved = fit(policy, data, tmp_path/'run', SFTConfig(steps=2, batch=4, lr=1e-3, accelerator='cpu', precision='bf16-true'), progress=False)
    assert any('inv_freq' in k for k in before)
    for k, v in policy.model.named_buffers(): assert v.dtype == before[k].dtype and torch.equal(v, before[k]), k
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    batch = policy.collate([sft_run.grey(policy, i, i).example for i in range(4)])
    with torch.no_grad(): assert (Policy.from_pretrained(saved).logps(batch) - policy.logps(batch)).abs().max() < 1e-2


@pytest.mark.parametrize('layout', ['Qwen2.5-VL', 'Qwen3-VL'])
def test_published_layouts_train(layout, tmp_path):
    write_checkpoint(tmp_path/'base', layout)
    policy = Policy.from_pretrained(tmp_path/'base', dtype='float32')
    records = ExampleList(TrainingExample(r.example, r.task, r.seed) for r in (sft_run.grey(policy, i, s) for i, s in enumerate(seeds('train', 8))))
    config = SFTConfig(steps=8, batch=4, lr=3e-3, accelerator='cpu', precision='bf16-mixed', log_every=1)
    trained = fit(policy, dict(greys=records), tmp_path/'run', config, progress=False)
    own = read_metrics(tmp_path/'run')['train/own']
    assert own.iloc[-2:].mean() < own.iloc[:2].mean()
    assert Policy.from_pretrained(trained).model.config.model_type == policy.model.config.model_type


def test_of_a_policy_with_an_adapter_the_adapter_alone_learns(tmp_path):
    "What is saved says what was trained: nothing else has moved."
    from peft import LoraConfig
    sft_run.small_policy(0.).save(tmp_path/'base')
    policy = Policy.from_pretrained(tmp_path/'base', dtype='float32', adapter=LoraConfig(r=2, target_modules=['q_proj', 'v_proj']))
    learns = {k for k, p in policy.model.named_parameters() if p.requires_grad}
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    data, _ = sft_run.sources(policy)
    saved = fit(policy, data, tmp_path/'run', SFTConfig(steps=3, batch=4, lr=1e-2, accelerator='cpu', precision='32-true'), progress=False)
    assert {k for k, v in policy.model.state_dict().items() if not torch.equal(v, before[k])} == learns != set()
    assert {k for k, p in policy.model.named_parameters() if p.requires_grad} == learns
    batch = policy.collate([sft_run.grey(policy, i, i).example for i in range(4)])
    with torch.no_grad(): assert torch.equal(Policy.from_pretrained(saved, dtype='float32').logps(batch), policy.logps(batch))


def test_refusals(whole, tmp_path):
    policy = sft_run.small_policy()
    data, held = sft_run.sources(policy)
    for message, call in {
            'of the validation split': lambda: fit(policy, dict(held=held), tmp_path/'a', progress=False),
            'of the train split': lambda: fit(policy, data, tmp_path/'b', validation=data['play'], progress=False),
            'other parameters': lambda: sft_run.train(whole, steps=13),
            'no strategy': lambda: sft_run.train(tmp_path/'c', strategy='deepspeed'),
            'evaluate what FSDP has trained when it is saved': lambda: sft_run.train(tmp_path/'d', strategy='fsdp', evaluate=print)}.items():
        with pytest.raises(ValueError, match=message): call()
    assert not (tmp_path/'a').exists() and not (tmp_path/'b').exists()


def text(policy, i, seed):
    "A lesson without a screen."
    prompt = policy.render([dict(role='user', content=[dict(type='text', text='dark ' * (1 + i % 3))])])
    return TrainingExample(Example(prompt, np.append(policy.encode('light'), policy.processor.tokenizer.eos_token_id).astype(np.int32)), 'text', seed)


def test_lessons_in_text_alone_under_ddp_and_fsdp(tmp_path):
    policy = sft_run.small_policy()
    data = dict(text=ExampleList(text(policy, i, s) for i, s in enumerate(seeds('train', 8))), pages=sft_run.sources(policy, 8)[0]['pages'])
    config = SFTConfig(steps=8, batch=1, accelerator='cpu', precision='32-true', strategy='ddp')
    fit(policy, data, tmp_path/'ddp', config, dict(text=.5, pages=.5), progress=False)
    assert read_metrics(tmp_path/'ddp')['train/own'].notna().any()
    with pytest.raises(ValueError, match='text alone: text'): fit(policy, data, tmp_path/'fsdp', replace(config, strategy='fsdp'), progress=False)


def greys(policy, n):
    made = (sft_run.grey(policy, i, s) for i, s in enumerate(seeds('train', n)))
    return [TrainingExample(o.example, 'grey', o.seed) for o in made]


@pytest.mark.parametrize('checkpointing', [False, True])
def test_an_adapter_learns_alone_and_goes_on_after_a_stop(checkpointing, tmp_path):
    write_checkpoint(tmp_path/'base', 'Qwen2.5-VL')
    def trained(path, steps):
        policy = first_policy(tmp_path/'base', lora=2)
        fit(policy, dict(demos=ExampleList(greys(policy, 4))), path,
            SFTConfig(steps=steps, batch=2, lr=.01, muon=False, lr_decay=0., warmup=0., accelerator='cpu', precision='32-true', checkpointing=checkpointing), progress=False)
        return {k: v for k, v in policy.model.state_dict().items() if 'lora' in k}
    adapter = trained(tmp_path/'a', 4)
    kept = torch.load(tmp_path/'a'/'last.ckpt', weights_only=False)['state_dict']
    assert kept and all('lora' in k for k in kept), 'a checkpoint holds the model below its adapter too'
    again = Policy.from_pretrained(tmp_path/'a'/'policy', dtype='float32').model.state_dict()
    assert any('lora_B' in k and v.count_nonzero() for k, v in adapter.items()) and all(torch.equal(again[k], v) for k, v in adapter.items())
    shutil.rmtree(tmp_path/'a'/'policy')
    trained(tmp_path/'a', 4)
    for k, v in Policy.from_pretrained(tmp_path/'a'/'policy', dtype='float32').model.state_dict().items():
        if 'lora' in k: torch.testing.assert_close(v, adapter[k])


def test_only_a_checkpoint_gets_an_adapter(tmp_path):
    with pytest.raises(ValueError, match='an adapter is for a checkpoint'): first_policy('new', lora=4)
    write_checkpoint(tmp_path/'base', 'Qwen2.5-VL')
    first_policy(tmp_path/'base', lora=2).save(tmp_path/'adapter')
    with pytest.raises(ValueError, match='learns on as it is'): first_policy(tmp_path/'adapter', lora=2)


def test_a_run_keeps_the_adapter_that_it_began_with(tmp_path):
    write_checkpoint(tmp_path/'base', 'Qwen2.5-VL')
    first = adapter_of(tmp_path/'run', tmp_path/'base', 2, seed=1)
    before = (first/'adapter_model.safetensors').read_bytes()
    assert adapter_of(tmp_path/'run', tmp_path/'base', 2, seed=5) == first and (first/'adapter_model.safetensors').read_bytes() == before
    with pytest.raises(ValueError, match='adapter of rank 2, not 4'): adapter_of(tmp_path/'run', tmp_path/'base', 4)
    write_checkpoint(tmp_path/'other', 'Qwen2.5-VL')
    with pytest.raises(ValueError, match='adapter of checkpoint .*base, not .*other'): adapter_of(tmp_path/'run', tmp_path/'other', 2)
    drawn = [Policy.from_pretrained(adapter_of(tmp_path/str(i), tmp_path/'base', 2, seed), dtype='float32').model.state_dict() for i, seed in enumerate((1, 1, 2))]
    same = [all(torch.equal(v, drawn[0][k]) for k, v in o.items()) for o in drawn]
    assert same == [True, True, False]


def test_layers_that_are_computed_again_have_the_same_gradient(tmp_path):
    write_checkpoint(tmp_path/'base', 'Qwen2.5-VL')
    grads = []
    for again in (False, True):
        policy = Policy.from_pretrained(tmp_path/'base', dtype='float32')
        sft.SFT(policy, SFTConfig(checkpointing=again), ('grey',)).train()
        batch = Collate(policy.processor, ('grey',))(greys(policy, 2)) | dict(mean_own=2.)
        batch_losses(run_policy(policy, batch), batch)['own'].backward()
        grads.append({k: p.grad for k, p in policy.model.named_parameters() if p.grad is not None})
    assert policy.model.is_activation_checkpointing and grads[0].keys() == grads[1].keys()
    for k, v in grads[0].items(): torch.testing.assert_close(grads[1][k], v)


def test_a_frozen_encoder_gets_no_gradients_where_layers_are_computed_again(tmp_path):
    write_checkpoint(tmp_path/'base', 'Qwen2.5-VL')
    policy = Policy.from_pretrained(tmp_path/'base', dtype='float32')
    PPO(policy, None, PPOConfig('grpo', frozen=['model.visual'], checkpointing=True))
    batch = policy.inputs(Collate(policy.processor, ('grey',))(greys(policy, 2)))
    seen = policy.model.get_image_features(batch['pixel_values'], batch['image_grid_thw']).pooler_output
    assert policy.model.is_activation_checkpointing and not any(o.requires_grad for o in seen)


@pytest.mark.parametrize('strategy', ['ddp', pytest.param('fsdp', marks=pytest.mark.slow)])
def test_two_processes_train_as_one_with_accumulation(strategy, tmp_path):
    "Two devices see the batches that one device sees in two turns: the same gradient but for the order of sums, and the same course."
    sft_run.train(tmp_path/'one', accumulate=2, dropout=0.)
    done = script('sft_run', tmp_path/'two', '--strategy', strategy, '--devices', 2, '--dropout', 0)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path/o/'gradient.pt') for o in ('one', 'two'))
    for k, v in one.items(): torch.testing.assert_close(two[k], v, atol=1e-5, rtol=1e-3, msg=k)
    a, b = (read_metrics(tmp_path/o)['val/loss'].dropna() for o in ('one', 'two'))
    assert len(a) == 3
    np.testing.assert_allclose(a, b, rtol=.05)
