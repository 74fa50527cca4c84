"""How late jobs begin: begun minus planned by the store's clock, at steady rates, beside a bare round trip in turns.

Open loop: all arrivals are planned beforehand, as a Poisson process, and none waits for what became of another. A job's lateness
counts from its planned time, also where the submitter was late, so that nothing is left out when something stands still.

stored: submitted ahead, each for its planned time. live: submitted at its planned time, due at once, one statement each. bare: what
bench/bare.py does at the planned time. The figures of the first seconds of each count like all others.

    make bench BENCH=lateness
    make bench BENCH="lateness --rates 100 --seconds 60"
"""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bare import Begins, Inserts
from common import NAME, PATIENCE, Bench, Report, Size, opened, parse, place, rounds, spread
from handlers import at, noop
from rota import Client
from rota import at as when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from multiprocessing.context import SpawnProcess
    from multiprocessing.queues import Queue
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Semaphore

SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
LATENESS = (
    "select extract(epoch from begun_at)::float8 - (args ->> 'planned')::float8 from rota.history where handler = 'at'"
)
CLOCK = "select extract(epoch from clock_timestamp())::float8"
AHEAD_SECONDS = 3.0
"""Between the end of storing, or of connecting, and the first planned time."""
START_SECONDS = 60.0
"""What submitters may take to start and connect."""


def poisson(rate: float, seconds: float, rng: random.Random) -> list[float]:
    """Planned times from 0 on."""
    times, now = [], rng.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += rng.expovariate(rate)
    return times


class Shared(NamedTuple):
    """What the submitting processes have in common."""

    taken: Synchronized[int]
    """How many arrivals were taken."""
    ready: Semaphore
    """Released by each that has connected."""
    start: Queue[float]
    """Gives to each when the first arrival is planned."""
    offset: float
    """How far the store's clock is ahead of ours, in seconds."""


class Arrivals:
    """Submits each arrival when its planned time has come, by several processes: whichever is free takes the next one.

    `submitter` and `where` make, in each of them, what submits. All are connected before the first planned time.
    """

    def __init__(self, bench: Bench, submitters: int, submitter: Callable[..., Submitter], *where: str) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._shared = Shared(
            self._context.Value("q", 0), self._context.Semaphore(0), self._context.Queue(), offset_of(bench)
        )
        self._submitters, self._submitter, self._where = submitters, submitter, where
        self._begun = time.monotonic()

    def submit(self, times: list[float]) -> None:
        """All of them, from now on: planned by the store's clock, `times` after a moment."""
        taken, ready, start, offset = self._shared
        arguments = (times, self._shared, self._submitter, self._where)
        processes = [
            self._context.Process(target=submit_all, args=arguments, daemon=True) for _ in range(self._submitters)
        ]
        try:
            for process in processes:
                process.start()
            connected = 0
            while connected < len(processes):
                connected += ready.acquire(timeout=0.1)
                self._check(processes, START_SECONDS, f"{connected} of {len(processes)} submitters have connected")
            first = time.time() + offset + AHEAD_SECONDS
            for _ in processes:
                start.put(first)
            seconds = AHEAD_SECONDS + times[-1] + PATIENCE
            while any(process.is_alive() for process in processes):
                time.sleep(0.1)
                self._check(processes, START_SECONDS + seconds, f"{taken.value:,} of {len(times):,} arrivals")
        finally:
            for process in processes:
                process.kill()

    def _check(self, processes: list[SpawnProcess], seconds: float, there: str) -> None:
        """Ends the bench when a submitter has failed, or when it takes too long."""
        if failed := [process.exitcode for process in processes if process.exitcode]:
            raise SystemExit(f"bench: a submitter failed with exit status {failed[0]}; {there}")
        if time.monotonic() > self._begun + seconds:
            raise SystemExit(f"bench: submitters took longer than {seconds:.0f} s; {there}")


def submit_all(times: list[float], shared: Shared, submitter: Callable[..., Submitter], where: tuple[str, ...]) -> None:
    """One submitter, in a process of its own."""
    taken, ready, start, offset = shared
    with closing(submitter(*where)) as submitting:
        ready.release()
        first = start.get(timeout=START_SECONDS)
        while True:
            with taken.get_lock():
                number = taken.value
                taken.value += 1
            if number >= len(times):
                return
            planned = first + times[number]
            time.sleep(max(0.0, planned - offset - time.time()))
            submitting.submit(number, planned)


class Submitter(Protocol):
    """What a submitting process has."""

    def submit(self, number: int, planned: float) -> object:
        """One arrival."""

    def close(self) -> None:
        """Ends connections."""


class Live:
    """A client that has submitted before."""

    def __init__(self, store: str) -> None:
        self._client = Client.open(store)
        self._client.submit(noop.call(a=1, b="connects"))

    def submit(self, _: int, planned: float) -> None:
        """One job, due at once."""
        self._client.submit(at.call(planned=planned))

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


def offset_of(bench: Bench) -> float:
    """The store's clock minus ours: of ten looks, the one that took the least time."""
    looks = []
    for _ in range(10):
        before = time.time()
        store = bench.value(CLOCK)
        looks.append((time.time() - before, store - (time.time() + before) / 2))
    return float(min(looks)[1])


@contextmanager
def members(bench: Bench, *, wanted: int = 2) -> Iterator[None]:
    """A scheduler and a worker that have run something."""
    with bench.member("scheduler"), bench.member("worker"):
        bench.wait("members", lambda: bench.value("select count(*) from rota.member where state = 'live'") == wanted)
        bench.submit(100)
        bench.wait_idle()
        yield


def stored(bench: Bench, options: argparse.Namespace, times: list[float]) -> list[float]:
    """All of them submitted ahead."""
    with members(bench), Client.open(bench.store) as client:
        start = bench.value(CLOCK) + AHEAD_SECONDS + len(times) / 3000
        items = [(at.call(planned=start + t), when(datetime.fromtimestamp(start + t, UTC))) for t in times]
        for n in range(0, len(items), 1000):
            client.submit_many(items[n : n + 1000])
        if bench.value(CLOCK) > start:
            raise SystemExit(f"bench: to store {len(times)} jobs took until they were due; give fewer --seconds")
        time.sleep(max(0.0, start + options.seconds - bench.value(CLOCK)))
        bench.wait_idle()
    return [late for (late,) in bench.db.execute(LATENESS)]


def live(bench: Bench, options: argparse.Namespace, times: list[float]) -> list[float]:
    """Each submitted when it is due."""
    with members(bench):
        Arrivals(bench, options.submitters, Live, bench.store).submit(times)
        bench.wait_idle()
    return [late for (late,) in bench.db.execute(LATENESS)]


def bare(bench: Bench, options: argparse.Namespace, times: list[float]) -> list[float]:
    """The same arrivals through the bare round trip."""
    with place(name=f"{NAME}_bare") as (store, broker), closing(Begins(store, broker)) as begins:
        Arrivals(bench, options.submitters, Inserts, store, broker).submit(times)
        begins.wait(len(times), PATIENCE)
        return begins.lateness()


def shares(late: list[float]) -> dict[str, float]:
    """Percentiles by nearest rank, in ms."""
    late = sorted(late)
    return {name: late[min(len(late) - 1, int(share * len(late)))] * 1000 for name, share in SHARES.items()}


def main() -> None:
    """Bare, stored, live in turns, at each rate, with the same arrivals within a round."""
    options = parse(
        __doc__,
        rates=Size((100, 1_000), (100, 1_000), (50, 200), "arrivals a second"),
        seconds=Size(25.0, 10.0, 3.0, "of arrivals"),
        rounds=Size(3, 2, 1, "times that everything is measured"),
        minutes=Size(12.0, 12.0, 12.0, "that it may take: no round is begun that would end later"),
        submitters=Size(4, 4, 4, "processes with a connection each, of live and bare"),
        seed=Size(1, 1, 1, "of the arrivals"),
    )
    report, rng = Report("lateness", options), random.Random(options.seed)
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    times: list[float] = []
    for _ in rounds(options, report):
        for rate, way in product(options.rates, (bare, stored, live)):
            times = poisson(rate, options.seconds, rng) if way is bare else times
            with opened() as bench:
                late = way(bench, options, times)
            if len(late) != len(times):
                raise SystemExit(f"bench: {len(times)} arrivals, {len(late)} begins")
            found.setdefault((rate, way.__name__), []).append(shares(late))
            report.note(f"{rate}/s {way.__name__}: {found[rate, way.__name__][-1]}")
    for (rate, way_name), measured in found.items():
        beside = found[rate, "bare"]
        report.add(
            "begun minus planned",
            per_s=rate,
            way=way_name,
            **{name: spread((each[name] for each in measured), 2) for name in SHARES},
            p99_of_bare=spread((a["p99_ms"] / b["p99_ms"] for a, b in zip(measured, beside, strict=True)), 2),
        )
    report.show()


if __name__ == "__main__":
    main()
