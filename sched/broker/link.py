"""A connection that comes back by itself.

A link runs one loop: connect, serve, wait, again. To serve is to run **sessions** on the connection. A session
prepares what it needs (a publisher its channel), calls the user's `on_up`, which declares, then goes to work (a
consumer starts consuming), and ends with its channel or with the connection. A session that ends while the
connection lives is followed by another on the same connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from rota.sched.broker.connection import LoginRefused, Wire, connect, guarded
from rota.sched.broker.declare import Declarer
from rota.sched.broker.messages import Depth, Drift, ServerInfo
from rota.sched.broker.topology import Topology, stages, work_topology
from rota.sched.errors import RotaError, Unreachable
from rota.sched.urls import parse_broker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

BACKOFF_FIRST = 0.1
BACKOFF_LAST = 10.0
"""Seconds between attempts: doubling from the first to the last, each times a random factor from 0.5 to 1."""
STABLE = 5.0
"""Seconds that a session has to be up to make the next attempt the first again."""
_SLOWEST = 10


class SessionEnded(RotaError):  # noqa: N818 - named like its relatives in rota.sched.errors
    """The session was lost while it was being set up."""


class Link:
    """One AMQP connection, kept up until it is closed. Belongs to the event loop in which `start` was called.

    `on_up` is awaited in every new session before work begins, and may declare; what it raises ends the session,
    and another follows later. `on_down(reason)` is called when a session that was up has ended.
    Raises UsageError for a wrong URL.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_up: Callable[[], Awaitable[None]] | None = None,
        on_down: Callable[[str], None] | None = None,
    ) -> None:
        self.address = parse_broker(url)
        self.name = name
        self.up = False
        self.blocked = False
        self.trouble: str | None = "not started"
        self.server = ServerInfo()
        self._on_up = on_up
        self._on_down = on_down
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[str] | None = None
        self._started: asyncio.Future[None] | None = None
        self._up_since = 0.0
        self._failures = 0

    async def start(self, wait: float | None = None) -> None:
        """Begin to connect. Without `wait` this returns at once and the link comes up when it can.

        With `wait` (seconds) raises Unreachable if it is not up by then, at once if the login is refused; the
        link is closed then.
        """
        if self._task is None:
            quiet_pika()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"broker link {self.name}")
        if wait is not None:
            await self._wait_up(wait)

    async def _wait_up(self, wait: float) -> None:
        if self.up:
            return
        self._started = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(wait):
                await self._started
        except TimeoutError:
            reason = self.trouble
            await self.close()
            raise Unreachable(f"the broker was not ready within {wait:g} s: {reason}") from None
        except LoginRefused:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and the loop. Bounded; what is written already is sent first. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._session_over("closed")
        self.trouble = "closed"

    async def declare(self, topology: Topology | None = None) -> list[Drift]:
        """Declare all that exists once per vhost, or `topology`, and report what differs; nothing is changed.

        Raises Unreachable when the connection is down or ends meanwhile.
        """
        async with Declarer(self.wire) as declarer:
            parts = stages() if topology is None else (topology,)
            return [drift for part in parts for drift in await declarer.declare(part)]

    async def declare_work_queue(self, queue: str) -> Drift | None:
        """Declare and bind the work queue of `queue`; do this before publishing to it. Raises as `declare` does."""
        drifts = await self.declare(work_topology(queue))
        return drifts[0] if drifts else None

    async def passive(self, queue: str) -> Depth | None:
        """What is in the broker's queue `queue`, None if it is not there. Raises Unreachable."""
        (depth,) = await self.depths([queue])
        return depth

    async def depths(self, queues: Sequence[str]) -> list[Depth | None]:
        """The same of several, asked one after the other on one channel."""
        async with Declarer(self.wire) as declarer:
            return [await declarer.depth(queue) for queue in queues]

    @property
    def wire(self) -> Wire:
        """The open connection underneath. Raises Unreachable when there is none."""
        if self._wire is None or not self._wire.is_open:
            raise Unreachable(f"the broker {self.address.masked} is not connected: {self.trouble}")
        return self._wire

    # The loop.

    async def _run(self) -> None:
        while True:
            try:
                wire = await connect(self.address, self.name)
            except RotaError as error:
                self._note_failure(error)
            else:
                await self._serve(wire)
            await asyncio.sleep(self._backoff())

    async def _serve(self, wire: Wire) -> None:
        self._wire, self.server = wire, wire.server
        wire.add_on_connection_blocked_callback(guarded(self._on_blocked))
        wire.add_on_connection_unblocked_callback(guarded(self._on_unblocked))
        try:
            while wire.is_open:
                await self._serve_session(wire)
                if wire.is_open:
                    await asyncio.wait([wire.lost], timeout=self._backoff())
        finally:
            self._wire, self.blocked = None, False
            await wire.shut()

    async def _serve_session(self, wire: Wire) -> None:
        self._lost = lost = asyncio.get_running_loop().create_future()
        wire.lost.add_done_callback(lambda ended: _end(lost, ended.result()))
        reason = "closed"
        try:
            await self._prepare(wire)
            if self._on_up is not None:
                await self._unless_lost(self._on_up())
            await self._unless_lost(self._activate(wire))
            self._set_up()
            reason = await lost
        except RotaError as error:
            reason = str(error)
        except Exception as error:
            log.exception("setting up the broker link %s failed", self.name)
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._session_over(reason)

    async def _unless_lost(self, work: Awaitable[None]) -> None:
        """Await `work`, but not longer than the session lives."""
        assert self._lost is not None
        task = asyncio.ensure_future(work)
        either: list[asyncio.Future[Any]] = [task, self._lost]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        if self._lost.done():
            raise SessionEnded(self._lost.result())

    async def _prepare(self, wire: Wire) -> None:
        """What a session needs before `on_up`."""

    async def _activate(self, wire: Wire) -> None:
        """What a session does after `on_up`."""

    def _detach(self, reason: str) -> None:
        """The session's end: give up what belongs to it."""

    def _end_session(self, reason: str) -> None:
        if self._lost is not None:
            _end(self._lost, reason)

    def _set_up(self) -> None:
        self.up, self.trouble = True, None
        self._up_since = asyncio.get_running_loop().time()
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        log.info("broker link %s is up (%s)", self.name, self.server)

    def _session_over(self, reason: str) -> None:
        was_up, self.up = self.up, False
        if was_up and asyncio.get_running_loop().time() - self._up_since > STABLE:
            self._failures = 0
        self._failures += 1
        self.trouble = reason
        self._lost = None
        self._detach(reason)
        if was_up:
            log.info("broker link %s is down: %s", self.name, reason)
            if self._on_down is not None:
                guarded(self._on_down)(reason)

    def _note_failure(self, error: RotaError) -> None:
        self._failures += 1
        if self.trouble != str(error):
            log.warning("%s", error)
        self.trouble = str(error)
        if isinstance(error, LoginRefused):
            self._failures = _SLOWEST
            if self._started is not None and not self._started.done():
                self._started.set_exception(error)

    def _backoff(self) -> float:
        longest = min(BACKOFF_LAST, BACKOFF_FIRST * 2.0 ** min(self._failures - 1, _SLOWEST))
        return float(longest) * random.uniform(0.5, 1)  # noqa: S311 - jitter

    def _on_blocked(self, _: Any, frame: Any) -> None:
        self.blocked = True
        log.warning("the broker blocks link %s: %s", self.name, frame.method.reason)

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = False
        log.info("the broker has unblocked link %s", self.name)


def _end(lost: asyncio.Future[str], reason: str) -> None:
    if not lost.done():
        lost.set_result(reason)


def quiet_pika() -> None:
    """Pika logs every failed attempt several times as errors; the link says each once. A level set before stays."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
