"""What a chaos run does, drawn from a seed: the jobs, who submits them and when, and the faults. Pure.

The same seed, seconds, jobs and kinds give the same plan. Jobs and each kind of fault are drawn from streams of their
own, so leaving a kind out changes nothing else. When things happen still depends on the machine: a fault waits (for a
bounded time) until it has something in flight to hit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORTEST = 20
"""Seconds: in less not every kind has its turn."""
JOBS_PER_SECOND = 12
QUEUES = ("demo", "other")
QUEUES_OLD = 9.0
"""Seconds before the first kill of a broker: RabbitMQ loses what is in a queue that was declared just before it."""
LEASE = 4.0
"""Seconds, of every member."""
ACK_TIMEOUT = 15.0
"""Seconds, of the broker and every member: long handlers take more than the third of it that a message is held."""

HOLD = (0.5, 2.5)
"""Between how many seconds slow handlers take."""

Lane = Literal["kills", "stalls", "servers", "wire"]
"""Faults of one lane follow one another, those of different lanes overlap."""
Sender = Literal["api", "amqp"]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its lane, how many there are in two minutes, and how many calls of which handlers are submitted to be
    hit by each.

    `hold` is between how many seconds the bait's handlers take, where they are slow ones.
    """

    lane: Lane
    often: int
    bait: Mapping[str, int]
    hold: tuple[float, float] = HOLD
    earliest: float = 2.0


KINDS = {
    "kill_worker": Kind("kills", 8, {"careful_effect": 8}),
    "kill_scheduler": Kind("kills", 8, {"effect": 60}),
    "deploy": Kind("kills", 2, {"careful_effect": 6}),
    # Slow enough for a second attempt to be under way when the frozen one wakes up and tries to write.
    "freeze_worker": Kind("stalls", 4, {"careful_effect": 12}, hold=(3.0, 5.0)),
    "freeze_scheduler": Kind("stalls", 3, {"effect": 60}),
    "clock_worker": Kind("stalls", 2, {"careful_effect": 12, "hanging_effect": 4}),
    "clock_scheduler": Kind("stalls", 2, {"effect": 60}),
    "postgres": Kind("servers", 4, {"careful_effect": 6}),
    "broker": Kind("servers", 2, {"careful_effect": 6}, earliest=QUEUES_OLD),
    "cluster": Kind("servers", 6, {"careful_effect": 6}, earliest=QUEUES_OLD),
    "cut": Kind("wire", 16, {"careful_effect": 4}),
    "duplicate": Kind("wire", 8, {"effect": 30}),
    "delay": Kind("wire", 6, {"effect": 20}),
}

USUAL = tuple(kind for kind in KINDS if kind != "cluster")
"""`cluster` has to be asked for: it installs a newer RabbitMQ and makes three nodes of it."""


@dataclass(frozen=True)
class Job:
    """A call of the demo app (compose/app.py); `key` names its effect and makes its submission idempotent.

    One that somebody cancels, or that may expire, owes its effect or a row that says why there is none.
    """

    key: str
    handler: str
    queue: str
    args: dict[str, Any] = field(default_factory=dict)
    after: float = 0.0
    cancel: float | None = None
    """Seconds from its acknowledgement after which somebody asks to cancel it, running or not."""
    expires: float | None = None


@dataclass(frozen=True)
class Batch:
    """Jobs that one sender submits together, `at` seconds from the start."""

    at: float
    sender: Sender
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Fault:
    """What goes wrong, not before `at` seconds from the start.

    `pick` (0 to 1) chooses among what there is to hit, `amount` (0 to 1) says how hard; each kind reads it its way.
    """

    at: float
    kind: str
    pick: float
    amount: float
    bait: Batch


@dataclass(frozen=True)
class Plan:
    """All of it, in the order of time."""

    seed: int
    seconds: float
    batches: tuple[Batch, ...]
    faults: tuple[Fault, ...]

    def of(self, lane: Lane) -> list[Fault]:
        """The faults of one lane."""
        return [fault for fault in self.faults if KINDS[fault.kind].lane == lane]


def draw(seed: int, seconds: float, jobs: int, kinds: tuple[str, ...]) -> Plan:
    """The plan for a run of `seconds` with about `jobs` one-off jobs beside the baits."""
    faults = [fault for kind in kinds for fault in _faults(seed, seconds, kind)]
    return Plan(seed, seconds, _batches(seed, seconds, jobs), tuple(sorted(faults, key=lambda fault: fault.at)))


def _faults(seed: int, seconds: float, kind: str) -> list[Fault]:
    """A kind's faults, one in each of as many equal slices of the time."""
    rng = random.Random(f"{seed} {kind}")
    about = KINDS[kind]
    count = max(1, round(about.often * seconds / 120))
    slice_ = (seconds - about.earliest) / count
    return [_fault(rng, kind, n, about.earliest + slice_ * (n + rng.uniform(0.0, 0.8))) for n in range(count)]


def _fault(rng: random.Random, kind: str, number: int, at: float) -> Fault:
    handlers = [handler for handler, count in KINDS[kind].bait.items() for _ in range(count)]
    jobs = tuple(_job(rng, f"{kind}-{number}-{n}", handler, KINDS[kind].hold) for n, handler in enumerate(handlers))
    sender: Sender = rng.choice(("api", "amqp"))
    return Fault(round(at, 3), kind, rng.random(), rng.random(), Batch(at, sender, jobs))


HANDLERS = {
    "effect": 46,
    "aeffect": 13,
    "flaky_effect": 10,
    "careful_effect": 8,
    "plain": 12,
    "broken": 2,
    "snoozing_effect": 4,
    "hanging_effect": 2,
    "ahanging_effect": 2,
    "paged_effect": 1,
    "isolated_effect": 2,
}
"""Shares of the handlers: at once, async, failing and then not, slow, without a transaction of Rota's, failing always, not
now, past their timeout (as a thread and in the loop), long, in a process of its own."""
CANCELLED = 0.06
"""Share of the jobs that somebody cancels."""
EXPIRING = 0.04
"""Share of those that have a time to begin in."""
POISON = 60
"""Seconds for each job that kills its worker."""


def _batches(seed: int, seconds: float, jobs: int) -> tuple[Batch, ...]:
    rng = random.Random(f"{seed} jobs")
    batches: list[Batch] = []
    made = 0
    while made < jobs:
        count = min(jobs - made, rng.choice((1, 1, 5, 20, 50)))
        handlers = rng.choices(list(HANDLERS), list(HANDLERS.values()), k=count)
        chosen = tuple(_fate(rng, _job(rng, f"job-{made + n}", handler)) for n, handler in enumerate(handlers))
        made += count
        batches.append(Batch(round(rng.uniform(0, seconds), 3), rng.choice(("api", "api", "amqp")), chosen))
    for n in range(max(1, round(seconds / POISON))):
        job = Job(f"poison-{n}", "poison", rng.choice(QUEUES), {"key": f"poison-{n}"})
        batches.append(Batch(round(rng.uniform(0, 0.7 * seconds), 3), "api", (job,)))
    return tuple(sorted(batches, key=lambda batch: batch.at))


def _fate(rng: random.Random, job: Job) -> Job:
    """Some are cancelled and some may expire, of those that have one effect at most."""
    fate = rng.random()
    if job.handler in {"plain", "broken"}:
        return job
    if fate < CANCELLED:
        return replace(job, cancel=round(rng.choice((0.0, 1.0)) * rng.uniform(0, 4), 2))
    if fate < CANCELLED + EXPIRING:
        return replace(job, expires=round(rng.uniform(0.2, 5), 2))
    return job


def _job(rng: random.Random, key: str, handler: str, hold: tuple[float, float] = HOLD) -> Job:
    args: dict[str, Any] = {"key": key}
    if handler == "flaky_effect":
        args["times"] = rng.choice((1, 2))
    elif handler == "careful_effect":
        args["hold"] = round(rng.uniform(*hold), 2)
    elif handler == "snoozing_effect":
        args["seconds"] = round(rng.uniform(0.5, 6), 2)
    elif handler == "isolated_effect":
        args["dies"] = rng.random() < 0.5
    elif handler == "paged_effect":
        args["pages"] = rng.randint(5, 20)
        args["hold"] = 1.0
    elif handler == "plain":
        args["hold"] = round(rng.choice((0.0, 0.0, 1.0)) * rng.random(), 2)
    return Job(key, handler, rng.choice(QUEUES), args, rng.choice((0.0, 0.0, 1.0, 3.0)) * round(rng.random(), 2))
