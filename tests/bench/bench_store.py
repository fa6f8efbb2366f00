"""A store against a folder of PNG files: bytes and milliseconds a step, on episodes played here and now."""
import argparse, asyncio, itertools, json, shutil, sys, tempfile, time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from uitars_nb.agent.loop import OracleAgent, RandomAgent
from uitars_nb.agent.rollout import Rollout, play
from uitars_nb.core.figures import Figure, alternate, figure, machine, ratio, record_figures, typical
from uitars_nb.core.runs import write_json
from uitars_nb.core.store import Store
from uitars_nb.core.types import to_plain
from uitars_nb.sandbox.browser.chromium import chromium_version
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.miniwob import task as miniwob
from uitars_nb.tasks.base import suite

EPISODES = dict(quick=1, default=2, full=4)  # of each task
ROUNDS = dict(quick=6, default=12, full=24)
COMMAND = 'python -m tests.bench store'


def agent(session, task, spec):
    "The task's oracle; random actions where it has none."
    return (OracleAgent if task.page in miniwob.load_oracles() else RandomAgent)(session, task, spec)


async def rollouts(n):
    "Real trajectories: `n` episodes of each of the 59 tasks."
    async with BrowserPool(miniwob.BROWSER, browsers=2, pages=2) as pool:
        return await play(Rollout(pool, suite('miniwob/pix2act59', n=n), agent, 'bench'), progress=False)


def looks(traj): return [o for o in (*(s.observation for s in traj.steps), traj.final) if o is not None]


def words(traj):
    "All of a trajectory but its pixels."
    plain = to_plain(traj)
    for o in (*(s['observation'] for s in plain['steps']), plain['final'] or {}): o.pop('screenshot', None)
    return plain


class Shards:
    "A store."
    def write(self, path, trajs):
        with Store(path).writer() as writer:
            for traj in trajs: writer.append(traj)

    def read(self, path, _): return list(Store(path))


class Files:
    "A folder an episode: a PNG file a screen, as PIL writes it, and a JSON file."
    def write(self, path, trajs):
        for i, traj in enumerate(trajs):
            (folder := path/f'{i:05}').mkdir(parents=True)
            (folder/'episode.json').write_text(json.dumps(words(traj)))
            for k, obs in enumerate(looks(traj)): Image.fromarray(obs.screenshot).save(folder/f'{k:03}.png')

    def read(self, path, trajs):
        for i in range(len(trajs)): json.loads((path/f'{i:05}'/'episode.json').read_text())
        return [np.asarray(Image.open(file)) for file in sorted(path.glob('*/*.png'))]


def arms(kinds, trajs, root):
    "What each side does in a round: write everything anew, and read it back. Milliseconds a screen."
    n, number = sum(len(looks(o)) for o in trajs), itertools.count()
    def arm(kind, what):
        async def block():
            path = root/f'{next(number)}'
            if what == 'read': kind.write(path, trajs)
            t = time.perf_counter()
            getattr(kind, what)(path, trajs)
            t = time.perf_counter() - t
            shutil.rmtree(path)
            return [1000 * t / n]
        return block
    return {f'{name}_{what}': arm(kind, what) for what in ('write', 'read') for name, kind in kinds.items()}


def bytes_a_screen(kind, trajs, root):
    "Bytes of all files, divided by the screens."
    kind.write(path := root/'size', trajs)
    size = sum(o.stat().st_size for o in path.rglob('*') if o.is_file())
    shutil.rmtree(path)
    return size / sum(len(looks(o)) for o in trajs)


async def measure(n, rounds):
    "Bytes of each side, rounds of each arm, and what was stored."
    trajs, kinds = [o for o in await rollouts(n) if looks(o)], dict(ours=Shards(), png=Files())
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        sizes = {name: bytes_a_screen(kind, trajs, root) for name, kind in kinds.items()}
        Shards().write(root/'check', trajs)
        assert list(Store(root/'check')) == trajs, 'what was read is not what was written'
        blocks = await alternate(arms(kinds, trajs, root), rounds)
    oracles = sum(o.task.name.removeprefix('miniwob/') in miniwob.load_oracles() for o in trajs)
    screens = [o.screenshot for traj in trajs for o in looks(traj)]
    repeats = sum(np.array_equal(a.screenshot, b.screenshot) for traj in trajs for a, b in itertools.pairwise(looks(traj)))
    about = dict(episodes=len(trajs), by_oracle=oracles, screens=len(screens), equal_to_the_one_before=repeats, stops=Counter(o.stop.value for o in trajs))
    return sizes, blocks, about


def figures(sizes, blocks):
    "Figures of a measurement; the goal of each is what PNG files take."
    facts, mid = dict(command=COMMAND, machine=machine(Chromium=chromium_version())), {k: typical(b) for k, b in blocks.items()}
    return dict(
        store_bytes_per_step=Figure(sizes['ours'], goal=sizes['png'], **facts),
        store_ms_per_step=figure(mid['ours_write'], goal=mid['png_write'].value, **facts),
        store_bytes_vs_png=Figure(sizes['png'] / sizes['ours'], unit='x smaller', **facts),
        store_write_vs_png=figure(ratio(blocks['png_write'], blocks['ours_write']), unit='x', **facts),
        store_read_vs_png=figure(ratio(blocks['png_read'], blocks['ours_read']), unit='x', **facts))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    size = p.parse_args().size
    sizes, blocks, about = asyncio.run(measure(EPISODES[size], ROUNDS[size]))
    found = figures(sizes, blocks)
    print(about, *(f'   {k}: {v}' for k, v in found.items()), sep='\n')
    write_json('reports/bench/store.json', dict(about=about, bytes=sizes, rounds={k: [list(map(float, b)) for b in v] for k, v in blocks.items()}))
    record_figures('bench', found)


if __name__ == '__main__': main()
