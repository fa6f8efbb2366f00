"A shop: a task of your own, with instructions, a verifier and an oracle."
import random
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from uitars_nb.core.coordinates import to_pixel
from uitars_nb.tasks.base import SUITES, Outcome, register
from uitars_nb.tasks.oracle_helpers import click_on

PAGE = 'data:text/html,' + quote((Path(__file__).parent/'shop.html').read_text())
GOODS = 'apples bread cheese eggs honey jam lemons milk nuts oil pasta rice salt soap tea'.split()


class Shop:
    "Buy what is asked for, and nothing else."
    name, max_steps = 'shop/buy', 6

    def order(self, spec):
        "The goods on the shelves and those to buy; both follow from the seed alone."
        rng = random.Random(f'shop/{spec.seed}')
        shelves = rng.sample(GOODS, 5)
        return shelves, rng.sample(shelves, rng.randint(1, 2))

    async def setup(self, session, spec):
        "Open the page and return the spec with its instruction."
        shelves, wanted = self.order(spec)
        await session.start(PAGE)
        await session.evaluate('goods => open_shop(goods)', shelves)
        return replace(spec, instruction=f'Buy {" and ".join(wanted)}.')

    async def verify(self, session, spec):
        "Reward 1 for the right basket and 0 for any other; the episode ends when the agent pays."
        basket, paid = await session.evaluate('[basket, paid]')
        right = {*basket} == {*self.order(spec)[1]}
        return Outcome(float(paid and right), paid and right, done=paid)

    async def oracle(self, session, spec):
        "Add the wanted goods that are missing, remove what nobody wants, then pay."
        wanted, basket = self.order(spec)[1], await session.evaluate('basket')
        missing, wrong = [o for o in wanted if o not in basket], [o for o in basket if o not in wanted]
        for id in [*missing, *wrong, 'pay']: yield await click_on(session, '$(x)', f'#{id}')

    async def name_at(self, session, point):
        "What a demonstrator's thought calls the place of a click: the item of the row."
        x, y = to_pixel(point, session.config.size)
        return await session.evaluate(f"document.elementFromPoint({x}, {y}).closest('li')?.firstChild.textContent ?? ''")


SUITES['shop/all'] = [register(Shop()).name]
