"Critics: they start as the policy, see the state before each token, learn, are saved and loaded, own or shared, and leave the policy alone."
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import logging

from test_policy import KINDS, decisions, home, kinds, lora  # noqa: F401 (home is a fixture)
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.value import Critic, capture_head_inputs

torch.set_num_threads(1)
logging.disable_progress_bar()


@pytest.fixture(scope='module')
def load(home):  # noqa: F811
    "A policy in fp32, loaded once and never trained."
    return cache(lambda kind: Policy.from_pretrained(home/kind, dtype=torch.float32))


def critic_of(policy, shared=False, seed=0):
    "A critic with an opinion."
    critic = Critic.from_policy(policy, shared)
    torch.manual_seed(seed)
    nn.init.normal_(critic.head.weight)
    return critic


@kinds
@pytest.mark.parametrize('shared', [False, True])
def test_a_value_is_the_heads_word_on_the_state_before_the_token(load, kind, shared):
    policy = load(kind)
    batch, critic = policy.collate(decisions(policy)), critic_of(policy, shared)
    with torch.no_grad(), capture_head_inputs(policy.model) as seen:
        policy.model(**policy.inputs(batch))
        values = critic.values(batch)
    expected = (seen[0].float() @ critic.head.weight.T)[..., 0][:, :-1]
    own = batch['own']
    assert values.dtype == torch.float32 and torch.equal(values != 0, own)
    assert (values[:, 1:] - expected)[own[:, 1:]].abs().max() < 1e-4


@kinds
def test_a_value_does_not_know_its_token_nor_what_follows(load, kind):
    policy = load(kind)
    critic, example = critic_of(policy), decisions(policy)[0]
    other = Example(example.prompt, np.r_[example.reply[:4], example.reply[4:] + 1].astype(np.int32))
    with torch.no_grad(): a, b = critic.values(policy.collate([example, other]))
    at = len(example.prompt.ids)
    assert torch.equal(a[at:at + 5], b[at:at + 5]) and (a[at + 5:] - b[at + 5:]).abs().min() > 0


@kinds
def test_values_are_the_same_alone_and_in_company(load, kind):
    policy = load(kind)
    critic, examples = critic_of(policy), decisions(policy)
    with torch.no_grad():
        for row, e in zip(critic.values(policy.collate(examples)), examples):
            alone = critic(policy.collate([e]))[0]
            torch.testing.assert_close(row[:len(alone)], alone, atol=1e-4, rtol=1e-4)   # values of up to 7 in single precision: what is left depends on the processor


@kinds
def test_it_starts_at_zero_and_learns_apart_from_the_policy(load, kind):
    policy = load(kind)
    critic, batch = Critic.from_policy(policy), policy.collate(decisions(policy))
    assert not critic.values(batch).any()
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    target = torch.where(batch['own'], torch.tensor([[1.], [-1.], [.5]]), 0.)
    opt, losses = torch.optim.Adam(critic.parameters(), 3e-3), []
    for _ in range(25):
        loss = (critic.values(batch) - target).square().sum() / batch['own'].sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < .3 * losses[0]
    unused = {k.split('.')[1] for k, p in critic.named_parameters() if p.grad is None}
    assert unused <= {'target'}, 'the whole network learns, the eye included'
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())


@kinds
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_saved_and_loaded_it_says_the_same(home, tmp_path, kind, dtype):  # noqa: F811
    policy = Policy.from_pretrained(home/kind, dtype=dtype)
    batch, critic = policy.collate(decisions(policy)), critic_of(policy)
    nn.init.constant_(critic.head.bias, .125)
    critic.save(tmp_path/'critic', max_shard_size='50KB')
    assert len([*(tmp_path/'critic').glob('*.safetensors')]) > 3
    again = Critic.from_pretrained(tmp_path/'critic')
    assert again.head.weight.dtype == torch.float32 and again.model.dtype == dtype
    with torch.no_grad(): assert torch.equal(again.values(batch), critic.values(batch))
    assert Critic.from_policy(policy, dtype=torch.float32).model.dtype == torch.float32 and policy.model.dtype == dtype
    assert [*again.state_dict()] == [*critic.state_dict()] and not any('lm_head' in k for k in again.state_dict())


@kinds
def test_values_are_fp32_under_autocast(load, kind):
    policy = load(kind)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16): values = critic_of(policy).values(policy.collate(decisions(policy)))
    assert values.dtype == torch.float32 and values.any()


@kinds
def test_a_shared_critic_is_a_head_alone(load, tmp_path, kind):
    policy = load(kind)
    batch, critic = policy.collate(decisions(policy)), critic_of(policy, shared=True)
    assert {*dict(critic.named_parameters())} == {*critic.state_dict()} == {'head.weight', 'head.bias'}
    critic.values(batch).sum().backward()
    assert critic.head.weight.grad is not None and all(p.grad is None for p in policy.model.parameters())
    critic.save(tmp_path/'head')
    assert [o.name for o in (tmp_path/'head').iterdir()] == ['value_head.safetensors']
    critic.save(tmp_path/'head')
    with torch.no_grad(): assert torch.equal(Critic.from_pretrained(tmp_path/'head', policy).values(batch), critic.values(batch))
    with pytest.raises(ValueError, match='give policy='): Critic.from_pretrained(tmp_path/'head')


@kinds
def test_one_pass_serves_both_where_they_share(load, kind):
    policy = load(kind)
    batch, critic, passes = policy.collate(decisions(policy)), critic_of(policy, shared=True), []
    hook = policy.model.register_forward_hook(lambda *_: passes.append(1))
    with capture_head_inputs(policy.model) as seen, torch.no_grad(): logp, values = policy.logps(batch), critic.read(seen[0])
    hook.remove()
    assert len(passes) == 1
    with torch.no_grad(): assert torch.equal(values, critic.values(batch)[batch['own']]) and torch.equal(logp, policy.logps(batch))
    assert not policy.model.get_output_embeddings()._forward_pre_hooks, 'watching leaves nothing behind'


@kinds
def test_the_critic_of_an_adapted_policy_starts_from_what_that_sees(home, tmp_path, kind):  # noqa: F811
    policy = Policy.from_pretrained(home/kind, dtype=torch.float32, adapter=lora())
    batch = policy.collate(decisions(policy))
    with torch.no_grad(), capture_head_inputs(policy.model) as seen: policy.logits(batch)
    critic = critic_of(policy)
    with torch.no_grad(): torch.testing.assert_close(critic.states(batch), seen[0], atol=1e-4, rtol=1e-4)
    assert all(p.requires_grad for p in critic.parameters()) and not any('lora' in k for k in critic.state_dict())
    assert any('lora' in k for k in policy.model.state_dict()), 'the policy keeps its adapter'
    critic.save(tmp_path/'critic')
    with torch.no_grad(): assert torch.equal(Critic.from_pretrained(tmp_path/'critic').values(batch), critic.values(batch))


def test_refusals(load, home, tmp_path):  # noqa: F811
    critic_of(load('Qwen2.5-VL')).save(tmp_path/'critic')
    with pytest.raises(ValueError, match='1 missing: lm_head.weight'): Policy.from_pretrained(tmp_path/'critic')
    with pytest.raises(FileNotFoundError, match='Make one with Critic.from_policy'): Critic.from_pretrained(home/'Qwen2.5-VL')
    shutil.copy(tmp_path/'critic'/'value_head.safetensors', tmp_path)
    whole = load_file(tmp_path/'critic'/'model.safetensors')
    save_file({k: v for k, v in whole.items() if 'layers.1.mlp.gate_proj' not in k}, tmp_path/'critic'/'model.safetensors', metadata=dict(format='pt'))
    with pytest.raises(ValueError, match=r'1 missing: .*layers\.1\.mlp\.gate_proj'): Critic.from_pretrained(tmp_path/'critic')
    (tmp_path/'other').mkdir()
    save_file(dict(weight=torch.zeros(1, 7), bias=torch.zeros(1)), tmp_path/'other'/'value_head.safetensors')
    with pytest.raises(ValueError, match='another policy'): Critic.from_pretrained(tmp_path/'other', load('nano'))
