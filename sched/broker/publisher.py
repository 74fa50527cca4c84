"""Publishes with pipelined confirms over one connection that does nothing else.

A memory or disk alarm blocks a publishing connection whole, acks included, so consumers have their own.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from pika import exceptions, spec
from rota.sched.broker.channel import Calls
from rota.sched.broker.confirms import Confirms, give
from rota.sched.broker.connection import describe, guarded
from rota.sched.broker.link import Link
from rota.sched.broker.messages import Publish
from rota.sched.broker.topology import EXCHANGES
from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rota.sched.broker.connection import Wire
    from rota.sched.broker.messages import Outgoing

MAX_BODY = 16_000_000
"""Bytes. 4.x closes the channel over 16 MiB."""
CONFIRM_TIMEOUT = 60.0
"""Seconds. Without an answer by then, and not blocked, the connection is given up and the outcomes are unknown."""
_WATCH_EVERY = 5.0
_PERSISTENT = 2
_COPYING = frozenset({"cc", "bcc"})
_INT64 = 2**63


class Publisher(Link):
    """One publishing connection. 500 to 2,000 publishes in flight give the full rate; the caller keeps the window."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_up: Callable[[], Awaitable[None]] | None = None,
        on_down: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(url, name, on_up=on_up, on_down=on_down)
        self._confirms = Confirms()
        self._out: Wire | None = None
        self._calls: Calls | None = None
        self._channel = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._marks: deque[tuple[float, int]] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """How many publishes have no outcome yet."""
        return len(self._confirms)

    def publish(self, message: Outgoing, done: Callable[[Publish], None]) -> None:
        """Send `message`; `done` gets the outcome, exactly once and never before this returns.

        UNKNOWN when the link is not up or goes down before the answer. What `done` raises is logged.
        Raises UsageError, with nothing sent, for what the broker would close the channel for.
        """
        _check(message)
        out = self._out
        if out is None:
            asyncio.get_running_loop().call_soon(give, done, Publish.UNKNOWN)
            return
        try:
            properties = _properties(message)
            route = (message.exchange, message.routing_key, message.mandatory)
            out.publish(self._channel, route, properties, message.body)
        except (exceptions.AMQPError, ValueError, struct.error, TypeError, AssertionError) as error:
            raise UsageError(f"{message!r} cannot be sent: {error or type(error).__name__}") from error
        self._confirms.add(message, done)

    async def send(self, message: Outgoing) -> Publish:
        """Publish and wait for the outcome; bounded by the confirm timeout unless the broker is blocked."""
        outcome: asyncio.Future[Publish] = asyncio.get_running_loop().create_future()

        def done(result: Publish) -> None:
            if not outcome.done():
                outcome.set_result(result)

        self.publish(message, done)
        return await outcome

    async def flush(self, wait: float) -> bool:
        """Wait until nothing is in flight, at most `wait` seconds. Whether that was reached."""
        if self._confirms:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(idle)
            await asyncio.wait([idle], timeout=wait)
        return not self._confirms

    async def _prepare(self, wire: Wire) -> None:
        calls = self._calls = await Calls.open(wire)
        confirms = Confirms()
        raw = calls.raw
        raw.add_on_close_callback(guarded(lambda _, error: self._on_channel_closed(calls, error)))
        raw.add_on_return_callback(guarded(lambda _, method, properties, __: _returned(confirms, method, properties)))
        await calls.call(raw.confirm_delivery, guarded(self._on_confirm, lambda: wire.abort("a confirm failed")))
        self._confirms, self._channel, self._out = confirms, raw.channel_number, wire
        self._marks.clear()
        self._watch = asyncio.get_running_loop().call_later(_WATCH_EVERY, self._watch_confirms)

    def _detach(self, reason: str) -> None:  # noqa: ARG002 - the hook's signature
        calls, self._calls, self._out = self._calls, None, None
        if calls is not None:
            calls.shut()
        if self._watch is not None:
            self._watch.cancel()
        self._confirms.abandon()
        self._wake_idle()

    def _on_channel_closed(self, calls: Calls, error: BaseException) -> None:
        if calls is self._calls:
            self._out = None
            self._end_session(describe(error))

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        self._confirms.settle(method.delivery_tag, multiple=method.multiple, acked=isinstance(method, spec.Basic.Ack))
        if self._waiters and not self._confirms:
            self._wake_idle()

    def _wake_idle(self) -> None:
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if not each.done():
                each.set_result(None)

    def _watch_confirms(self) -> None:
        """Gives up a connection on which a publish waits too long. A blocked one answers when the alarm ends."""
        loop = asyncio.get_running_loop()
        out, marks, confirms = self._out, self._marks, self._confirms
        if out is None:
            return
        if self.blocked:
            marks.clear()
        settled = confirms.settled_through
        while marks and marks[0][1] <= settled:
            marks.popleft()
        if marks and loop.time() - marks[0][0] > CONFIRM_TIMEOUT:
            out.abort(f"a publish was not confirmed within {CONFIRM_TIMEOUT:.0f} s")
            return
        marks.append((loop.time(), confirms.published))
        self._watch = loop.call_later(_WATCH_EVERY, self._watch_confirms)


def _returned(confirms: Confirms, method: Any, properties: Any) -> None:
    confirms.returned((properties.message_id or "", method.exchange, method.routing_key))


def _properties(message: Outgoing) -> bytes:
    headers = message.headers
    properties = spec.BasicProperties(
        content_type=message.content_type,
        headers=dict(headers) if headers else None,
        delivery_mode=_PERSISTENT,
        priority=message.priority,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=None if message.expiration is None else str(message.expiration),
        message_id=message.message_id,
        type=message.type,
        app_id=message.app_id,
    )
    return b"".join(properties.encode())


def _check(message: Outgoing) -> None:
    """What the broker closes a channel for and pika does not notice."""
    if message.exchange not in EXCHANGES:
        raise UsageError(f"exchange {message.exchange!r} is none of Rota's; a publish to it could stop all others")
    if len(message.body) > MAX_BODY:
        raise UsageError(f"{message!r} is too big: at most {MAX_BODY} bytes go through the broker")
    if message.headers:
        for key, value in message.headers.items():
            _check_header(key, value)
    if message.expiration is not None and not 0 <= message.expiration < 2**32:
        raise UsageError(f"expiration {message.expiration!r} is no number of milliseconds from 0 to 4294967295")
    if message.priority is not None and not 0 <= message.priority <= 255:
        raise UsageError(f"priority {message.priority!r} is not from 0 to 255")


def _check_header(key: str, value: object) -> None:
    kind = type(value)
    if kind is not str and (kind is not int or not -_INT64 <= value < _INT64):  # type: ignore[operator]
        raise UsageError(f"header {key!r} is {value!r}: headers are text or whole numbers of 64 bits")
    if key.lower() in _COPYING:
        raise UsageError(f"header {key!r} makes the broker send copies elsewhere: leave it out")
