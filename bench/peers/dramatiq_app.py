"""Dramatiq with RabbitMQ: a quorum queue, publisher confirms; it acks after the run."""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Retries
from spread import spread
from tally import ARGS, handled


class QuorumBroker(RabbitmqBroker):
    """Dramatiq has no setting for a queue's type: this is its hook for a queue's arguments."""

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        return {**super()._build_queue_arguments(queue_name), "x-queue-type": "quorum"}


broker = QuorumBroker(url=os.environ["BENCH_BROKER"], confirm_delivery=True, middleware=[Retries()])
dramatiq.set_broker(broker)
THREADS = 32
"""Of the producer: each waits for its confirms, which come together."""
WORKERS = [["dramatiq", "dramatiq_app", "-p", "2", "-t", "8", "-Q", "bench"]]
# More than two messages a thread on their way, and the whole herd in memory: Dramatiq keeps delayed messages there.
ENVIRONMENT = {"dramatiq_queue_prefetch": "200", "dramatiq_delay_queue_prefetch": "65535"}


@dramatiq.actor(queue_name="bench")
def noop(a: int, b: str) -> None:
    """Nothing."""
    handled()


def prepare() -> None:
    """The queue, and those of delayed and dead messages."""
    broker.declare_queue("bench", ensure=True)


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    spread(lambda: noop.send(**ARGS), jobs, THREADS)


def schedule(jobs: int, at: float) -> None:
    """Jobs for one time, which wait in the worker."""
    spread(lambda: noop.send_with_options(kwargs=ARGS, delay=round((at - time.time()) * 1000)), jobs, THREADS)
