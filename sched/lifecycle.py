"""What members have in common: the signal that ends them, pauses with jitter, and tasks that end together."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

log = logging.getLogger(__name__)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; a second signal kills as usual."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(number: signal.Signals) -> None:
        log.info("stopping: %s", number.name)
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    return stop


class Backoff:
    """Pauses that double from `first` to `last` seconds, each times a random factor from 0.5 to 1."""

    def __init__(self, first: float = 0.1, last: float = 5.0) -> None:
        self._first = self._next = first
        self._last = last

    def reset(self) -> None:
        """After a success."""
        self._next = self._first

    def pause(self) -> float:
        """The next pause, in seconds."""
        pause, self._next = self._next, min(self._last, self._next * 2)
        return pause * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret


def end_at_once(code: int) -> NoReturn:
    """Ends the process without waiting for anything in it that cannot be ended; what was logged is written."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def until_first(*parts: Coroutine[Any, Any, object]) -> None:
    """Runs coroutines until the first ends, ends the others, and raises what the first raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, and whether it came in time.

    Python 3.11's `wait_for` swallows a cancel that comes together with the event: the task would go on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def every(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Calls `step` now and then after each pause, for ever."""
    while True:
        await step()
        await asyncio.sleep(seconds)
