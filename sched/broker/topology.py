"""Every exchange, queue and binding of Rota, as data. Pure: no driver, no I/O.

    rota.jobs ──direct──> rota.q.<queue> ──dead letters──> rota.dead (fanout) ──> rota.dead
                               ^
    rota.delay.v1.17 ──> rungs ──> rota.delay.v1.due ──(unbound)──> rota.parked (fanout) ──> rota.parked

The **delay ladder** holds a message for a number of seconds. Rung k is a queue whose messages all expire after
2**k seconds, so nothing waits behind a longer delay. The routing key carries the delay as 18 binary digits,
then the queue's name; exchange k decides over the digits k..0 and sends the message straight to the rung of its
highest set bit, which dead-letters to exchange k-1, and so on until no bit is left. From there
`rota.delay.v1.due` routes by the full name of the queue (18 stars and the name; with `#` the queue `mail` would
also get what is for `x.mail`). A target that is not bound goes to `rota.parked` by the alternate exchange:
32 undeliverable messages would otherwise stop a rung for everyone.

A rung's routing key stays on the message, so the dead-letter exchange of a work queue is a fanout.

Arguments of a queue can not be changed once it exists: the ladder's names carry a version. Every queue has a
delivery limit that is never reached, because the default discards messages on 4.x and -1 does on 3.10.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

JOBS = "rota.jobs"
DEAD = "rota.dead"
PARKED = "rota.parked"
SUBMIT = "rota.submit"
EVENTS = "rota.events"
CONTROL = "rota.control"

COMMANDS = ("job.submit", "job.cancel", "job.redrive", "job.update", "job.pause", "job.resume", "job.trigger")
"""The routing keys that the queue `rota.submit` is bound for."""

WORK_PREFIX = "rota.q."
DELAY_PREFIX = "rota.delay.v1."
RUNGS = 18
DELAY_DUE = DELAY_PREFIX + "due"
MAX_DELAY: int = 2 ** (RUNGS - 1)
"""The longest delay of the ladder in seconds, about 36 hours: one hop, through the top rung. No rounding up of a shorter
one leads beyond it. What is longer waits in the store."""
DELAY_BITS = 6
"""How many of its highest bits a delay keeps: it is rounded up by at most 1/32 and passes at most six rungs."""
DELIVERY_LIMIT = 1_000_000

Arguments = dict[str, str | int]

_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: str
    arguments: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """From exchange `source` to `target`, a queue or (`to_exchange`) another exchange."""

    source: str
    target: str
    key: str = ""
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings, each in the order in which to declare them: exchanges, queues, bindings."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()


def work_queue(queue: str) -> str:
    """The broker's name of Rota's queue `queue`: `rota.q.mail` for `mail`. Raises UsageError for a wrong name."""
    return _work_queue(queue)


@lru_cache(maxsize=4096)
def _work_queue(queue: str) -> str:
    if not _QUEUE_NAME.fullmatch(queue):
        raise UsageError(f"queue name {queue!r} is not allowed: use 1 to 100 of A-Z a-z 0-9 _ and -")
    return WORK_PREFIX + queue


def queue_of(name: str) -> str | None:
    """Rota's name of a work queue, `mail` for `rota.q.mail`; None for a queue that is not a work queue."""
    return name.removeprefix(WORK_PREFIX) if name.startswith(WORK_PREFIX) else None


def job_route(queue: str) -> tuple[str, str]:
    """Exchange and routing key that take a message to the work queue of `queue` now."""
    return JOBS, work_queue(queue)


def delay_seconds(seconds: float) -> int:
    """The delay that the ladder gives for one of `seconds`, in whole seconds and at least 1.

    It is rounded up to its six highest bits: never shorter and less than 1/32 longer than the whole seconds asked
    for. Raises UsageError over MAX_DELAY and for what is no finite number.
    """
    if not math.isfinite(seconds) or seconds > MAX_DELAY:
        raise UsageError(
            f"a delay of {seconds} s does not fit the delay ladder: its longest is {MAX_DELAY} s; "
            "keep the run in the store and give it a ready time"
        )
    whole = max(1, math.ceil(seconds))
    unit = 1 << max(0, whole.bit_length() - DELAY_BITS)
    return -(-whole // unit) * unit


def delay_route(seconds: float, queue: str) -> tuple[str, str]:
    """Exchange and routing key that take a message to the work queue of `queue` after `seconds`, see delay_seconds.

    Publish it with fresh headers: 3.10 takes a received `x-death` for a cycle and keeps the message for ever.
    """
    digits = format(delay_seconds(seconds), f"0{RUNGS}b")
    return rung(RUNGS - 1), ".".join(digits) + "." + work_queue(queue)


def delayed_queue(key: str) -> str | None:
    """Rota's name of the queue that a key of `delay_route` leads to; None for any other key."""
    digits = key.split(".", RUNGS)
    return queue_of(digits[-1]) if len(digits) == RUNGS + 1 else None


def rung(k: int) -> str:
    """The name of exchange and queue of the rung of 2**k seconds."""
    return f"{DELAY_PREFIX}{k:02d}"


def _quorum(**more: str | int) -> Arguments:
    arguments: Arguments = {"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT}
    arguments.update({key.replace("_", "-"): value for key, value in more.items()})
    return arguments


def _dead_lettering(exchange: str, **more: str | int) -> Arguments:
    """At-least-once, which is in force only together with reject-publish."""
    return _quorum(
        x_dead_letter_exchange=exchange,
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        **more,
    )


def _rung_queue(k: int) -> Queue:
    target = rung(k - 1) if k else DELAY_DUE
    return Queue(rung(k), _dead_lettering(target, x_message_ttl=1000 * 2**k))


def _rung_bindings(k: int) -> list[Binding]:
    """What exchange k does: the highest set digit of k..0 names the rung, and no digit set means due."""
    passed = ["*"] * (RUNGS - 1 - k)
    to_rungs = [Binding(rung(k), rung(j), ".".join([*passed, *["0"] * (k - j), "1", "#"])) for j in range(k, -1, -1)]
    due = Binding(rung(k), DELAY_DUE, ".".join([*passed, *["0"] * (k + 1), "#"]), to_exchange=True)
    return [*to_rungs, due]


def _ladder() -> Topology:
    order = range(RUNGS - 1, -1, -1)
    return Topology(
        exchanges=(
            Exchange(DELAY_DUE, "topic", {"alternate-exchange": PARKED}),
            *(Exchange(rung(k), "topic") for k in order),
        ),
        queues=tuple(_rung_queue(k) for k in order),
        bindings=tuple(binding for k in order for binding in _rung_bindings(k)),
    )


def _base() -> Topology:
    """Ends first, so that a dead letter has somewhere to go from the first moment."""
    return Topology(
        exchanges=(
            Exchange(PARKED, "fanout"),
            Exchange(DEAD, "fanout"),
            Exchange(JOBS, "direct"),
            Exchange(EVENTS, "topic"),
            Exchange(CONTROL, "fanout"),
        ),
        queues=(Queue(PARKED, _quorum()), Queue(DEAD, _quorum()), Queue(SUBMIT, _dead_lettering(PARKED))),
        bindings=(Binding(PARKED, PARKED), Binding(DEAD, DEAD)),
    )


def entrance() -> Topology:
    """Where services publish; declared last, and at once with its bindings.

    What is published before is refused aloud, not parked without an answer because the queue is not bound yet.
    """
    return Topology(
        exchanges=(Exchange(SUBMIT, "direct", {"alternate-exchange": PARKED}),),
        bindings=tuple(Binding(SUBMIT, SUBMIT, command) for command in COMMANDS),
    )


@lru_cache(maxsize=1)
def stages() -> tuple[Topology, ...]:
    """All that exists once per vhost, in the order in which to declare it: the inside, then the entrance."""
    base, ladder = _base(), _ladder()
    inside = Topology(
        base.exchanges + ladder.exchanges,
        base.queues + ladder.queues,
        base.bindings + ladder.bindings,
    )
    return inside, entrance()


@lru_cache(maxsize=1)
def shared_topology() -> Topology:
    """All that exists once per vhost: everything but the work queues."""
    inside, entrance = stages()
    return Topology(inside.exchanges + entrance.exchanges, inside.queues, inside.bindings + entrance.bindings)


def work_topology(queue: str) -> Topology:
    """The work queue of `queue` and its two bindings. Declare it before the first publish to it."""
    name = work_queue(queue)
    return Topology(
        queues=(Queue(name, _dead_lettering(DEAD)),),
        bindings=(Binding(JOBS, name, name), Binding(DELAY_DUE, name, "*." * RUNGS + name)),
    )


EXCHANGES = frozenset(exchange.name for exchange in shared_topology().exchanges) | {""}
"""What may be published to: a publish to any other exchange would close the channel under its neighbours."""
