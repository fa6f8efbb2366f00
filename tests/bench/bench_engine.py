"""The engine against sequential `generate` of the same model: decisions a second alone and at 16 sessions, the time that is not the model's, and what samples of one prompt cost less than those of several."""
import argparse, asyncio, itertools, time

import numpy as np
import torch

from uitars_nb.core.actions import ACTION_SPACE, Action
from uitars_nb.core.figures import alternate, figure, machine, median_interval, ratio, record_figures, typical
from uitars_nb.core.grammar import describe
from uitars_nb.core.runs import write_json
from uitars_nb.model.engine import Engine
from uitars_nb.model.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.sampling import Sampling
from uitars_nb.model.tokenizer import make_tokenizer

ROUNDS = dict(quick=6, default=12, full=24)
SESSIONS, TURNS, ALONE, SAMPLES = 16, 3, 3, 8   # TURNS decisions an episode; ALONE of them in a round of one session; SAMPLES of an instance, as GRPO draws them
REPLY = 24                          # tokens: the mean over 528 oracle replies of the MiniWoB++ demonstrations
COMMAND = 'python -m tests.bench engine'


def small_policy(dtype):
    "The small policy at its full size with random weights, which never ends a reply by itself."
    policy = Policy(*new_policy(make_tokenizer([describe(ACTION_SPACE)])), 'ui-tars-2', 'small')
    policy.model.to(dtype).eval().generation_config.eos_token_id = None
    policy.eos_ids = frozenset()
    return policy


class Episodes:
    "Conversations as the small policy sees them: instruction, its own replies, the newest screen."
    def __init__(self): self.rng, self.number = np.random.default_rng(0), itertools.count()

    def messages(self, replies):
        screen = self.rng.integers(0, 256, (210, 160, 3), np.uint8)
        past = [dict(role='assistant', content=[dict(type='ids', ids=o, text='')]) for o in replies]
        text = dict(role='user', content=[dict(type='text', text='Click the button "Ok" in the dialog, then submit the form.')])
        return [text, *past, dict(role='user', content=[dict(type='image', image=screen)])]

    async def play(self, decide, turns):
        "One episode."
        key, replies = f'episode {next(self.number)}', []
        for _ in range(turns): replies.append(await decide(self.messages(replies), key))


def generate(policy):
    "A decision by transformers' `generate`."
    @torch.inference_mode()
    def decide(messages):
        prompt = policy.render(messages)
        inputs = policy.collate([Example(prompt, np.zeros(0, np.int32))])
        inputs.pop('own')
        ids = policy.model.generate(**inputs, max_new_tokens=REPLY, do_sample=True, top_k=0, pad_token_id=0)[0, len(prompt.ids):].numpy().astype(np.int32)
        policy.decode(ids)
        assert len(ids) == REPLY
        return ids
    async def call(messages, key): return decide(messages)
    return call


def through(engine):
    "A decision by the engine."
    async def decide(messages, key):
        c = await engine.complete(messages, Sampling(max_tokens=REPLY), key)
        assert len(c.ids) == REPLY
        return c.ids
    return decide


def arms(engine, policy, overhead, cpu):
    "What each side does in a round: seconds a decision."
    episodes = Episodes()
    async def timed(name, work, decisions):
        began, used = time.perf_counter(), time.process_time()
        await work
        cpu.setdefault(name, []).append((time.process_time() - used) / decisions)
        return [(time.perf_counter() - began) / decisions]

    async def alone(name, decide): return await timed(name, _series(episodes, decide), ALONE)

    async def many():
        before, began = engine.stats()['forward_seconds'], time.perf_counter()
        out = await timed('engine_16', asyncio.gather(*(episodes.play(through(engine), TURNS) for _ in range(SESSIONS))), SESSIONS * TURNS)
        overhead.append(1 - (engine.stats()['forward_seconds'] - before) / (time.perf_counter() - began))
        return out

    async def samples(name, prompts):
        firsts = [episodes.messages([]) for _ in range(prompts)]
        decide, number = through(engine), next(episodes.number)
        return await timed(name, asyncio.gather(*(decide(firsts[i % prompts], f'sample {number}/{i}') for i in range(SAMPLES))), SAMPLES)

    return dict(generate=lambda: alone('generate', generate(policy)), engine_1=lambda: alone('engine_1', through(engine)), engine_16=many,
                one_prompt=lambda: samples('one_prompt', 1), own_prompts=lambda: samples('own_prompts', SAMPLES))


async def _series(episodes, decide):
    for _ in range(ALONE // TURNS): await episodes.play(decide, TURNS)


async def measure(rounds, dtype=torch.float32):
    "Rounds of each arm, the overhead of each round at 16 sessions, CPU seconds, and what was run."
    policy, overhead, cpu = small_policy(dtype), [], {}
    async with Engine(policy) as engine:
        blocks = await alternate(arms(engine, policy, overhead, cpu), rounds)
        stats = engine.stats()
    parameters = sum(p.numel() for p in policy.model.parameters())
    about = dict(parameters=parameters, reply_tokens=REPLY, sessions=SESSIONS, turns=TURNS, samples=SAMPLES, threads=torch.get_num_threads(), stats=stats)
    return blocks, overhead[1:], {k: v[1:] for k, v in cpu.items()}, about


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    args = p.parse_args()
    torch.set_num_threads(1)  # as beside browsers
    facts, rounds, figures = dict(command=COMMAND, machine=machine(torch=torch.__version__)), {}, {}
    for suffix, dtype in (('', torch.float32), ('_bf16', torch.bfloat16)):
        blocks, overhead, cpu, about = asyncio.run(measure(ROUNDS[args.size], dtype))
        figures |= {f'engine_vs_generate_16{suffix}': figure(ratio(blocks['generate'], blocks['engine_16']), unit='x', **facts),
                    f'engine_vs_generate_1{suffix}': figure(ratio(blocks['generate'], blocks['engine_1']), unit='x', **facts),
                    f'engine_samples_of_one_prompt{suffix}': figure(ratio(blocks['own_prompts'], blocks['one_prompt']), unit='x', **facts),
                    f'engine_overhead{suffix}': figure(median_interval(overhead), unit='of its time', **facts),
                    f'engine_16_ms{suffix}': figure(typical([1000 * b for b in blocks['engine_16']]), unit='ms a decision', **facts),
                    f'engine_cpu_vs_generate_16{suffix}': figure(median_interval(np.divide(cpu['generate'], cpu['engine_16'])), unit='x less CPU time', **facts),
                    f'engine_cpu_vs_generate_1{suffix}': figure(median_interval(np.divide(cpu['generate'], cpu['engine_1'])), unit='x less CPU time', **facts)}
        rounds[str(dtype).removeprefix('torch.')] = dict(seconds_a_decision={k: [float(o[0]) for o in v] for k, v in blocks.items()}, cpu_seconds_a_decision=cpu, overhead=overhead, **about)
    record_figures('bench', figures)
    write_json('reports/bench/engine.json', rounds)
    for id, fig in figures.items(): print(f'{id:36} {fig}  [{fig.low:.3g}, {fig.high:.3g}]')


if __name__ == '__main__': main()
