"""Why a message lies in `rota.parked`, in words for a person. Pure.

What Rota itself parks says so in a header. The broker parks what comes out of the delay ladder for a queue that is not
there, and commands under a routing key that nobody knows: those tell it by how they were published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.sched.broker.topology import COMMANDS, SUBMIT, delayed_queue
from rota.sched.inbox import ERROR_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

REMEDY = (
    "work of a queue that was not there is dispatched anew from the ledger, `rota worker --queue` consumes it; the others are "
    "for their senders to correct. When they are seen to, empty it: `rabbitmqctl -p VHOST purge_queue rota.parked`"
)
"""What to do about parked messages."""


def why(exchange: str, routing_key: str, headers: Mapping[str, Any] | None) -> str:
    """Why a message with these headers, published so, is parked."""
    told = (headers or {}).get(ERROR_HEADER)
    if isinstance(told, str):
        return told
    queue = delayed_queue(routing_key)
    if queue is not None:
        return f"it came out of the delay ladder for queue {queue}, which was not there or, while the broker started, not bound yet"
    if exchange == SUBMIT and routing_key not in COMMANDS:
        return f"it was published to {SUBMIT} as {routing_key!r}: {', '.join(COMMANDS)} are known"
    return "no reason is given: look into the schedulers' logs"
