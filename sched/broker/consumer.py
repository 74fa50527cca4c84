"""Consumes over one channel at a time, on a connection that only consumes and acknowledges.

Delivery tags belong to their channel, and to ack a foreign one closes the channel under all the others. So each
life of the channel is an **epoch**, deliveries carry theirs, and what is settled under another epoch is ignored:
the broker has given those messages to someone else already.

When the server cancels a consumer (4.3's ack timeout, a deleted queue) the channel is closed and another opened:
on 4.3 a late ack would revive a consumer that pika has forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.sched.broker.acks import AckWindow
from rota.sched.broker.channel import Calls, ChannelGone
from rota.sched.broker.connection import describe, guarded
from rota.sched.broker.link import Link
from rota.sched.broker.messages import Delivery
from rota.sched.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rota.sched.broker.connection import Receiver, Wire

log = logging.getLogger(__name__)


class _Queue(NamedTuple):
    prefetch: int
    on_message: Callable[[Delivery], None]


class _Subscription(NamedTuple):
    exchange: str
    keys: tuple[str, ...]
    on_message: Callable[[Delivery], None]


class Consumer(Link):
    """One consuming connection. `on_lost(epoch)` says that all deliveries of that epoch are void.

    `on_up` runs before every epoch, so what it declares is there when the consumers come back. What an
    `on_message` raises is logged and ends the epoch: its deliveries go back to their queues.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_up: Callable[[], Awaitable[None]] | None = None,
        on_down: Callable[[str], None] | None = None,
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(url, name, on_up=on_up, on_down=on_down)
        self.epoch = 0
        self._begun = 0
        self._on_lost = on_lost
        self._queues: dict[str, _Queue] = {}
        self._subscriptions: list[_Subscription] = []
        self._tags: dict[str, str] = {}
        self._calls: Calls | None = None
        self._side: Calls | None = None
        self._window = AckWindow()
        self._flushing = False
        self._changing = asyncio.Lock()

    @property
    def held(self) -> int:
        """How many deliveries the broker counts as held here."""
        return len(self._window)

    async def consume(self, queue: str, prefetch: int, on_message: Callable[[Delivery], None]) -> None:
        """Take from the broker's queue `queue`, now and in every later epoch until `cancel`.

        At most `prefetch` are unacknowledged at a time. All queues share one channel, so that a multiple ack
        covers them all.
        A queue that is not there ends the epoch, and the next is tried with a growing delay: declare it in `on_up`.
        Raises UsageError for a wrong prefetch and for a queue that is consumed already.
        """
        if not 1 <= prefetch <= 65535:
            raise UsageError(f"prefetch {prefetch} for {queue!r} is not from 1 to 65535")
        if queue in self._queues:
            raise UsageError(f"{queue!r} is consumed already: cancel it first")
        self._queues[queue] = _Queue(prefetch, on_message)
        if self._calls is not None:
            with contextlib.suppress(ChannelGone, Unreachable):
                await self._begin(self._calls, queue)

    async def resize(self, queue: str, prefetch: int) -> None:
        """Take from `queue`, which is consumed, with another prefetch. What is held stays held and does not count."""
        known = self._queues.get(queue)
        if known is None or known.prefetch == prefetch:
            return
        self._queues[queue] = known._replace(prefetch=prefetch)
        await self._stop(queue)
        if self._calls is not None:
            with contextlib.suppress(ChannelGone, Unreachable):
                await self._begin(self._calls, queue)

    async def subscribe(self, exchange: str, keys: Sequence[str], on_message: Callable[[Delivery], None]) -> None:
        """Listen to what passes an exchange (for a fanout the keys are `[""]`), now and after every reconnect.

        It goes through a queue of its own that dies with the channel: what passes meanwhile is missed. These
        deliveries have tag 0 and are not acknowledged.
        """
        subscription = _Subscription(exchange, tuple(keys), on_message)
        self._subscriptions.append(subscription)
        if self._side is not None:
            with contextlib.suppress(ChannelGone, Unreachable):
                await self._listen(self._side, subscription)

    async def cancel(self, queue: str | None = None) -> None:
        """Stop consuming `queue`, or all queues.

        What is held stays held and can be settled; what arrives meanwhile goes back. Subscriptions go on.
        """
        # Also what an interrupted call has taken off the list and not yet stopped.
        for each in [queue] if queue is not None else [*self._queues, *(self._tags.keys() - self._queues.keys())]:
            self._queues.pop(each, None)
            await self._stop(each)

    async def _stop(self, queue: str) -> None:
        async with self._changing:
            tag, calls = self._tags.pop(queue, None), self._calls
            if tag is not None and calls is not None:
                # What still comes is pika's now, which gives it back.
                calls.wire.receivers.pop((calls.raw.channel_number, tag.encode()), None)
                with contextlib.suppress(ChannelGone, Unreachable):
                    await calls.call(calls.raw.basic_cancel, tag)

    async def check(self) -> None:
        """Opens another channel if a queue holds messages and the broker knows no consumer of it, us included.

        Not to be told of a cancel is rare, and would last for ever. Raises Unreachable.
        """
        async with self._changing:
            for queue in list(self._tags):
                depth = await self.passive(queue)
                if depth is not None and depth.messages and not depth.consumers and self._calls is not None:
                    log.warning("the broker does not know us as a consumer of %s: opening another channel", queue)
                    self._give_up(self._calls, f"the broker has forgotten the consumer of {queue}")
                    return

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> bool:
        """Acknowledge at the end of this turn of the event loop, together with what else is acknowledged in it.

        `multiple`: with all that was delivered before it. False if the delivery is void or was settled before.
        """
        if delivery.epoch != self.epoch:
            return False
        window = self._window
        if not (window.settle_through(delivery.tag) if multiple else window.settle(delivery.tag)):
            return False
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        return True

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Give it back to its queue (on 4.3 without counting a delivery), or dead-letter it. False as for `ack`."""
        raw = self._droppable(delivery)
        if raw is not None:
            raw.basic_nack(delivery.tag, requeue=requeue)
        return raw is not None

    def reject(self, delivery: Delivery, *, requeue: bool = False) -> bool:
        """Dead-letter it (reason `rejected`), or give it back as a failed delivery. False as for `ack`."""
        raw = self._droppable(delivery)
        if raw is not None:
            raw.basic_reject(delivery.tag, requeue=requeue)
        return raw is not None

    def _droppable(self, delivery: Delivery) -> Any:
        calls = self._calls
        if delivery.epoch != self.epoch or calls is None or not calls.raw.is_open:
            return None
        return calls.raw if self._window.drop(delivery.tag) else None

    def _flush(self) -> None:
        self._flushing = False
        calls = self._calls
        if calls is None or not calls.raw.is_open:
            return
        for tag, multiple in self._window.flush():
            calls.raw.basic_ack(tag, multiple=multiple)

    async def _activate(self, wire: Wire) -> None:
        calls = await Calls.open(wire)
        calls.raw.add_on_close_callback(guarded(lambda _, error: self._on_channel_closed(calls, error)))
        calls.raw.add_on_cancel_callback(guarded(lambda frame: self._on_server_cancel(calls, frame)))
        self.epoch += 1
        self._window, self._calls, self._tags = AckWindow(), calls, {}
        for queue in list(self._queues):
            await self._begin(calls, queue)
        side = await Calls.open(wire)
        side.raw.add_on_close_callback(guarded(lambda _, error: self._on_channel_closed(side, error)))
        self._side = side
        for subscription in self._subscriptions:
            await self._listen(side, subscription)

    async def _begin(self, calls: Calls, queue: str) -> None:
        async with self._changing:  # the prefetch counts for the consumers that begin after it
            wanted = self._queues.get(queue)
            if wanted is None or queue in self._tags:
                return
            self._begun += 1  # a tag is not used twice: what an ended consumer holds is still under its own
            tag = f"{self.name}.{self._begun}.{queue}"[-255:]
            self._tags[queue] = tag
            await calls.call(calls.raw.basic_qos, prefetch_count=wanted.prefetch)
            receive = self._receiver(calls, queue, wanted.on_message)
            calls.wire.receivers[calls.raw.channel_number, tag.encode()] = receive

            def by_pika(_: Any, method: Any, properties: Any, body: bytes) -> None:
                receive(method.delivery_tag, method.redelivered, properties, body)

            await calls.call(calls.raw.basic_consume, queue, by_pika, consumer_tag=tag)

    def _receiver(self, calls: Calls, queue: str, on_message: Callable[[Delivery], None]) -> Receiver:
        epoch, delivered = self.epoch, self._window.delivered

        def receive(tag: int, redelivered: bool, properties: Any, body: bytes) -> None:  # noqa: FBT001 - pika's order
            try:
                delivered(tag)
                on_message(Delivery(tag, epoch, queue, body, properties, redelivered))
            except Exception:
                log.exception("taking a message from %s failed; the channel is closed", queue)
                self._give_up(calls, f"taking a message from {queue} failed")

        return receive

    async def _listen(self, side: Calls, subscription: _Subscription) -> None:
        raw, (exchange, keys, on_message) = side.raw, subscription
        declared = await side.call(raw.queue_declare, queue="", exclusive=True, auto_delete=True)
        queue = declared.method.queue
        for key in keys:
            await side.call(raw.queue_bind, queue, exchange, key)

        def receive(_: Any, method: Any, properties: Any, body: bytes) -> None:
            on_message(Delivery(0, 0, queue, body, properties, method.redelivered))

        await side.call(raw.basic_consume, queue, guarded(receive), auto_ack=True)

    def _on_server_cancel(self, calls: Calls, frame: Any) -> None:
        log.warning("the broker has cancelled consumer %s; opening another channel", frame.method.consumer_tag)
        self._give_up(calls, "the broker has cancelled a consumer")

    def _give_up(self, calls: Calls, reason: str) -> None:
        """No more from this channel, at once; the session ends with the next turn of the loop."""
        calls.shut()
        if calls is self._calls:
            self._end_session(reason)

    def _on_channel_closed(self, calls: Calls, error: BaseException) -> None:
        if calls is self._calls or calls is self._side:
            self._end_session(describe(error))

    def _detach(self, reason: str) -> None:  # noqa: ARG002 - the hook's signature
        calls, self._calls, self._side, side = self._calls, None, None, self._side
        for each in (calls, side):
            if each is not None:
                each.shut()
        if calls is not None:
            self._window = AckWindow()
            if self._on_lost is not None:
                guarded(self._on_lost)(self.epoch)
