"""One GPU: seven billion random parameters in the form of UI-TARS-1.5-7B, and the small policy. What loading takes, how fast they decide, how near the engine's log-probabilities are to those of a plain pass, and how long an update of PPO is."""
import argparse, asyncio, gc, logging, tempfile, time, warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch

from tests.bench import bench_engine, bench_ppo
from tests.bench.bench_engine import REPLY, Episodes, endless, measure
from tests.bench.bench_ppo import Updates, overhead
from tests.test_engine import truth
from tests.tiny_models import write_checkpoint
from uitars_nb.pipelines.policies import new_adapter_policy
from uitars_nb.core.figures import Figure, figure, machine, median_interval, ratio, record_figures
from uitars_nb.core.runs import write_json
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.value import Critic
from uitars_nb.train.ppo import PPO, PPOConfig

ROUNDS = dict(quick=6, default=6, full=12)
SCREEN, KEPT = (720, 1280), 3     # 1,196 tokens each; screens in the last prompt of an episode
SESSIONS, SMALL_SESSIONS = 8, 64  # at once: with the large policy, with the small one
TRAJECTORIES, TURNS, RANK = 8, 2, 16   # of an update of the large one; decisions of each; of its adapter
COMMAND = 'python -m tests.bench gpu'
SEVEN = dict(hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_hidden_layers=28, num_key_value_heads=4, vocab_size=152064, max_position_embeddings=128000, max_window_layers=28,
             initializer_range=.02, rope_scaling=dict(mrope_section=[16, 24, 24], rope_type='default', type='default'))
EYES = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=3584, fullatt_block_indexes=[7, 15, 23, 31])


def peak(): return torch.cuda.max_memory_allocated() / 1e9


def decides(policy, episodes, sessions, rounds, suffix, facts):
    "Figures of the engine, and its rounds."
    blocks, share, _, about = asyncio.run(measure(endless(policy), rounds, episodes, sessions))
    many = f'engine_{sessions}'
    figures = {f'gpu_decisions_per_s_{sessions}{suffix}': figure(median_interval([1 / float(o[0]) for o in blocks[many]]), unit='decisions/s', **facts),
               f'gpu_engine_vs_generate_{sessions}{suffix}': figure(ratio(blocks['generate'], blocks[many]), unit='x', **facts),
               f'gpu_engine_vs_generate_1{suffix}': figure(ratio(blocks['generate'], blocks['engine_1']), unit='x', **facts),
               f'gpu_engine_overhead{suffix}': figure(median_interval(share), unit='of its time', **facts)}
    return figures, dict(seconds_a_decision={k: [float(o[0]) for o in v] for k, v in blocks.items()}, overhead=share, **about)


async def distances(policy, episodes, sessions):
    "How far the engine's log-probabilities are from those of a plain pass, a number for each token."
    said = []
    async with Engine(endless(policy), max_batch=sessions) as engine:
        async def decide(messages, key):
            c = await engine.complete(messages, Sampling(max_tokens=REPLY), key)
            said.append((policy.render(messages), c))
            return c.ids
        await asyncio.gather(*(episodes.play(decide, bench_engine.TURNS) for _ in range(sessions)))
    with torch.inference_mode(): return np.concatenate([np.abs(c.logps - truth(policy, prompt, c.ids)) for prompt, c in said])


def long_decisions(policy, episodes):
    "Decisions of an episode over large screens; replies are random."
    def make(rng, i):
        screens, replies, out = [], [], []
        for _ in range(TURNS):
            screens.append(episodes.screen())
            prompt = policy.render(episodes.messages(replies, screens))
            replies.append(rng.integers(0, 200, 2 * REPLY).astype(np.int32))
            out.append(Example(prompt, replies[-1]))
        return out
    return make


class Clock(L.Callback):
    "Seconds of each update, and the most memory."
    def __init__(self, updates): self.updates, self.seconds = updates, []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        torch.cuda.synchronize()
        self.tokens = sum(len(o.completion.prompt_ids) + len(o.completion.ids) for t in batch.trajs for o in t.steps)
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.since)
        trainer.should_stop = len(self.seconds) > self.updates


def learns(folder, rounds):
    "An adapter of the large policy learns: the clock of its updates."
    policy = new_adapter_policy(str(folder), RANK)
    config, clock = PPOConfig(shared=True, checkpointing=True, epochs=1, minibatches=2, lr=1e-5), Clock(rounds)
    torch.cuda.reset_peak_memory_stats()
    trainer = L.Trainer(max_epochs=1, accelerator='gpu', devices=1, precision='bf16-mixed', logger=False, callbacks=[clock], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    data = torch.utils.data.DataLoader(Updates(long_decisions(policy, Episodes(SCREEN, KEPT)), TRAJECTORIES), batch_size=None)
    with warnings.catch_warnings(action='ignore'): trainer.fit(PPO(policy, Critic.from_policy(policy, True, torch.float32), config), data)
    return clock


def large(folder, rounds, facts):
    "Figures of the policy of seven billion parameters as it plays, and what they come from."
    if not folder.exists():
        with torch.device('cuda'): write_checkpoint(folder, 'UI-TARS-1.5-7B', **SEVEN, vision_config=EYES)
    gc.collect()
    torch.cuda.empty_cache()
    began = time.perf_counter()
    policy = Policy.to_play(folder)
    loading, parameters = time.perf_counter() - began, sum(p.numel() for p in policy.model.parameters())
    print(policy, policy.model.device, policy.model.dtype, f'loaded in {loading:.1f} s', flush=True)
    figures, rows = decides(policy, Episodes(SCREEN, KEPT), SESSIONS, rounds, '_7b', facts)
    off = asyncio.run(distances(policy, Episodes(SCREEN, KEPT), SESSIONS))
    figures |= dict(gpu_load_s_7b=Figure(loading, unit='s', **facts), gpu_playing_gb_7b=Figure(peak(), unit='GB', **facts), gpu_logp_off_7b=Figure(float(np.mean(off)), n=len(off), unit='nats', **facts))
    return figures, dict(rows, parameters=parameters, off=np.quantile(off, [.5, .9, .99, 1]).tolist())


def adapter(folder, rounds, facts):
    "Figures of its adapter as it learns, and what they come from."
    gc.collect()
    torch.cuda.empty_cache()
    clock = learns(folder, rounds)
    times = clock.seconds[1:]
    return dict(gpu_learning_gb_7b=Figure(peak(), unit='GB', **facts), gpu_update_s_7b=figure(median_interval(times), unit='s', **facts)), dict(update_seconds=times, update_tokens=clock.tokens)


def small(rounds, facts):
    "Figures of the small policy, and what they come from."
    policy = bench_engine.small_policy(torch.float32)
    policy.model.to('cuda')
    figures, rows = decides(policy, Episodes(), SMALL_SESSIONS, rounds, '', facts)
    off = asyncio.run(distances(policy, Episodes(), SMALL_SESSIONS))
    ours, bare = overhead(bench_ppo.small_policy(), PPOConfig(), rounds, True, 'gpu')
    figures |= dict(gpu_logp_off=Figure(float(np.mean(off)), n=len(off), unit='nats', **facts), gpu_ppo_overhead=figure(ratio(ours, bare), unit='x its time', **facts), gpu_ppo_update_s=figure(median_interval(ours[:, 0]), unit='s', **facts))
    return figures, dict(rows, ours=ours.tolist(), bare=bare.tolist(), off=np.quantile(off, [.5, .9, .99, 1]).tolist())


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    p.add_argument('--folder', type=Path, help='where the large checkpoint is, or shall be and stay: 17 GB')
    args = p.parse_args()
    if not torch.cuda.is_available(): return print('no GPU here, and nothing measured')
    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
    facts = dict(command=COMMAND, machine=machine(GPU=torch.cuda.get_device_name(), torch=torch.__version__))
    rows, rounds = {}, ROUNDS[args.size]
    with tempfile.TemporaryDirectory() as home:
        folder = args.folder or Path(home)/'UI-TARS-1.5-7B'
        for name, work in dict(small=lambda: small(rounds, facts), large=lambda: large(folder, rounds, facts), adapter=lambda: adapter(folder, rounds, facts)).items():
            began = time.perf_counter()
            figures, rows[name] = work()
            record_figures('gpu', figures)   # at once: the rest may not fit, or take too long
            write_json('reports/gpu/rounds.json', rows)
            for id, fig in figures.items(): print(f'{id:36} {fig}' + ('' if fig.low is None else f'  [{fig.low:.3g}, {fig.high:.3g}]'), flush=True)
            print(f'   {name}: {time.perf_counter() - began:.0f} s', flush=True)


if __name__ == '__main__': main()
