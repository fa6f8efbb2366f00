"""The tools of a session: a command in the terminal, a Python cell, an edit, starts and resets; and how many attempts to get out of a jail succeed."""
import argparse, asyncio, itertools, time

from tests.escapes import ATTEMPTS, World
from uitars_nb.core.figures import Figure, alternate, figure, machine, record_figures, typical
from uitars_nb.core.runs import write_json
from uitars_nb.core.types import Action
from uitars_nb.sandbox.jail.jail import Jail
from uitars_nb.sandbox.tools.session import ToolSession

ROUNDS = dict(quick=6, default=12, full=24)
CALLS = 20  # a round
COMMAND = 'python -m tests.bench tools'


async def timed(work):
    "Milliseconds that `work` takes."
    start = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - start)


def arms(session):
    "What a round does of each kind; every call is an action and a look, as an agent has them."
    number = itertools.count()
    async def turn(action):
        await session.act(action)
        return (await session.observe()).text
    async def bash():
        n = next(number)
        assert await turn(Action('execute_bash', dict(command=f'echo {n}'))) == f'{n}\n[exit code 0]'
    async def python():
        n = next(number)
        assert await turn(Action('execute_python', dict(code=f'{n} + 1'))) == f'{n + 1}'
    async def edit():
        n = next(number)
        await turn(Action('str_replace_editor', dict(command='create', path=f'/home/user/{n}.txt', file_text=f'{n}')))
    async def jail():
        async with Jail() as other: await other.run(['true'])
    async def reset():
        await session.jail.run(["true"])
        await session.reset()
        await bash()
    def block(work, n):
        async def run(): return [await timed(work()) for _ in range(n)]
        return run
    return dict(jail=block(jail, 3), reset=block(reset, 3), bash=block(bash, CALLS), python=block(python, CALLS), editor=block(edit, CALLS))


async def measure(rounds):
    "Milliseconds of every arm, round by round."
    session = ToolSession()
    await session.reset()
    try: return await alternate(arms(session), rounds)
    finally: await session.close()


async def escapes():
    "Names of the attempts, and what those that succeeded got hold of."
    got = {}
    for name, attempt in ATTEMPTS.items():
        async with World() as world:
            if (found := await attempt(world)) or not world.safe: got[name] = found or 'something is broken'
    return [*ATTEMPTS], got


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    blocks, (tried, got) = asyncio.run(measure(ROUNDS[p.parse_args().size])), asyncio.run(escapes())
    facts, mid = dict(command=COMMAND, machine=machine()), {k: typical(b) for k, b in blocks.items()}
    found = dict(bash_ms=figure(mid['bash'], **facts), python_ms=figure(mid['python'], unit='ms', **facts), editor_ms=figure(mid['editor'], unit='ms', **facts),
                 jail_start_ms=figure(mid['jail'], unit='ms', **facts), tools_reset_ms=figure(mid['reset'], unit='ms', **facts),
                 escapes=Figure(len(got), n=len(tried), **facts))
    print(*(f'   {k}: {v} of {v.n}' if k == 'escapes' else f'   {k}: {v}' for k, v in found.items()), *(f'   escaped: {k}: {v}' for k, v in got.items()), sep='\n')
    write_json('reports/bench/tools.json', dict(rounds={k: [list(map(float, b)) for b in v] for k, v in blocks.items()}, tried=tried, succeeded=got))
    record_figures('bench', found)


if __name__ == '__main__': main()
