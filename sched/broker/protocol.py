"""A broker as scheduler and worker see it. `rota.sched.broker.rabbitmq` is one; an in-process one can be another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rota.sched.broker.messages import Delivery, Depth, Drift, Outgoing, Properties, Publish, ServerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rota.sched.broker.topology import Topology

__all__ = [
    "BrokerConsumer",
    "BrokerLink",
    "BrokerPublisher",
    "Delivery",
    "Depth",
    "Drift",
    "Outgoing",
    "Properties",
    "Publish",
    "ServerInfo",
]


class BrokerLink(Protocol):
    """One connection that comes back by itself until it is closed. All of it belongs to one event loop."""

    @property
    def up(self) -> bool:
        """Whether it is connected and set up."""

    @property
    def blocked(self) -> bool:
        """Whether the broker takes nothing for now (a memory or disk alarm). Stop claiming; do not reconnect."""

    @property
    def trouble(self) -> str | None:
        """Why it is not up, for people; None while it is."""

    @property
    def server(self) -> ServerInfo:
        """Who answered last."""

    async def start(self, wait: float | None = None) -> None:
        """Connect, now and again. With `wait` (seconds), raise Unreachable if it is not up by then."""

    async def close(self) -> None:
        """End it, in bounded time."""

    async def declare(self, topology: Topology | None = None) -> list[Drift]:
        """Declare all that exists once per vhost, or `topology`. Idempotent; differences are reported and left."""

    async def declare_work_queue(self, queue: str) -> Drift | None:
        """Declare and bind the work queue of `queue`."""

    async def passive(self, queue: str) -> Depth | None:
        """What is in the broker's queue `queue`; None if there is no such queue."""

    async def depths(self, queues: Sequence[str]) -> list[Depth | None]:
        """The same of several queues."""


class BrokerPublisher(BrokerLink, Protocol):
    """Publishes with confirms."""

    @property
    def in_flight(self) -> int:
        """How many publishes have no outcome yet."""

    def publish(self, message: Outgoing, done: Callable[[Publish], None]) -> None:
        """Send; `done` is called exactly once with the outcome, never before this returns. Raises UsageError."""

    async def send(self, message: Outgoing) -> Publish:
        """Publish and wait for the outcome."""

    async def flush(self, wait: float) -> bool:
        """Wait until nothing is in flight, at most `wait` seconds. Whether that was reached."""


class BrokerConsumer(BrokerLink, Protocol):
    """Consumes queues over one channel at a time; each life of the channel is an epoch."""

    @property
    def epoch(self) -> int:
        """The number of the channel in use; it rises with every new one."""

    @property
    def held(self) -> int:
        """How many deliveries the broker counts as held by this consumer."""

    async def consume(self, queue: str, prefetch: int, on_message: Callable[[Delivery], None]) -> None:
        """Take from the broker's queue `queue`, now and in every later epoch."""

    async def resize(self, queue: str, prefetch: int) -> None:
        """Take from a queue with another prefetch; no consumer of that queue, no change."""

    async def check(self) -> None:
        """See that the broker still counts us as a consumer of what we consume, and begin anew if not."""

    async def subscribe(self, exchange: str, keys: Sequence[str], on_message: Callable[[Delivery], None]) -> None:
        """Listen to an exchange through a queue of one's own that dies with the connection. Nothing is acked."""

    async def cancel(self, queue: str | None = None) -> None:
        """Stop consuming one queue or all of them. What is held can still be acked."""

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> bool:
        """Settle; False if the delivery is void (an older epoch) or settled already."""

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Give back (or, without `requeue`, dead-letter)."""

    def reject(self, delivery: Delivery, *, requeue: bool = False) -> bool:
        """Dead-letter (or, with `requeue`, give back and count it as a failed delivery)."""
