"""What statements cost while very many jobs go through under one old snapshot: buffers per job, or per call, over time.

Another connection holds a snapshot from the beginning, as a forgotten session or a long dump does: nothing that leaves a table
is vacuumed away. The pipeline is fed with jobs that are due at once, a few thousand ahead of it, and somebody looks at `rota
status` now and then. Claim, begin and finish are told per job; recovery, reconciler and status, which come by the clock, per call, too:
a call reads what has gone through lately, so it costs more where more goes through in a second. Samples begin when low watermarks have
the distance from now that they keep. In the end the last quarter of the samples is told against the first, per job for all.

    make bench BENCH=churn
    make bench BENCH="churn --jobs 200000"
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from common import PATIENCE, Bench, Report, Size, opened, own_postgres, parse
from rota.sched.store import open_store
from statements import RECOVERY, Counted, Statements, of_status, since, total
from stock import feed, queue_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

PER_JOB = ("claim", "ready", "begin", "finish")
FED = 2000
"""Jobs that are stored at a time."""
AHEAD = 10_000
"""Jobs that are stored and not ended, at most about."""
LOOK_SECONDS = 0.2
STATUS_SECONDS = 2.0


class Churn:
    """The pipeline's progress, as the server counts it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.statements = Statements(bench.db)
        self.fed = 0
        self._store = open_store(bench.store)
        self._link = self._store.link("bench")
        self._looked = 0.0
        self._ended = 0

    def go_on(self, jobs: int, until: float) -> dict[str, Counted]:
        """Feeds until so many in all have ended, or the time is over; what was counted until then."""
        end = time.monotonic() + PATIENCE
        while True:
            if time.monotonic() - self._looked > STATUS_SECONDS:
                self._looked = time.monotonic()
                self._link.run(self._store.status())
            found = self.statements.read()
            ended = finished(found)
            if ended >= jobs or time.monotonic() > until:
                return found
            if ended > self._ended:
                self._ended, end = ended, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                raise SystemExit(f"bench: {ended} of {jobs} jobs ended, and none within {PATIENCE:.0f} s")
            if self.fed - ended < AHEAD:
                feed(self.bench.db, FED)
                self.fed += FED
            else:
                time.sleep(LOOK_SECONDS)

    def settle(self, seconds: float) -> dict[str, Counted]:
        """Feeds for a while; what was counted until then."""
        end = time.monotonic() + seconds
        found = self.go_on(FED, end)
        while time.monotonic() < end:
            found = self.go_on(finished(found) + FED, end)
        return found

    def close(self) -> None:
        """Ends the connection of status."""
        self._link.close()


def finished(found: Mapping[str, Counted]) -> int:
    """How many jobs have ended."""
    return found.get("finish", Counted()).rows


@contextmanager
def old_snapshot(store: str) -> Iterator[None]:
    """A session that forgot to commit."""
    with psycopg.connect(store) as db:
        db.execute("set transaction isolation level repeatable read")
        db.execute("select count(*) from rota.queue")
        yield


def parts(found: Mapping[str, Counted]) -> dict[str, Counted]:
    """What is told, each of one or of several statements."""
    return {
        **{name: found.get(name, Counted()) for name in PER_JOB},
        "recovery": total(found, RECOVERY)._replace(calls=found.get("glance", Counted()).calls),
        "reconciler": found.get("lost", Counted()),
        "status": of_status(found),
        "next_due": found.get("sleep", Counted()),
        "owned": found.get("owned", Counted()),
    }


def sample(found: Mapping[str, Counted], seconds: float) -> dict[str, Any]:
    """Buffers; None for what was not called meanwhile."""
    jobs, told = finished(found), parts(found)
    return {
        "jobs_per_s": round(jobs / seconds),
        **{name: round(told[name].buffers / jobs, 2) for name in PER_JOB},
        **{name: round(c.buffers / c.calls) if c.calls else None for name, c in told.items() if name not in PER_JOB},
    }


def per_job(samples: Sequence[Mapping[str, Counted]]) -> dict[str, float]:
    """Buffers a job of several samples together."""
    jobs = sum(map(finished, samples))
    told = [parts(found) for found in samples]
    return {name: sum(each[name].buffers for each in told) / jobs for name in told[0]}


def measure(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """Samples over equal numbers of jobs."""
    bench.db.execute("insert into rota.queue (name) select unnest(%s::text[])", [queue_names()])
    bench.env |= {"ROTA_RECONCILE_AFTER": str(options.reconcile_after)}
    queues = [word for queue in queue_names() for word in ("--queue", queue)]
    until = time.monotonic() + options.minutes * 60
    samples: list[dict[str, Any]] = []
    each: list[dict[str, Counted]] = []
    with bench.member("scheduler"), bench.member("worker", *queues), closing(Churn(bench)) as churn:
        churn.go_on(FED, until)
        with old_snapshot(bench.store):
            counted = churn.settle(options.settle)
            start = finished(counted)
            for n in range(1, options.samples + 1):
                begun = time.monotonic()
                found = churn.go_on(start + n * options.jobs // options.samples, until)
                if time.monotonic() > until:
                    report.note(f"{n - 1} of {options.samples} samples: {options.minutes:.0f} minutes are over")
                    break
                each.append(since(counted, found))
                samples.append(sample(each[-1], time.monotonic() - begun))
                counted = found
                report.add("buffers under an old snapshot", jobs=n * options.jobs // options.samples, **samples[-1])
    if not samples:
        raise SystemExit(
            f"bench: no sample of {options.jobs // options.samples:,} jobs within {options.minutes} minutes"
        )
    quarter = max(1, len(each) // 4)
    first, last = per_job(each[:quarter]), per_job(each[-quarter:])
    for name, buffers in first.items():
        if buffers:
            of_first = round(last[name] / buffers, 2)
            report.add(
                "buffers a job, last quarter of first",
                statement=name,
                first=round(buffers, 2),
                last=round(last[name], 2),
                of_first=of_first,
            )
    called = [(name, c) for name, c in each[-1].items() if c.calls]
    for name, c in sorted(called, key=lambda item: -item[1].buffers)[:20]:
        earliest = each[0].get(name, Counted())
        report.add(
            "buffers a call",
            statement=name,
            calls=c.calls,
            first=round(earliest.buffers / earliest.calls) if earliest.calls else None,
            last=round(c.buffers / c.calls),
            last_ms=round(c.ms / c.calls, 2),
        )


def main() -> None:
    """Measures on a Postgres of its own."""
    options = parse(
        __doc__,
        jobs=Size(2_000_000, 300_000, 10_000, "jobs that go through"),
        samples=Size(20, 6, 2, "readings, evenly over the jobs"),
        minutes=Size(18.0, 6.0, 3.0, "that they may take: it ends with the samples that it has then"),
        settle=Size(
            45.0, 45.0, 5.0, "seconds under the snapshot before the first sample: low watermarks trail by half a minute"
        ),
        reconcile_after=Size(60, 60, 20, "seconds, ROTA_RECONCILE_AFTER: the reconciler looks four times in that time"),
    )
    with own_postgres(max_wal_size="8GB") as server, opened(server.url) as bench:
        report = Report("churn", options, server.url)
        measure(bench, options, report)
    report.show()


if __name__ == "__main__":
    main()
