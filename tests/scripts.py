"The small runs of this directory in processes of their own."
import os, random, socket, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def quiet_port():
    "A free port below those that the system lends to connections: Lightning chooses among these, and another process may have the one it chose before it listens there."
    while True:
        with socket.socket() as s:
            try: s.bind(('', port := random.randrange(20_000, 32_000)))
            except OSError: continue
            return port


def script(name, *args):
    "Run `tests/<name>.py` with these words; what is said and the exit status."
    env = os.environ | dict(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE='1', STANDALONE_PORT=str(quiet_port()))
    return subprocess.run([sys.executable, '-m', f'tests.{name}', *map(str, args)], capture_output=True, text=True, env=env, cwd=ROOT, timeout=280)
