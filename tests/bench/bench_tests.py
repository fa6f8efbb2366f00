"""How many minutes `make test` takes, in an environment that is set up; nothing is recorded of a run that fails."""
import argparse, subprocess, sys, time

from uitars_nb.core.figures import Figure, machine, record_figures

COMMAND = 'python -m tests.bench tests'


def minutes():
    "Minutes of one run of `make test`; None if a test fails."
    start = time.perf_counter()
    failed = subprocess.run(['make', '--no-print-directory', 'test'], stdin=subprocess.DEVNULL).returncode
    return None if failed else (time.perf_counter() - start) / 60


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_true', help='as every bench has it; one run is one run')
    p.parse_args()
    subprocess.run(['make', '--no-print-directory', 'setup'], check=True)
    if (taken := minutes()) is None: sys.exit('`make test` failed: nothing is recorded')
    record_figures('bench', dict(test_minutes=Figure(taken, command=COMMAND, machine=machine())))
    print(f'   make test: {taken:.1f} min')


if __name__ == '__main__': main()
