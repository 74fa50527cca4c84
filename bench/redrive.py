"""What a redrive of very many dead runs does to work that goes on meanwhile, in the same queue and the same worker.

100,000 dead runs are redriven at 2,000/s while live jobs are submitted all the time. One scheduler, one worker, one JSON
object at the end: the rate at which redriven runs began, how late live runs began before and during, how many redriven
runs were executed twice and how many never.

    make bench BENCH=redrive
    make bench BENCH="redrive --runs 20000 --rate 500"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marks import live
from rota import Client
from run import PATIENCE, ROOT, ROTA, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from run import Bench

DEAD = """
insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses, errors, due_at,
  claimed_at)
select id, now(), now() - make_interval(secs => n * 0.01), '3 attempts failed', get_byte(uuid_send(id), 15) & 63, 'bench',
  'mark', jsonb_build_object('key', n), 3, 0, '[{"attempt": 3, "type": "TimeoutError", "message": "no answer"}]', now(), now()
from (select gen_random_uuid() as id, n from generate_series(1, %s) n) x
"""
LATENESS = """
select count(*), coalesce(percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from begun_at - due_at)), '{0,0}')
from rota.history where handler = 'live' and due_at between %s and %s
"""
BEGUN = """
select count(*), extract(epoch from max(begun_at) - min(begun_at))::float8, min(begun_at), max(begun_at)
from rota.history where handler = 'mark'
"""


@contextmanager
def live_work(store: str, per_second: int) -> Iterator[None]:
    """Submits jobs that are due now, evenly, until the end."""
    over = threading.Event()

    def submit() -> None:
        with Client.open(store) as client:
            due = time.monotonic()
            while not over.is_set():
                client.submit(live.call())
                due = max(due + 1 / per_second, time.monotonic() - 1)
                over.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(bench: Bench, marks: Path, options: argparse.Namespace) -> None:
    """Live work alone, then with the redrive beside it."""
    db, runs = bench.db, options.runs
    worker = ("worker", "--concurrency", options.concurrency)
    with bench.member("scheduler"), bench.member(*worker), live_work(bench.store, options.live):
        db.execute(DEAD, [runs])
        db.execute("analyze rota.dead")
        bench.rate("select count(*) from rota.history", 1)
        time.sleep(5)  # what was submitted before members had joined has gone through
        (before,) = db.execute("select clock_timestamp()").fetchone() or ()
        time.sleep(options.before)
        (begun,) = db.execute("select clock_timestamp()").fetchone() or ()
        began = time.monotonic()
        command = [ROTA, "redrive", "--queue", "bench", "--rate", f"{options.rate}/s", "--json"]
        told = subprocess.run(command, env=bench.env, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.monotonic() - began
        end = time.monotonic() + PATIENCE
        while (db.execute(BEGUN).fetchone() or (0,))[0] < runs and time.monotonic() < end:
            time.sleep(1)
    count, span, _, last = db.execute(BEGUN).fetchone() or (0, 0.0, None, None)
    executions = Counter(marks.read_text().split())
    figures = {
        "bench": "redrive",
        "runs": runs,
        "redriven": json.loads(told.splitlines()[-1])["redriven"],
        "command_s": round(seconds, 1),
        "asked_per_s": options.rate,
        "kept_per_s": round(count / span) if span else 0,
        "live_per_s": options.live,
        "live_before": lateness(bench, before, begun),
        "live_during": lateness(bench, begun, last),
        "doubled": sum(n > 1 for n in executions.values()),
        "lost": runs - len(executions),
    }
    print(json.dumps(figures), flush=True)


def lateness(bench: Bench, since: object, until: object) -> dict[str, float]:
    """Of the live runs that were due in between: from due to begun, in ms."""
    count, (p50, p99) = bench.db.execute(LATENESS, [since, until]).fetchone() or (0, (0.0, 0.0))
    return {"runs": count, "p50_ms": round(p50 * 1000, 1), "p99_ms": round(p99 * 1000, 1)}


def main() -> None:
    """Parses and measures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=100_000)
    arguments.add_argument("--rate", type=int, default=2_000)
    arguments.add_argument("--live", type=int, default=100, help="live jobs a second")
    arguments.add_argument("--before", type=float, default=10.0, help="seconds of live work alone")
    arguments.add_argument("--concurrency", default="16")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened() as bench:
        marks = Path(folder) / "marks"
        marks.touch()
        bench.env |= {"ROTA_APP": "marks:app", "BENCH_MARKS": str(marks), "PYTHONPATH": str(ROOT / "bench")}
        measure(bench, marks, options)


if __name__ == "__main__":
    main()
