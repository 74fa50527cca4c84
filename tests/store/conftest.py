"""A store with nothing in it, and shorthands for what a scheduler and a worker do with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from rota.sched.ids import RunKey, new_job_id
from rota.sched.store import open_store
from rota.sched.store.values import Lanes, NewJob, NewMember
from rota.sched.when import Once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.model import Dispatch
    from rota.sched.store.values import Begun, Claimed

START = datetime.min.replace(tzinfo=UTC)


@dataclass
class House:
    """A store under test. Everything goes through the protocol; `sql` only looks, and moves time."""

    store: Any
    link: Any
    queues: list[str] = field(default_factory=lambda: ["mail"])

    def run(self, txn: Any) -> Any:
        return self.link.run(txn)

    def join(self, kind: str = "scheduler") -> int:
        return int(self.run(self.store.join(NewMember(kind, "host", 1, "0"))))

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

    def submit(self, *jobs: NewJob, **options: Any) -> list[Any]:
        return list(self.run(self.store.submit(list(jobs) or [self.job()], **options)))

    def lanes(self, queues: list[str] | None = None, parts: range = range(64)) -> Lanes:
        pairs = [(p, q) for p in parts for q in queues or self.queues]
        return Lanes([p for p, _ in pairs], [q for _, q in pairs], [START] * len(pairs))

    def claim(self, member: int, limit: int = 500, per_lane: int = 100, lanes: Lanes | None = None) -> Claimed:
        claimed: Claimed = self.run(self.store.claim(member, lanes or self.lanes(), limit, per_lane))
        return claimed

    def begin(self, worker: int, *dispatches: Dispatch, alone: bool = False) -> list[Begun]:
        refs = [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False) for d in dispatches]
        return list(self.run(self.store.begin(worker, refs, alone=alone)))

    def started(self) -> tuple[int, int, Dispatch, Begun]:
        """(scheduler, worker, dispatch, begun) of one job that has begun."""
        scheduler, worker = self.join(), self.join("worker")
        self.submit()
        (dispatch,) = self.claim(scheduler).dispatches
        (begun,) = self.begin(worker, dispatch)
        return scheduler, worker, dispatch, begun

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = self.link.connection().execute(text, params or None)
        return list(cursor.fetchall()) if cursor.description else []

    def kill(self, member: int) -> None:
        """The member's lease has run out long ago."""
        self.sql("update rota.member set beat_at = beat_at - interval '1 hour' where id = %s", member)

    def recover(self, member: int) -> Any:
        self.sql("update rota.duty set due_at = to_timestamp(0), ran_at = clock_timestamp()")
        return self.run(self.store.recover(member, 15, 2))

    def state(self, key: Any) -> Any:
        return self.run(self.store.look([RunKey(key.job_id, key.scheduled_for)], 15))[
            RunKey(key.job_id, key.scheduled_for)
        ]

    def history(self, job_id: str) -> list[tuple[Any, ...]]:
        return self.sql("select outcome, reason, attempt, errors, result from rota.history where job_id = %s", job_id)

    def dead(self, job_id: str) -> list[tuple[Any, ...]]:
        return self.sql("select reason, attempt, losses, errors from rota.dead where job_id = %s", job_id)


@pytest.fixture
def house(store_url: str) -> Iterator[House]:
    store = open_store(store_url)
    link = store.link("test")
    yield House(store, link)
    link.close()
