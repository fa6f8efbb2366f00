"""How many tasks have an oracle that solves at least 98 of 100 test seeds; resumes where it was stopped, forgets an oracle's episodes when its code has changed."""
import argparse, asyncio, inspect, sys, zlib

import pandas as pd

from uitars_nb.agent.rollout import Rollout, play
from uitars_nb.core.figures import Figure, machine, record_figures, today
from uitars_nb.core.runs import Run
from uitars_nb.core.types import StopReason
from uitars_nb.evaluation.policies import CandidOracle
from uitars_nb.sandbox.browser.chromium import chromium_version
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks import oracle_helpers
from uitars_nb.tasks.miniwob import task as miniwob
from uitars_nb.tasks.base import suite

SEEDS = dict(quick=10, default=100, full=100)
ENOUGH = .98
COMMAND = 'python -m tests.bench oracles'


def code(name):
    "A number that changes with an oracle's code."
    source = inspect.getsource(inspect.getmodule(miniwob.ORACLES[name])) + inspect.getsource(oracle_helpers)
    return zlib.crc32(source.encode())


def solved(traj):
    "The page was satisfied; a draw is all that a good opponent allows in tic-tac-toe."
    return traj.success or traj.task.name == 'miniwob/tic-tac-toe' and traj.reward == -.5


def row(traj):
    "What the bench keeps of an episode."
    name = traj.task.name.removeprefix('miniwob/')
    error = traj.info.get('error') or (traj.steps[-1].thought if traj.steps else '')
    return dict(id=traj.id, task=name, seed=traj.task.seed, stop=traj.stop.value, solved=solved(traj), reward=traj.reward, steps=len(traj.steps), error=error, code=code(name))


async def measure(names, n, run, processes, pages):
    "Play what has not been played yet; all episodes so far."
    specs = [s for name in names for s in suite(f'miniwob/{name}', 'test', n)]
    kept = {r['id']: StopReason(r['stop']) for r in current(run, names).to_dict('records')}
    async with BrowserPool(miniwob.BROWSER, browsers=processes, pages=pages) as pool:
        rollout = Rollout(pool, specs, CandidOracle, 'oracle', kept=kept)
        await play(rollout, lambda t: run.log(**row(t)), progress=sys.stderr.isatty())
    return current(run, names, {s.id for s in specs})


def current(run, names, ids=None):
    "The episodes of the oracles as they are now."
    df = run.metrics()
    if df.empty: return df
    df = df[df.task.isin(names)]
    df = df[df.code == df.task.map({name: code(name) for name in names})]
    return df if ids is None else df[(df.id.str.split('/', n=1).str[1].str.rsplit('/', n=1).str[0]).isin(ids)]


def table(df):
    "A row for each task: fraction solved, mean reward, most steps, environment failures, what went wrong."
    broken = df.stop.str.startswith('env_')
    out = df[~broken].groupby('task').agg(n=('solved', 'size'), solved=('solved', 'mean'), reward=('reward', 'mean'), steps=('steps', 'max'))
    wrong = df[~broken & ~df.solved.astype(bool)]
    said = lambda d: '; '.join(f'{r.seed} {r.stop} {r.error}'[:120] for r in d.head(3).itertuples())
    return out.assign(env=[int((broken & (df.task == t)).sum()) for t in out.index], failed=[said(wrong[wrong.task == t]) for t in out.index])


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    p.add_argument('--seeds', type=int, help='test seeds of each task')
    p.add_argument('--browsers', type=int, default=2, help='Chromium processes')
    p.add_argument('--pages', type=int, default=2, help='sessions on each')
    p.add_argument('tasks', nargs='*', help='oracles to try, by default all')
    args = p.parse_args()
    n, names = args.seeds or SEEDS[args.size], args.tasks or sorted(miniwob.load_oracles())
    miniwob.load_oracles()
    run = Run('runs/oracles', dict(split='test', chromium=chromium_version()))
    result = table(asyncio.run(measure(names, n, run, args.browsers, args.pages)))
    with pd.option_context('display.max_rows', None, 'display.width', 250, 'display.max_colwidth', 130): print(result.round(3))
    every = table(current(run, sorted(miniwob.load_oracles())))
    whole = every[every.n >= 100]
    good = int((whole.solved >= ENOUGH).sum())
    print(f'   {good} of the {len(whole)} oracles that have played 100 seeds solve {ENOUGH:.0%} of them')
    if good:
        facts = dict(n=int(whole.n.sum()), command=COMMAND, machine=machine(Chromium=chromium_version()), date=today())
        record_figures('bench', dict(oracle_tasks=Figure(good, **facts)))


if __name__ == '__main__': main()
