"""A channel whose calls can be awaited: each ends with an answer, the channel's end or a bound on time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from pika import exceptions, spec
from rota.sched.broker.connection import describe, guarded
from rota.sched.errors import RotaError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pika.channel import Channel
    from pika.spec import BasicProperties
    from rota.sched.broker.connection import Wire

log = logging.getLogger(__name__)

CALL_TIMEOUT = 30.0
"""Seconds for one answer. A broker that needs longer for a declare is not healthy."""


class ChannelGone(RotaError):  # noqa: N818 - named like its relatives in rota.sched.errors
    """The channel ended before the answer. `code` of AMQP is `reply_code`: 404 not found, 406 other arguments."""

    def __init__(self, reply_code: int, reason: str) -> None:
        super().__init__(reason)
        self.reply_code = reply_code
        self.reason = reason


class Got(NamedTuple):
    """A message of a queue, and how it was published or came out of the queue before."""

    tag: int
    properties: BasicProperties
    body: bytes
    exchange: str
    routing_key: str


class Calls:
    """One channel. pika never answers a call that failed, so its end fails what waits (`lost` tells others)."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[Any]] = set()
        self.lost: asyncio.Future[ChannelGone] = self._loop.create_future()
        """Done when the channel has ended, however it did."""
        self.raw: Channel

    @classmethod
    async def open(cls, wire: Wire) -> Calls:
        """Open a channel. Raises ChannelGone or Unreachable."""
        if not wire.is_open:
            raise Unreachable("the connection to the broker is down")
        calls = cls(wire)
        await calls._answer(calls._start)
        return calls

    def _start(self, done: Callable[[Any], None]) -> None:
        self.raw = self.wire.channel(on_open_callback=done)
        self.raw.add_on_close_callback(guarded(self._on_close))

    async def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """`method` of the raw channel with its answer's frame. Raises ChannelGone or Unreachable."""
        return await self._answer(lambda done: method(*args, callback=done, **options))

    def cast(self, method: Callable[..., Any], **options: Any) -> None:
        """`method` of the raw channel without an answer: if it is refused, the next call fails. Raises ChannelGone."""
        self._check_open()
        try:
            method(**options)  # without a callback pika asks for no answer
        except exceptions.AMQPError as error:
            raise ChannelGone(0, describe(error)) from error

    async def get(self, queue: str) -> Got | None:
        """One message of a queue, None if it has none ready."""
        raw = self.raw

        def start(done: Callable[[Any], None]) -> None:
            def take(_: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
                done(Got(method.delivery_tag, properties, body, method.exchange, method.routing_key))

            raw.add_callback(guarded(lambda _: done(None)), [spec.Basic.GetEmpty])
            raw.basic_get(queue, take)

        got: Got | None = await self._answer(start)
        return got

    async def _answer(self, start: Callable[[Callable[[Any], None]], Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any) -> None:
            if not answer.done():
                answer.set_result(value)

        self._waiting.add(answer)
        try:
            self._check_open()
            start(done)
            async with asyncio.timeout(CALL_TIMEOUT):
                return await answer
        except exceptions.AMQPError as error:
            raise ChannelGone(0, describe(error)) from error
        except TimeoutError:
            self.wire.abort("the broker did not answer a call in time")
            raise Unreachable(f"the broker did not answer within {CALL_TIMEOUT:.0f} s") from None
        finally:
            self._waiting.discard(answer)

    def _check_open(self) -> None:
        if self.lost.done():
            raise self.lost.result()

    def _on_close(self, _: Channel, error: BaseException) -> None:
        gone = ChannelGone(int(getattr(error, "reply_code", 0) or 0), describe(error))
        if not self.lost.done():
            self.lost.set_result(gone)
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(gone)

    def shut(self) -> None:
        """Close it if it is open; does not wait. Nothing is received from now on."""
        self.wire.forget(self.raw.channel_number)
        if not self.lost.done() and self.wire.is_open:
            with contextlib.suppress(exceptions.AMQPError):
                self.raw.close()
