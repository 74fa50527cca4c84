"""Taskiq with taskiq-aio-pika: a quorum queue, confirms (aio-pika's default), acks after the run."""

from __future__ import annotations

import asyncio
import os
import time

import uvloop
from tally import ARGS, handled
from taskiq.serializers import ORJSONSerializer
from taskiq_aio_pika import AioPikaBroker
from taskiq_aio_pika.queue import Queue, QueueType

broker = AioPikaBroker(
    os.environ["BENCH_BROKER"],
    qos=1000,
    task_queues=[Queue(name="bench", type=QueueType.QUORUM)],
    dead_letter_queue=Queue(name="bench.dead", type=QueueType.QUORUM),
    delay_queue=Queue(name="bench.delayed", type=QueueType.QUORUM),
).with_serializer(ORJSONSerializer())
WINDOW = 500
"""Publishes that wait for their confirms at a time."""
_MORE = ("--workers", "2", "--max-async-tasks", "500", "--ack-type", "when_executed", "--log-level", "ERROR")
WORKERS = [["taskiq", "worker", "taskiq_app:broker", *_MORE]]


@broker.task(task_name="noop")
async def noop(a: int, b: str) -> None:
    """Nothing."""
    handled()


async def _declare() -> None:
    await broker.startup()
    await broker.shutdown()


def prepare() -> None:
    """The exchange and the queues."""
    uvloop.run(_declare())


async def _send(jobs: int, at: float | None) -> None:
    await broker.startup()
    left = jobs

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            call = noop if at is None else noop.kicker().with_labels(delay=round(at - time.time(), 3))
            await call.kiq(**ARGS)

    await asyncio.gather(*(some() for _ in range(WINDOW)))
    await broker.shutdown()


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    uvloop.run(_send(jobs, None))


def schedule(jobs: int, at: float) -> None:
    """Jobs for one time, which wait in the broker (a queue whose messages expire)."""
    uvloop.run(_send(jobs, at))
