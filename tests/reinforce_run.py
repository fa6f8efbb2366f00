"A small run of reinforcement learning; as a script it can be killed, or run on several processes."
import argparse, os, signal
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch

from uitars_nb.agent.loop import Limits
from uitars_nb.agent.playing import ActorConfig
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.grammar import describe
from uitars_nb.model.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.tokenizer import make_tokenizer
from uitars_nb.train.ppo import PPOConfig
from uitars_nb.train.reinforce import Hardware, reinforce
import uitars_nb.tasks.miniwob

torch.set_num_threads(1)
ACTOR = ActorConfig('', ('miniwob/click-test',), batch=4, staleness=1, max_tokens=6, pages=2, limits=Limits(format_errors=1))


def start(home):
    "A policy that knows nothing, saved once."
    if not (home/'start').exists():
        Policy(*new_policy(make_tokenizer([describe(ACTION_SPACE)]), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2').save(home/'start')
    return home/'start'


class Die(L.Callback):
    "Kills the process, as the system would, after an update; or its actor."
    def __init__(self, update, actor=False): self.update, self.actor = update, actor

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.version != self.update: return
        os.kill(trainer.datamodule.actor.process.pid if self.actor else os.getpid(), signal.SIGKILL)


def train(home, die=0, die_actor=0, updates=5, devices=1, staleness=1, **kwargs):
    "A run in `home`; the policy's directory."
    callbacks = [Die(die)] * bool(die) + [Die(die_actor, True)] * bool(die_actor)
    hardware = Hardware(keep_every=2, accelerator='cpu', devices=devices, strategy='ddp' if devices > 1 else 'auto')
    return reinforce(start(home), home/'run', replace(ACTOR, staleness=staleness), PPOConfig(updates=updates, epochs=1, minibatches=2, lr=1e-3, **kwargs), hardware=hardware, callbacks=callbacks, progress=False)


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('home', type=Path)
    for o in ('die', 'die-actor'): p.add_argument(f'--{o}', type=int, default=0)
    p.add_argument('--updates', type=int, default=5)
    p.add_argument('--devices', type=int, default=1)
    p.add_argument('--staleness', type=int, default=1)
    args = vars(p.parse_args())
    train(args.pop('home'), **args)
