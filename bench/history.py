"""How fast ended runs are kept, and what it does to the pipeline when a day of them goes.

Appended: rows a second into a day's table by one connection, in batches of a thousand as finish inserts them. Retention: a day of
very many rows that is older than history is kept is dropped by a scheduler while the pipeline runs at a steady rate of
jobs that are due now; told are how long it took, and how late jobs began in the seconds before and during.

    make bench BENCH=history
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
from common import Bench, Report, Size, live_work, opened, parse
from stock import append, day_table, end

if TYPE_CHECKING:
    import argparse

OLD_DAYS = 400
"""Older than any retention."""
SIZE_MB = "select pg_total_relation_size(%s) / 1e6"
GONE = "select to_regclass(%s) is null"
FIRST_END = "select exists(select from rota.history where handler = 'live')"
DUE_AGAIN = """
update rota.duty set ran_at = clock_timestamp(), due_at = clock_timestamp() + %s::interval where name = 'retention'
"""
"""A duty is due at the latest a minute after it ran, whatever `due_at` says: what comes before the drop has to fit into that."""
NOW = "select clock_timestamp()"
LATENESS = """
select count(*), percentile_cont(array[0.5, 0.99, 1]) within group (order by extract(epoch from begun_at - due_at)::float8)
from rota.history where handler = 'live' and due_at between %s and %s
"""


def lateness(bench: Bench, since: object, until: object) -> dict[str, float]:
    """Of the live runs that were due in between: from due to begun, in ms."""
    count, found = bench.db.execute(LATENESS, [since, until]).fetchone() or (0, None)
    p50, p99, most = found or (0.0, 0.0, 0.0)
    return {
        "runs": count,
        "p50_ms": round(p50 * 1000, 1),
        "p99_ms": round(p99 * 1000, 1),
        "max_ms": round(most * 1000, 1),
    }


def appended(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """Batches as they come from workers, one after the other."""
    begun = time.perf_counter()
    with psycopg.connect(bench.store, autocommit=True) as db:
        for _ in range(0, options.appended, options.batch):
            append(db, options.batch)
    seconds = time.perf_counter() - begun
    report.add("appended", rows=options.appended, batch=options.batch, rows_per_s=round(options.appended / seconds))
    bench.db.execute("truncate rota.history")


def retention(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """A day goes while the pipeline runs."""
    day = (datetime.now(UTC) - timedelta(days=OLD_DAYS)).date()
    table = day_table(day)
    report.note(f"storing {options.rows:,} rows of {day}")
    begun = time.perf_counter()
    end(bench.db, options.rows, day, report.note)
    loaded = time.perf_counter() - begun
    bench.db.execute("vacuum analyze rota.history")
    size = float(bench.value(SIZE_MB, table))
    bench.db.execute(DUE_AGAIN, ["1 day"])
    with ExitStack() as members:
        for kind in ("scheduler", "worker"):
            members.enter_context(bench.member(kind))
        with live_work(bench.store, options.live):
            bench.wait("the first end", lambda: bench.value(FIRST_END))
            time.sleep(5)  # what was submitted before members had joined has gone through
            before = bench.value(NOW)
            time.sleep(options.before)
            if bench.value(GONE, table):
                raise SystemExit(
                    f"bench: {table} was gone before it was asked for; give less than --before {options.before}"
                )
            # A scheduler looks after it when it starts, if it is due.
            bench.db.execute(DUE_AGAIN, ["-1 min"])
            asked = bench.value(NOW)
            members.enter_context(bench.member("scheduler"))
            bench.wait("the end of the day", lambda: bench.value(GONE, table), 0.01)
            gone = bench.value(NOW)
            time.sleep(options.before)
            after = bench.value(NOW)
        bench.wait_idle()
    report.add(
        "retention",
        rows=options.rows,
        table_mb=round(size),
        loaded_rows_per_s=round(options.rows / loaded),
        live_per_s=options.live,
        seconds_from_start_of_scheduler=round((gone - asked).total_seconds(), 2),
        before=lateness(bench, before, asked),
        during=lateness(bench, asked, gone),
        behind=lateness(bench, gone, after),
    )


def main() -> None:
    """Both, on the servers of all."""
    options = parse(
        __doc__,
        rows=Size(5_000_000, 1_000_000, 50_000, "ended runs of the day that goes"),
        appended=Size(500_000, 200_000, 20_000, "rows to append"),
        batch=Size(1000, 1000, 1000, "rows a statement"),
        live=Size(200, 200, 50, "live jobs a second meanwhile"),
        before=Size(15.0, 8.0, 3.0, "seconds of live work before and behind it"),
    )
    with opened() as bench:
        report = Report("history", options)
        appended(bench, options, report)
        retention(bench, options, report)
    report.show()


if __name__ == "__main__":
    main()
