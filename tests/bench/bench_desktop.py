"A desktop's step, beside its display and through its guest; its start and its reset."
import argparse
import asyncio
import json
import os
import subprocess
import sys
import time

from uitars_nb.core.figures import figure, machine, median_interval, record_figures
from uitars_nb.core.runs import write_json
from uitars_nb.core.types import Action
from uitars_nb.sandbox.desktop.session import DesktopConfig, DesktopSession
from uitars_nb.sandbox.desktop.remote import LookTiming

COMMAND = 'python -m tests.bench desktop'
SIZE = (1024, 768)
SIZES = dict(quick=(40, 6), default=(200, 10), full=(1000, 30))  # steps, starts and resets
POINTS = [(x, y) for y in range(200, 900, 100) for x in range(50, 1000, 50)]  # each click elsewhere: two on one spot wait, so that they are no double click


def points(n): return [POINTS[i % len(POINTS)] for i in range(n)]


async def steps_beside(n):
    "Milliseconds of a click and the screen as an array, in the process that owns the display; run with --beside."
    from uitars_nb.sandbox.desktop.guest import Guest
    from uitars_nb.sandbox.desktop.screens import rgb
    guest, times = Guest(), []
    for point in points(n + 10):
        start = time.perf_counter()
        await guest.act(Action('click', dict(point=point)))
        screen = rgb(await guest.look(), guest.size)
        times.append(1000 * (time.perf_counter() - start))
        assert screen.shape == (*SIZE[::-1], 3)
    return times[10:]


def beside(session, n):
    "`steps_beside` in a process on the session's display, where its programs are."
    env = os.environ | dict(DISPLAY=session.display, XAUTHORITY=f'{session.folder}/Xauthority')
    out = subprocess.run([sys.executable, '-m', 'tests.bench.bench_desktop', '--beside', str(n)], env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)


async def steps_through_the_guest(session, n):
    "Milliseconds of a click and an observation over HTTP."
    times = []
    for point in points(n + 10):
        start = time.perf_counter()
        await session.act(Action('click', dict(point=point)))
        seen = await session.observe()
        times.append(1000 * (time.perf_counter() - start))
        assert seen.screenshot.shape == (*SIZE[::-1], 3)
    return times[10:]


async def starts(n):
    "Seconds from nothing to a desktop that can be used."
    times = []
    for _ in range(n):
        start = time.perf_counter()
        session = await DesktopSession(DesktopConfig(size=SIZE)).start()
        times.append(time.perf_counter() - start)
        await session.close()
    return times


async def resets(session, n):
    "Milliseconds of a reset after an episode with two programs and a file."
    times = []
    for _ in range(n):
        await session.launch('editor')
        await session.launch('files')
        await session.jail.write('left.txt', b'left')
        await session.observe()
        start = time.perf_counter()
        await session.reset()
        times.append(1000 * (time.perf_counter() - start))
        assert 'left.txt' not in await session.jail.listing()
    return times


async def measure(steps, rounds):
    "All times."
    times = dict(start_s=await starts(rounds))
    session = await DesktopSession(DesktopConfig(size=SIZE, looking=LookTiming(quiet=0))).start()
    session.display = (await session.ask('GET', '/')).json()['display']
    try:
        await session.launch('editor')
        await asyncio.sleep(1)
        times['step_ms'] = await asyncio.to_thread(beside, session, steps)
        times['step_guest_ms'] = await steps_through_the_guest(session, steps)
        times['reset_ms'] = await resets(session, rounds)
    finally: await session.close()
    return times


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--beside', type=int, help=argparse.SUPPRESS)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    args = p.parse_args()
    if args.beside: return print(json.dumps(asyncio.run(steps_beside(args.beside))))
    times = asyncio.run(measure(*SIZES[args.size]))
    write_json('reports/bench/desktop.json', times)
    facts = dict(command=COMMAND, machine=machine())
    record_figures('bench', {f'desktop_{name}': figure(median_interval(values), unit=name.split('_')[-1], **facts) for name, values in times.items()})
    for name, values in times.items(): print(f'   desktop_{name}: {median_interval(values)}')


if __name__ == '__main__': main()
