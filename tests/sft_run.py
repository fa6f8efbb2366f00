"A small run of supervised training, the same wherever it is called from; as a script it can be killed, or run on several processes."
import argparse
import os
import signal
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch

from uitars_nb.flywheel.examples import TrainingExample, ExampleList
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.nano.tokenizer import make_tokenizer
from uitars_nb.tasks.base import seeds
from uitars_nb.train.optim import full_tensor
from uitars_nb.train.sft import SFTConfig, fit

torch.set_num_threads(1)
WORDS = ['black', 'dark', 'light', 'white']


def small_policy(dropout=.1):
    "A policy whose forward pass draws random numbers, as dropout does."
    model, processor = new_policy(make_tokenizer([' '.join(WORDS)] * 4), hidden=32, layers=2, heads=2, inner=48, stem_channels=16, stem_blocks=1)
    for o in model.modules():
        if hasattr(o, 'attention_dropout'): o.attention_dropout = dropout
    return Policy(model, processor, 'ui-tars-2', 'small')


def grey(policy, i, seed, dense=True):
    "Which of four greys a screen has; the question's length varies."
    side = 32 + 16 * (i % 2)
    messages = [dict(role='user', content=[dict(type='text', text='Which grey?' + '?' * (i % 11)), dict(type='image', image=np.full((side, 48, 3), 80 * (i % 4), np.uint8))])]
    reply = np.append(policy.encode(WORDS[i % 4] + '!' * (i % 5)), policy.processor.tokenizer.eos_token_id).astype(np.int32)
    targets = dict(targets=np.arange(side // 16 * 3, dtype=np.int8) % 2, reads=np.full((side // 4, 24), i % 97, np.int8)) if dense and i % 3 else {}
    return TrainingExample(Example(policy.render(messages), reply), f'grey/{i % 2}', seed, targets)


def sources(policy, n=96):
    "Two sources to train on, and one to validate."
    made = lambda split, n, dense: ExampleList(grey(policy, i, s, dense) for i, s in enumerate(seeds(split, n)))
    return dict(pages=made('train', n, True), play=made('train', n // 2, False)), made('validation', 12, False)


class Die(L.Callback):
    "Kills the process, as the system would, after a step."
    def __init__(self, step): self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step: os.kill(os.getpid(), signal.SIGKILL)


class FirstGradient(L.Callback):
    "Keeps the gradient of the first step in a file beside the run's others."
    def __init__(self, path): self.path = Path(path)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.global_step: return
        grads = {k: full_tensor(p.grad).clone() for k, p in module.model.named_parameters()}   # all processes take part
        if trainer.is_global_zero: torch.save(grads, self.path/'gradient.pt')


def train(path, die=0, dropout=.1, callbacks=(), evaluate=None, **config):
    "A run in `path`; the policy's directory."
    policy = small_policy(dropout)
    data, held = sources(policy)
    config = dict(steps=12, batch=4, keep_every=3, log_every=2, accelerator='cpu', precision='32-true', validate_every=4) | config
    callbacks = [FirstGradient(path), *callbacks, *([Die(die)] if die else [])]
    with warnings.catch_warnings(action='ignore'):
        return fit(policy, data, path, SFTConfig(**config), dict(pages=2, play=1), held, evaluate, callbacks, progress=False)


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('path', type=Path)
    p.add_argument('--die', type=int, default=0)
    p.add_argument('--strategy', default='auto')
    p.add_argument('--devices', type=int, default=1)
    p.add_argument('--dropout', type=float, default=.1)
    args = vars(p.parse_args())
    train(**args)
