"""Procrastinate: Postgres alone."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

import procrastinate
from tally import ARGS, handled

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_STORE"], min_size=10, max_size=10)
)
# It notices jobs of the future by polling alone, every 5 s unless told otherwise.
_options = ("--concurrency", "50", "--fetch-job-polling-interval", "0.1")
WORKERS = [["procrastinate", "--app", "procrastinate_app.app", "--log-level", "error", "worker", *_options]] * 2
CHUNK = 1000
SETTLED = "select count(*), extract(epoch from max(at))::float8 from procrastinate_events where type = 'succeeded'"


@app.task(name="noop", queue="bench")
async def noop(a: int, b: str) -> None:
    """Nothing."""
    handled()


async def _prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def prepare() -> None:
    """The schema."""
    asyncio.run(_prepare())


async def _defer(jobs: int, **options: Any) -> None:
    async with app.open_async():
        for first in range(0, jobs, CHUNK):
            await noop.configure(**options).batch_defer_async(*[ARGS] * min(CHUNK, jobs - first))


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    asyncio.run(_defer(jobs))


def schedule(jobs: int, at: float) -> None:
    """Jobs for one time."""
    asyncio.run(_defer(jobs, schedule_at=datetime.fromtimestamp(at, UTC)))
