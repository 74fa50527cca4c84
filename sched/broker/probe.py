"""What this broker can do, and whether its exchanges lead somewhere: asked, and where asking is not enough, tried.

Whether at-least-once dead-lettering is in force can not be read anywhere by AMQP, and it falls back silently. The
probe makes a queue that may hold one message, whose dead letters can go nowhere, and rejects what it publishes: in
force, the kept dead letters fill the queue and a publish is refused; else they vanish and all are accepted. Its names
begin like those of work queues and of the ladder, because a policy for these, which wins over what Rota declares, is
one of the things that put it out of force.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pika import exceptions, spec
from rota.sched.broker.channel import CALL_TIMEOUT, Calls, ChannelGone
from rota.sched.broker.topology import DELAY_PREFIX, WORK_PREFIX
from rota.sched.errors import Unreachable

if TYPE_CHECKING:
    from rota.sched.broker.link import Link
    from rota.sched.broker.messages import ServerInfo

PROBE = "rota.probe"
"""The type of a message that only tries whether it arrives: who is given it acknowledges it, and that is all."""
PREFIXES = (WORK_PREFIX, DELAY_PREFIX)
_TRIES = 6
_PROBE_EXPIRES_MS = 60_000


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found. `at_least_once` is None, with `note` saying why, if it could not be tried."""

    server: ServerInfo
    at_least_once: bool | None
    note: str = ""

    @property
    def supported(self) -> bool:
        """Whether this is a version that Rota is made for: 3.10 or later."""
        return self.server.version >= (3, 10)

    @property
    def queue_ack_timeout(self) -> bool:
        """Whether the ack timeout can be set per queue."""
        return self.server.version >= (3, 12)

    @property
    def priorities(self) -> bool:
        """Whether quorum queues respect a message's priority."""
        return self.server.version >= (4, 0)


async def probe(link: Link) -> Capabilities:
    """Look at the broker behind a link that is up. Takes about 40 ms and leaves nothing behind.

    Raises Unreachable when the connection is down or ends meanwhile.
    """
    try:
        lacking = [p for p in PREFIXES if not await _at_least_once(await Calls.open(link.wire), p)]
    except ChannelGone as gone:
        return Capabilities(link.server, None, f"at-least-once dead-lettering could not be tried: {gone.reason}")
    note = (
        f"at-least-once dead-lettering is not in force for queues {' and '.join(f'{p}*' for p in lacking)}: the broker can "
        "lose messages on their way. Look for a policy with `overflow` (`rabbitmqctl list_policies`), which wins over what "
        "Rota declares; on 3.10 run `rabbitmqctl enable_feature_flag stream_queue`, then recreate the queues"
    )
    return Capabilities(link.server, not lacking, note if lacking else "")


async def leads_somewhere(link: Link, exchange: str) -> bool:
    """Whether a queue is bound to a fanout exchange. Bindings cannot be asked for: a probe comes back, or passes.

    True where it cannot be tried, because there is no such exchange (it is declared with its bindings) or no right to
    publish to it. Raises Unreachable.
    """
    confirms: asyncio.Queue[bool] = asyncio.Queue()
    returned: list[Any] = []
    calls = await Calls.open(link.wire)
    properties = spec.BasicProperties(type=PROBE, expiration="0")  # at once: it leaves nothing behind
    try:
        await calls.call(calls.raw.confirm_delivery, lambda frame: confirms.put_nowait(_is_ack(frame)))
        calls.raw.add_on_return_callback(lambda *message: returned.append(message))
        await _publish(calls, exchange, "", properties, confirms)
    except ChannelGone:
        return True
    finally:
        calls.shut()
    return not returned


async def _at_least_once(calls: Calls, prefix: str) -> bool:
    queue = f"{prefix}probe.{uuid.uuid4()}"
    arguments = {
        "x-queue-type": "quorum",
        "x-expires": _PROBE_EXPIRES_MS,
        "x-max-length": 1,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": f"{queue}.nowhere",
        "x-dead-letter-strategy": "at-least-once",
    }
    confirms: asyncio.Queue[bool] = asyncio.Queue()
    try:
        await calls.call(calls.raw.confirm_delivery, lambda frame: confirms.put_nowait(_is_ack(frame)))
        await calls.call(calls.raw.queue_declare, queue=queue, durable=True, arguments=arguments)
        for _ in range(_TRIES):
            if not await _publish(calls, "", queue, spec.BasicProperties(delivery_mode=2), confirms):
                return True
            got = await calls.get(queue)
            if got is not None:
                calls.raw.basic_reject(got.tag, requeue=False)
        return False
    finally:
        await _remove(calls, queue)


async def _publish(
    calls: Calls, exchange: str, key: str, properties: spec.BasicProperties, confirms: asyncio.Queue[bool]
) -> bool:
    """Whether the broker took it. A message that no queue took is returned first, and taken."""
    calls.raw.basic_publish(exchange, key, b"probe", properties, mandatory=True)
    confirm = asyncio.ensure_future(confirms.get())
    either: list[asyncio.Future[Any]] = [confirm, calls.lost]
    try:
        await asyncio.wait(either, timeout=CALL_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if confirm.done():
            return confirm.result()
        if calls.lost.done():
            raise calls.lost.result()
        raise Unreachable(f"the broker did not confirm the probe within {CALL_TIMEOUT:.0f} s")
    finally:
        confirm.cancel()


async def _remove(calls: Calls, queue: str) -> None:
    if not calls.lost.done():
        with contextlib.suppress(ChannelGone, Unreachable, exceptions.AMQPError):
            await calls.call(calls.raw.queue_delete, queue=queue)
    calls.shut()


def _is_ack(frame: Any) -> bool:
    return isinstance(frame.method, spec.Basic.Ack)
