"An agent and a reward of your own, for the shop."
import re

from uitars_nb.agent.loop import Reply
from uitars_nb.core.types import Action
from uitars_nb.flywheel.rewards import Reward, TaskVerifier
from uitars_nb.tasks.oracle_helpers import click_on


class Shopper:
    "For each word of the instruction that names a button, press this button; then pay."
    def __init__(self, session, task, spec): self.session, self.words = session, [*re.findall('[a-z]+', spec.instruction.lower()), 'pay']

    async def act(self, steps, obs):
        "Press the next button, or finish."
        while self.words:
            word = self.words.pop(0)
            if await self.session.evaluate('id => !!document.getElementById(id)', word):
                return Reply(f'I press {word}.', (await click_on(self.session, '$(x)', f'#{word}'),))
        return Reply('All of it is done.', (Action('finished'),))


async def thrifty(traj):
    "The verifier's outcome, reduced by a tenth for each step beyond two."
    verified = await TaskVerifier()(traj)
    return Reward(verified.outcome * max(0., 1 - .1 * max(0, len(traj.steps) - 2)), verified.success, 'thrifty')
