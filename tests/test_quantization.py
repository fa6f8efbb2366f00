"""Quantised policies in the engine: new weights, checkpoints, errors."""
import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from uitars_nb.core.store import Store
from uitars_nb.core.types import Action
from uitars_nb.evaluation.recipe import DTYPES
from uitars_nb.model.engine.batching import load_weights
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.policy import Policy
from uitars_nb.model.quantization import SCHEMES, quantize, quantized_layers
from uitars_nb.model.rendering import Example
from uitars_nb.pipelines.playing import PlayOptions
from uitars_nb.pipelines.policies import first_policy
from uitars_nb.pipelines.rl import RLJob, check_rollout_dtype, run_rl
from uitars_nb.train.experience import sampled_example
from uitars_nb.train.sft import read_metrics

SIZES = dict(hidden=128, layers=2, heads=2, inner=256, stem_channels=16, stem_blocks=1)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Two checkpoints of one layout."
    home = tmp_path_factory.mktemp('policies')
    for seed in (1, 2): first_policy('new', seed=seed, **SIZES).save(home/str(seed))
    return [home/str(seed) for seed in (1, 2)]


def messages(policy):
    screen = np.random.default_rng(0).integers(0, 256, (210, 160, 3), np.uint8)
    return [dict(role='system', content=[dict(type='text', text='Act.')]),
            dict(role='user', content=[dict(type='text', text='Click "Ok".'), dict(type='image', image=screen)])]


def logps(policy, name='click'):
    "Of one written reply, by a plain pass."
    reply = policy.encode(policy.dialect.write('There.', [Action(name, dict(point=(500, 500)))], size=(160, 210)))
    batch = policy.collate([Example(policy.render(messages(policy)), reply)])
    with torch.inference_mode(): return policy.logps(batch)[batch['own']]


@pytest.mark.parametrize('scheme', SCHEMES)
def test_a_quantised_policy_is_near_its_checkpoint(folders, scheme):
    exact, near = Policy.to_play(folders[0], dtype='float32'), Policy.to_play(folders[0], dtype=scheme)
    assert len(quantized_layers(near.model)) == 15   # seven in each of two layers, one in the vision encoder
    change = (logps(near) - logps(exact)).abs().mean()
    assert 0 < change < .2


def test_new_weights_in_the_engine(folders):
    "After a load, the quantised engine samples as one that was loaded from the other checkpoint."
    first, second = (Policy.to_play(o, dtype='int8') for o in folders)
    new = Policy.to_play(folders[1], dtype='float32').model.state_dict()

    async def replies(policy, state=None):
        async with Engine(policy) as engine:
            if state is not None: await engine.load(state, 1)
            c = await engine.complete(messages(policy), Sampling(max_tokens=12, temperature=1., seed=5))
            return c.ids, np.array(c.logps)

    (ids, a), (other, b) = asyncio.run(replies(first, new)), asyncio.run(replies(second))
    assert np.array_equal(ids, other)
    assert np.allclose(a, b, atol=.05)   # embeddings and norms: fp32 here, bf16 from the checkpoint


def test_weights_that_do_not_fit_change_nothing(folders):
    policy = Policy.to_play(folders[0], dtype='int8')
    before, state = logps(policy), Policy.to_play(folders[1], dtype='float32').model.state_dict()
    name = next(k for k in state if k.endswith('q_proj.weight'))
    for wrong in ({k: v for k, v in state.items() if k != name}, state | {name: state[name][:-1]}, state | dict(more=torch.zeros(2))):
        with pytest.raises(ValueError, match='not of this model'): load_weights(policy.model, wrong)
        assert torch.equal(logps(policy), before)


def test_errors_say_what_to_do(folders, tmp_path):
    policy = Policy.to_play(folders[0], dtype='int8')
    with pytest.raises(ValueError, match='keep its checkpoint'): policy.save(tmp_path/'copy')
    assert not (tmp_path/'copy').exists()
    with pytest.raises(ValueError, match='no scheme'): quantize(policy.model, 'int3')
    assert {*SCHEMES} < {*DTYPES}


def test_rl_with_an_int8_actor(folders, tmp_path):
    "The actor samples from int8 weights and stores their log-probabilities; the trainer's own weigh its tokens."
    job = RLJob(algorithm='grpo', updates=2, batch=4, samples=2, minibatches=1, epochs=1, pretrain=0, replay_weight=0., rollout_dtype='int8', staleness=0, keep_policies=1)
    run_rl(job, PlayOptions('miniwob/click-test', 8, 2, 1, 2), folders[0], tmp_path)
    exact = Policy.to_play(folders[0], dtype='float32')

    def change(traj):
        batch = exact.collate([sampled_example(traj, 0)])
        with torch.inference_mode(): now = exact.logps(batch)[batch['own']]
        return float((now - torch.from_numpy(traj.steps[0].completion.logps)).abs().mean())

    changes = [change(o) for o in Store(tmp_path/'rank-0/store') if not o.steps[0].completion.versions[0]]   # before the first update
    assert len(changes) == 4 and 1e-3 < np.mean(changes) < .2
    assert len(read_metrics(tmp_path)) == 2
    assert (tmp_path/'policy-1/model.safetensors').exists()   # of `keep_policies`
    assert (tmp_path/'policy-2/model.safetensors').read_bytes() == (tmp_path/'policy/model.safetensors').read_bytes()


def test_rollouts_that_cannot_be_quantised(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='no rollout_dtype'): RLJob(rollout_dtype='int3')
    job = RLJob(rollout_dtype='int8')
    check_rollout_dtype(job, tmp_path)
    with pytest.raises(ValueError, match='adapter'): check_rollout_dtype(replace(job, lora=4), tmp_path)
    (tmp_path/'adapter_config.json').write_text('{}')
    with pytest.raises(ValueError, match='adapter'): check_rollout_dtype(job, tmp_path)
    (tmp_path/'adapter_config.json').unlink()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    with pytest.raises(ValueError, match='GPU'): check_rollout_dtype(job, tmp_path)
    check_rollout_dtype(replace(job, rollout_dtype='bfloat16'), tmp_path)
