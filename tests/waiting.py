"Waiting for what happens in its own time."
import asyncio, inspect, time

import psutil


async def until(ready, seconds=30):
    "Wait until `ready()`, which may be a coroutine function, is true, as long as a slow machine may need; its value."
    end = time.monotonic() + seconds
    while True:
        value = ready()
        if inspect.isawaitable(value): value = await value
        if value: return value
        assert time.monotonic() < end, 'it never came true'
        await asyncio.sleep(.02)


def lives(process):
    "Whether a process runs; one may end between two questions, and one that has ended may wait for its parent."
    try: return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess: return False
