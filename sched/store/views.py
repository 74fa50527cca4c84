"""What is read from a store for people and scripts: JSON-ready objects with stable keys. Times are RFC 3339, UTC."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from rota.sched.durations import rfc3339

Row = dict[str, Any]

STALLED_SECONDS = 30.0
"""A job that has been due for so long in a queue that is not capped tells that nobody claims."""

LATE_SECONDS = 300.0
"""A day of history that should have gone so long ago is late: a few rounds of the duty did not succeed."""

DEGRADED = {
    "no_scheduler": "no scheduler is live: nothing is claimed; start `rota scheduler`",
    "no_worker": "no worker is live: nothing is executed; start `rota worker`",
    "unowned_partitions": "some partitions have no scheduler: their jobs wait; within a lease one should take them",
    "lease": "a member has not reached the store for a lease: it begins and publishes nothing until it does",
    "broker": "a member has no connection to RabbitMQ: what is due waits in the store",
    "broker_blocked": "RabbitMQ blocks publishers (memory or disk alarm): what is due waits in the store",
    "unroutable": "RabbitMQ returned work of a queue that is not there (any more): it is declared and tried again",
    "unknown_handler": "a worker got runs of a handler that its app does not have: they are set aside, and dead in the end",
    "stuck_threads": "handlers' threads are past their timeout and do not end: their runs were taken from them",
    "stuck_coroutines": "async handlers were cancelled, by their timeout or by somebody, and go on: their runs were taken from them",
    "stuck_loop": "a handler blocks its worker's event loop (an `async def` that sleeps or computes): nothing goes on there, the log has where",
    "stalled": f"jobs have been due for over {STALLED_SECONDS:.0f} s and nobody claims them: look at the schedulers' logs",
    "numbers_back": "the store gives numbers that it has given before (restored from a backup?): see `rota doctor`",
    "history_late": "a day of history should have gone and is still there: `rota doctor` tells what holds it",
    "parked": "messages lie in rota.parked because they could not be used: `rota doctor` tells why and what to do",
    "no_consumers": "a queue holds work and no worker consumes it: start one with `rota worker --queue`",
}
"""The words of `degraded`, and what each means."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows of a list: everything that fits all of what is given, the newest first, `limit` at most.

    `job` is a full id, `tick` the run's instant as `split_run` gives it, `error` text within reason or errors. `until`, the
    last instant of death, is for lists of dead runs.
    """

    queue: str | None = None
    handler: str | None = None
    tenant: str | None = None
    state: str | None = None
    job: str | None = None
    tick: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class HealthView:
    """What the doctor asks of a store. Days are YYYYMMDD, UTC.

    `number` is the last dispatch number or fence that was given, `highest` the largest that a row or member knows,
    `last_day` the last one that history has room for.
    """

    server: str
    schema: str
    now: str
    number: int
    highest: int
    last_day: str | None
    today: str


@dataclass(frozen=True, slots=True)
class DayView:
    """A day of history: `day` is YYYY-MM-DD (UTC), `rows` an estimate, `bytes` what its table takes with its indexes.

    While it is `open` runs may still end on it.
    """

    day: str
    rows: int
    bytes: int
    open: bool


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The days that there are, the oldest first.

    `keep_s` is how long a day is kept after its end, in seconds, as the last round of retention had it; None: there was none.
    `why` tells by day (YYYYMMDD) what that round could not drop, and what was in the way.
    """

    now: str
    keep_s: float | None
    why: dict[str, str]
    days: list[DayView]

    def goes_at(self, day: str, keep: float | None = None) -> str | None:
        """When a day has to go, by `keep` seconds where no round of retention has told any."""
        kept = keep if self.keep_s is None else self.keep_s
        if kept is None:
            return None
        return rfc3339(datetime.fromisoformat(f"{day}T00:00:00+00:00") + timedelta(days=1, seconds=kept))

    def late(self) -> list[Row]:
        """The days that should have gone: `day`, `since` when, and `why` they are still there (None: nobody told)."""
        limit = rfc3339(datetime.fromisoformat(self.now) - timedelta(seconds=LATE_SECONDS))
        return [
            {"day": each.day, "since": since, "why": self.why.get(each.day.replace("-", ""))}
            for each in self.days
            if (since := self.goes_at(each.day)) is not None and since <= limit
        ]


@dataclass(frozen=True, slots=True)
class UpkeepView:
    """How the store's server keeps the tables that change all the time.

    `tables`: name, live and dead rows (estimates), bytes, `limit` (dead rows from which on autovacuum acts), `vacuumed_s`
    (seconds since the last vacuum, or since the server started). `holders`: who keeps dead rows from being removed, the oldest
    first: `what`, `since` (None: unknown), `age_s` and `transactions` (how many have begun since).
    """

    tables: list[Row]
    holders: list[Row]

    def to_json(self) -> Row:
        """With the keys tables and holders."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class JobView:
    """All that is known of a job: its row while it has a future, its live runs, its dead ones, its latest past."""

    id: str
    job: Row | None
    runs: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)

    @property
    def state(self) -> str:
        """One word: the state of its latest run that is alive, else scheduled or paused, else dead, else the last outcome."""
        if self.runs:
            return str(next((run["state"] for run in self.runs if run["state"] != "buffered"), "buffered"))
        if self.job:
            return "paused" if self.job["paused"] else "scheduled"
        if self.dead:
            return "dead"
        return str(self.history[0]["outcome"]) if self.history else "unknown"

    def to_json(self) -> Row:
        """With the keys id, state, job, runs, dead, history."""
        return {
            "id": self.id,
            "state": self.state,
            "job": self.job,
            "runs": self.runs,
            "dead": self.dead,
            "history": self.history,
        }


@dataclass(frozen=True, slots=True)
class StatusView:
    """One picture of everything, as `rota status --json` has it.

    `ended` counts runs by outcome since the start of the day (UTC), `returned` attempts that ended for now (retry,
    snooze, release), `superseded` writes that were refused because they came too late, by what they were, `republished`
    publishes that were not confirmed and are repeated; all are sums of the members' counters, so what a killed member did
    after its last heartbeat is missing. `parked` counts the messages in `rota.parked`, as a scheduler saw it last.
    `estimated` names the totals that are too large to be counted: those of jobs and of all dead runs are estimates then,
    a queue's `dead` is a bound from below. `last_death` is the newest of the dead runs, `age_s` seconds ago.
    `history` has `keep_s`, the `oldest` day, and the days that are `late`.
    """

    now: str
    members: list[Row]
    partitions: dict[str, int]
    jobs: Row
    runs: dict[str, int]
    ended: dict[str, int]
    dead: int
    queues: list[Row]
    lag: Row
    degraded: list[str]
    returned: dict[str, int] = field(default_factory=dict)
    superseded: dict[str, int] = field(default_factory=dict)
    republished: dict[str, int] = field(default_factory=dict)
    parked: int = 0
    estimated: list[str] = field(default_factory=list)
    last_death: Row | None = None
    history: Row = field(default_factory=dict)

    def to_json(self) -> Row:
        """With the keys of the interface, and `why`: what each word of `degraded` means."""
        why = {word: DEGRADED.get(word, "") for word in self.degraded}
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "why": why}
