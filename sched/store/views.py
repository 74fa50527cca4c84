"""What is read from a store for people and scripts: JSON-ready objects with stable keys. Times are RFC 3339, UTC."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows of a list: everything that fits all of what is given, the newest first, `limit` at most.

    `job` is a full id, `tick` the run's instant as `split_run` gives it, `error` text within reason or errors.
    """

    queue: str | None = None
    handler: str | None = None
    tenant: str | None = None
    state: str | None = None
    job: str | None = None
    tick: str | None = None
    error: str | None = None
    since: datetime | None = None
    limit: int = 50


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
        """One word: the state of its run, else scheduled or paused, else dead, else the last outcome."""
        if self.runs:
            return str(self.runs[0]["state"])
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
    snooze, release), `superseded` writes that were refused because they came too late, by what they were; all are sums
    of the members' counters, so what a killed member did after its last heartbeat is missing. `estimated` names the totals that are too large to be counted.
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
    estimated: list[str] = field(default_factory=list)

    def to_json(self) -> Row:
        """With the keys of the interface."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
