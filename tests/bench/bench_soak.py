"""Half an hour of episodes without end while browsers are killed and pages hang: whether it goes on, whether every episode is accounted for, and what it costs."""
import argparse, asyncio, itertools, random, time
from collections import Counter

import numpy as np
from scipy import stats

from tests.bench.bench_browser import megabytes, until_whole
from uitars_nb.agent.streaming import Allowance, StreamingRollout
from uitars_nb.core.figures import Figure, machine, record_figures
from uitars_nb.core.runs import write_json
from uitars_nb.evaluation.policies import SCRIPTED
from uitars_nb.sandbox.browser.chromium import chromium_version
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.base import suite
from uitars_nb.tasks.miniwob.task import BROWSER

COMMAND = 'python -m tests.bench --full --timeout 3600 soak'
SIZES = dict(quick=(40, 80), default=(120, 300), full=(300, 1800))   # seconds of calm, before and after; of faults
KILL_EVERY, HANG_EVERY, PARTS = 20, 30, 12
ENDLESS = 1 << 40


class Ledger:
    "Every instance that was drawn, and what became of it."
    def __init__(self):
        specs = suite('miniwob/quick', 'train', 500)
        random.Random(0).shuffle(specs)
        self.specs, self.drawn, self.stops, self.ended = itertools.cycle(specs), 0, Counter(), Counter()   # ended: whole episodes, by instance

    def draw(self):
        self.drawn += 1
        return next(self.specs)

    def note(self, traj):
        self.stops[traj.stop.value] += 1
        self.ended[traj.id.rpartition('.')[0]] += not traj.stop.is_environment   # attempts at one have names that differ in their end

    @property
    def whole(self): return sum(n > 0 for n in self.ended.values())

    @property
    def doubled(self): return sum(n - 1 for n in self.ended.values() if n)


async def kill(pool, rng):
    "A SIGKILL now and then, of one browser at a time."
    while True:
        await asyncio.sleep(KILL_EVERY)
        rng.choice(pool.places).browser.kill()
        await until_whole(pool)


async def hang(pool, rng, hung):
    "A page that never answers again, now and then."
    while True:
        await asyncio.sleep(HANG_EVERY)
        pages = [s.page for place in pool.places for s in place.sessions if s.active is not None]
        if not pages: continue
        rng.choice(pages).cdp.send('Runtime.evaluate', dict(expression='for (;;);')).add_done_callback(lambda f: f.cancelled() or f.exception())
        hung.append(time.monotonic())


async def play(stream, ledger, pool, seconds):
    "Whole episodes a second, and the memory after each part."
    began, before, held = time.monotonic(), ledger.whole, []
    for part in range(1, PARTS + 1):
        while time.monotonic() < began + seconds * part / PARTS:
            try: ledger.note(await asyncio.wait_for(anext(stream), 60))   # a minute without any episode is a deadlock
            except TimeoutError: raise SystemExit(f'no episode has ended for a minute; so far {dict(ledger.stops)}')
        await asyncio.wait_for(until_whole(pool), 60)
        held.append(megabytes(pool))
    return (ledger.whole - before) / (time.monotonic() - began), held


async def drain(rollout, stream, ledger):
    "Let what has begun end, begin nothing more; instances that are nowhere."
    rollout.allowance.batch = 0
    waiting = lambda: len(rollout.jobs) + rollout.lost
    while ledger.drawn - ledger.whole - waiting() > 0:
        try: ledger.note(await asyncio.wait_for(anext(stream), 60))
        except TimeoutError: break
    return ledger.drawn - ledger.whole - waiting()


async def soak(calm, faulty):
    "Everything that is measured."
    ledger, rng, hung = Ledger(), random.Random(0), []
    async with BrowserPool(BROWSER, browsers=2, pages=4) as pool:
        rollout = StreamingRollout(pool, ledger.draw, SCRIPTED['oracle'], 'soak', Allowance(ENDLESS, 0), retries=10)
        stream = aiter(rollout)
        await play(stream, ledger, pool, calm / 4)   # warm
        before, _ = await play(stream, ledger, pool, calm)
        trouble = [asyncio.ensure_future(o) for o in (kill(pool, rng), hang(pool, rng, hung))]
        during, held = await play(stream, ledger, pool, faulty)
        for o in trouble: o.cancel()
        await asyncio.gather(*trouble, return_exceptions=True)
        await until_whole(pool)
        after, _ = await play(stream, ledger, pool, calm)
        nowhere = await drain(rollout, stream, ledger)
        await stream.aclose()
    return dict(before=before, during=during, after=after, nowhere=nowhere, doubled=ledger.doubled, given_up=rollout.lost, restarts=pool.restarts, hangs=len(hung),
                stops=dict(ledger.stops), held_mb=held, seconds=faulty)


def growth(found):
    "MB an hour, by Theil and Sen: one part in which a renderer is caught large does not tilt it."
    parts = np.arange(PARTS)[2:] * found['seconds'] / PARTS / 3600
    return stats.theilslopes(found['held_mb'][2:], parts)


def figures(found):
    "Figures of a soak."
    facts, grown = dict(command=COMMAND, machine=machine(Chromium=chromium_version()), n=sum(found['stops'].values())), growth(found)
    return dict(soak_throughput=Figure(2 * found['during'] / (found['before'] + found['after']), unit='of calm', **facts),
                soak_lost=Figure(found['nowhere'] + found['doubled'] + found['given_up'], unit='episodes', **facts),
                soak_mb_per_hour=Figure(float(grown.slope), low=float(grown.low_slope), high=float(grown.high_slope), unit='MB', **facts))


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    found = asyncio.run(soak(*SIZES[p.parse_args().size]))
    write_json('reports/bench/soak.json', found)
    record_figures('bench', figures(found))
    for name, value in found.items(): print(f'   {name}: {value}')


if __name__ == '__main__': main()
