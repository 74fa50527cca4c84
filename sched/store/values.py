"""What goes into and comes out of a store. Times are the store's own unless said otherwise; ids are text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rota.sched.policy import NO_POLICY
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from rota.sched.ids import RunKey
    from rota.sched.model import Dispatch, Kind, Outcome
    from rota.sched.policy import Policy
    from rota.sched.when import When


@dataclass(frozen=True, slots=True)
class NewMember:
    """A process about to take part."""

    kind: Kind
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored. `args` is JSON text; `request` is the hash that tells a repeated request from another one.

    `key` and `scope` make the submit idempotent for `key_seconds`; `name` for as long as the job lives.
    """

    id: str
    queue: str
    handler: str
    args: str
    when: When
    request: str
    tenant: str | None = None
    name: str | None = None
    key: str | None = None
    scope: str = ""
    key_seconds: float = 7 * 86400.0
    policy: Policy = NO_POLICY

    @property
    def plain(self) -> bool:
        """Whether it runs once and has neither key nor name: nothing that is known already can take its place."""
        return self.key is None and self.name is None and not isinstance(self.when, Schedule)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one NewJob. `conflict`: the key or name was used with another request; nothing was stored."""

    job_id: str
    duplicate: bool
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class Lanes:
    """What a claim may look at: (partition, queue) pairs in the order to be served, each from a low watermark on."""

    parts: Sequence[int]
    queues: Sequence[str]
    lows: Sequence[datetime]


@dataclass(frozen=True, slots=True)
class Served:
    """What one lane gave to a claim: its index in `Lanes`, how many rows, and when the last of them was due."""

    lane: int
    rows: int
    last_due: datetime


@dataclass(frozen=True, slots=True)
class Claimed:
    """The runs of one claim, by dispatch number. `served` has the lanes that gave something.

    `claimed_at` is the instant up to which due rows were asked for. `broken` are jobs (id, reason) whose schedule
    cannot be computed: they are paused. `skipped` counts the rows of history that tell of ticks without a run, `buffered` the
    runs that wait for their turn, `cancelled` those that ended because a tick had its job's other runs cancelled.
    `recurring`: jobs that recur were among what was due.
    """

    dispatches: list[Dispatch]
    served: list[Served]
    claimed_at: datetime
    broken: list[tuple[str, str]]
    skipped: int
    buffered: int = 0
    cancelled: int = 0
    recurring: bool = False

    @property
    def rows(self) -> int:
        """How many jobs were looked at and moved."""
        return sum(s.rows for s in self.served)


@dataclass(frozen=True, slots=True)
class Readied:
    """Runs that were ready, under new dispatch numbers. `served` has the lanes that gave something, and until when.

    `looked_at` is the instant up to which they were asked for; None: the member is not live.
    """

    dispatches: list[Dispatch]
    served: list[Served]
    looked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Look:
    """What a scheduler learns that goes to sleep or sleeps on.

    `at` is the store's time, `seconds` until the next thing is due, not beyond what was promised. `due` has the lanes
    (partition, queue) in which something is due, locked or not, and since when the first of it. `kept`: an earlier promise was
    in force until now. Transactions are numbered as they begin to write: this one is `number`, and what one below `oldest`
    wrote is seen. `queues` are those that are not paused, with their caps; `schedulers` the live ones; `owners` tells whose each
    partition is.
    """

    at: datetime
    seconds: float
    due: list[tuple[int, str, datetime]]
    kept: bool
    number: int
    oldest: int
    queues: list[tuple[str, int]]
    schedulers: list[int]
    owners: dict[int, int | None]


class Begun(NamedTuple):
    """An attempt that the ledger gave to this worker. `args` is JSON text where the message had none, `checkpoint` too.

    `policy` is what its job asks for itself. `catchup` and `missed`: how late its tick was claimed, as in `NewRun` of the
    plan.
    """

    key: RunKey
    fence: int
    attempt: int
    losses: int
    failures: int
    args: str | None
    schedule_lag: float
    queue_lag: float
    policy: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    catchup: bool = False
    missed: int | None = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands for a delivery that begin or finish did not take.

    `state` is None where there is no such run. `seconds` is how long until it may be looked at again: the rest of
    the owner's lease, or of the retry's delay. `expired`: it may not begin any more. `age`: seconds since it
    was due.
    """

    key: RunKey
    state: str | None
    dispatch: int = 0
    fence: int | None = None
    owner: int | None = None
    cancel_requested: bool = False
    losses: int = 0
    expired: bool = False
    age: float = 0.0
    seconds: float = 0.0

    @property
    def due(self) -> bool:
        """Whether its time has come: what kept it from being begun is something else."""
        return self.state == "waiting" or (self.state == "retrying" and self.seconds <= 0)


class End(NamedTuple):
    """An attempt's end for good: `outcome` with result (JSON text), or with reason and error (JSON text)."""

    key: RunKey
    fence: int
    outcome: Outcome
    reason: str | None = None
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """An attempt's end for now.

    retry: failed, an attempt is spent; snooze: later, none spent; release: handed back at once, none spent.
    `seconds` from now by the store's clock. `from_store`: a scheduler shall dispatch it anew when it is due, because
    its message is not kept.
    """

    key: RunKey
    fence: int
    kind: Literal["retry", "snooze", "release"]
    seconds: float = 0.0
    error: str | None = None
    from_store: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """A run that the store says a worker is running."""

    key: RunKey
    fence: int
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class HandlerRow:
    """A handler that some worker announced.

    `schema` is the JSON Schema of its arguments, `options` what it declares for itself: retry, timeout, isolate.
    """

    name: str
    app: str
    queue: str
    schema: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel did: `job` ended, runs ended at once, running ones asked to stop."""

    job: bool
    runs: int
    asked: int
    running: int

    @property
    def nothing(self) -> bool:
        return not (self.job or self.runs or self.asked)


@dataclass(frozen=True, slots=True)
class Edited:
    """What became of a change: the version after it; `changed` is False where the job was so already.

    `next` is the job's next tick, `due` when that is due. Of the ticks that were due before, `runs` run and `skipped` do
    not. `run` is the extra one that was asked for.
    """

    job_id: str
    version: int
    changed: bool
    next: str
    due: str
    runs: int = 0
    skipped: int = 0
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Whether a job or queue is paused now, by whom, since when and why; `changed`: it was not before.

    A job that a scheduler has set aside was paused by nobody.
    """

    id: str
    paused: bool
    changed: bool
    by: str | None = None
    at: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Triggered:
    """The run that was asked for. `paused`: its job is, and it runs all the same."""

    key: RunKey
    paused: bool = False


class DeadPlace(NamedTuple):
    """Where a walk along the dead has got to. They are in the order in which they died."""

    died_at: datetime
    key: RunKey


PORTION = 500
"""Most dead runs that one transaction looks at, or is given by name."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead runs: keys, or everything that fits all of `queue`, `handler`, `tenant`, `error`, `since`, `until`.

    `error` is text within reason or errors, `since` and `until` are instants of death, both included. `max_redrives`: those
    that were redriven so often already are left alone. `handlers`: only those of these handlers. `limit` at most are taken,
    the oldest first; `after`: from there on. `portion`: so many are looked at in one transaction, at most.
    """

    keys: Sequence[RunKey] = ()
    queue: str | None = None
    handler: str | None = None
    tenant: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    max_redrives: int | None = None
    handlers: Sequence[str] | None = None
    limit: int | None = None
    after: DeadPlace | None = None
    portion: int = PORTION


@dataclass(frozen=True, slots=True)
class DeadSurvey:
    """What a walk along the dead is going to look at: how many runs of each handler. `now` is the store's time."""

    now: datetime
    handlers: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.handlers.values())


@dataclass(frozen=True, slots=True)
class Redrive:
    """How dead runs are run again. `by` says who does it, for their lineage; `args` (JSON text) replaces theirs.

    `per_second` spreads them, the first at `ready_from` or now, whichever is later.
    """

    by: str
    args: str | None = None
    per_second: float | None = None
    ready_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadBatch:
    """What became of one portion of a walk: of `looked` dead runs, those that fit the filter.

    taken; alive: left, because their tick has a live run; spared: left, redriven often enough; unfit: left, not of
    `handlers`; elsewhere: somebody else was taking them. `more`: others fit beyond the limit. `last` is where the next
    portion begins, None at the end. The last of those that were taken is dispatched at `ready_until`, `ahead` seconds from
    now.
    """

    taken: list[RunKey] = field(default_factory=list)
    alive: list[RunKey] = field(default_factory=list)
    spared: list[RunKey] = field(default_factory=list)
    unfit: list[RunKey] = field(default_factory=list)
    elsewhere: list[RunKey] = field(default_factory=list)
    more: bool = False
    looked: int = 0
    last: DeadPlace | None = None
    ready_until: datetime | None = None
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Death:
    """A run that has just failed for good. `attempt` counts those of this life, `fence` is the last one's."""

    key: RunKey
    queue: str
    handler: str
    tenant: str | None
    reason: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class Retained:
    """The days (YYYYMMDD) of history that have to go, the oldest first; `ran` is False where the duty was not due."""

    ran: bool
    stale: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a round of recovery did; `ran` is False where it was not due or another scheduler had it.

    `again_s`: seconds until the next round is due. `deaths` are those that were poisoned. `stranded` runs were buffered
    behind nothing, and were released.
    """

    ran: bool
    again_s: float = 0.0
    dead_members: list[int] = field(default_factory=list)
    requeued: int = 0
    deaths: list[Death] = field(default_factory=list)
    cancelled: int = 0
    adopted: int = 0
    freed: int = 0
    expired: int = 0
    stranded: int = 0

    @property
    def poisoned(self) -> int:
        return len(self.deaths)
