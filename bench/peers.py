"""Rota beside Celery, Dramatiq, Taskiq, Procrastinate and PgQueuer: the same no-op jobs at equal guarantees.

Everything alternates within one run: the floor, Rota, each peer, and again, on the servers of `make bench`. The peers
are installed into .rota/peers (bench/requirements-peers.txt); bench/peers/ has one module for each, and the settings.

    drain                the jobs lie in the filled queue, the system's own worker is started: from the first handled to
                         the last handled, and completed in its store where it has one; `enqueue` is what its fastest producer kept up while it filled the queue
    end_to_end           the producer enqueues while the worker runs: from the first enqueue to that last one
    end_to_end_stored    Rota and the floor only: the jobs are stored before, scheduler and worker start together,
                         from the first claim (the floor: from the start of its processes) to the last handled
    herd                 the jobs are stored ahead for one future second: lateness of each job's start, and jobs/s
                         from that second to the last start

    make bench BENCH=peers
    make bench BENCH="peers --peers celery,dramatiq --only drain --rounds 1 --jobs 5000 --herd 2000"

Compare ratios within one run. The last table tells where Rota is ahead, and whether the peer was measured at its best.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

import common  # noqa: E402 - the servers below are found by the line above
from servers import Missing, venv  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

NAME = "rota_bench_peers"
HERE = ROOT / "bench"
OURS = Path(sys.executable).parent
REQUIREMENTS = HERE / "requirements-peers.txt"
PEERS_PYTHON = ROOT / ".rota" / "peers" / "bin" / "python"
WARM_UP = 500
WITHIN = 0.8
"""A peer whose ratio to the floor is below this share of the one on record is measured below what it can do."""


@dataclass(frozen=True)
class System:
    """`share` of --jobs takes it some seconds; `known` is its drain over the floor's in the table on record."""

    name: str
    share: float
    known: float | None = None

    @property
    def module(self) -> str:
        """Its part in bench/peers/."""
        return f"{self.name}_app"


FLOOR_DRAINED = 24_350
"""The middle of the floor's `drained` on record; the peers' on record are of the same machine."""
ROTA = System("rota", 3.0)
PEERS = [
    System("celery", 0.75, 1_800 / FLOOR_DRAINED),
    System("dramatiq", 1.5, 11_900 / FLOOR_DRAINED),
    System("taskiq", 1.0, 2_600 / FLOOR_DRAINED),
    System("procrastinate", 0.25, 435 / FLOOR_DRAINED),
    System("pgqueuer", 5.0, 9_300 / FLOOR_DRAINED),
]
MEASURES = ("drain", "end_to_end", "herd")
COLUMNS = {
    "enqueue": "enqueue per_s",
    "drain": "drain per_s",
    "end_to_end": "end_to_end per_s",
    "stored": "end_to_end_stored per_s",
    "herd": "herd per_s",
    "p50": "herd p50_ms",
    "p99": "herd p99_ms",
    "max": "herd max_ms",
}
RATIOS = {
    "drain_of_floor": ("drain per_s", "drain per_s"),
    "end_to_end_of_floor": ("end_to_end per_s", "end_to_end_stored per_s"),
    "stored_of_floor": ("end_to_end_stored per_s", "end_to_end_stored per_s"),
}
CONTESTS = (
    ("drain", "drain per_s", 1),
    ("end_to_end", "end_to_end per_s", 1),
    ("herd_rate", "herd per_s", 1),
    ("herd_p50", "herd p50_ms", -1),
    ("herd_p99", "herd p99_ms", -1),
    ("herd_max", "herd max_ms", -1),
)
"""What Rota and a peer are compared in, and whether more is better."""


class Place:
    """A database and a vhost of its own for one measurement of one system, and its programs on them."""

    def __init__(self, system: System, store: str, broker: str, folder: Path) -> None:
        self.store = store
        self._python = OURS / "python" if system is ROTA else PEERS_PYTHON
        self._system = system
        self._tally = folder / "tally"
        self._tally.mkdir()
        self._log = folder / "log"
        self._settled: str | None = None
        self._running: list[list[subprocess.Popen[bytes]]] = []
        self._env = {
            **os.environ,
            "BENCH_STORE": store,
            "BENCH_BROKER": broker,
            "BENCH_TALLY": str(self._tally),
            "PYTHONPATH": str(HERE / "peers"),
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": f"{system.module}:app",
            "ROTA_LOG_LEVEL": "error",
        }

    def ask(self, *words: object) -> Any:
        """What bench/peers/peer.py answers."""
        command = [self._python, HERE / "peers" / "peer.py", self._system.module, *words]
        return json.loads(common.output(command, env=self._env, cwd=HERE / "peers").splitlines()[-1])

    @contextmanager
    def working(self, skip: int = 0) -> Iterator[None]:
        """Runs its own worker meanwhile; of its programs not the first `skip`, which run already."""
        told = self.ask("workers")
        self._env |= told["environment"] or {}
        self._settled = told["settled"]
        with self.running(told["workers"][skip:]):
            yield

    @contextmanager
    def running(self, commands: Sequence[Sequence[str]]) -> Iterator[None]:
        """Runs these of its programs meanwhile, and ends them politely."""
        begun: list[subprocess.Popen[bytes]] = []
        self._running.append(begun)
        try:
            with self._log.open("ab") as log:
                for program, *options in commands:
                    command = [str(self._python.parent / program), *options]
                    process = subprocess.Popen(
                        command, env=self._env, cwd=HERE / "peers", stdout=log, stderr=log, start_new_session=True
                    )
                    begun.append(process)
            yield
        finally:
            for process in begun:
                process.terminate()
            for process in begun:
                common.end(process)
                common.kill_group(process)  # a worker that outlives its parent would take jobs of the next measurement
            self._running.remove(begun)

    def wait(self, jobs: int) -> float:
        """Until so many were handled, and settled where there is a store; returns when the last was."""
        end = time.monotonic() + common.PATIENCE
        while self._count() < jobs:
            ended = [process.args for begun in self._running for process in begun if process.poll() is not None]
            if ended or time.monotonic() > end:
                raise SystemExit(
                    f"bench: {self._system.name} handled {self._count()} of {jobs} jobs "
                    + (f"and {ended} ended: " if ended else f"within {common.PATIENCE:.0f} s: ")
                    + self._log.read_text(errors="replace")[-2000:]
                )
            time.sleep(0.1)
        if not self._settled:
            return self.times()[jobs - 1]
        with psycopg.connect(self.store, autocommit=True) as db:
            while (row := db.execute(self._settled).fetchone()) is None or row[0] < jobs:
                if time.monotonic() > end:
                    raise SystemExit(
                        f"bench: {self._system.name} completed {row and row[0]} of {jobs} jobs: {self._settled}"
                    )
                time.sleep(0.1)
        return float(row[1])

    def analyze(self) -> None:
        """Statistics, as autovacuum would make a minute later."""
        with psycopg.connect(self.store, autocommit=True) as db:
            db.execute("analyze")

    def _count(self) -> int:
        return sum(file.stat().st_size for file in self._tally.iterdir()) // array("d").itemsize

    def times(self) -> list[float]:
        """When each was handled, in order."""
        noted = array("d")
        for file in self._tally.iterdir():
            noted.frombytes(file.read_bytes())
        return sorted(noted)


@contextmanager
def placed(system: System) -> Iterator[Place]:
    """A prepared place."""
    with tempfile.TemporaryDirectory() as folder, common.place(name=NAME) as (store, broker):
        place = Place(system, store, broker, Path(folder))
        place.ask("prepare")
        yield place


@dataclass
class Run:
    """What is measured, and what came out so far."""

    options: argparse.Namespace
    report: common.Report
    figures: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def tell(self, system: str, measure: str, jobs: int, **figures: float) -> None:
        """One measurement, kept for the table."""
        self.report.note(
            f"{system}, {measure} of {jobs:,}: { ({key: round(value, 1) for key, value in figures.items()}) }"
        )
        for key, value in figures.items():
            self.figures.setdefault((system, f"{measure} {key}"), []).append(value)

    def median(self, system: str, what: str) -> float | None:
        """Of the rounds; `None` where it was not measured."""
        found = self.figures.get((system, what))
        return statistics.median(found) if found else None

    def jobs(self, system: System) -> int:
        """For drain and end to end."""
        return jobs_of(system, self.options.jobs)

    def floor(self) -> None:
        """The floor's three figures, in a database and a vhost of its own: it drops tables."""
        jobs = self.jobs(ROTA)
        with common.place(name=NAME) as (store, broker):
            command = [sys.executable, HERE / "floor" / "floor.py", "--pg", store, "--amqp", broker, "--jobs", jobs]
            told = json.loads(common.output(command))
        self.tell("floor", "drain", jobs, per_s=told["drained"])
        self.tell("floor", "end_to_end_stored", jobs, per_s=told["end_to_end"])

    def drain(self, system: System) -> None:
        """A filled queue, then the worker."""
        jobs = self.jobs(system)
        with placed(system) as place, ExitStack() as stack:
            told = place.ask("enqueue", jobs)
            if system is ROTA:  # its queue is filled by its scheduler
                stack.enter_context(place.running([["rota", "scheduler"]]))
                published(place, jobs)
            place.analyze()
            with place.working(skip=int(system is ROTA)):
                last = place.wait(jobs)
            times = place.times()
        self.tell(system.name, "enqueue", jobs, per_s=jobs / (told["ended"] - told["begun"]))
        self.tell(system.name, "drain", jobs, per_s=(jobs - 1) / (last - times[0]), again=len(times) - jobs)

    def end_to_end(self, system: System) -> None:
        """The producer beside the worker, which is warm."""
        jobs = self.jobs(system)
        with placed(system) as place, warm(place):
            told = place.ask("enqueue", jobs)
            last = place.wait(WARM_UP + jobs)
        self.tell(system.name, "end_to_end", jobs, per_s=jobs / (last - told["begun"]))

    def end_to_end_stored(self) -> None:
        """Rota as the floor: from what is stored already."""
        jobs = self.jobs(ROTA)
        with placed(ROTA) as place:
            place.ask("enqueue", jobs)
            place.analyze()
            with place.working():
                last = place.wait(jobs)
            with psycopg.connect(place.store) as db:
                row = db.execute("select extract(epoch from min(claimed_at))::float8 from rota.history").fetchone()
        assert row is not None
        self.tell("rota", "end_to_end_stored", jobs, per_s=jobs / (last - row[0]))

    def herd(self, system: System) -> None:
        """All at one second, stored ahead while the worker runs."""
        jobs = self.options.herd
        with placed(system) as place, warm(place):
            told = place.ask("schedule", WARM_UP, int(time.time()) + 5)
            place.wait(2 * WARM_UP)
            lead = 1.5 * (told["ended"] - told["begun"]) * jobs / WARM_UP + 5
            planned = int(time.time() + lead) + 1
            told = place.ask("schedule", jobs, planned)
            place.wait(2 * WARM_UP + jobs)
            late = [moment - planned for moment in place.times()[2 * WARM_UP :]][:jobs]
        self.tell(
            system.name,
            "herd",
            jobs,
            per_s=jobs / late[-1],
            min_ms=late[0] * 1000,
            p50_ms=late[len(late) // 2] * 1000,
            p99_ms=late[len(late) * 99 // 100] * 1000,
            max_ms=late[-1] * 1000,
            stored_ahead_s=planned - told["ended"],
        )


def published(place: Place, jobs: int) -> None:
    """Until Rota's scheduler has handed all that was submitted to the broker; its cap on that is lifted."""
    with psycopg.connect(place.store, autocommit=True) as db:
        db.execute("update rota.queue set cap = greatest(cap, %s)", [2 * jobs])
        end = time.monotonic() + common.PATIENCE
        while db.execute("select 1 from rota.job limit 1").fetchone():
            if time.monotonic() > end:
                raise SystemExit(f"bench: Rota did not publish {jobs} jobs within {common.PATIENCE:.0f} s")
            time.sleep(0.1)
    time.sleep(1)  # the last confirms


@contextmanager
def warm(place: Place) -> Iterator[None]:
    """Its worker runs meanwhile, and has handled some jobs already, so that all of its processes are there.

    Those jobs are stored first and statistics made of them: planners know tables that are not empty.
    """
    place.ask("enqueue", WARM_UP)
    place.analyze()
    with place.working():
        place.wait(WARM_UP)
        time.sleep(1)
        yield


def versions(python: Path) -> dict[str, str]:
    """Of the distributions in the environment of `python` that the bench is about."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = json.loads(subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)
    wanted = (line.partition("==")[0].partition("[")[0] for line in REQUIREMENTS.read_text().splitlines())
    return {name: found[name] for name in wanted if name in found}


def table(run: Run, systems: Sequence[System]) -> None:
    """A row for each system. Ratios are those of the medians."""
    for name in ("floor", *(system.name for system in systems)):
        row: dict[str, Any] = {}
        for column, figure in COLUMNS.items():
            if found := run.figures.get((name, figure)):
                row[column] = common.spread(found)
        for column, (figure, floor) in RATIOS.items():
            mine, below = run.median(name, figure), run.median("floor", floor)
            if name != "floor" and mine and below:
                row[column] = round(mine / below, 3)
        run.report.add("jobs/s, herd in ms", system=name, **row)


def verdict(run: Run, peers: Sequence[System]) -> None:
    """What has to hold, for each peer: Rota is ahead, and the peer was measured at what it can do."""
    for peer in peers:
        row: dict[str, Any] = {}
        for name, figure, better in CONTESTS:
            ours, theirs = run.median("rota", figure), run.median(peer.name, figure)
            if ours is not None and theirs is not None:
                row[name] = f"{'ahead' if (ours - theirs) * better > 0 else 'BEHIND'}, {ours / theirs:.3g} times"
        floor, drained = run.median("floor", "drain per_s"), run.median(peer.name, "drain per_s")
        if floor and drained and peer.known:
            row["drain_of_floor"] = round(drained / floor, 3)
            row["on_record"] = round(peer.known, 3)
            row["measured_at_its_best"] = drained / floor >= WITHIN * peer.known
        run.report.add("Rota against it", peer=peer.name, **row)


def jobs_of(system: System, jobs: int) -> int:
    """A share of --jobs, so that slow and fast ones take about as long."""
    return max(100, round(jobs * system.share))


def chosen(name: str, text: str, known: Sequence[str]) -> list[str]:
    """The words of a list, in the order of `known`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [word for word in words if word not in known]:
        raise SystemExit(f"bench: {name} {', '.join(wrong)}: give some of {', '.join(known)}")
    return [word for word in known if word in words]


def measure(run: Run, peers: Sequence[System]) -> None:
    """One round."""
    for what in run.options.only:
        if what != "herd":
            run.floor()
        if what == "end_to_end":
            run.end_to_end_stored()
        for system in (ROTA, *peers):
            getattr(run, what)(system)


def main() -> None:
    """Parses and measures."""
    names = ",".join(peer.name for peer in PEERS)
    options = common.parse(
        __doc__,
        jobs=common.Size(10_000, 4_000, 400, "of which each system gets its share"),
        herd=common.Size(20_000, 5_000, 400, "jobs for the same second, the same for all"),
        rounds=common.Size(3, 1, 1, "times that everything is measured"),
        minutes=common.Size(25.0, 25.0, 25.0, "that it may take: no round is begun that would end later"),
        peers=common.Size(names, names, names, "which"),
        only=common.Size(*(",".join(MEASURES),) * 3, "which measures"),
    )
    options.peers = chosen("--peers", options.peers, names.split(","))
    options.only = chosen("--only", options.only, MEASURES)
    peers = [peer for peer in PEERS if peer.name in options.peers]
    try:
        venv.ensure_tools(PEERS_PYTHON.parent.parent, REQUIREMENTS)
    except Missing as error:
        raise SystemExit(f"bench: the peers are not measured: {error}") from None
    report = common.Report("peers", options)
    report.rows[0] |= {
        "jobs": {system.name: jobs_of(system, options.jobs) for system in (ROTA, *peers)},
        "peers": versions(PEERS_PYTHON),
    }
    run = Run(options, report)
    for _ in common.rounds(options, report):
        measure(run, peers)
    table(run, [ROTA, *peers])
    verdict(run, peers)
    report.show()


if __name__ == "__main__":
    main()
