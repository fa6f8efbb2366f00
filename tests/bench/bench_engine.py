"""The engine against sequential `generate` of the same model, with one thread and with all cores: decisions a second alone and at 16 sessions, the time that is not the model's, and what samples of one prompt cost less than those of several."""
import argparse, asyncio, itertools, time

import numpy as np
import torch

from uitars_nb.core.actions import ACTION_SPACE, Action
from uitars_nb.core.figures import alternate, figure, machine, median_interval, ratio, record_figures, typical
from uitars_nb.core.grammar import describe
from uitars_nb.core.runs import read_json, write_json
from uitars_nb.model.engine.engine import Engine
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.precision import computes_bf16
from uitars_nb.model.rendering import Example
from uitars_nb.model.engine.sampling import Sampling
from uitars_nb.model.nano.tokenizer import make_tokenizer

ROUNDS = dict(quick=6, default=12, full=24)
SESSIONS, TURNS, ALONE, SAMPLES = 16, 3, 3, 8   # TURNS decisions an episode; ALONE of them in a round of one session; SAMPLES of an instance, as GRPO draws them
REPLY = 24                          # tokens: the mean over 528 oracle replies of the MiniWoB++ demonstrations
COMMAND = 'python -m tests.bench engine'


def endless(policy):
    "The same policy, which never ends a reply by itself."
    policy.model.eval().generation_config.eos_token_id = None
    policy.eos_ids = frozenset()
    return policy


def small_policy(dtype):
    "The small policy at its full size with random weights, endless."
    policy = Policy(*new_policy(make_tokenizer([describe(ACTION_SPACE)])), 'ui-tars-2', 'small')
    policy.model.to(dtype)
    return endless(policy)


class Episodes:
    "Conversations: instruction, the policy's own replies, and the newest screens."
    def __init__(self, size=(210, 160), kept=1):
        self.size, self.kept, self.rng, self.number = size, kept, np.random.default_rng(0), itertools.count()

    def screen(self): return self.rng.integers(0, 256, (*self.size, 3), np.uint8)

    def messages(self, replies, screens):
        "Before the next reply; `screens` has one more than `replies`, and the newest `kept` are shown."
        said = [dict(role='assistant', content=[dict(type='ids', ids=o, text='')]) for o in replies]
        seen = [dict(role='user', content=[dict(type='image', image=o)]) for o in screens]
        turns = [o for k, pair in enumerate(zip(seen, [*said, None])) for o in pair if o and (o['role'] == 'assistant' or k > len(replies) - self.kept)]
        return [dict(role='user', content=[dict(type='text', text='Click the button "Ok" in the dialog, then submit the form.')]), *turns]

    async def play(self, decide, turns):
        "One episode."
        key, replies, screens = f'episode {next(self.number)}', [], []
        for _ in range(turns):
            screens.append(self.screen())
            replies.append(await decide(self.messages(replies, screens), key))


def generate(policy):
    "A decision by transformers' `generate`."
    never = [v for k in ('image_token_id', 'video_token_id') if (v := getattr(policy.model.config, k, None)) is not None]   # an image that is none
    @torch.inference_mode()
    def decide(messages):
        prompt = policy.render(messages)
        inputs = policy.inputs(policy.collate([Example(prompt, np.zeros(0, np.int32))]))
        ids = policy.model.generate(**inputs, max_new_tokens=REPLY, do_sample=True, temperature=1., top_k=0, repetition_penalty=1., suppress_tokens=never, pad_token_id=0)[0, len(prompt.ids):].cpu().numpy().astype(np.int32)
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


def sides(engine, policy, overhead, cpu, episodes, sessions):
    "What each side does in a round: seconds a decision."
    async def timed(name, work, decisions):
        began, used = time.perf_counter(), time.process_time()
        await work
        cpu.setdefault(name, []).append((time.process_time() - used) / decisions)
        return [(time.perf_counter() - began) / decisions]

    async def alone(name, decide): return await timed(name, episodes.play(decide, ALONE), ALONE)

    async def many():
        before, began = engine.stats()['forward_seconds'], time.perf_counter()
        out = await timed(f'engine_{sessions}', asyncio.gather(*(episodes.play(through(engine), TURNS) for _ in range(sessions))), sessions * TURNS)
        overhead.append(1 - (engine.stats()['forward_seconds'] - before) / (time.perf_counter() - began))
        return out

    async def samples(name, prompts):
        firsts = [episodes.messages([], [episodes.screen()]) for _ in range(prompts)]
        decide, number = through(engine), next(episodes.number)
        return await timed(name, asyncio.gather(*(decide(firsts[i % prompts], f'sample {number}/{i}') for i in range(SAMPLES))), SAMPLES)

    return dict(generate=lambda: alone('generate', generate(policy)), engine_1=lambda: alone('engine_1', through(engine)), **{f'engine_{sessions}': many},
                one_prompt=lambda: samples('one_prompt', 1), own_prompts=lambda: samples('own_prompts', SAMPLES))


async def measure(policy, rounds, episodes, sessions=SESSIONS):
    "Rounds of each arm, the overhead of each round of all sessions, CPU seconds, and what was run."
    overhead, cpu = [], {}
    async with Engine(policy, max_batch=sessions) as engine:
        blocks = await alternate(sides(engine, policy, overhead, cpu, episodes, sessions), rounds)
        stats = engine.stats()
    parameters = sum(p.numel() for p in policy.model.parameters())
    about = dict(parameters=parameters, reply_tokens=REPLY, sessions=sessions, turns=TURNS, samples=SAMPLES, threads=torch.get_num_threads(), stats=stats)
    return blocks, overhead[1:], {k: v[1:] for k, v in cpu.items()}, about


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    args = p.parse_args()
    facts, rounds, figures, cores = dict(command=COMMAND, machine=machine(torch=torch.__version__)), {}, {}, torch.get_num_threads()
    arms = {'': (torch.float32, 1)} | ({'_cores': (torch.float32, cores)} if cores > 1 else {}) | ({'_bf16': (torch.bfloat16, 1)} if computes_bf16() else {})   # one thread as beside browsers and a trainer, all as for `eval` and `serve`; bf16 that is imitated says nothing, and what another machine measured stays
    for suffix, (dtype, threads) in arms.items():
        torch.set_num_threads(threads)
        blocks, overhead, cpu, about = asyncio.run(measure(small_policy(dtype), ROUNDS[args.size], Episodes()))
        figures |= {f'engine_vs_generate_16{suffix}': figure(ratio(blocks['generate'], blocks['engine_16']), unit='x', **facts),
                    f'engine_vs_generate_1{suffix}': figure(ratio(blocks['generate'], blocks['engine_1']), unit='x', **facts),
                    f'engine_samples_of_one_prompt{suffix}': figure(ratio(blocks['own_prompts'], blocks['one_prompt']), unit='x', **facts),
                    f'engine_overhead{suffix}': figure(median_interval(overhead), unit='of its time', **facts),
                    f'engine_16_ms{suffix}': figure(typical([1000 * b for b in blocks['engine_16']]), unit='ms a decision', **facts),
                    f'engine_cpu_vs_generate_16{suffix}': figure(median_interval(np.divide(cpu['generate'], cpu['engine_16'])), unit='x less CPU time', **facts),
                    f'engine_cpu_vs_generate_1{suffix}': figure(median_interval(np.divide(cpu['generate'], cpu['engine_1'])), unit='x less CPU time', **facts)}
        rounds[str(dtype).removeprefix('torch.') + suffix.removesuffix('_bf16')] = dict(seconds_a_decision={k: [float(o[0]) for o in v] for k, v in blocks.items()}, cpu_seconds_a_decision=cpu, overhead=overhead, **about)
    record_figures('bench', figures)
    write_json('reports/bench/engine.json', read_json('reports/bench/engine.json', {}) | rounds)
    for id, fig in figures.items(): print(f'{id:36} {fig}  [{fig.low:.3g}, {fig.high:.3g}]')


if __name__ == '__main__': main()
