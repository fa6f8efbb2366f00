"""One session and the pool against miniwob's Selenium environment, BrowserGym and a bare DevTools loop: the same task, machine and Chromium, in turn."""
import argparse, asyncio, contextlib, itertools, pathlib, sys, time

import miniwob

from uitars_nb.agent.loop import run_episode
from uitars_nb.core.coordinates import to_grid
from uitars_nb.core.figures import alternate, figure, machine, ratio, record_figures, typical
from uitars_nb.core.runs import versions, write_json
from uitars_nb.core.types import Action, TaskSpec
from uitars_nb.evaluation.policies import CandidOracle
from uitars_nb.sandbox.browser.chromium import chromium_version
from uitars_nb.sandbox.browser.pool import BrowserPool
from uitars_nb.tasks.miniwob import task as tasks
from uitars_nb.tasks.base import get_task

from tests.bench.bare_cdp import Bare, chromium
from tests.bench.peers.client import MissingPeer, Peer

TASK = 'miniwob/click-test-2'
SPOT = 80, 25  # on the instruction: a click there changes nothing and does not end the episode
POOL = dict(browsers=2, pages=2)
BARE = 'cdp_sequential', 'cdp_pipelined'  # the bare loops that take their screenshots as Chromium does by itself
ROUNDS = dict(quick=6, default=12, full=24)
COMMAND = 'python -m tests.bench peers'


def ms_since(t): return 1000 * (time.perf_counter() - t)


class Ours:
    "A session of ours with the interface of a peer."
    def __init__(self, session): self.session, self.task = session, get_task(TASK)

    async def start(self, seed): await self.task.setup(self.session, TaskSpec(TASK, seed))  # a task's setup resets the session

    async def step(self, n, x, y):
        "Milliseconds of `n` clicks that change nothing, each with its observation."
        await self.start(1)
        times, action = [], Action('click', dict(point=to_grid((x, y), self.session.size)))
        for _ in range(n):
            t = time.perf_counter()
            await self.session.act(action)
            obs = await self.session.observe()
            times.append(ms_since(t))
        assert obs.screenshot.shape == (210, 160, 3) and not (await self.task.verify(self.session, TaskSpec(TASK, 1))).done
        return times

    async def reset(self, seeds, look=True):
        "Milliseconds of a reset and the task's start, one for each seed; with the first observation where `look`."
        times = []
        for seed in seeds:
            t = time.perf_counter()
            await self.start(seed)
            if look: await self.session.observe()
            times.append(ms_since(t))
        return times



@contextlib.contextmanager
def bare_loop():
    "Bare DevTools clients at the same page, its episode started: of a Chromium that draws by itself, and of one that draws on demand."
    page = pathlib.Path(miniwob.__file__).parent/'html/miniwob'/f'{TASK.split("/")[1]}.html'
    with contextlib.ExitStack() as stack:
        bares = [Bare(stack.enter_context(chromium(tasks.BROWSER.size, on_demand)), tasks.BROWSER.size) for on_demand in (False, True)]
        for bare in bares:
            bare.goto(page.as_uri())
            bare.evaluate('core.EPISODE_MAX_TIME = 1e9; Math.seedrandom(1); core.startEpisodeReal()')
        yield bares


async def episodes(pool, specs):
    "Milliseconds an episode on the whole pool: reset, oracle's actions with a screenshot before and after each, verdict."
    todo, done, task = iter(specs), [], get_task(TASK)
    async def work():
        for spec in todo:
            async with pool.session() as session: done.append(await run_episode(session, task, spec, CandidOracle))
    t = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(POOL['browsers'] * POOL['pages'])])
    wall = ms_since(t)
    solved = sum(o.success for o in done)
    assert solved >= .9 * len(specs), f'{solved} of {len(specs)} episodes solved: {[o.info for o in done if not o.success]}'
    return [wall / len(specs)]


def step_arms(ours, bare, selenium, browsergym):
    "Who clicks and looks, and how often in a round; slow ones less often."
    async def loop(client, how): return client.steps(20, *SPOT, how)
    itself, on_demand = bare
    arms = dict(ours=lambda: ours.step(20, *SPOT), cdp_sequential=lambda: loop(itself, 'sequential'), cdp_pipelined=lambda: loop(itself, 'pipelined'),
        cdp_frames=lambda: loop(on_demand, 'frames'))
    if selenium: arms |= dict(selenium=lambda: selenium('step', n=8, x=SPOT[0], y=SPOT[1]), selenium_no_dom=lambda: selenium('step', n=8, x=SPOT[0], y=SPOT[1], dom=False))
    if browsergym:
        x, y = (1.5 * o for o in SPOT)  # its page is enlarged
        arms |= {f'browsergym_{v}': lambda v=v, n=n: browsergym('step', n=n, x=x, y=y, variant=v) for v, n in dict(plain=2, undelayed=3, bare=4).items()}
    return arms


def reset_arms(ours, selenium):
    "Who starts the next problem; with the first observation, and without."
    seeds = itertools.count(0, 10)
    def block(): return list(range(start := next(seeds), start + 10))
    arms = dict(ours=lambda: ours.reset(block()), ours_unseen=lambda: ours.reset(block(), look=False))
    if selenium: arms |= dict(selenium=lambda: selenium('reset', seeds=block()), selenium_unseen=lambda: selenium('reset', seeds=block(), look=False))
    return arms


def episode_arms(pool, selenium):
    "Who plays whole episodes; milliseconds an episode."
    seeds = itertools.count(0, 100)
    def block(n): return list(range(start := next(seeds), start + n))
    async def theirs(): return [sum(t := await selenium('episodes', seeds=block(10))) / len(t)]
    arms = dict(pool=lambda: episodes(pool, [TaskSpec(TASK, s) for s in block(96)]))  # long enough for start and end of a block to matter little
    return arms | (dict(selenium=theirs) if selenium else {})


async def measure(rounds):
    "Every comparison's rounds, kept as soon as they are there; what is missing."
    found, about, missing = {}, dict(versions=versions(), chromium=chromium_version()), []
    async with contextlib.AsyncExitStack() as stack:
        async def peer(name, stack):
            try: p = await stack.enter_async_context(Peer(name))
            except MissingPeer as e: return missing.append(str(e))
            about[name] = await p('about')
            return p
        async def compare(what, arms):
            found[what] = await alternate(arms, rounds)
            print('\n'.join(f'   {what}, {name}: {typical(b)} ms' for name, b in found[what].items()), flush=True)
            keep(found, about)
        selenium = await peer('selenium_env', stack)
        async with contextlib.AsyncExitStack() as others, BrowserPool(tasks.BROWSER, browsers=1, pages=1) as pool, pool.session() as session:
            browsergym, bare = await peer('browsergym_env', others), others.enter_context(bare_loop())
            await compare('step', step_arms(Ours(session), bare, selenium, browsergym))
            await compare('reset', reset_arms(Ours(session), selenium))
        async with BrowserPool(tasks.BROWSER, **POOL) as pool: await compare('episode', episode_arms(pool, selenium))
    return missing


def ratios(found):
    "The figures of issue 2 that the rounds give."
    step, reset, episode = (found.get(k, {}) for k in ('step', 'reset', 'episode'))
    bar = min(BARE, key=lambda name: typical(step[name]).value)  # the faster of them
    pairs = dict(browser_step_vs_cdp=(step['ours'], step[bar]), browser_step_vs_cdp_frames=(step['ours'], step['cdp_frames']),
        browser_step_vs_selenium=(step.get('selenium'), step['ours']),
        browser_step_vs_browsergym=(step.get('browsergym_plain'), step['ours']), browser_reset_vs_selenium=(reset.get('selenium'), reset.get('ours')),
        browser_pool_vs_selenium=(episode.get('selenium'), episode.get('pool')))
    return {id: ratio(a, b) for id, (a, b) in pairs.items() if a and b}


def plain(found):
    "What our side takes, with its unit."
    yield 'browser_step_ms', typical(found['step']['ours']), 'ms'
    if 'reset' in found: yield 'browser_reset_ms', typical(found['reset']['ours']), 'ms'
    if 'episode' in found: yield 'browser_pool_episodes_per_s', typical([1000 / b for b in found['episode']['pool']]), 'episodes/s'


def keep(found, about):
    "Write the rounds and the figures so far."
    rounds = {what: {name: [b.tolist() for b in blocks] for name, blocks in arms.items()} for what, arms in found.items()}
    write_json('reports/bench/peers.json', dict(about=about, rounds=rounds))
    facts = dict(command=COMMAND, machine=machine(Chromium=about['chromium']))
    own = {id: figure(x, unit=unit, **facts) for id, x, unit in plain(found)}
    record_figures('bench', own | {id: figure(x, **facts) for id, x in ratios(found).items()})


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    missing = asyncio.run(measure(ROUNDS[p.parse_args().size]))
    if missing: sys.exit('\n'.join(missing))


if __name__ == '__main__': main()
