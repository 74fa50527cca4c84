"""Runs handlers: async ones as tasks of the loop, sync ones in threads that pull.

Threads that pull from a queue cost a fiftieth of `run_in_executor` a job. Their ends come back in batches: one call
into the loop is under way at a time and takes along whatever has ended by then.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rota.workers.attempt import Attempt
    from rota.workers.context import RunContext

log = logging.getLogger(__name__)

End = tuple["Attempt", Any, BaseException | None]
"""An attempt with what its handler returned or raised."""


class Executor:
    """`size` threads and any number of tasks. `ended` is called in the loop with each end, `context` makes the ctx."""

    def __init__(self, size: int, context: Callable[[Attempt], RunContext], ended: Callable[[list[End]], None]) -> None:
        self._context = context
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._todo: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._done: deque[End] = deque()
        self._calling = False
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._threads = [threading.Thread(target=self._pull, name=f"handler-{n}", daemon=True) for n in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, attempt: Attempt) -> None:
        """Runs an attempt as soon as there is a thread for it; an async one at once."""
        if attempt.handler.is_async:
            self._tasks[attempt] = self._loop.create_task(self._run_async(attempt))
        else:
            self._todo.put(attempt)

    def unstarted(self) -> list[Attempt]:
        """Takes back what no thread has started."""
        taken: list[Attempt] = []
        while True:
            try:
                attempt = self._todo.get_nowait()
            except queue.Empty:
                return taken
            if attempt is not None:
                taken.append(attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Cancels an async attempt whose result is not wanted any more; a thread cannot be stopped."""
        task = self._tasks.get(attempt)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Lets idle threads end."""
        for _ in self._threads:
            self._todo.put(None)

    @property
    def busy(self) -> bool:
        """Whether a thread still runs something: it cannot be joined."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float) -> None:
        """Waits for the threads, `seconds` in all at most."""
        for thread in self._threads:
            thread.join(max(0.0, seconds / max(1, len(self._threads))))

    def _pull(self) -> None:
        while (attempt := self._todo.get()) is not None:
            attempt.started = True
            value: Any = None
            error: BaseException | None = None
            try:
                value = self._context(attempt).call()
            except BaseException as raised:  # noqa: BLE001 - a handler may raise anything; the thread lives on
                error = raised
            self._done.append((attempt, value, error))
            if not self._calling:
                self._calling = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._calling = False
        ends = []
        while self._done:
            ends.append(self._done.popleft())
        if ends:
            self._ended(ends)

    async def _run_async(self, attempt: Attempt) -> None:
        attempt.started = True
        value: Any = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(attempt.handler.timeout):
                value = await self._context(attempt).call()
        except asyncio.CancelledError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - as above
            error = raised
        self._tasks.pop(attempt, None)
        self._ended([(attempt, value, error)])
