"""The manager over loopback with simulated sessions: leases a second, leases held at once, what is left after everything was killed many times."""
import argparse, asyncio, contextlib, json, os, random, signal, subprocess, sys, tempfile, time
from pathlib import Path

import httpx
import numpy as np
import psutil

from uitars_nb.core.figures import Figure, figure, machine, median_interval, record_figures
from uitars_nb.core.runs import read_json, write_json
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.sandbox.manager.client import ManagerClient
from uitars_nb.sandbox.manager.ledger import Ledger
from uitars_nb.sandbox.manager.messages import LeaseLost, Refused

COMMAND = 'python -m tests.bench manager'
# rounds, seconds of each, leases held, leases under fire
SIZES = dict(quick=(6, 1.0, 1000, 500), default=(8, 2.0, 5000, 10_000), full=(12, 4.0, 5000, 10_000))


class Server:
    "A manager as a process, on a port that stays the same when it is started again."
    def __init__(self, folder, **manager):
        self.folder, self.process = Path(folder), None
        self.config = dict(manager=dict(folder=str(folder), **manager))

    def start(self):
        write_json(self.folder/'config.json', self.config)
        with open(self.folder/'manager.log', 'ab') as log:
            self.process = subprocess.Popen([sys.executable, '-m', 'uitars_nb.sandbox.manager.api', str(self.folder/'config.json')], stderr=log)
        end = time.monotonic() + 60
        while read_json(self.folder/'door.json', {}).get('pid') != self.process.pid:
            assert self.process.poll() is None and time.monotonic() < end, (self.folder/'manager.log').read_text()[-2000:]
            time.sleep(.02)
        self.config['port'] = int(read_json(self.folder/'door.json')['url'].rpartition(':')[2])
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self, timeout=60):
        if self.process.poll() is None: self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def client(self, **kw): return ManagerClient.local(self.folder, **kw)

    def get(self, path):
        bearer = {'Authorization': f'Bearer {(self.folder/"token").read_text()}'}
        return httpx.get(f"http://127.0.0.1:{self.config['port']}{path}", headers=bearer, timeout=30).json()

    def workers(self):
        "All processes that host sessions for this folder, known to the manager or not."
        found = []
        for p in psutil.process_iter(['cmdline', 'status']):
            line = p.info['cmdline'] or []
            if 'uitars_nb.sandbox.manager.worker' in line and line[-1].startswith(f'{self.folder}/') and p.info['status'] != psutil.STATUS_ZOMBIE: found.append(p)
        return found


@contextlib.contextmanager
def serving(**manager):
    "A manager, and at the end nothing of it."
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, **manager).start()
        try: yield server
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired): server.end()
            server.kill()
            for p in server.workers(): p.kill()


# -- leases a second

async def settled(server, n):
    "Wait until `n` sessions are on offer."
    end = time.monotonic() + 120
    while sum(p['offered'] for p in await asyncio.to_thread(server.get, '/pools')) < n:
        assert time.monotonic() < end, server.get('/pools')
        await asyncio.sleep(.1)


async def pairs(client, seconds, loops):
    "Latencies, in ms, of acquire and release together, and how many there were in a second."
    took, end = [], time.perf_counter() + seconds
    async def loop():
        while (start := time.perf_counter()) < end:
            await (await client.acquire('simulated')).close()
            took.append(1000 * (time.perf_counter() - start))
    start = time.perf_counter()
    await asyncio.gather(*[loop() for _ in range(loops)])
    return took, len(took) / (time.perf_counter() - start)


async def speed(rounds, seconds, loops=16):
    "Of each round: pairs of acquire and release a second, and the 99th percentile of their time in ms."
    with serving(kinds=dict(simulated=dict(slots=500, most=2, warm=2))) as server:
        await settled(server, 1000)
        async with server.client() as client:
            await pairs(client, seconds, loops)
            seen = [await pairs(client, seconds, loops) for _ in range(rounds)]
    return [rate for _, rate in seen], [float(np.percentile(took, 99)) for took, _ in seen]


# -- leases at once

async def held(n, ttl=6):
    "How many of `n` leases, each asked for at once, are held for twice their term, each with a session that answers."
    with serving(ttl=ttl, kinds=dict(simulated=dict(slots=(n + 1) // 2, most=2, warm=2))) as server:
        await settled(server, n)
        async with server.client() as client:
            sessions = await asyncio.gather(*[client.acquire('simulated', wait=120) for _ in range(n)])
            assert len({(s.lease.url, s.lease.place) for s in sessions}) == n
            await asyncio.sleep(2 * ttl)
            assert (await sessions[0].observe()).title == (await sessions[-1].observe()).title == ''
            alive = sum(not s.lost for s in sessions)
            return min(alive, sum(p['leased'] for p in await asyncio.to_thread(server.get, '/pools')))


# -- under fire

async def customer(client, name, n, say):
    "Lease `n` sessions in turn, leave a mark in each and look whether it stays alone; what became of each."
    for i in range(n):
        mark = f'{name}.{i}'
        try:
            async with asyncio.timeout(90):
                session = await client.acquire('simulated', wait=60, task=mark)
                try:
                    found = (await session.observe()).title
                    await session.act(Action('type', dict(content=mark)))
                    await asyncio.sleep(random.uniform(0, .03))
                    after = (await session.observe()).title
                    say('dirty' if found else 'double' if after != mark else 'done')
                finally: await session.close()
        except LeaseLost: say('lost')
        except EnvironmentFailure: say('broken')
        except Refused: say('refused')
        except TimeoutError: say('untold')


async def customers(folder, name, n, loops):
    "A client process: `n` leases over several loops; prints a word for each."
    def say(word): print(word, flush=True)
    async with ManagerClient.local(folder, patience=60) as client:
        await asyncio.gather(*[customer(client, f'{name}.{i}', n // loops, say) for i in range(loops)])


class Crowd:
    "Client processes that go on until so many leases have been told of, whoever is killed."
    def __init__(self, server, leases, processes=2, loops=4, batch=80):
        self.server, self.leases, self.batch, self.loops, self.n = server, leases, batch, loops, 0
        self.words, self.running = [], [self.new() for _ in range(processes)]

    def new(self):
        self.n += 1
        command = [sys.executable, '-m', 'tests.bench.bench_manager', '--customer', str(self.server.folder), f'c{self.n}', str(self.batch), str(self.loops)]
        process = subprocess.Popen(command, stdout=open(self.server.folder/f'c{self.n}.words', 'wb'))
        process.name = f'c{self.n}'
        return process

    def turn(self):
        "Replace who has ended; False when enough leases have been told of."
        self.words = [w for p in self.server.folder.glob('*.words') for w in p.read_text().split()]
        if len(self.words) >= self.leases: return False
        self.running = [p if p.poll() is None else self.new() for p in self.running]
        return True

    def finish(self):
        for p in self.running: p.wait(180)
        self.turn()


def shoot(server, crowd, rng):
    "SIGKILL for the manager, a worker or a client; who it was."
    what = rng.choice(['manager', 'worker', 'worker', 'client', 'client'])
    if what == 'manager': server.kill(); time.sleep(rng.uniform(0, .5)); server.start()
    elif what == 'worker':
        if workers := server.workers(): rng.choice(workers).kill()
    elif living := [p for p in crowd.running if p.poll() is None]: rng.choice(living).kill()
    return what


def faults(leases, seed=0, every=(.3, 1.5), ttl=4):
    "What is wrong after so many leases with kills all the time: figures by name."
    rng, shots = random.Random(seed), []
    with serving(ttl=ttl, orphan=20, kinds=dict(simulated=dict(slots=8, most=3, warm=3))) as server:
        crowd = Crowd(server, leases)
        while crowd.turn():
            time.sleep(rng.uniform(*every))
            shots.append(shoot(server, crowd, rng))
        crowd.finish()
        end = time.monotonic() + ttl + 60
        while not whole(server) and time.monotonic() < end: time.sleep(.2)
        pools, ledger = server.get('/pools'), Ledger(server.folder/'manager.db')
        known, open_leases = {o.pid for o in ledger.workers()}, len(ledger.leases())
        ledger.close()
        strays = [p for p in server.workers() if p.pid not in known]
        leaked = open_leases + len(strays) + sum(8 * p['workers'] - p['offered'] for p in pools)
        server.end()
        after = len(server.workers())
    words = {w: crowd.words.count(w) for w in ('done', 'lost', 'broken', 'refused', 'dirty', 'double', 'untold')}
    return dict(leases=len(crowd.words), leaked=leaked + after, **words, **{f'{w}_killed': shots.count(w) for w in ('manager', 'worker', 'client')})


def whole(server):
    "True where every session of three workers is on offer."
    return sum(p['offered'] for p in server.get('/pools')) == 24


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    p.add_argument('--customer', nargs=4, metavar=('FOLDER', 'NAME', 'LEASES', 'LOOPS'), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.customer: return asyncio.run(customers(args.customer[0], args.customer[1], *map(int, args.customer[2:])))
    rounds, seconds, together, under_fire = SIZES[args.size]
    rates, p99 = asyncio.run(speed(rounds, seconds))
    print(f'   manager_leases_per_s: {median_interval(rates)}\n   manager_p99_ms: {median_interval(p99)}')
    concurrent = asyncio.run(held(together))
    print(f'   manager_concurrent: {concurrent} of {together}')
    seen = faults(under_fire)
    leaks = seen['leaked'] + seen['double'] + seen['dirty'] + seen['untold']
    print(f'   manager_leaks: {leaks}  {seen}')
    write_json('reports/bench/manager.json', dict(rates=rates, p99_ms=p99, concurrent=concurrent, faults=seen))
    about = dict(command=COMMAND, machine=machine())
    record_figures('bench', dict(
        manager_leases_per_s=figure(median_interval(rates), unit='leases/s', **about), manager_p99_ms=figure(median_interval(p99), unit='ms', **about),
        manager_concurrent=Figure(concurrent, unit='leases', **about), manager_leaks=Figure(leaks, unit='leaks', n=seen['leases'], **about)))


if __name__ == '__main__': main()
