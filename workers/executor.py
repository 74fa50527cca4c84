"""Runs handlers: async ones as tasks of the loop, isolated ones in processes, other sync ones in threads that pull.

To wake a thread costs more than a short handler: threads that are awake take one attempt after the other, and more are
woken only when attempts have waited for SPREAD_SECONDS. Ends come back in batches: one call into the loop is under way
at a time and takes along whatever has ended by then.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rota.workers.attempt import Attempt
    from rota.workers.context import RunContext
    from rota.workers.isolated import Isolated

log = logging.getLogger(__name__)

SPREAD_SECONDS = 0.001
"""How long an attempt may wait behind one that takes its time before one more thread is woken for it."""
PATIENCE = 5.0
"""Seconds past its timeout that a thread has to notice it (`ctx.cancelled`, `ctx.deadline`), and a coroutine past its cancel to
clean up."""

End = tuple["Attempt", Any, BaseException | None]
"""An attempt with what its handler returned or raised."""


class Executor:
    """`size` threads and any number of tasks. `ended` is called in the loop with each end, `context` makes the ctx."""

    def __init__(
        self,
        size: int,
        context: Callable[[Attempt], RunContext],
        ended: Callable[[list[End]], None],
        isolated: Isolated,
    ) -> None:
        self._isolated = isolated
        self._context = context
        self._ended = ended
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        """Held for what follows, up to `_calls`."""
        self._todo: deque[Attempt] = deque()
        self._parked = 0
        """Threads that wait for a call."""
        self._busy = 0
        """Threads that are in a handler."""
        self._taken = 0
        """Attempts that threads have taken since the last look."""
        self._leave = 0
        """So many threads are to end."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._spreading = False
        self._done: deque[End] = deque()
        self._calling = False
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._called: set[Attempt] = set()
        self._given_up: set[Attempt] = set()
        self._closed = False
        self._threads: list[threading.Thread] = []
        for _ in range(size):
            self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._pull, name=f"handler-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Runs attempts as soon as there is a thread or a process for them; async ones at once."""
        todo: list[Attempt] = []
        for attempt in attempts:
            if attempt.handler.is_async or attempt.handler.isolate:
                self._tasks[attempt] = self._loop.create_task(self._run_async(attempt))
            else:
                todo.append(attempt)
        if not todo:
            return
        with self._lock:
            self._todo += todo
            if len(self._threads) == self._parked + self._busy:  # else one is about to look for more
                self._call(1)
        if not self._spreading:
            self._spreading, self._taken = True, 0
            self._loop.call_later(SPREAD_SECONDS, self._spread)

    def _spread(self) -> None:
        """Wakes threads for what still waits, unless those that are awake get through it quickly."""
        with self._lock:
            quick = self._taken > len(self._threads) - self._parked
            self._taken = 0
            if not quick:
                self._call(len(self._todo))
            self._spreading = bool(quick and self._todo)
        if self._spreading:
            self._loop.call_later(SPREAD_SECONDS, self._spread)

    def _call(self, threads: int) -> None:
        """Wakes so many threads, if so many are parked. With the lock held."""
        for _ in range(min(threads, self._parked)):
            self._parked -= 1
            self._calls.put(None)

    def unstarted(self) -> list[Attempt]:
        """Takes back what no thread has started."""
        with self._lock:
            taken = list(self._todo)
            self._todo.clear()
        return taken

    def abandon(self, attempt: Attempt) -> None:
        """Cancels an async or isolated attempt whose result is not wanted any more; a thread cannot be stopped."""
        task = self._tasks.get(attempt)
        if task is not None:
            attempt.told = time.monotonic()
            task.cancel()

    def give_up_overdue(self) -> None:
        """Takes runs from threads and coroutines that are past their end by more than PATIENCE, as if they had raised.

        That is past their timeout, or of a coroutine past its cancel. What such a one still does is in vain: its writes are
        fenced. Another takes its place, as long as no more than `size` are stuck: see `lost`.
        """
        now = time.monotonic()
        running = [*list(self._called), *(a for a in self._tasks if not a.handler.isolate)]
        for attempt, error in [(a, e) for a in running if not a.given_up and (e := _overdue(a, now)) is not None]:
            attempt.given_up = True
            self._given_up.add(attempt)
            kind = "coroutine" if attempt.handler.is_async else "thread"
            log.error(
                "run %s: its %s does not end though it is past its time, and is left alone", attempt.job.key, kind
            )
            self._fit()
            self._ended([(attempt, None, error)])

    @property
    def stuck_threads(self) -> int:
        """How many threads are still busy with what was taken from them."""
        return sum(not attempt.handler.is_async for attempt in list(self._given_up))

    @property
    def stuck_coroutines(self) -> int:
        """How many coroutines go on with what was taken from them."""
        return sum(attempt.handler.is_async for attempt in list(self._given_up))

    @property
    def lost(self) -> int:
        """How many slots are gone until something ends that is stuck: as many as are stuck beyond `size`."""
        return max(0, len(self._given_up) - self._size)

    def _fit(self) -> None:
        """Starts or dismisses threads until there is one for each slot that is not lost, beside those that are stuck."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        with self._lock:
            surplus = len(self._threads) - self._leave - self.stuck_threads - (self._size - self.lost)
        if surplus > 0:
            self._dismiss(surplus)
        while surplus < 0 and not self._closed:
            self._start_thread()
            surplus += 1

    def close(self) -> None:
        """Lets idle threads end, and the others with their run."""
        self._closed = True
        self._dismiss(len(self._threads))

    @property
    def busy(self) -> bool:
        """Whether a thread or coroutine still runs something: neither can be ended from outside."""
        return any(thread.is_alive() for thread in self._threads) or bool(self._coroutines())

    @property
    def ending(self) -> bool:
        """Whether there are coroutines that may still end: they have not been given up."""
        return not all(attempt.given_up for attempt in self._coroutines())

    def _coroutines(self) -> list[Attempt]:
        return [a for a, task in self._tasks.items() if not (a.handler.isolate or task.done())]

    def join(self, seconds: float) -> None:
        """Waits for the threads, `seconds` in all at most."""
        for thread in self._threads:
            thread.join(max(0.0, seconds / max(1, len(self._threads))))

    def _dismiss(self, threads: int) -> None:
        """Lets so many threads end as soon as they find nothing to do."""
        with self._lock:
            self._leave += threads
            self._call(threads)

    def _next(self) -> Attempt | None:
        """What a thread is to run; waits for it. None: the thread is to end."""
        while True:
            with self._lock:
                if self._todo:
                    self._busy += 1
                    self._taken += 1
                    return self._todo.popleft()
                if self._leave:
                    self._leave -= 1
                    return None
                self._parked += 1
            self._calls.get()

    def _pull(self) -> None:
        while (attempt := self._next()) is not None:
            value: Any = None
            error: BaseException | None = None
            attempt.started = time.monotonic()
            self._called.add(attempt)
            try:
                if attempt.cancelled:
                    raise asyncio.CancelledError  # noqa: TRY301 - as a task's end
                value = self._context(attempt).call()
            except BaseException as raised:  # noqa: BLE001 - a handler may raise anything; the thread lives on
                error = raised
            self._called.discard(attempt)
            with self._lock:
                self._busy -= 1
            self._done.append((attempt, value, error))
            if not self._calling:
                self._calling = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._calling = False
        ends = []
        while self._done:
            end = self._done.popleft()
            if end[0].given_up:
                self._given_up.discard(end[0])
                self._fit()
            else:
                ends.append(end)
        if ends:
            self._ended(ends)

    async def _run_async(self, attempt: Attempt) -> None:
        attempt.started = time.monotonic()
        value: Any = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(None if attempt.handler.isolate else attempt.timeout) as limit:
                if attempt.handler.isolate:
                    value = await self._isolated.run(attempt)
                else:
                    value = await self._context(attempt).call()
        except asyncio.CancelledError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - as above
            error = _timed_out(attempt) if limit.expired() else raised
        self._tasks.pop(attempt, None)
        if attempt.given_up:
            self._given_up.discard(attempt)
            self._fit()
        else:
            self._ended([(attempt, value, error)])


def _overdue(attempt: Attempt, now: float) -> BaseException | None:
    """What becomes of an attempt that should have ended PATIENCE ago; None: it has more time."""
    timeout, before = attempt.timeout, now - PATIENCE
    if timeout and attempt.started and attempt.started + timeout < before:
        return _timed_out(attempt)
    return asyncio.CancelledError() if attempt.told is not None and attempt.told < before else None


def _timed_out(attempt: Attempt) -> TimeoutError:
    return TimeoutError(f"attempt {attempt.number} did not end within its timeout of {attempt.timeout:g} s")
