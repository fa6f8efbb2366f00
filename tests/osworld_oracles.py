"Scripts that play the tasks of `osworld_tasks.json`."
import json
from pathlib import Path

from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action, StopReason
from uitars_nb.sandbox.base import EnvironmentFailure

TASKS = json.loads(Path(__file__).with_name('osworld_tasks.json').read_text(encoding='utf-8'))


class Oracle:
    "Plays the solution that a task carries."
    def __init__(self, session, task, spec): self.actions = next(o['oracle'] for o in TASKS if o['instruction'] == spec.instruction)
    async def act(self, steps, obs):
        name, args = self.actions[len(steps)]
        return Reply(actions=(Action(name, {k: tuple(v) if isinstance(v, list) else v for k, v in args.items()}),))


class Hasty:
    "Says at once that it has finished."
    def __init__(self, session, task, spec): pass
    async def act(self, steps, obs): return Reply(actions=(Action('finished'),))


class Unreachable(Hasty):
    "A policy whose engine does not answer."
    async def act(self, steps, obs): raise EnvironmentFailure(StopReason.ENV_CRASH, 'the engine cannot be reached')
