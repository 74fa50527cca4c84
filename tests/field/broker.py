"""What the broker holds, seen from outside: by AMQP, and where to ask its HTTP API."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import pika
from rota.sched.broker.topology import shared_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pika.adapters.blocking_connection import BlockingChannel

QUEUE = "rota.q.demo"
"""The work queue of the demo app."""
RUNGS = [queue.name for queue in shared_topology().queues if "x-message-ttl" in queue.arguments]


def vhost(broker_url: str) -> str:
    """The vhost as a part of a path."""
    return quote(unquote(urlsplit(broker_url).path[1:]) or "/", safe="")


def path(broker_url: str, queue: str = QUEUE) -> str:
    """A queue's place in the HTTP API."""
    return f"/api/queues/{vhost(broker_url)}/{queue}"


@contextmanager
def channel(broker_url: str) -> Iterator[BlockingChannel]:
    """A channel on a connection of its own."""
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        yield connection.channel()


def ready(broker_url: str, *queues: str) -> int | None:
    """How many messages are ready in the queues (the demo app's by default), None where one is not there."""
    with channel(broker_url) as asking:
        try:
            found = [asking.queue_declare(queue, passive=True).method.message_count for queue in queues or [QUEUE]]
        except pika.exceptions.ChannelClosedByBroker:
            return None
        return sum(found)
