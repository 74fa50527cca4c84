"""What is read from a store for people and scripts: JSON-ready objects with stable keys. Times are RFC 3339, UTC."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

Row = dict[str, Any]

STALLED_SECONDS = 30.0
"""A job that has been due for so long in a queue that is not capped tells that nobody claims."""

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
    "stalled": f"jobs have been due for over {STALLED_SECONDS:.0f} s and nobody claims them: look at the schedulers' logs",
    "numbers_back": "the store gives numbers that it has given before (restored from a backup?): see `rota doctor`",
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

    def to_json(self) -> Row:
        """With the keys of the interface, and `why`: what each word of `degraded` means."""
        why = {word: DEGRADED.get(word, "") for word in self.degraded}
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "why": why}
