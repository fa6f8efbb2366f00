"GAE of a ragged batch against torchrl's vectorised one, in both layouts that torchrl takes; and whether its memory grows as the tokens do."
import argparse, asyncio, subprocess, sys, time

import torch
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

from uitars_nb.core.figures import Figure, alternate, figure, machine, ratio, record_figures, typical
from uitars_nb.core.runs import write_json
from uitars_nb.rl.gae import gae

ROUNDS = dict(quick=6, default=12, full=24)
COMMAND = 'python -m tests.bench gae'
LONG = 256 # trajectories of the comparison at lambda 1, which takes torchrl a filter as long as the longest


def batch(n, seed=0):
    "Trajectories of 200 to 5,000 own tokens with an outcome at the end: rewards, values and own tokens (B, T), and lengths."
    gen = torch.Generator().manual_seed(seed)
    length_B = torch.randint(200, 5001, (n,), generator=gen)
    response_BT = torch.arange(5000) < length_B[:, None]
    value_BT = torch.rand(response_BT.shape, generator=gen) * response_BT
    reward_BT = torch.zeros_like(value_BT)
    reward_BT[torch.arange(n), length_B - 1] = torch.randint(2, (n,), generator=gen).float()
    return reward_BT, value_BT, response_BT, length_B


def ours(data, lam):
    "Advantages of own tokens, from padded rows."
    reward_BT, value_BT, response_BT, _ = data
    return lambda: gae(reward_BT, value_BT, response_BT, gae_lambda_policy=lam, gae_lambda_value=lam).adv_BT


def torchrl(reward, value, done, lam):
    "Advantages in torchrl's layout (batch, time, 1)."
    reward, value, done = (o[..., None] for o in (reward, value, done))
    return lambda: vec_generalized_advantage_estimate(1., lam, value, value.roll(-1, 1), reward, done, done)[0][..., 0]


def padded(data, lam):
    "A row a trajectory; what follows its end is a second one of no account."
    reward_BT, value_BT, response_BT, length_B = data
    done = torch.zeros_like(response_BT)
    done[torch.arange(len(done)), length_B - 1] = done[:, -1] = True
    return torchrl(reward_BT, value_BT, done, lam)


def joined(data, lam):
    "All trajectories behind one another in one row, without padding."
    reward_BT, value_BT, response_BT, length_B = data
    done = torch.zeros(1, int(length_B.sum()), dtype=torch.bool)
    done[0, length_B.cumsum(0) - 1] = True
    return torchrl(reward_BT[response_BT][None], value_BT[response_BT][None], done, lam)


def agree(data, lam):
    "All three say the same of every own token."
    response_BT = data[2]
    a, b, c = ours(data, lam)()[response_BT], padded(data, lam)()[response_BT], joined(data, lam)()[0]
    for other in (b, c): torch.testing.assert_close(a, other, atol=1e-4, rtol=1e-4)


def arm(f):
    "One round of a side, in milliseconds."
    async def block():
        t = time.perf_counter()
        f()
        return [1000 * (time.perf_counter() - t)]
    return block


async def measure(n, lam, rounds):
    "Rounds of ours and of torchrl's two layouts."
    data = batch(n)
    agree(data, lam)
    return await alternate({name: arm(side(data, lam)) for name, side in dict(ours=ours, padded=padded, joined=joined).items()}, rounds)


PEAK = '''
import re, sys
from pathlib import Path
import torch
from tests.bench.bench_gae import batch, ours
torch.set_num_threads(1)
memory = lambda field: 1024 * int(re.search(field + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1])
ours(batch(2), .95)()
f = ours(data := batch(int(sys.argv[1])), .95)
before = memory('VmRSS')
Path('/proc/self/clear_refs').write_text('5')  # the peak so far is forgotten
f()
print(int(data[3].sum()), memory('VmHWM') - before)
'''


def bytes_a_token(n):
    "Memory that a call takes at most beside its input, in a process of its own."
    tokens, gained = map(int, subprocess.run([sys.executable, '-c', PEAK, str(n)], check=True, capture_output=True, text=True).stdout.split())
    return gained / tokens


def best(blocks):
    "The quicker of torchrl's layouts."
    return min(('padded', 'joined'), key=lambda k: typical(blocks[k]).value)


def figures(blocks, memory):
    "Figures of a measurement."
    facts = dict(command=COMMAND, machine=machine(torch=torch.__version__))
    against = lambda b: ratio(b[best(b)], b['ours'])
    small, large = memory.values()
    return dict(
        gae_vs_torchrl=figure(against(blocks[.95]), **facts),
        gae_vs_torchrl_lambda_1=figure(against(blocks[1.]), unit='x', **facts),
        gae_ms=figure(typical(blocks[.95]['ours']), unit='ms', **facts),
        gae_bytes_a_token=Figure(large, unit='bytes', **facts),
        gae_memory_growth=Figure(large / small, unit='x linear', **facts))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    rounds = ROUNDS[p.parse_args().size]
    torch.set_num_threads(1)
    memory = {n: bytes_a_token(n) for n in (1024, 4096)}
    blocks = {lam: asyncio.run(measure(n, lam, k)) for lam, n, k in ((.95, 4096, rounds), (1., LONG, 6))}
    found = figures(blocks, memory)
    print(*(f'   {k}: {v}' for k, v in found.items()), sep='\n')
    write_json('reports/bench/gae.json', dict(bytes_a_token=memory, milliseconds={str(lam): {k: [list(map(float, o)) for o in v] for k, v in b.items()} for lam, b in blocks.items()}))
    record_figures('bench', found)


if __name__ == '__main__': main()
