"A shop: a task of one's own, with all that it needs to be played, demonstrated, learned and practised."
import random
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from uitars_nb.tasks.base import SUITES, Outcome, register
from uitars_nb.tasks.oracle_helpers import click_on

PAGE = 'data:text/html,' + quote((Path(__file__).parent/'shop.html').read_text())
GOODS = 'apples bread cheese eggs honey jam lemons milk nuts oil pasta rice salt soap tea'.split()


class Shop:
    "Buy what is asked for, and nothing else."
    name, max_steps = 'shop/buy', 6

    def order(self, spec):
        "What lies on the shelves, and what is to be bought: functions of the seed alone."
        rng = random.Random(f'shop/{spec.seed}')
        shelves = rng.sample(GOODS, 5)
        return shelves, rng.sample(shelves, rng.randint(1, 2))

    async def setup(self, session, spec):
        "Open the page; the instance with its instruction."
        shelves, wanted = self.order(spec)
        await session.start(PAGE)
        await session.evaluate('goods => open_shop(goods)', shelves)
        return replace(spec, instruction=f'Buy {" and ".join(wanted)}.')

    async def verify(self, session, spec):
        "1 for the right basket, 0 for another; nothing is decided before it is paid."
        basket, paid = await session.evaluate('[basket, paid]')
        right = {*basket} == {*self.order(spec)[1]}
        return Outcome(float(paid and right), paid and right, done=paid)

    async def oracle(self, session, spec):
        "Solves it, knowing the page."
        for id in [*self.order(spec)[1], 'pay']: yield await click_on(session, '$(x)', f'#{id}')


SUITES['shop/all'] = [register(Shop()).name]
