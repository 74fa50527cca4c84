"""Rota, in the same form as its peers."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rota import App, Client, at
from tally import ARGS, handled

if TYPE_CHECKING:
    from rota.sched.when import When

app = App("bench")
WORKERS = [["rota", "scheduler"], ["rota", "worker"], ["rota", "worker"]]
CHUNK = 1000
SETTLED = "select count(*), extract(epoch from max(ended_at))::float8 from rota.history"


@app.handler
def noop(a: int, b: str) -> None:
    """Nothing."""
    handled()


def prepare() -> None:
    """The schema."""
    subprocess.run([Path(sys.executable).parent / "rota", "migrate"], check=True, stdout=subprocess.DEVNULL)


def _submit(jobs: int, *when: When) -> None:
    with Client.open(os.environ["BENCH_STORE"]) as client:
        for first in range(0, jobs, CHUNK):
            calls = [noop.call(**ARGS) for _ in range(min(CHUNK, jobs - first))]
            client.submit_many([(call, *when) for call in calls] if when else calls)


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    _submit(jobs)


def schedule(jobs: int, moment: float) -> None:
    """Jobs for one time."""
    _submit(jobs, at(datetime.fromtimestamp(moment, UTC)))
