"""`make bench`: measure what sandbox, tools, engine and trainers take, each bench in a process of its own, then print all figures beside their goals and draw the report."""
import argparse, os, signal, subprocess, sys, time
from pathlib import Path

from uitars_nb.pipelines.notebooks import run_notebook
from uitars_nb.core.figures import figure_table, load_figures

HERE = Path(__file__).parent
ALL = sorted(p.stem.removeprefix('bench_') for p in HERE.glob('bench_*.py'))
ABOUT = 'Measure figures against their goals. A bench can also be run alone: python -m tests.bench.bench_NAME'


def arguments():
    "What the command line asks for."
    p = argparse.ArgumentParser('python -m tests.bench', description=ABOUT)
    p.add_argument('benches', nargs='*', metavar='bench', help=f'which ones, by default all: {", ".join(ALL)}')
    size = p.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_const', const='--quick', dest='size', help='fewest rounds that still give an interval')
    size.add_argument('--full', action='store_const', const='--full', dest='size', help='more rounds, narrower intervals')
    p.add_argument('--timeout', type=float, default=1800, help='seconds that one bench may take')
    args = p.parse_args()
    if unknown := [b for b in args.benches if b not in ALL]: p.error(f'no bench {", ".join(unknown)}; there are {", ".join(ALL)}')
    return args


def run(name, size, timeout):
    "Run one bench; what went wrong, or nothing."
    print(f'\n== {name}', flush=True)
    command = [sys.executable, '-m', f'tests.bench.bench_{name}', *([size] if size else [])]
    start = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True)
    try: code = process.wait(timeout)
    except subprocess.TimeoutExpired: return f'{name} took longer than {timeout:.0f} s'
    finally:
        if process.poll() is None: os.killpg(process.pid, signal.SIGKILL)  # with its browsers
    print(f'   {name}: {time.perf_counter() - start:.0f} s', flush=True)
    return f'{name} ended with status {code}' if code else None


def report():
    "Draw the report notebook from what was measured; what went wrong, or nothing."
    out = Path('reports/bench')
    if not (out/'peers.json').exists(): return None
    try: run_notebook('bench', out, dict(drawn=str(out)))
    except Exception as e: return f'the report notebook failed: {e}'


def main():
    args = arguments()
    failed = [f for name in args.benches or ALL if (f := run(name, args.size, args.timeout))]
    failed += [f] if (f := report()) else []
    print(f'\n{figure_table(load_figures()).drop(columns="what").to_string()}')
    if failed: sys.exit('\n'.join(['', 'Not everything was measured:', *failed]))


if __name__ == '__main__': main()
