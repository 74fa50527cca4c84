"""The store under test, and shorthands for what a client, a scheduler and a worker do with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rota.sched.ids import PARTITIONS, RunKey, new_job_id
from rota.sched.store.values import Lanes, NewJob, NewMember
from rota.sched.store.views import Filter, JobView
from rota.sched.when import Once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.model import Dispatch, Kind
    from rota.sched.store.protocols import Store, SyncLink
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import Begun, Claimed, Recovered, Standing, Submitted
    from rota.sched.store.views import Row

__all__ = ["House", "Testbed"]

T = TypeVar("T")

START = datetime.min.replace(tzinfo=UTC)
LEASE = 15.0
"""Seconds without a heartbeat after which recovery takes a member for dead."""
PARTS = list(range(PARTITIONS))


class Testbed(Protocol):
    """A migrated store with nothing in it, and power over its time."""

    __test__: bool = False  # pytest: not a test

    @property
    def store(self) -> Store:
        """The store under test."""

    def pass_time(self, seconds: float) -> None:
        """All that is stored is older by `seconds`: jobs, runs, dead runs, keys, duties. Members went on beating.

        A run keeps its `scheduled_for`, which names it; history may keep all of its times.
        """

    def silence(self, member: int) -> None:
        """The member's last heartbeat was an hour ago."""


@dataclass
class House:
    """A store with people in it."""

    bed: Testbed
    queues: list[str] = field(default_factory=lambda: ["mail"])

    def __post_init__(self) -> None:
        self.store = self.bed.store
        self.link: SyncLink = self.store.link("conformance")
        # The first round of recovery after a pause judges nobody: let it be over.
        janitor = self.join()
        self.run(self.store.recover(janitor, LEASE, 0))
        self.run(self.store.leave(janitor))

    def close(self) -> None:
        self.link.close()

    def run(self, txn: Transaction[T]) -> T:
        return self.link.run(txn)

    def join(self, kind: Kind = "scheduler") -> int:
        return self.run(self.store.join(NewMember(kind, "host", 1, "0")))

    def job(self, **fields: Any) -> NewJob:
        defaults = {
            "id": new_job_id(),
            "queue": "mail",
            "handler": "send",
            "args": '{"n":1}',
            "when": Once(),
            "request": "r",
        }
        return NewJob(**{**defaults, **fields})

    def submit(self, *jobs: NewJob, repeated: bool = False) -> list[Submitted]:
        return self.run(self.store.submit(list(jobs) or [self.job()], repeated=repeated))

    def lanes(self, queues: Sequence[str] | None = None, parts: Sequence[int] = PARTS) -> Lanes:
        pairs = [(p, q) for p in parts for q in queues or self.queues]
        return Lanes([p for p, _ in pairs], [q for _, q in pairs], [START] * len(pairs))

    def claim(self, member: int, limit: int = 500, per_lane: int = 100, lanes: Lanes | None = None) -> Claimed:
        return self.run(self.store.claim(member, lanes or self.lanes(), limit, per_lane))

    def claim_once(self, member: int, limit: int = 500) -> Claimed:
        return self.run(self.store.claim_once(member, self.lanes(), limit, 100))

    def ready(self, member: int) -> list[Dispatch]:
        return self.run(self.store.ready(member, self.lanes(), 100)).dispatches

    def begin(self, worker: int, *dispatches: Dispatch, alone: bool = False) -> list[Begun]:
        refs = [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False) for d in dispatches]
        return self.run(self.store.begin(worker, refs, alone=alone))

    def started(self) -> tuple[int, int, Dispatch, Begun]:
        """(scheduler, worker, dispatch, begun) of one job that has begun."""
        scheduler, worker = self.join(), self.join("worker")
        self.submit()
        (dispatch,) = self.claim(scheduler).dispatches
        (begun,) = self.begin(worker, dispatch)
        return scheduler, worker, dispatch, begun

    def recover(self, member: int) -> Recovered:
        return self.run(self.store.recover(member, LEASE, 0))

    def lose(self, scheduler: int, *members: int) -> Recovered:
        """The members fall silent and are taken for dead."""
        for member in members:
            self.bed.silence(member)
        return self.recover(scheduler)

    def standing(self, key: RunKey) -> Standing:
        return self.run(self.store.look([key], LEASE))[key]

    def shown(self, job_id: str) -> JobView:
        """All that is known of a job, also if that is nothing."""
        return self.run(self.store.show(job_id)) or JobView(job_id, None)

    def future(self, job_id: str) -> Row:
        """The row of a job that has a future."""
        job = self.shown(job_id).job
        assert job is not None
        return job

    def outcomes(self, job_id: str) -> list[str]:
        """How the job's ended runs ended, the latest first."""
        return [row["outcome"] for row in self.shown(job_id).history]

    def stored(self) -> int:
        """How many jobs have a future."""
        return len(self.run(self.store.list_jobs(Filter(limit=1000))))
