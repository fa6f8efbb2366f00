"A GPU computes what a processor computes, learns, and goes on after a kill. Skipped where there is none: `pytest tests/test_gpu.py`."
import asyncio

import lightning as L
import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save_file

from tests import reinforce_run, sft_run
from tests.bench.bench_ppo import Updates
from tests.test_engine import DIALECTS, chat, check, make, screen, truth
from tests.tiny_models import LAYOUTS, write_checkpoint
from uitars_nb.core.runs import read_json
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.value import Critic
from uitars_nb.sandbox.browser.chromium import candidates
from uitars_nb.train.ppo import PPO, PPOConfig
from uitars_nb.train.hardware import Hardware
from uitars_nb.train.reinforce import last_update, weights_of
from uitars_nb.train.sft import read_metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU here')
kinds = pytest.mark.parametrize('kind', DIALECTS)
browser = pytest.mark.skipif(not candidates(), reason='no Chromium here')


@kinds
@pytest.mark.parametrize('together', [1, 7])
async def test_log_probs_are_those_of_a_plain_pass(make, kind, together):
    "In fp32, of prompts of all lengths; later turns reuse what the first left."
    policy = make(kind)
    policy.model.to('cuda')
    async with Engine(policy, max_batch=together) as engine:
        async def episode(i):
            images, replies, done = [screen(i, (40 + 8 * i, 60 + 20 * i))], [], []
            for turn in range(3):
                messages = chat('go ' * (1 + 4 * i), *images, replies=replies)
                c = await engine.complete(messages, Sampling(max_tokens=3 + i, seed=i), f'episode {i}')
                done.append((policy.render(messages), c))
                replies.append(c.ids)
                images.append(screen(10 * i + turn))
            return done
        all_ = await asyncio.gather(*map(episode, range(7)))
        assert engine.stats()['reused_tokens'] > 0
    for prompt, c in sum(all_, []): check(policy, prompt, c)


@kinds
def test_a_gpu_says_what_the_processor_says(make, kind):
    policy = make(kind)
    prompt, ids = policy.render(chat('click', screen(3, (64, 96)))), np.int32([70, 71, 72, 73])
    here = truth(Policy(policy.model.to('cpu'), policy.processor, policy.dialect), prompt, ids)
    there = truth(Policy(policy.model.to('cuda'), policy.processor, policy.dialect), prompt, ids)
    assert np.abs(here - there).max() < 5e-3 and np.abs(here).max() > 1


@pytest.mark.parametrize('layout', LAYOUTS)
async def test_a_published_layout_plays_in_bf16(layout, tmp_path):
    policy = Policy.to_play(write_checkpoint(tmp_path/layout, layout), 'bfloat16')
    assert policy.model.device.type == 'cuda' and policy.model.dtype == torch.bfloat16
    async with Engine(policy) as engine:
        done = await asyncio.gather(*(engine.complete(chat('go ' * i, screen(i)), Sampling(max_tokens=8, seed=i)) for i in range(1, 5)))
    assert all(len(c.ids) and np.isfinite(c.logps).all() for c in done)


async def test_weights_change_in_an_engine_on_a_gpu(tmp_path):
    policy, other = (sft_run.small_policy(0.) for _ in range(2))
    for o in (policy, other): o.model.to('cuda').eval()
    save_file(weights_of(other.model.state_dict()), tmp_path/'new.safetensors')
    messages = chat('Which grey?', screen(0))
    async with Engine(policy) as engine:
        before = await engine.complete(messages, Sampling(max_tokens=6, seed=0))
        await engine.load_file(tmp_path/'new.safetensors', 1)
        after = await engine.complete(messages, Sampling(max_tokens=6, seed=0))
    assert {*before.versions} == {0} and {*after.versions} == {1}
    assert np.abs(after.logps - truth(other, other.render(messages), after.ids)).max() < 1e-4


@pytest.mark.parametrize('precision', ['32-true', 'bf16-mixed'])
def test_supervised_training_learns_and_goes_on(precision, tmp_path):
    "After a stop the next steps are those of a run that went on, as far as a GPU repeats itself; the policy that was saved plays on a processor."
    config = dict(accelerator='gpu', precision=precision, dropout=0., steps=40, lr=1e-2)
    sft_run.train(tmp_path/'whole', **config)
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 20: raise KeyboardInterrupt
    with pytest.raises((KeyboardInterrupt, SystemExit)): sft_run.train(tmp_path/'run', callbacks=[Stop()], **config)
    again = sft_run.train(tmp_path/'run', **config)
    one, two = (read_metrics(tmp_path/o)['train/own'].dropna() for o in ('whole', 'run'))
    assert one.iloc[-1] < .7 * one.iloc[0] and [*one.index] == [*two.index]
    after = (one.index > 20) & (one.index <= 24)
    assert after.sum() == 2 and (two[after] / one[after] - 1).abs().max() < .1
    assert Policy.from_pretrained(again).model.device.type == 'cpu'


def decisions(policy):
    "Two of each episode, over small screens."
    return lambda rng, i: [Example(policy.render(chat('go ' * (i % 3 + 1), screen(k))), np.int32([70 + k, 71, 72])) for k in range(2)]


@pytest.mark.parametrize('kind', ['nano', 'UI-TARS-1.5-7B', 'adapter', 'shared'])
def test_an_update_moves_actor_and_critic(kind, tmp_path):
    if kind in ('nano', 'shared'): policy = sft_run.small_policy(0.)
    else: policy = Policy.to_learn(write_checkpoint(tmp_path/kind, 'UI-TARS-1.5-7B'), LoraConfig(r=4, target_modules=['q_proj', 'v_proj']) if kind == 'adapter' else None)
    shared = kind in ('adapter', 'shared')
    config = PPOConfig(shared=shared, checkpointing=kind != 'nano', lr=1e-2, critic_lr=1e-2, warmup=0, epochs=1, minibatches=2)
    module = PPO(policy, Critic.from_policy(policy, shared, torch.float32), config)
    learning = {k: p.detach().cpu().clone() for k, p in module.named_parameters() if p.requires_grad}
    trainer = L.Trainer(max_epochs=1, accelerator='gpu', devices=1, precision='bf16-mixed', limit_train_batches=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(Updates(decisions(policy), 8), batch_size=None))
    now = dict(module.named_parameters())
    moved = {k for k, p in learning.items() if not torch.equal(p, now[k].detach().cpu())}
    assert module.version == 2 and {'critic.head.weight'} < moved and len(moved) > len(learning) / 4
    assert all(torch.isfinite(p).all() for p in now.values())


@browser
@pytest.mark.parametrize('kind', ['ppo', 'shared', 'adapter'])
def test_practice_with_actors_on_the_gpu(kind, tmp_path):
    "The actor plays on the GPU in its own process."
    how = dict(ppo=dict(), shared=dict(shared=True), adapter=dict(algorithm='grpo', lora=4, samples=2))[kind]
    reinforce_run.train(tmp_path, updates=2, hardware=Hardware('bf16-mixed'), **how)
    assert last_update(tmp_path/'run'/'last.ckpt') == 2 and read_json(tmp_path/'run'/'summary.json')['updates'] == 2
    told = read_metrics(tmp_path/'run')
    assert [*told.index] == [1, 2] and np.isfinite(told.entropy).all() and (told.engine_share > 0).any()
