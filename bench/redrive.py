"""What a redrive of very many dead runs does to work that goes on meanwhile, in the same queue and the same worker.

100,000 dead runs are redriven at 2,000/s while live jobs are submitted all the time. One scheduler, one
worker: the rate at which redriven runs began, how late live runs began before and during, how many redriven runs were
executed twice and how many never. What the same number of runs a second costs live ones by itself is told by as many jobs that
were stored ahead and become due at that rate, before the redrive.

    make bench BENCH=redrive
    make bench BENCH="redrive --runs 20000 --rate 500"
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from common import PATIENCE, ROTA, Report, Size, live_work, opened, output, parse

if TYPE_CHECKING:
    import argparse

    from common import Bench

DEAD = """
insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses, errors, due_at,
  claimed_at)
select id, now(), now() - make_interval(secs => n * 0.01), '3 attempts failed', get_byte(uuid_send(id), 15) & 63, 'bench',
  'mark', jsonb_build_object('key', n), 3, 0, '[{"attempt": 3, "type": "TimeoutError", "message": "no answer"}]', now(), now()
from (select gen_random_uuid() as id, n from generate_series(1, %s) n) x
"""
STORED = """
insert into rota.job (id, part, queue, next_run_at, scheduled_for, handler, args, created_at)
select id, get_byte(uuid_send(id), 15) & 63, 'bench', due, due, 'mark', jsonb_build_object('key', -n), now()
from (select gen_random_uuid() as id, n, %s::timestamptz + make_interval(secs => n / %s::float8) as due
  from generate_series(1, %s) n) x
"""
LATENESS = """
select count(*), coalesce(percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from begun_at - due_at)), '{0,0}')
from rota.history where handler = 'live' and due_at between %s and %s
"""
BEGUN = """
select count(*), extract(epoch from max(begun_at) - min(begun_at))::float8, min(begun_at), max(begun_at)
from rota.history where handler = 'mark' and (args ->> 'key')::int > 0
"""


def measure(bench: Bench, marks: Path, options: argparse.Namespace, report: Report) -> None:
    """Live work alone, then with the redrive beside it."""
    db, runs = bench.db, options.runs
    worker = ("worker", "--concurrency", str(options.concurrency))
    with bench.member("scheduler"), bench.member(*worker), live_work(bench.store, options.live):
        db.execute(DEAD, [runs])
        db.execute("analyze rota.dead")
        bench.wait("the first end", lambda: bench.value("select exists(select from rota.history)"))
        time.sleep(5)  # what was submitted before members had joined has gone through
        (before,) = db.execute("select clock_timestamp()").fetchone() or ()
        time.sleep(options.before)
        alone = lateness(bench, before, bench.value("select clock_timestamp()"))
        beside_stored = stored(bench, options)
        (begun,) = db.execute("select clock_timestamp()").fetchone() or ()
        began = time.monotonic()
        command = [ROTA, "redrive", "--queue", "bench", "--rate", f"{options.rate}/s", "--json"]
        told = output(command, env=bench.env)
        seconds = time.monotonic() - began
        end = time.monotonic() + PATIENCE
        while bench.value(BEGUN) < runs and time.monotonic() < end:  # what is lost never comes
            time.sleep(1)
    count, span, _, last = db.execute(BEGUN).fetchone() or (0, 0.0, None, None)
    executions = Counter(key for key in marks.read_text().split() if not key.startswith("-"))
    report.add(
        "redrive",
        runs=runs,
        redriven=json.loads(told.splitlines()[-1])["redriven"],
        command_s=round(seconds, 1),
        asked_per_s=options.rate,
        kept_per_s=round(count / span) if span else 0,
        live_per_s=options.live,
        live_alone=alone,
        live_beside_stored=beside_stored,
        live_during=lateness(bench, begun, last),
        doubled=sum(n > 1 for n in executions.values()),
        lost=runs - len(executions),
    )


def stored(bench: Bench, options: argparse.Namespace) -> dict[str, float]:
    """How late live work is while jobs that were stored ahead become due at the rate of the redrive."""
    jobs = int(options.before * options.rate)
    (start, end) = bench.db.execute(
        "select now() + interval '10 s', now() + make_interval(secs => 10 + %s)", [options.before]
    ).fetchone() or (None, None)
    bench.db.execute(STORED, [start, options.rate, jobs])
    time.sleep(10 + options.before)
    bench.wait("the stored jobs", lambda: not bench.value("select exists(select from rota.job where handler = 'mark')"))
    bench.wait("their ends", lambda: not bench.value("select exists(select from rota.run where handler = 'mark')"))
    return lateness(bench, start, end)


def lateness(bench: Bench, since: object, until: object) -> dict[str, float]:
    """Of the live runs that were due in between: from due to begun, in ms."""
    count, (p50, p99) = bench.db.execute(LATENESS, [since, until]).fetchone() or (0, (0.0, 0.0))
    return {"runs": count, "p50_ms": round(p50 * 1000, 1), "p99_ms": round(p99 * 1000, 1)}


def main() -> None:
    """Parses and measures."""
    options = parse(
        __doc__,
        runs=Size(100_000, 20_000, 1_000, "dead runs"),
        rate=Size(2_000, 1_000, 500, "that the redrive asks for, runs a second"),
        live=Size(100, 100, 100, "live jobs a second"),
        before=Size(10.0, 10.0, 2.0, "seconds of live work alone"),
        concurrency=Size(16, 16, 16, "of the worker"),
    )
    report = Report("redrive", options)
    with tempfile.TemporaryDirectory() as folder, opened() as bench:
        marks = Path(folder) / "marks"
        marks.touch()
        bench.env |= {"BENCH_MARKS": str(marks)}
        measure(bench, marks, options, report)
    report.show()


if __name__ == "__main__":
    main()
