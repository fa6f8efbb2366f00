"A small run of reinforcement learning; as a script it can be killed, or run on several processes."
import argparse, contextlib, os, signal, time
from dataclasses import replace
from pathlib import Path

import lightning as L
import psutil
import torch

from uitars_nb.agent.loop import EpisodeLimits
from uitars_nb.agent.playing import ActorConfig
from uitars_nb.pipelines.policies import adapter_of
from uitars_nb.core.actions import ACTION_SPACE
from uitars_nb.core.grammar import describe
from uitars_nb.flywheel.rewards import Reward, TaskVerifier
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.nano.tokenizer import make_tokenizer
from uitars_nb.train import experience, reinforce as runs, update
from uitars_nb.train.ppo import PPO, PPOConfig
from uitars_nb.train.reinforce import Fixed, Hardware, pretrain_value, reinforce
from uitars_nb.train.value import ValueConfig
import uitars_nb.tasks.miniwob.task

torch.set_num_threads(1)
ACTOR = ActorConfig('', ('miniwob/click-test',), batch=4, staleness=1, max_tokens=6, pages=2, limits=EpisodeLimits(format_errors=1))


def start(home):
    "A policy that knows nothing, saved once."
    if not (home/'start').exists():
        Policy(*new_policy(make_tokenizer([describe(ACTION_SPACE)]), hidden=32, layers=1, heads=2, inner=48, stem_channels=16, stem_blocks=1), 'ui-tars-2').save(home/'start')
    return home/'start'


class First:
    "Calls the first sample of each instance a success, and no other: a policy that knows nothing has groups that differ."
    async def __call__(self, traj):
        won = '-0.' in traj.id
        return Reward(float(won), won, 'first')


class Die(L.Callback):
    "Kills the process, as the system would, after an update; or its actor, or that one's browsers in the middle of episodes."
    def __init__(self, update, who='trainer'): self.update, self.who = update, who

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.version != self.update: return
        actor = trainer.datamodule.actor.process.pid
        browsers = lambda: [o.pid for o in psutil.Process(actor).children(recursive=True) if 'chrom' in o.name()]
        pids = dict(trainer=lambda: [os.getpid()], actor=lambda: [actor], browser=browsers)[self.who]()
        assert pids, f'there is no {self.who} to kill'
        if self.who == 'browser':   # the next episodes begin on browsers that stand still
            send(signal.SIGSTOP, pids)
            time.sleep(2)
        send(signal.SIGKILL, pids)


def send(sign, pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError): os.kill(pid, sign)


def row_by_row(parts=experience.micro_batches):
    "Let this device make a pass for each row."
    experience.micro_batches = update.parts = lambda exp, rows, tokens: parts(exp, rows, 1)


def train(home, die=0, who='trainer', updates=5, devices=1, strategy='ddp', staleness=1, samples=1, revisit=0., minibatches=2, shared=False, lora=0, hardware=Hardware(accelerator='cpu'), **kwargs):
    "A run in `home`; the policy's directory."
    hardware = replace(hardware, keep_every=2, devices=devices, strategy=strategy if devices > 1 else 'auto')
    actor, config = replace(ACTOR, staleness=staleness, samples=samples, revisit=revisit), PPOConfig(updates=updates, epochs=1, minibatches=minibatches, lr=1e-3, shared=shared, **kwargs)
    first = adapter_of(home/'run', start(home), lora) if lora else start(home)
    return reinforce(first, home/'run', actor, config, hardware=hardware, reward=First() if samples > 1 else TaskVerifier(), callbacks=[Die(die, who)] if die else [], progress=False)


def slowly(seconds, fit=PPO.fit_actor):
    "Let each update take so much longer."
    def slow(self, *args):
        (self.trainer.datamodule.path/'updating').touch()
        time.sleep(seconds)
        return fit(self, *args)
    PPO.fit_actor = slow


class Dies(Fixed):
    "Kills the process after two batches of value pretraining."
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        if len(module.losses) == 2: os.kill(os.getpid(), signal.SIGKILL)


def pretrain(home, die=0, devices=1):
    "Value pretraining in `home`; the critic's directory."
    if die: runs.Fixed = Dies
    hardware = Hardware(accelerator='cpu', devices=devices, strategy='ddp' if devices > 1 else 'auto')
    return pretrain_value(start(home), home/'value', ACTOR, ValueConfig(batches=4, minibatches=2, lr=1e-3), hardware, progress=False)


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('home', type=Path)
    p.add_argument('--who', default='trainer')
    p.add_argument('--algorithm', default='ppo')
    p.add_argument('--strategy', default='ddp')
    p.add_argument('--revisit', type=float, default=0.)
    p.add_argument('--frozen', nargs='*', default=())
    p.add_argument('--shared', action='store_true')
    p.add_argument('--uneven', action='store_true', help='the second device makes more passes than the first')
    for o, default in dict(die=0, updates=5, devices=1, staleness=1, samples=1, minibatches=2, lora=0).items(): p.add_argument(f'--{o}', type=int, default=default)
    p.add_argument('--slow', type=float, default=0., help='seconds that an update takes longer')
    p.add_argument('--value', action='store_true', help='value pretraining in place of practice')
    args = vars(p.parse_args())
    if args.pop('uneven') and os.environ.get('LOCAL_RANK') == '1': row_by_row()
    if slow := args.pop('slow'): slowly(slow)
    if args.pop('value'): pretrain(args['home'], args['die'], args['devices'])
    else: train(args.pop('home'), **args)
