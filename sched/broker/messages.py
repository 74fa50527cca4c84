"""What passes between Rota and a broker: plain values, no driver.

`Outgoing` is published, `Publish` is its outcome, `Delivery` is what a consumer is given. `Depth`, `Drift` and
`ServerInfo` are what the broker says about itself.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Publish(enum.Enum):
    """How one publish ended. Only CONFIRMED means that the message is in a queue."""

    CONFIRMED = "confirmed"
    """The broker has it, on a majority of the queue's replicas."""
    RETURNED = "returned"
    """No queue is bound for its routing key; the broker dropped it."""
    NACKED = "nacked"
    """The broker refused it (a full queue, an internal error). One of several bound queues may still have it."""
    UNKNOWN = "unknown"
    """The channel ended before the answer: it may be in the queue or not. Publish again; duplicates are dropped."""


class Outgoing:
    """A message to publish, always persistent.

    Headers are of str and int only, keys and short fields are at most 255 bytes, `expiration` is in milliseconds.
    The checks are made by `publish`, which raises UsageError.
    """

    __slots__ = (
        "app_id",
        "body",
        "content_type",
        "correlation_id",
        "exchange",
        "expiration",
        "headers",
        "mandatory",
        "message_id",
        "priority",
        "reply_to",
        "routing_key",
        "type",
    )

    def __init__(  # noqa: PLR0913 - the fields of an AMQP message; all but four are named
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        message_id: str,
        *,
        type: str | None = None,  # noqa: A002 - the property's name in AMQP
        headers: Mapping[str, str | int] | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: int | None = None,
        priority: int | None = None,
        app_id: str | None = None,
        content_type: str | None = "application/json",
        mandatory: bool = True,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.body = body
        self.message_id = message_id
        self.type = type
        self.headers = headers
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.priority = priority
        self.app_id = app_id
        self.content_type = content_type
        self.mandatory = mandatory

    def __repr__(self) -> str:
        return f"Outgoing({self.exchange!r}, {self.routing_key!r}, {len(self.body)} bytes, id {self.message_id!r})"


class Properties(Protocol):
    """The AMQP properties of a delivery, as far as Rota reads them. Each is None when the sender left it out."""

    message_id: str | None
    type: str | None
    headers: dict[str, Any] | None
    correlation_id: str | None
    reply_to: str | None
    app_id: str | None
    user_id: str | None
    content_type: str | None


class Delivery:
    """A message given to a consumer. `tag` means something only within its `epoch`, one life of one channel.

    `queue` is the queue it was consumed from; the routing key is not told, because it is the delay ladder's for
    what came through there. `redelivered` is a hint: a duplicate need not carry it.
    """

    __slots__ = ("body", "epoch", "properties", "queue", "redelivered", "tag")

    def __init__(  # noqa: PLR0913, PLR0917 - made once per message on the hot path, by position
        self,
        tag: int,
        epoch: int,
        queue: str,
        body: bytes,
        properties: Properties,
        redelivered: bool,  # noqa: FBT001 - by position on the hot path
    ) -> None:
        self.tag = tag
        self.epoch = epoch
        self.queue = queue
        self.body = body
        self.properties = properties
        self.redelivered = redelivered

    def __repr__(self) -> str:
        return f"Delivery(tag {self.tag}, epoch {self.epoch}, {self.queue!r}, {len(self.body)} bytes)"


@dataclass(frozen=True, slots=True)
class Depth:
    """What a passive declare says.

    On a quorum queue (0, 0) proves that nothing is ready and nothing is unacked; `messages` alone counts only what
    is ready.
    """

    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Something on the broker that is not as Rota declares it. It was left as it is."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answered, from the handshake. `version` is comparable, e.g. (3, 10, 8)."""

    product: str = ""
    version: tuple[int, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}".strip()
