"""How fast no-op jobs go through, beside the floor (bench/floor), on the same servers, in turns.

Fired: claimed, published, confirmed, by a scheduler alone. Drained: begun, run, finished, acked, by workers alone. End to
end: both at once on stored jobs. All times of the product are its ledger's, so the store's clock, and watching costs next
to nothing. The floor tells fired and drained itself; its end to end is read off its own history in the same way, from the
first claim to the last finish, without the start of processes on both sides.

    make bench BENCH=pipeline
    make bench BENCH="pipeline --jobs 20000 --rounds 5 --workers 1"
    make bench BENCH="pipeline --rabbitmq 4"           on a node of RabbitMQ 4
    make bench BENCH="pipeline --rabbitmq cluster"     on three, every message on each
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, closing
from itertools import product
from typing import TYPE_CHECKING, Any

import pika
import psycopg
from common import NAME, QUEUE, ROOT, Bench, Report, Size, broker, opened, output, parse, place, rounds, spread
from handlers import anoop, noop
from rota.sched.broker.topology import work_queue

if TYPE_CHECKING:
    import argparse

FLOOR = ROOT / "bench" / "floor" / "floor.py"
FLOOR_SPAN = "select count(*) / extract(epoch from max(finished_at) - min(claimed_at))::float8 from history"
FIRST_CLAIM = "select extract(epoch from min(claimed_at))::float8 from rota.run"
NOW = "select extract(epoch from clock_timestamp())::float8"
RATE = "select count(*) / extract(epoch from max(ended_at) - min({since}))::float8 from rota.history"
CALLS = {"sync": noop.call, "async": anoop.call}
PHASES = ("fired", "drained", "end_to_end")


def floor(options: argparse.Namespace) -> dict[str, float]:
    """Jobs a second of the floor, in a database and a vhost of its own, whose tables it drops."""
    with place(name=f"{NAME}_floor") as (store, broker):
        command = [sys.executable, str(FLOOR), "--pg", store, "--amqp", broker, "--jobs", str(options.jobs)]
        command += ["--batch", str(options.batch)]
        told: dict[str, float] = json.loads(output(command))
        with psycopg.connect(store) as db:
            (rate,) = db.execute(FLOOR_SPAN).fetchone() or (0.0,)
    return {**told, "end_to_end": rate, "end_to_end_own": told["end_to_end"]}


class Product:
    """Rota's side of one comparison."""

    def __init__(self, bench: Bench, options: argparse.Namespace, kind: str, workers: int) -> None:
        self.bench = bench
        self.jobs = options.jobs
        self._call = CALLS[kind]
        self._workers = workers
        self._worker = ("worker", "--concurrency", str(options.concurrency))
        bench.env |= {"ROTA_BATCH": str(options.batch)}
        bench.lift_cap(4 * options.jobs)

    def measure(self) -> dict[str, float]:
        """Jobs a second in each phase."""
        self._store()
        with self.bench.member("scheduler"):
            fired = self._fired()
        drained = self._drained()
        self.bench.db.execute("truncate rota.history")
        self._store()
        with ExitStack() as members:
            for command in (self._worker,) * self._workers + (("scheduler",),):
                members.enter_context(self.bench.member(*command))
            self._ended()
        return {"fired": fired, "drained": drained, "end_to_end": self._rate("claimed_at")}

    def _store(self) -> None:
        self.bench.submit(self.jobs, lambda: self._call(a=1, b="hello"))
        self.bench.db.execute("vacuum analyze rota.job")

    def _fired(self) -> float:
        """From the first claim until the broker has all of them."""
        with closing(Depth(self.bench.broker)) as depth:
            self.bench.wait("the last publish", lambda: depth.ready() >= self.jobs, 0.02)
        return float(self.jobs / (self.bench.value(NOW) - self.bench.value(FIRST_CLAIM)))

    def _drained(self) -> float:
        """From the first begin to the last finish."""
        with ExitStack() as members:
            for _ in range(self._workers):
                members.enter_context(self.bench.member(*self._worker))
            self._ended()
        return self._rate("begun_at")

    def _rate(self, since: str) -> float:
        return float(self.bench.value(RATE.format(since=since)))

    def _ended(self) -> None:
        self.bench.wait_idle()
        time.sleep(0.5)  # the acks


class Depth:
    """How many messages are ready in the work queue: exact at once, a third of a millisecond."""

    def __init__(self, broker: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker))
        self._channel: Any = None

    def ready(self) -> int:
        """None while the scheduler has not declared the queue."""
        try:
            self._channel = self._channel or self._connection.channel()
            declared = self._channel.queue_declare(work_queue(QUEUE), passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            self._channel = None
            return 0
        return int(declared.method.message_count)

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


def main() -> None:
    """Parses and measures."""
    options = parse(
        __doc__,
        jobs=Size(60_000, 30_000, 3_000, "no-op jobs"),
        rounds=Size(5, 2, 1, "times that everything is measured"),
        minutes=Size(20.0, 20.0, 20.0, "that it may take: no round is begun that would end later"),
        workers=Size((1, 2), (1, 2), (1, 2), "worker processes"),
        batch=Size(500, 500, 500, "of floor and product"),
        concurrency=Size(16, 16, 16, "of a worker"),
        rabbitmq=Size("own", "own", "own", "own, 4 or cluster"),
    )
    with broker(options.rabbitmq):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Floor and product in turns, each kind of product right behind a floor of its own."""
    report = Report("pipeline", options)
    figures: dict[tuple[str, int], list[tuple[dict[str, float], dict[str, float]]]] = {}
    for _ in rounds(options, report):
        for kind, workers in product(CALLS, options.workers):
            beside = floor(options)
            report.note(f"floor {beside}")
            with opened() as bench:
                figures.setdefault((kind, workers), []).append(
                    (beside, Product(bench, options, kind, workers).measure())
                )
            report.note(f"{kind}, {workers} workers: {figures[kind, workers][-1][1]}")
    for phase in (*PHASES, "end_to_end_own"):
        report.add("floor, jobs/s", phase=phase, per_s=spread(f[phase] for pairs in figures.values() for f, _ in pairs))
    for (kind, workers), pairs in figures.items():
        for phase in PHASES:
            report.add(
                "product, jobs/s",
                handlers=kind,
                workers=workers,
                phase=phase,
                per_s=spread(p[phase] for _, p in pairs),
                of_floor=spread((p[phase] / f[phase] for f, p in pairs), 3),
            )
    report.show()


if __name__ == "__main__":
    main()
