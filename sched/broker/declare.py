"""Declares topology on throw-away channels: what differs closes the channel that asked, and only that one.

Every member that connects declares everything, so that what somebody deleted or unbound is there again: some 230 things.
They are sent in three bursts, of exchanges, queues and bindings, of which only the last is answered. A burst in which
something differs is declared again one by one, which tells what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from rota.sched.broker.channel import Calls, ChannelGone
from rota.sched.broker.messages import Depth, Drift
from rota.sched.broker.topology import Binding, Exchange, Queue, Topology
from rota.sched.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.broker.connection import Wire

_NOT_FOUND = 404
_FORBIDDEN = 403
_DIFFERS = 406
_LOCKED = 405


class Declarer:
    """Declares one thing after another on a channel, and opens another channel after each difference."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._calls: Calls | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._calls is not None:
            self._calls.shut()

    async def declare(self, topology: Topology) -> list[Drift]:
        """All of `topology` that can be declared, and what cannot. Raises Unreachable when the connection ends."""
        drifts: dict[Drift, None] = {}
        for things in (topology.exchanges, topology.queues, topology.bindings):
            if things and not await self._declare_at_once(things):
                drifts |= dict.fromkeys([drift for thing in things if (drift := await self._declare(thing))])
        return list(drifts)

    async def depth(self, queue: str) -> Depth | None:
        """What a passive declare says of a queue, None if it is not there. Raises Unreachable."""
        try:
            answer = await self._call("queue_declare", queue=queue, passive=True)
        except ChannelGone as gone:
            if gone.reply_code == _NOT_FOUND:
                return None
            raise Unreachable(f"the broker does not show queue {queue!r}: {gone.reason}") from gone
        return Depth(answer.method.message_count, answer.method.consumer_count)

    async def _declare_at_once(self, things: Sequence[Exchange | Queue | Binding]) -> bool:
        """Whether all of it is as declared. The answer to the last tells it of all: a refused one ends the channel."""
        *others, (method, name, options) = [_request(thing) for thing in things]
        calls = await self._open()
        try:
            for other, _, its_options in others:
                calls.cast(getattr(calls.raw, other), **its_options)
            await self._call(method, **options)
        except ChannelGone as gone:
            _check_refusal(name, gone)
            return False
        return True

    async def _declare(self, thing: Exchange | Queue | Binding) -> Drift | None:
        method, name, options = _request(thing)
        try:
            await self._call(method, **options)
        except ChannelGone as gone:
            _check_refusal(name, gone)
            if gone.reply_code == _FORBIDDEN and await self._is_there(thing):
                return None
            return Drift(name, gone.reason)
        return None

    async def _is_there(self, thing: Exchange | Queue | Binding) -> bool:
        """Without the permission to configure, someone else declares: then it only has to be there."""
        if isinstance(thing, Binding):
            return False
        method, _, options = _request(thing)
        kept = {key: options[key] for key in ("queue", "exchange") if key in options}
        try:
            await self._call(method, passive=True, **kept)
        except ChannelGone:
            return False
        return True

    async def _call(self, method: str, **options: Any) -> Any:
        calls = await self._open()
        return await calls.call(getattr(calls.raw, method), **options)

    async def _open(self) -> Calls:
        if self._calls is None or self._calls.lost.done():
            self._calls = await Calls.open(self._wire)
        return self._calls


def _check_refusal(name: str, gone: ChannelGone) -> None:
    """Raises Unreachable for a channel that ended for another reason than what was declared on it."""
    if gone.reply_code not in {_NOT_FOUND, _FORBIDDEN, _DIFFERS, _LOCKED}:
        raise Unreachable(f"the broker ended the declaration of {name!r}: {gone.reason}") from gone


def _request(thing: Exchange | Queue | Binding) -> tuple[str, str, dict[str, Any]]:
    """Pika's method, the name to report, and the arguments."""
    match thing:
        case Exchange(name, kind, arguments):
            options = {"exchange": name, "exchange_type": kind, "durable": True, "arguments": dict(arguments)}
            return "exchange_declare", name, options
        case Queue(name, arguments):
            return "queue_declare", name, {"queue": name, "durable": True, "arguments": dict(arguments)}
        case Binding(source, target, key, to_exchange=True):
            return "exchange_bind", target, {"destination": target, "source": source, "routing_key": key}
        case Binding(source, target, key):
            return "queue_bind", target, {"queue": target, "exchange": source, "routing_key": key}
