"""How fast jobs go through: fired (claimed, published, confirmed), drained (begun, run, finished, acked), end to end.

One scheduler and one worker process on the servers of `make bench`, no-op jobs, everything real. One JSON object a line;
compare lines of one run, not of several: machines are shared and noisy.

    make bench                          20,000 jobs
    make bench BENCH="--jobs 60000"     as many as you like
    make bench BENCH=redrive            another measurement, bench/redrive.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

from app import noop  # noqa: E402 - found by the line above
from rota import Client  # noqa: E402
from servers.databases import create_database, drop_database  # noqa: E402
from servers.management import Management  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "rota_bench"
ROTA = str(Path(sys.executable).parent / "rota")
PATIENCE = 600.0


class Bench:
    """A database and a vhost of its own, and members on them."""

    def __init__(self, store: str, broker: str) -> None:
        self.store = store
        self.env = {
            **os.environ,
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": "app:app",
            "ROTA_LOG_LEVEL": "error",
            "PYTHONPATH": str(ROOT / "compose"),
        }
        subprocess.run([ROTA, "migrate"], env=self.env, check=True, stdout=subprocess.DEVNULL)
        self.db = psycopg.connect(store, autocommit=True)

    @contextmanager
    def member(self, *command: str) -> Iterator[None]:
        """Runs a member meanwhile."""
        process = subprocess.Popen([ROTA, *command], env=self.env)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    def submit(self, jobs: int) -> None:
        """No-op jobs, due now."""
        with Client.open(self.store) as client:
            for _ in range(0, jobs, 1000):
                client.submit_many([noop.call() for _ in range(1000)])
        self.db.execute("analyze rota.job")

    def rate(self, sql: str, target: int) -> float:
        """Rows a second from the first to the `target`-th."""
        end = time.monotonic() + PATIENCE
        begun, first = 0.0, 0
        while time.monotonic() < end:
            row = self.db.execute(sql).fetchone()
            count = int(row[0]) if row else 0
            if count and not begun:
                begun, first = time.monotonic(), count
            if count >= target:
                return (count - first) / max(0.001, time.monotonic() - begun)
            time.sleep(0.02)
        raise SystemExit(f"bench: {sql} did not reach {target} within {PATIENCE:.0f} s")


@contextmanager
def opened() -> Iterator[Bench]:
    """A bench on the servers of the environment; it is taken down afterwards."""
    server, broker = os.environ["ROTA_TEST_STORE"], os.environ["ROTA_TEST_BROKER"]
    management = Management(broker, os.environ.get("ROTA_TEST_BROKER_MANAGEMENT", ""))
    drop_database(server, NAME)
    management.delete_vhost(NAME)
    bench = Bench(create_database(server, NAME), management.create_vhost(NAME))
    try:
        yield bench
    finally:
        bench.db.close()
        drop_database(server, NAME)
        management.delete_vhost(NAME)


def tell(what: str, jobs: int, rate: float) -> None:
    """One line."""
    print(json.dumps({"bench": what, "jobs": jobs, "per_s": round(rate)}), flush=True)


def measure(bench: Bench, jobs: int, concurrency: str) -> None:
    """One after the other, then both at once."""
    history = "select count(*) from rota.history"
    worker = ("worker", "--concurrency", concurrency)
    bench.submit(jobs)
    with bench.member("scheduler"):
        tell("fired", jobs, bench.rate(f"select {jobs} - count(*) from rota.job", jobs))
        bench.db.execute("analyze rota.run")
        with bench.member(*worker):
            tell("drained", jobs, bench.rate(history, jobs))
    bench.submit(jobs)
    with bench.member(*worker), bench.member("scheduler"):
        tell("end_to_end", jobs, bench.rate(f"select count(*) - {jobs} from rota.history", jobs))


def main() -> None:
    """Parses and measures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=int, default=20_000)
    arguments.add_argument("--concurrency", default="16")
    options = arguments.parse_args()
    with opened() as bench:
        measure(bench, options.jobs, options.concurrency)


if __name__ == "__main__":
    main()
