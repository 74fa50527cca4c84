"""A bare round trip: insert a row, publish with confirms to a quorum queue, get the delivery, begin by an update.

The least that any scheduler over Postgres and RabbitMQ does between an arrival and the begin of its work, for the arrivals of
bench/lateness.py: as there, some processes insert one row for each arrival and one begins; what is delivered while an update
is under way is begun by the next one together.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pika
import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "bare.jobs"
TABLE = "create table bare (id bigint primary key, planned float8 not null, begun timestamptz) with (fillfactor = 60)"
INSERT = "insert into bare (id, planned) values (%s, %s)"
BEGIN = "update bare set begun = clock_timestamp() where id = any(%s::bigint[]) and begun is null"
LATENESS = "select extract(epoch from begun)::float8 - planned from bare where begun is not null"
_PERSISTENT = pika.BasicProperties(delivery_mode=2)
_PREFETCH = 2000
_PATIENCE = 30.0
"""Seconds for a connection, for the confirms that are missing at the end, for a thread to end."""


class Link:
    """A pika connection with its loop on a thread of its own."""

    def __init__(self, url: str, opened: Callable[[Link], None]) -> None:
        self.channel: Any = None
        self.ready = threading.Event()
        self._opened = opened
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=self._on_open,
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        if not self.ready.wait(_PATIENCE):
            raise SystemExit(f"bench: the bare round trip got no channel within {_PATIENCE:.0f} s")

    def call(self, function: Callable[[], object]) -> None:
        """Runs it on the loop's thread."""
        self._connection.ioloop.add_callback_threadsafe(function)

    def close(self) -> None:
        """Ends connection and thread."""
        self.call(self._connection.close)
        self._thread.join(_PATIENCE)

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self.channel = channel
        self._opened(self)


class Inserts:
    """The first half, of a submitter: insert, commit, publish."""

    def __init__(self, store: str, broker: str) -> None:
        self._db = psycopg.connect(store, autocommit=True)
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._moved = threading.Condition()
        self._out = Link(broker, self._confirm)

    def submit(self, number: int, planned: float) -> None:
        """One arrival."""
        self._db.execute(INSERT, [number, planned])
        self._published += 1
        with self._moved:
            self._unconfirmed.add(self._published)
        body = str(number).encode()
        self._out.call(lambda: self._out.channel.basic_publish("", QUEUE, body, _PERSISTENT))

    def close(self) -> None:
        """Ends both connections when all is confirmed."""
        with self._moved:
            if not self._moved.wait_for(lambda: not self._unconfirmed, _PATIENCE):
                raise SystemExit(
                    f"bench: {len(self._unconfirmed)} of {self._published} publishes of the bare round trip "
                    f"were not confirmed within {_PATIENCE:.0f} s"
                )
        self._out.close()
        self._db.close()

    def _confirm(self, link: Link) -> None:
        def on_confirm(frame: Any) -> None:
            tag = frame.method.delivery_tag
            with self._moved:
                if frame.method.multiple:
                    self._unconfirmed = {each for each in self._unconfirmed if each > tag}
                else:
                    self._unconfirmed.discard(tag)
                self._moved.notify()

        link.channel.confirm_delivery(on_confirm, callback=lambda _: link.ready.set())


class Begins:
    """The second half, of one worker, on an empty database and an empty vhost."""

    def __init__(self, store: str, broker: str) -> None:
        self._store = store
        self._arrived: list[int] = []
        self._moved = threading.Condition()
        self._over = False
        self.begun = 0
        with psycopg.connect(store, autocommit=True) as db:
            db.execute(TABLE)
        connection = pika.BlockingConnection(pika.URLParameters(broker))
        connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        connection.close()
        self._in = Link(broker, self._consume)
        self._beginner = threading.Thread(target=self._begin, daemon=True)
        self._beginner.start()

    def lateness(self) -> list[float]:
        """Of all that were begun, in seconds."""
        with psycopg.connect(self._store) as db:
            return [late for (late,) in db.execute(LATENESS)]

    def wait(self, count: int, seconds: float) -> None:
        """Until so many have begun."""
        end = time.monotonic() + seconds
        while self.begun < count:
            if time.monotonic() > end or not self._beginner.is_alive():
                raise SystemExit(
                    f"bench: {self.begun} of {count} arrivals began in the bare round trip, {len(self._arrived)} more "
                    f"were delivered; its thread {'lives' if self._beginner.is_alive() else 'has failed, see above'}"
                )
            time.sleep(0.1)

    def close(self) -> None:
        """Ends its threads."""
        with self._moved:
            self._over = True
            self._moved.notify()
        self._beginner.join(_PATIENCE)
        self._in.close()

    def _consume(self, link: Link) -> None:
        def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            with self._moved:
                self._arrived.append(int(body))
                self._moved.notify()

        link.channel.basic_qos(
            prefetch_count=_PREFETCH, callback=lambda _: link.channel.basic_consume(QUEUE, on_message)
        )
        link.ready.set()

    def _begin(self) -> None:
        with psycopg.connect(self._store, autocommit=True) as db:
            while True:
                with self._moved:
                    self._moved.wait_for(lambda: self._arrived or self._over)
                    batch, self._arrived = self._arrived, []
                if not batch:
                    return
                self.begun += db.execute(BEGIN, [batch]).rowcount
