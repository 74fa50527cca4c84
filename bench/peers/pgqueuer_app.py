"""PgQueuer: Postgres alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import orjson
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from tally import ARGS, handled

if TYPE_CHECKING:
    from pgqueuer.models import Job

BATCH = 500
WORKERS = [["python", "pgqueuer_app.py"]] * 2
CHUNK = 1000
SETTLED = "select count(*), extract(epoch from max(created))::float8 from pgqueuer_log where status = 'successful'"


async def work() -> None:
    """Its worker, until SIGTERM: what `pgq run` does, which fails with the typer of today."""
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        noop_with(**orjson.loads(job.payload or b"{}"))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=BATCH)
    await connection.close()


def noop_with(a: int, b: str) -> None:
    """Nothing."""
    handled()


async def _prepare() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def prepare() -> None:
    """The schema."""
    uvloop.run(_prepare())


async def _enqueue(jobs: int, at: float | None) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    queries, payload = Queries(AsyncpgDriver(connection)), orjson.dumps(ARGS)
    for first in range(0, jobs, CHUNK):
        size = min(CHUNK, jobs - first)
        after = None if at is None else [timedelta(seconds=at - time.time())] * size
        await queries.enqueue(["noop"] * size, [payload] * size, [0] * size, after)
    await connection.close()


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    uvloop.run(_enqueue(jobs, None))


def schedule(jobs: int, at: float) -> None:
    """Jobs for one time."""
    uvloop.run(_enqueue(jobs, at))


if __name__ == "__main__":
    uvloop.run(work())
