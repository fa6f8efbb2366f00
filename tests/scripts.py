"The small runs of this directory in processes of their own."
import os, subprocess
from pathlib import Path

from tests.forks import forks

ROOT = Path(__file__).parents[1]
OURS = 'MASTER_ADDR', 'MASTER_PORT', 'NODE_RANK', 'LOCAL_RANK', 'WORLD_SIZE'   # what a run under DDP leaves in the environment of its process, which goes on listening there


def script(name, *args):
    "Run `tests/<name>.py` with these words; what is said and the exit status."
    env = {k: v for k, v in os.environ.items() if k not in OURS} | dict(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE='1')
    words, seconds = [f'tests.{name}', *map(str, args)], 280
    code, out = forks().run('script', *words, seconds=seconds, **env)
    if code is None: raise subprocess.TimeoutExpired(words, seconds, out)
    return subprocess.CompletedProcess(words, code, stderr=out)
