"""What a job costs: CPU time by component, WAL by statement, and the memory of a member.

A scheduler and a worker are up and idle; so many no-op jobs are stored in a queue that is paused, which is then resumed. A
Postgres of the bench's own counts what each statement writes. A first round warms up, and no checkpoint comes in between, so
that few pages are written to the WAL in full; how many were is told.

    make bench BENCH=cost
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from common import QUEUE, Bench, Report, Size, opened, own_postgres, parse, server_pids, spread
from statements import Counted, Statements, total
from usage import memory_mb, usage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

LSN = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
PAUSED = "update rota.queue set paused = %s where name = %s"
CLAIMING = ("claim", "advance", "ready", "next_due")
HOT = ("claim", "begin", "finish")
SUBMIT = ("submit",)


class Round:
    """One measurement: submit, then through the pipeline."""

    def __init__(self, bench: Bench, statements: Statements, pids: dict[str, int]) -> None:
        self.bench = bench
        self.statements = statements
        self.pids = pids

    def measure(self, jobs: int) -> dict[str, Any]:
        """Per job, submit and the rest apart."""
        self.bench.db.execute(PAUSED, [True, QUEUE])
        time.sleep(6)  # the scheduler reads its queues every 5 s
        submit = self._phase(jobs, lambda: self.bench.submit(jobs))
        begun = time.monotonic()
        through = self._phase(jobs, lambda: self._through(jobs))
        return {"submit": submit, "through": through, "seconds": time.monotonic() - begun}

    def _through(self, jobs: int) -> None:
        """Watched by the server's own count: a look at `run` would read through what is dead in it."""
        self.bench.db.execute(PAUSED, [False, QUEUE])
        self.bench.wait("the last finish", lambda: self.statements.read().get("finish", Counted()).rows >= jobs)

    def _phase(self, jobs: int, work: Callable[[], object]) -> dict[str, Any]:
        self.statements.reset()
        before = self._cpu()
        lsn = self.bench.value(LSN)
        work()
        written = int(self.bench.value(LSN) - lsn)
        return {
            "cpu_us": {name: (cpu - before[name]) / jobs * 1e6 for name, cpu in self._cpu().items()},
            "wal": written / jobs,
            "statements": self.statements.read(),
        }

    def _cpu(self) -> dict[str, float]:
        """Seconds; `client` is this process, which submits and then watches."""
        return {**{name: usage(pid).cpu for name, pid in self.pids.items()}, "client": time.process_time()}


def measure(bench: Bench, options: argparse.Namespace, report: Report, pids: dict[str, int]) -> None:
    """Rounds with the same two members."""
    statements = Statements(bench.db)
    bench.lift_cap(20_000)
    with bench.member("scheduler") as scheduler, bench.member("worker") as worker:
        bench.wait("both members", lambda: bench.value("select count(*) from rota.member where state = 'live'") == 2)
        time.sleep(3)
        memory = {"scheduler, idle": memory_mb(scheduler), "worker, idle": memory_mb(worker)}
        each = Round(bench, statements, {**pids, "scheduler": scheduler, "worker": worker})
        each.measure(options.jobs)
        rounds = [each.measure(options.jobs) for _ in range(options.rounds)]
        memory |= {"scheduler, after load": memory_mb(scheduler), "worker, after load": memory_mb(worker)}
    tell(report, rounds, options.jobs)
    for member, used in memory.items():
        report.add("memory", member=member, **used)


def tell(report: Report, rounds: list[dict[str, Any]], jobs: int) -> None:
    """Medians over the rounds, per job."""
    for phase in ("submit", "through"):
        for component in rounds[0][phase]["cpu_us"]:
            report.add(
                "CPU, us a job",
                phase=phase,
                component=component,
                us=spread((r[phase]["cpu_us"][component] for r in rounds), 1),
            )
        report.add(
            "WAL, bytes a job",
            phase=phase,
            of="all, by the log's position",
            bytes=spread(r[phase]["wal"] for r in rounds),
        )
    for phase, of in (("submit", SUBMIT), ("through", HOT), *(("through", (name,)) for name in HOT)):
        counted = [total(r[phase]["statements"], of) for r in rounds]
        report.add(
            "WAL, bytes a job",
            phase=phase,
            of=" + ".join(of),
            bytes=spread(c.wal_bytes / jobs for c in counted),
            full_pages=spread((c.wal_full_pages / jobs for c in counted), 4),
            records=spread((c.wal_records / jobs for c in counted), 1),
            batch=spread((jobs / max(1, c.calls) for c in counted), 1),
        )
    found = rounds[-1]["through"]["statements"]
    for name, c in sorted(found.items(), key=lambda item: -item[1].ms)[:12]:
        report.add(
            "statements of the last round",
            statement=name,
            calls=c.calls,
            ms=round(c.ms, 1),
            us_a_job=round(c.ms / jobs * 1e3, 2),
            buffers_a_job=round(c.buffers / jobs, 2),
            wal_bytes_a_job=round(c.wal_bytes / jobs, 1),
        )


def main() -> None:
    """Measures on a Postgres of its own."""
    options = parse(
        __doc__,
        jobs=Size(60_000, 30_000, 3_000, "no-op jobs a round"),
        rounds=Size(5, 2, 1, "rounds behind the first, which warms up"),
    )
    with own_postgres(checkpoint_timeout="1h", max_wal_size="16GB") as server, opened(server.url) as bench:
        report = Report("cost", options, server.url)
        measure(bench, options, report, server_pids(server))
    report.show()


if __name__ == "__main__":
    main()
