"""What a claim costs with very many jobs stored, and with very many due: buffers touched and time per claimed job.

The product's own claims, batch by batch over all lanes as a scheduler walks them, each committed; nothing is published. The
server counts the claim statement's buffers. Two series: so many jobs stored for later beside 10,000 that are due; and so many due.
In front of each measurement `run` is emptied and `job` vacuumed, so that only the size differs. `of_first` is the ratio of the
buffers to those of the smallest size; `without_depth` the same less one buffer a job for each level that the key's index has
more: every job that leaves the table is looked up there once.

    make bench BENCH=stored
    make bench BENCH="stored --large"      a hundred million too: about 30 GB and an hour
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from common import Bench, Report, Size, opened, own_postgres, parse
from rota.sched.ids import PARTITIONS
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.store import open_store
from rota.sched.store.values import NewMember
from statements import Counted, Statements
from stock import queue_names, store

if TYPE_CHECKING:
    import argparse

DEPTH = "select level from bt_metap(%s)"
INDEXES = ("job_due", "job_pkey")
SIZE = "select pg_total_relation_size('rota.job') / 1e6"


class Claims:
    """A scheduler that only claims."""

    def __init__(self, bench: Bench, batch: int) -> None:
        self._store = open_store(bench.store)
        self._link = self._store.link("bench")
        self._batch = batch
        self._per_lane = max(16, batch // 8)
        self._member = self._link.run(self._store.join(NewMember("scheduler", "bench", 0, "bench")))
        self.restart()

    def restart(self) -> None:
        """Knows no low watermark."""
        self._lanes = LaneBook()
        self._lanes.set(range(PARTITIONS), queue_names())

    def claim(self, jobs: int) -> int:
        """Claims until so many jobs or more are claimed, or nothing is due. Returns how many."""
        claimed = 0
        while claimed < jobs:
            lanes = self._lanes.walk()
            found = self._link.run(self._store.claim(self._member, lanes, self._batch, self._per_lane))
            self._lanes.claimed(lanes, found, self._batch, self._per_lane)
            if not found.rows:
                break
            claimed += found.rows
        return claimed

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()


def measure(bench: Bench, statements: Statements, claims: Claims, jobs: int) -> dict[str, Any]:
    """The cost of claiming so many jobs of what is stored now."""
    bench.db.execute("truncate rota.run")
    bench.db.execute("vacuum analyze rota.job")
    claims.restart()
    statements.reset()
    begun = time.perf_counter()
    claimed = claims.claim(jobs)
    seconds = time.perf_counter() - begun
    c = statements.read().get("claim", Counted())
    return {
        "claimed": claimed,
        "claims": c.calls,
        "buffers_per_job": round(c.buffers / claimed, 2),
        "us_per_job": round(c.ms / claimed * 1000, 1),
        "client_us_per_job": round(seconds / claimed * 1e6, 1),
        **{f"{index}_levels": bench.value(DEPTH, f"rota.{index}") + 1 for index in INDEXES},
        "table_mb": round(float(bench.value(SIZE)), 1),
    }


def main() -> None:
    """Both series, on a Postgres of its own."""
    options = parse(
        __doc__,
        stored=Size(
            (1_000, 100_000, 1_000_000, 10_000_000), (1_000, 100_000, 1_000_000), (1_000, 20_000), "jobs for later"
        ),
        backlog=Size(
            (1_000, 10_000, 100_000, 1_000_000), (1_000, 100_000, 1_000_000), (1_000, 20_000), "jobs that are due"
        ),
        claim=Size(10_000, 10_000, 2_000, "jobs to claim each time"),
        batch=Size(500, 500, 500, "jobs a claim"),
        large=Size(False, False, False, "a hundred million stored, too"),
    )
    if options.large:
        options.stored = (*options.stored, 100_000_000)
    with own_postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server, opened(server.url) as bench:
        report = Report("stored", options, server.url)
        statements = Statements(bench.db)
        bench.db.execute("create extension if not exists pageinspect")
        with closing(Claims(bench, options.batch)) as claims:
            series(report, options, bench, statements, claims)
    report.show()


def series(report: Report, options: argparse.Namespace, bench: Bench, statements: Statements, claims: Claims) -> None:
    """Stored for later, growing; then due, growing, each size in an empty table."""
    first: dict[str, Any] = {}
    there = 0
    for stored in sorted(options.stored):
        store(bench.db, stored - there, due=False, told=report.note)
        there = stored
        store(bench.db, options.claim, due=True)
        found = measure(bench, statements, claims, options.claim)
        first = first or found
        report.add("jobs stored for later", stored=stored, **found, **ratios(found, first))
    first = {}
    for backlog in sorted(options.backlog):
        bench.db.execute("truncate rota.job")
        store(bench.db, backlog, due=True, told=report.note)
        found = measure(bench, statements, claims, min(backlog, options.claim))
        first = first or found
        report.add("jobs due", due=backlog, **found, **ratios(found, first))


def ratios(found: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    """Of buffers per job."""
    deeper = found["job_pkey_levels"] - first["job_pkey_levels"]
    start = first["buffers_per_job"]
    return {
        "of_first": round(found["buffers_per_job"] / start, 3),
        "without_depth": round((found["buffers_per_job"] - deeper) / start, 3),
    }


if __name__ == "__main__":
    main()
