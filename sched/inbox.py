"""A queue's deliveries in batches, for what a scheduler consumes: commands in, and dead letters.

Batches form by themselves: while one is being worked on, what arrives becomes the next. Nothing is acknowledged before
the store has committed; while the store is away, deliveries are held (the prefetch bounds them) and the batch is tried
again, but not for so long that the broker's ack timeout would strike: then all go back to the queue, and come again.
When the broker's channel ends, the broker has given them to somebody else: the batch is void and let go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, TypeVar

from rota.sched.broker.messages import Outgoing, Publish
from rota.sched.broker.topology import PARKED
from rota.sched.errors import RotaError, Unreachable, UsageError
from rota.sched.lifecycle import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rota.sched.broker.messages import Delivery
    from rota.sched.broker.protocol import BrokerConsumer, BrokerPublisher
    from rota.sched.store.protocols import AsyncLink
    from rota.sched.store.transaction import Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 500
STOP_SECONDS = 10.0
"""How long a stop waits for the batch under way."""
ERROR_HEADER = "x-rota-error"
ERROR_LIMIT = 500
"""Longest text of that header, in characters."""


class Void(RotaError):  # noqa: N818 - nothing went wrong
    """The deliveries belong to somebody else by now, or shall."""


class Inbox:
    """Consumes one queue and hands batches to `flush`, one at a time. Belongs to the event loop.

    While the store is away no delivery is held longer than `longest_hold` seconds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the words of the request
        self,
        queue: str,
        link: AsyncLink,
        consumer: BrokerConsumer,
        publisher: BrokerPublisher,
        flush: Callable[[list[Delivery]], Awaitable[None]],
        longest_hold: float,
    ) -> None:
        self._queue = queue
        self._link = link
        self._consumer = consumer
        self._publisher = publisher
        self._flush = flush
        self._longest_hold = longest_hold
        self._began = 0.0
        self._waiting: list[Delivery] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._side: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to consume, now or when the consumer is up."""
        self._task = asyncio.create_task(self._run(), name=f"inbox {self._queue}")
        await self._consumer.consume(self._queue, BATCH, self._receive)

    async def stop(self) -> None:
        """Ends it in bounded time: what is not settled by then goes back to the queue when the consumer closes."""
        await self._consumer.cancel(self._queue)
        self._waiting.clear()
        tasks = [asyncio.create_task(self._idle.wait()), *self._side]
        await asyncio.wait(tasks, timeout=STOP_SECONDS)
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def aside(self, work: Awaitable[None]) -> None:
        """Has `work` done beside the batches that follow; it ends quietly with its epoch."""
        task = asyncio.ensure_future(self._quietly(work))
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    async def patiently(self, attempt: Callable[[bool], Transaction[T]], delivery: Delivery) -> T:
        """Runs a transaction until the store answers. `attempt` is told whether it is a repetition.

        Raises Void when the epoch of `delivery` has ended meanwhile or its batch has been held for too long, and what the
        store raises but Unreachable.
        """
        backoff, repeated = Backoff(), False
        while True:
            try:
                return await self._link.run(attempt(repeated))
            except Unreachable as error:
                if not repeated:
                    log.warning("%s: holding what has come; %s", self._queue, error)
                repeated = True
            await self._pause(backoff, delivery)
            # What came while the batch before was worked on has waited already: half for waiting, half for this.
            if time.monotonic() - self._began > self._longest_hold / 2:
                raise Void("the store has been away for too long")

    async def park(self, delivery: Delivery, reason: str) -> None:
        """Puts a copy into `rota.parked` with the reason, confirmed. The delivery itself is not settled."""
        message = parked(delivery, reason)
        log.warning("%s: parked message %r: %s", self._queue, message.message_id, reason)
        while await self._publish(message, delivery) is not Publish.CONFIRMED:
            await self._pause(Backoff(1.0), delivery)

    async def answer(self, message: Outgoing, delivery: Delivery) -> None:
        """Publishes an answer. A reply queue that is gone or full is its owner's business."""
        try:
            await self._publish(message, delivery)
        except UsageError as error:
            log.warning("%s: an answer cannot be sent: %s", self._queue, error)

    async def _publish(self, message: Outgoing, delivery: Delivery) -> Publish:
        """Sends until the broker has said something about it."""
        backoff = Backoff()
        while (outcome := await self._publisher.send(message)) is Publish.UNKNOWN:
            await self._pause(backoff, delivery)
        return outcome

    async def _pause(self, backoff: Backoff, delivery: Delivery) -> None:
        await asyncio.sleep(backoff.pause())
        if delivery.epoch != self._consumer.epoch:
            raise Void(f"deliveries of epoch {delivery.epoch} are void")

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Void as error:
            log.debug("%s: %s", self._queue, error)

    def _receive(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._take()
            if batch:
                self._idle.clear()
                await self._work(batch)
                self._idle.set()

    def _take(self) -> list[Delivery]:
        """The next batch; what an older epoch brought is dropped."""
        epoch = self._consumer.epoch
        alive = [each for each in self._waiting if each.epoch == epoch]
        batch, self._waiting = alive[:BATCH], alive[BATCH:]
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _work(self, batch: list[Delivery]) -> None:
        self._began = time.monotonic()
        try:
            await self._flush(batch)
        except Void as error:
            log.debug("%s: %s", self._queue, error)
            self._give_back(batch)
        except Exception:
            log.exception("%s: a batch of %s failed; it goes back to the queue", self._queue, len(batch))
            await asyncio.sleep(1.0)  # a fault of ours must not become a storm of redeliveries
            self._give_back(batch)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        """To the queue what is ours still: what is void or settled the consumer leaves alone."""
        for delivery in deliveries:
            self._consumer.nack(delivery)


def parked(delivery: Delivery, reason: str) -> Outgoing:
    """The copy of a delivery that goes to `rota.parked`: made afresh, a received `x-death` must not travel on."""
    old = delivery.properties
    return Outgoing(
        PARKED,
        "",
        delivery.body,
        old.message_id or "",
        type=old.type,
        headers={ERROR_HEADER: short(reason)},
        correlation_id=old.correlation_id,
        app_id=old.app_id,
        content_type=old.content_type,
    )


def short(reason: str) -> str:
    """A reason as it fits a header."""
    text = reason.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"
