"""Processes for handlers that are to be killed at their timeout: `@app.handler(isolate="process")`.

The worker's side; `workers/child.py` is the other. A process is started when an attempt finds none that is idle, loads
the app once, and runs one attempt after the other. It is killed, with all that it has started, when its attempt is
cancelled or late, and then another takes its place. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import multiprocessing as mp
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError
from rota.sched.lifecycle import Backoff
from rota.workers.attempt import Verdict
from rota.workers.carried import restore
from rota.workers.child import LENGTH, live, order

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rota.sched.settings import Settings
    from rota.workers.attempt import Attempt

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""A process that had nothing to do for so long is ended."""
START_SECONDS = 60.0
"""Within which a process must have loaded the app."""
_END_SECONDS = 5.0
"""What a process that is told to end may take for it, and the kernel to end one that is killed."""


class ProcessDied(RotaError):  # noqa: N818 - what has happened, not who is wrong
    """The process of a handler ended in the middle of an attempt. `exitcode` as in multiprocessing: -9 for signal 9."""

    code = "process_died"

    def __init__(self, exitcode: int | None) -> None:
        super().__init__(f"the process of the handler {_death(exitcode)}")
        self.exitcode = exitcode


class CannotStart(RotaError):  # noqa: N818 - as above
    """There is no process for a handler: it ended, or raised, or took too long while it loaded the app."""

    code = "cannot_start"


class Isolated:
    """`settings.concurrency` processes at most. `prepare` is called first in each: a function that can be pickled."""

    def __init__(self, settings: Settings, prepare: Callable[[], None] | None = None) -> None:
        self._settings = settings
        self._prepare = prepare
        self._room = asyncio.Semaphore(settings.concurrency)
        self._idle: list[_Child] = []
        self._backoff = Backoff(0.5, 30.0)
        self._pause = 0.0
        self._not_before = 0.0
        self._ending: set[asyncio.Task[int | None]] = set()

    async def run(self, attempt: Attempt) -> Verdict:
        """Runs an attempt, within its timeout from when a process is there for it, and gives its success.

        Raises what its handler raised (see `Carried`), TimeoutError, ProcessDied, and CannotStart. When it raises or is
        cancelled while the handler runs, the process is gone by then: nothing goes on behind the run's back.
        """
        async with self._room:
            while (end := await self._run_in(await self._take(), attempt)) is None:
                pass
        if "error" in end:
            raise restore(end["error"])
        return Verdict(*end["verdict"])

    async def _run_in(self, child: _Child, attempt: Attempt) -> dict[str, Any] | None:
        """How the attempt ended in this process; None if it did not begin there, because the process was dying."""
        try:
            async with asyncio.timeout(attempt.timeout):
                end = await child.run(attempt)
        except TimeoutError:
            await self._end(child.kill())
            raise TimeoutError(
                f"attempt {attempt.number} did not end within its timeout of {attempt.timeout:g} s: its process was killed"
            ) from None
        except EOFError:
            exitcode = await self._end(child.bury())
            if child.used and not child.begun:
                return None
            raise ProcessDied(exitcode) from None
        except BaseException:
            await self._end(child.kill())
            raise
        self._keep(child)
        return end

    async def close(self) -> None:
        """Ends the processes. Nothing may run any more."""
        while self._idle:
            self._retire(self._idle[-1])
        if self._ending:
            await asyncio.wait(self._ending)

    async def _take(self) -> _Child:
        """The process that was idle for the shortest time, or a new one."""
        while self._idle:
            child = self._idle.pop()
            child.idle.cancel()
            if child.alive:
                return child
            await self._end(child.bury())
        await self._turn()
        try:
            child = await self._start()
        except CannotStart:
            self._pause = self._backoff.pause()
            self._not_before = time.monotonic() + self._pause
            raise
        self._backoff.reset()
        self._pause = self._not_before = 0.0
        return child

    async def _start(self) -> _Child:
        try:
            child = _Child(self._settings, self._prepare)
        except OSError as error:  # the host has no room for another
            raise CannotStart(f"no process for the handler: {error}") from error
        try:
            async with asyncio.timeout(START_SECONDS):
                await child.start()
        except (TimeoutError, EOFError, CannotStart) as error:
            raise CannotStart(f"no process for the handler: {await self._epitaph(child, error)}") from None
        except BaseException:
            await self._end(child.kill())
            raise
        return child

    async def _turn(self) -> None:
        """After a start that failed there is a pause before each, until one succeeds."""
        while (wait := self._not_before - time.monotonic()) > 0:  # noqa: ASYNC110 - it moves
            await asyncio.sleep(wait)
        if self._pause:
            self._not_before = time.monotonic() + self._pause

    async def _epitaph(self, child: _Child, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            await self._end(child.kill())
            return f"it has not loaded {self._settings.app} within {START_SECONDS:g} s"
        exitcode = await self._end(child.bury())
        if isinstance(error, EOFError):
            return f"while it loaded {self._settings.app} it {_death(exitcode)}"
        return str(error)

    def _keep(self, child: _Child) -> None:
        child.used = True
        self._idle.append(child)
        child.idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._retire, child)

    def _retire(self, child: _Child) -> None:
        child.idle.cancel()
        self._idle.remove(child)
        self._ended(child.leave())

    async def _end(self, ending: Coroutine[Any, Any, int | None]) -> int | None:
        """Waits for an end that goes on if the waiting is cancelled."""
        return await asyncio.shield(self._ended(ending))

    def _ended(self, ending: Coroutine[Any, Any, int | None]) -> asyncio.Task[int | None]:
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


class _Child:
    """One process, which has one attempt at a time and is ended once: by `kill`, `bury` or `leave`."""

    idle: asyncio.TimerHandle
    used = False
    """Whether it has ended an attempt well."""
    begun = False
    """Whether it has begun the attempt that it was given."""

    def __init__(self, settings: Settings, prepare: Callable[[], None] | None) -> None:
        self._connection, there = socket.socketpair()
        with there:
            self._process = mp.get_context("spawn").Process(
                target=live, args=(settings, there, prepare), name="handler"
            )
            try:
                self._process.start()
            except BaseException:
                self._connection.close()
                raise
        assert self._process.pid is not None
        self._pid = self._process.pid
        self._attempt: Attempt | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        """Whether it can be given an attempt."""
        return self._listening is not None and not self._listening.done() and not self._over()

    async def start(self) -> None:
        """Waits until it has loaded the app. Raises CannotStart with its error, and EOFError if it ends."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._listening = asyncio.create_task(self._listen(reader))
        answer = await self._answer
        if "failed" in answer:
            error = restore(answer["failed"])
            raise CannotStart(f"{type(error).__name__}: {error}")

    async def run(self, attempt: Attempt) -> dict[str, Any]:
        """One attempt, and its end as the process tells it. Raises EOFError if the process ends."""
        self._answer = asyncio.get_running_loop().create_future()
        self._attempt = attempt
        self.begun = False
        self._writer.write(order(attempt))
        return await self._answer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hears what the process tells until it is gone; never cancelled in the middle of a piece."""
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                told = json.loads(await reader.readexactly(size))
                if "begun" in told:
                    self.begun = True
                elif "set" in told:
                    setattr(self._attempt, *told["set"])
                elif not self._answer.done():
                    self._answer.set_result(told)
        except (EOFError, OSError):
            if not self._answer.done():
                self._answer.set_exception(EOFError())

    async def kill(self) -> int | None:
        """Kills it with all that it has started, and hears what it told before. Gives its exit code."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            self._look()  # raises if it was waited for: its number may be another's by now
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()  # it may not lead its group yet
        if not await _until(lambda: self._process.exitcode is not None, _END_SECONDS):
            log.error("process %s of a handler was killed and does not end", self._pid)
            return None
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=_END_SECONDS)
            self._listening.cancel()
            self._writer.close()
        else:
            self._connection.close()
        exitcode = self._process.exitcode
        self._process.close()
        return exitcode

    async def bury(self) -> int | None:
        """After the end of its connection: gives the exit code that it ended with by itself, None if it did not."""
        by_itself = await _until(self._over, 1.0)
        exitcode = await self.kill()
        return exitcode if by_itself else None

    async def leave(self) -> int | None:
        """Lets it end."""
        self._writer.close()
        await _until(self._over, _END_SECONDS)
        return await self.kill()

    def _over(self) -> bool:
        try:
            return self._look()
        except ChildProcessError:
            return True

    def _look(self) -> bool:
        """Whether it has ended; without waiting for it, which would free its number. ChildProcessError if that is done."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


async def _until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)  # pipes that tell of an end may be held by what the process has started
    return True


def _death(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection to the worker, which killed it"
    if exitcode < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"died with signal {-exitcode} ({names.get(-exitcode, 'no name')})"
    return f"ended with exit code {exitcode}"
