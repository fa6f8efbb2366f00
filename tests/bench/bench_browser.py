"""The pool under trouble: how soon it is whole after a browser was killed, and what memory it gains over many episodes."""
import argparse, asyncio, gc, time
from pathlib import Path

import numpy as np
import psutil

from uitars_nb.core.figures import Figure, figure, machine, median_interval, record_figures
from uitars_nb.core.types import Action
from uitars_nb.sandbox.browser.chromium import chromium_version
from uitars_nb.sandbox.browser.pool import BrowserPool

PAGE = (Path(__file__).parents[2]/'sandboxes'/'pages'/'click.html').as_uri()
COMMAND = 'python -m tests.bench browser'
SIZES = dict(quick=(6, 200), default=(10, 1000), full=(20, 2000))  # kills, episodes


async def until_whole(pool):
    while not pool.whole: await asyncio.sleep(.002)


async def recovery(kills):
    "Seconds from each SIGKILL of a browser until every place has a living browser with all of its sessions."
    times = []
    async with BrowserPool(browsers=2, pages=2) as pool:
        for i in range(kills):
            session = await pool.acquire()
            await session.goto(PAGE)
            start = time.perf_counter()
            session.browser.kill()
            await session.browser.gone
            await until_whole(pool)
            times.append(time.perf_counter() - start)
            await pool.release(session)
    return times


async def episode(pool):
    async with pool.session() as session:
        await session.goto(PAGE)
        await session.act(Action('click', dict(point=(500, 500))))
        await session.observe()


def megabytes(pool):
    "What Python and the browsers hold."
    gc.collect()
    return (psutil.Process().memory_info().rss + sum(p.browser.memory() for p in pool.places)) / 2**20


async def leak(episodes, parts=10):
    "Megabytes gained in 1,000 episodes: the slope of a line through the memory after each part, the first two left out."
    seen = []
    async with BrowserPool(browsers=2, pages=2) as pool:
        for _ in range(parts + 2):
            for _ in range(max(1, episodes // parts // 4)): await asyncio.gather(*[episode(pool) for _ in range(4)])
            await until_whole(pool)
            seen.append(megabytes(pool))
    return 1000 * np.polyfit(np.arange(parts) * episodes / parts, seen[2:], 1)[0]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    kills, episodes = SIZES[p.parse_args().size]
    facts = dict(command=COMMAND, machine=machine(Chromium=chromium_version()))
    record_figures('bench', dict(pool_recovery_s=figure(median_interval(asyncio.run(recovery(kills))), **facts)))
    record_figures('bench', dict(leak_mb_per_1000_episodes=Figure(float(asyncio.run(leak(episodes))), n=episodes, **facts)))


if __name__ == '__main__': main()
