"The small runs of this directory in processes of their own."
import os, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = 'MASTER_ADDR', 'MASTER_PORT', 'NODE_RANK', 'LOCAL_RANK', 'WORLD_SIZE'   # what a run under DDP leaves in the environment of its process, which goes on listening there


def script(name, *args):
    "Run `tests/<name>.py` with these words; what is said and the exit status."
    env = {k: v for k, v in os.environ.items() if k not in OURS} | dict(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE='1')
    return subprocess.run([sys.executable, '-m', f'tests.{name}', *map(str, args)], capture_output=True, text=True, env=env, cwd=ROOT, timeout=280)
