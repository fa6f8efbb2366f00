"""A minute of an animated page under the clock against a minute on the wall; the same pixels in every round."""
import argparse, asyncio, hashlib, pathlib, time

import numpy as np

from uitars_nb.core.figures import figure, machine, median_interval, record_figures
from uitars_nb.core.runs import write_json
from uitars_nb.core.types import Action
from uitars_nb.sandbox.browser.session import BrowserConfig, BrowserSession
from uitars_nb.sandbox.browser.chromium import chromium_version, launch

PAGE = (pathlib.Path(__file__).parents[2]/'sandboxes/pages/clock/motion.html').resolve().as_uri()
SECONDS = [6, 14, 20, 20]  # a minute, with a screenshot after each part
ROUNDS = dict(quick=6, default=8, full=20)
COMMAND = 'python -m tests.bench clock'


async def minute(browser):
    "Wall seconds of the session's minute, its screenshots, and what the page says at the end."
    session = BrowserSession(browser, BrowserConfig(size=(160, 150), timeout=60))
    try:
        await session.reset()
        await session.goto(PAGE)
        shots, start = [], time.perf_counter()
        for s in SECONDS:
            await session.act(Action('wait', dict(time=s)))
            shots.append((await session.observe()).screenshot)
        took = time.perf_counter() - start
        return took, [hashlib.sha256(np.ascontiguousarray(o)).hexdigest() for o in shots], await session.evaluate('look()')
    finally: await session.close()


async def measure(rounds):
    "Wall seconds of each round; raises `AssertionError` where two rounds differ, in a pixel or in the page's own account."
    browser = await launch()
    try: took, shots, ends = zip(*[await minute(browser) for _ in range(rounds + 1)])
    finally: await browser.close()
    assert all(o == shots[0] for o in shots), 'screenshots differ from round to round'
    assert all(o == ends[0] for o in ends) and ends[0]['expired'] and ends[0]['ended'] == 5000, ends
    return took[1:]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    took = asyncio.run(measure(ROUNDS[p.parse_args().size]))
    speed = median_interval([sum(SECONDS) / t for t in took])
    print(f'   clock_speed: {speed}')
    write_json('reports/bench/clock.json', dict(seconds=list(took)))
    record_figures('bench', dict(clock_speed=figure(speed, command=COMMAND, machine=machine(Chromium=chromium_version()))))


if __name__ == '__main__': main()
