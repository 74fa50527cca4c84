"""What an idle stack does: statements, transactions, wake-ups and CPU time, with very many jobs stored for later.

Two schedulers and two workers with the settings that everybody has (beat 5 s), nothing due. Statements are counted by a
Postgres of the bench's own; begin, set and commit, which travel with them, apart.

    make bench BENCH=idle
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from common import Bench, Report, Size, opened, own_postgres, parse, server_pids
from statements import FRAME, Counted, Statements
from stock import store
from usage import memory_mb, usage

if TYPE_CHECKING:
    import argparse

KINDS = ("scheduler", "scheduler", "worker", "worker")
SETTLE_SECONDS = 20.0


def measure(bench: Bench, options: argparse.Namespace, report: Report, pids: dict[str, int]) -> None:
    """A while of nothing."""
    statements = Statements(bench.db)
    report.note(f"storing {options.stored:,} jobs")
    store(bench.db, options.stored, due=False, told=report.note)
    with ExitStack() as members:
        ours = {f"{kind} {n}": members.enter_context(bench.member(kind)) for n, kind in enumerate(KINDS, 1)}
        bench.wait(
            "all members", lambda: bench.value("select count(*) from rota.member where state = 'live'") == len(KINDS)
        )
        time.sleep(SETTLE_SECONDS)
        before = {name: usage(pid) for name, pid in {**ours, **pids}.items()}
        begun = time.monotonic()
        statements.reset()
        time.sleep(options.seconds)
        seconds = time.monotonic() - begun
        counted = statements.read()
        after = {name: usage(pid) for name, pid in {**ours, **pids}.items()}
        memory = {name: memory_mb(pid) for name, pid in ours.items()}
    for name, used in after.items():
        report.add(
            "processes",
            process=name,
            cpu_s_per_minute=round((used.cpu - before[name].cpu) / seconds * 60, 2),
            percent_of_a_core=round((used.cpu - before[name].cpu) / seconds * 100, 2),
            wakeups_per_s=round((used.wakeups - before[name].wakeups) / seconds, 1),
            **memory.get(name, {}),
        )
    own = sum(after[name].cpu - before[name].cpu for name in after if name != "rabbitmq")
    frames = counted.pop(FRAME, Counted())
    report.add(
        "whole stack",
        stored=options.stored,
        seconds=round(seconds, 1),
        queries_per_s=round(sum(c.calls for c in counted.values()) / seconds, 2),
        frames_per_s=round(frames.calls / seconds, 2),
        percent_of_a_core=round(own / seconds * 100, 2),
        without="rabbitmq",
    )
    for name, c in sorted(counted.items(), key=lambda item: -item[1].calls):
        report.add(
            "statements",
            statement=name,
            per_s=round(c.calls / seconds, 3),
            ms_each=round(c.ms / c.calls, 3),
            buffers_each=round(c.buffers / c.calls, 1),
        )


def main() -> None:
    """Measures on a Postgres of its own."""
    options = parse(
        __doc__,
        stored=Size(1_000_000, 1_000_000, 20_000, "jobs stored for later"),
        seconds=Size(120.0, 60.0, 20.0, "that nothing happens"),
    )
    with own_postgres() as server, opened(server.url) as bench:
        report = Report("idle", options, server.url)
        measure(bench, options, report, server_pids(server))
    report.show()


if __name__ == "__main__":
    main()
