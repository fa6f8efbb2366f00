"Kinds of sessions for the tests of the manager: hosts that workers import."
import asyncio
import os

from uitars_nb.sandbox.manager.kinds import SimulatedConfig, SimulatedHost


class BrokenHost(SimulatedHost):
    "No worker comes up."
    def __init__(self, config): raise SystemExit('the licence has expired')


class FragileHost(SimulatedHost):
    "Takes its worker along when it is asked to open a second session."
    async def open(self, place):
        if place: await asyncio.sleep(.3); os._exit(1)
        return await super().open(place)


class LeavingHost(SimulatedHost):
    "Starts a program that does not notice when its worker dies."
    async def open(self, place):
        await asyncio.create_subprocess_exec('sleep', '1000', start_new_session=True, stdin=asyncio.subprocess.DEVNULL)
        return await super().open(place)
