"""What submitters were told is stored, and what came of it: the figures at the end of the demo and of chaos.

What was acknowledged is compared with the rows in the tables of effects, which have no unique key and do not depend on
the ledger; the ledger is asked for what has no effect (ticks that were skipped, retries, lateness).
"""

from __future__ import annotations

import threading
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Rows = Callable[..., list[tuple[Any, ...]]]

TICKS = "select (extract(epoch from tick) * 1000000)::bigint from demo_effect where job = %s"
TOLD = """
select (extract(epoch from scheduled_for) * 1000000)::bigint, (extract(epoch from coalesce(
  substring(reason from 'from this one to (\\S+) were')::timestamptz, scheduled_for)) * 1000000)::bigint
from rota.history where job_id = %s and outcome in ('skipped', 'cancelled', 'expired', 'discarded')
"""
"""First and last: one row may tell of many ticks. Times are in microseconds, in which ticks are exact."""
EXCUSES = """
select job from demo_effect where job = any(%s::uuid[]) union
select job_id from rota.history where job_id = any(%s::uuid[]) and outcome in ('cancelled', 'expired') and reason <> ''
"""
IN_SPITE = """
select h.job_id from rota.history h join demo_effect e on e.job = h.job_id and e.tick = h.scheduled_for
where h.outcome in ('cancelled', 'expired')
"""
LATENESS = """
select percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from begun_at - due_at) * 1000)
from rota.history where outcome = 'succeeded' and attempt = 1
"""


class Acknowledged:
    """What submitters were told is stored: job id to the key of the effect it owes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.effects: dict[str, str] = {}
        self.plain: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.excused: dict[str, str] = {}
        """Those that were asked to cancel, or may expire: a row that says so is as good as the effect."""
        self.schedules: dict[str, str] = {}
        self.steps: dict[str, float] = {}
        """Seconds between the ticks of a schedule, by its key. Those of cron divide the minute."""
        self.to_cancel: PriorityQueue[tuple[float, str]] = PriorityQueue()
        """Jobs that somebody is to cancel, and when (monotonic)."""
        self.errors: list[str] = []

    def note(self, kind: dict[str, str], ids: list[str], keys: list[str]) -> None:
        """These were acknowledged."""
        with self._lock:
            kind.update(zip(ids, keys, strict=True))

    @property
    def total(self) -> int:
        """How many one-off jobs were acknowledged."""
        with self._lock:
            return len(self.effects) + len(self.plain) + len(self.broken) + len(self.excused)


class Accounts:
    """Compares what was acknowledged with what the store has. `rows(sql, *params)` asks the store."""

    def __init__(self, acks: Acknowledged, rows: Rows) -> None:
        self.acks = acks
        self.rows = rows
        self.died = 0
        self.redriven = 0

    def value(self, sql: str, *params: Any) -> int:
        """One number from the store."""
        return int(self.rows(sql, *params)[0][0])

    def settled(self) -> bool:
        """Whether nothing is owed and nothing alive."""
        return (
            not self.value("select count(*) from rota.job")  # first: a claim in between moves them to the next
            and not self.value("select count(*) from rota.run")
            and not self.lost()
        )

    def effects(self) -> int:
        """Rows in the tables of effects."""
        return self.value("select count(*) from demo_effect") + self.value("select count(*) from demo_plain")

    def lost(self) -> int:
        """Acknowledged one-offs without an effect, and ticks of schedules that are missing or have none."""
        return len(self.lost_jobs()) + self._unwritten_ticks() + sum(len(self.gaps(job)) for job in self.acks.schedules)

    def lost_jobs(self) -> list[str]:
        """Ids of acknowledged one-offs without an effect."""
        missing: list[str] = []
        for table, owed in (
            ("demo_effect", {**self.acks.effects, **self.acks.broken}),
            ("demo_plain", dict(self.acks.plain)),
        ):
            found = {(str(job), key) for job, key in self.rows(f"select job, key from {table}")}
            missing += [job for job, key in owed.items() if (job, key) not in found]
        excused = dict(self.acks.excused)
        ended = {str(job) for (job,) in self.rows(EXCUSES, list(excused), list(excused))}
        return missing + [job for job in excused if job not in ended]

    def in_spite_of_it(self) -> list[str]:
        """Ids of jobs that have an effect although they were cancelled or expired."""
        return [str(job) for (job,) in self.rows(IN_SPITE)]

    def _unwritten_ticks(self) -> int:
        """Ticks of schedules that the ledger has as done, without an effect."""
        return self.value(
            "select count(*) from rota.history h where outcome = 'succeeded' and job_id = any(%s) and not exists "
            "(select from demo_effect e where e.job = h.job_id and e.tick = h.scheduled_for)",
            list(self.acks.schedules),
        )

    def gaps(self, job: str) -> list[int]:
        """Nominal ticks (microseconds of the epoch) without an effect and without a row that says why.

        Those between the schedule's first effect and its last. One without any effect is one gap: each has had seconds
        to tick.
        """
        ticks = {tick for (tick,) in self.rows(TICKS, job)}
        told = self.rows(TOLD, job)
        if not ticks:
            return [0]
        return [
            tick
            for tick in self._owed(job, ticks)
            if tick not in ticks and not any(first <= tick <= last for first, last in told)
        ]

    def ticks(self) -> int:
        """How many ticks the schedules owed between their first and their last effect."""
        return sum(len(self._owed(job, {tick for (tick,) in self.rows(TICKS, job)})) for job in self.acks.schedules)

    def _owed(self, job: str, ticks: set[int]) -> range:
        """The ticks from the first to the last by the schedule's rhythm: on the grid of the minute, or from the first on."""
        if not ticks:
            return range(0)
        return range(min(ticks), max(ticks) + 1, round(self.acks.steps[self.acks.schedules[job]] * 1_000_000))

    def figures(self) -> dict[str, Any]:
        """What demo and chaos have in common (lateness is that of first attempts, from due to begun)."""
        ((lateness,),) = self.rows(LATENESS)
        p50, p99 = lateness or (0.0, 0.0)
        executed = self.value("select count(*) from rota.history where outcome = 'succeeded'")
        ((seconds,),) = self.rows(
            "select extract(epoch from max(ended_at) - min(claimed_at))::float8 from rota.history where outcome = 'succeeded'"
        )
        errors = "select coalesce(sum(jsonb_array_length(errors)), 0) from rota.history where errors is not null"
        return {
            "submitted": self.acks.total + len(self.acks.schedules),
            "executed": executed,
            "effects": self.effects(),
            "lost": self.lost() + len(self.acks.errors),
            "duplicate_effects": self.value("select count(*) - count(distinct (job, tick)) from demo_effect")
            + len(self.in_spite_of_it()),
            "plain_reruns": self.value("select count(*) - count(distinct (job, tick)) from demo_plain"),
            "retried": self.value(errors) - self.died,
            "dead": self.died,
            "redriven": self.redriven,
            "cancelled": self.value("select count(*) from rota.history where outcome = 'cancelled'"),
            "expired": self.value("select count(*) from rota.history where outcome = 'expired'"),
            "skipped": self.value("select count(*) from rota.history where outcome = 'skipped'"),
            "losses": self.value("select coalesce(sum(losses), 0) from rota.history"),
            "lateness_p50_ms": round(p50, 1),
            "lateness_p99_ms": round(p99, 1),
            "jobs_per_s": round(executed / max(0.001, seconds or 0.001), 1),
        }
