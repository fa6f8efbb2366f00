"""An update of PPO, with everything that belongs to it, against bare forward and backward passes of actor and critic over the same tokens."""
import argparse, contextlib, copy, logging, time, warnings

import lightning as L
import numpy as np
import torch

from tests.bench.bench_sft import record, small_policy
from uitars_nb.core.figures import figure, machine, ratio, record_figures, typical
from uitars_nb.core.runs import write_json
from uitars_nb.core.types import Completion, Observation, Step, StopReason, TaskSpec, Trajectory
from uitars_nb.flywheel.rewards import Reward
from uitars_nb.model.policy import Policy
from uitars_nb.model.value import Critic
from uitars_nb.train.collector import RolloutBatch
from uitars_nb.train.experience import build_experience, minibatches
from uitars_nb.train.ppo import PPO, PPOConfig
from uitars_nb.train.passes import collate_micro_batch

ROUNDS = dict(quick=6, default=8, full=16)
TRAJECTORIES, TURNS = 32, 2   # of an update; decisions of each
COMMAND = 'python -m tests.bench ppo'


def trajectory(examples, rng, i):
    "An episode of these decisions, won by lot."
    steps = []
    for k, example in enumerate(examples):
        n = len(example.reply)
        said = Completion('', example.prompt.ids, example.reply, np.full(n, -.5, np.float32), np.zeros(n, np.int32), tuple(range(k + 1 - len(example.prompt.images), k + 1)))
        steps.append(Step(Observation(example.prompt.images[-1]), 'said', completion=said))
    won = bool(rng.random() < .5)
    return Trajectory(f'bench/{i:06}-0.0', TaskSpec('miniwob/click-test', i), tuple(steps), StopReason.TERMINATED, float(won), won)


class Updates(torch.utils.data.IterableDataset):
    "Batches of episodes without end."
    def __init__(self, decisions, count=TRAJECTORIES):
        self.decisions, self.count = decisions, count   # (rng, i) -> examples of episode i


    def __iter__(self):
        rng, number = np.random.default_rng(0), 0
        while True:
            trajs = [trajectory(self.decisions(rng, i), rng, i) for i in range(self.count)]
            yield RolloutBatch(number, trajs, [Reward(o.reward, o.success) for o in trajs])
            number += 1


class Turns(L.Callback):
    "After each update, as many bare passes over the same rows, in networks of their own."
    def __init__(self, policy, critic, config, rounds, bf16):
        self.policy, self.critic, self.config, self.rounds, self.bf16, self.ours, self.bare = policy, critic, config, rounds, bf16, [], []

    def on_train_start(self, trainer, module):
        for o in (self.policy.model, self.critic): o.to(module.device)

    def on_train_batch_start(self, trainer, module, batch, batch_idx): self.since = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.ours.append(time.perf_counter() - self.since)
        exp, rng = build_experience(batch.trajs, batch.rewards), np.random.default_rng(batch_idx)
        some = [part for parts in minibatches(exp, self.config.minibatches, self.config.micro_batch_tokens, rng) for part in parts]
        began = time.perf_counter()
        for _ in range(self.config.epochs):
            for part in some: self.one_pass(collate_micro_batch(self.policy, exp, part))
        if module.device.type == 'cuda': torch.cuda.synchronize()
        self.bare.append(time.perf_counter() - began)
        trainer.should_stop = len(self.ours) >= self.rounds + 2

    def one_pass(self, batch):
        with torch.autocast(self.policy.model.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            loss = self.policy.logps(batch).sum()
            value = self.critic.values(batch).sum()
        loss.backward()
        value.backward()
        self.policy.model.zero_grad(set_to_none=True)
        self.critic.zero_grad(set_to_none=True)


def decisions(policy):
    "Of the lengths that demonstrations have."
    return lambda rng, i: [record(policy, rng, i).example for _ in range(TURNS)]


def overhead(policy, config, rounds, bf16, accelerator='cpu'):
    "Seconds of an update and of the bare passes, a number a round each."
    other = Policy(copy.deepcopy(policy.model), policy.processor, policy.dialect)
    turns = Turns(other, Critic.from_policy(other, config.shared), config, rounds, bf16)
    trainer = L.Trainer(max_epochs=1, accelerator=accelerator, precision='bf16-mixed' if bf16 else '32-true', logger=False, callbacks=[turns], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    with warnings.catch_warnings(action='ignore'): trainer.fit(PPO(policy, Critic.from_policy(policy, config.shared), config), torch.utils.data.DataLoader(Updates(decisions(policy)), batch_size=None))
    return np.array(turns.ours[2:])[:, None], np.array(turns.bare[2:])[:, None]


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    p.add_argument('--full-precision', action='store_true', help='32 bits instead of autocast to bf16')
    args = p.parse_args()
    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
    facts = dict(command=COMMAND, machine=machine(torch=torch.__version__))
    kinds = dict(ppo_overhead=PPOConfig(), ppo_overhead_shared=PPOConfig(shared=True))
    times = {id: overhead(small_policy(), config, ROUNDS[args.size], not args.full_precision) for id, config in kinds.items()}
    figures = {id: figure(ratio(ours, bare), **facts) for id, (ours, bare) in times.items()} | dict(ppo_update_s=figure(typical(times['ppo_overhead'][0]), unit='s', **facts))
    record_figures('ppo', figures)
    write_json('reports/ppo/rounds.json', {id: dict(ours=ours.tolist(), bare=bare.tolist()) for id, (ours, bare) in times.items()})
    for id, fig in figures.items(): print(f'{id:20} {fig}' + ('' if fig.low is None else f'  [{fig.low:.3g}, {fig.high:.3g}]'))


if __name__ == '__main__': main()
