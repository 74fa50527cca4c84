"""Celery with RabbitMQ: a quorum queue, publisher confirms, late acks."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from celery import Celery
from kombu import Exchange, Queue
from spread import spread
from tally import ARGS, handled

THREADS = 16
"""Of the producer: each waits for its confirms, which come together."""
app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=64,
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
    broker_pool_limit=THREADS,
    # a topic exchange: native delayed delivery, which quorum queues need for eta, does not work with a direct one
    task_queues=[
        Queue("bench", Exchange("bench", type="topic"), routing_key="bench", queue_arguments={"x-queue-type": "quorum"})
    ],
    task_default_queue="bench",
    task_default_exchange="bench",
    task_default_exchange_type="topic",
    task_default_routing_key="bench",
    broker_native_delayed_delivery_queue_type="quorum",
)
_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
WORKERS = [
    ["celery", "-A", "celery_app", "worker", "-P", "threads", "-c", "2", "-n", f"{name}@%h", *_QUIET]
    for name in ("one", "two")
]


@app.task
def noop(a: int, b: str) -> None:
    """Nothing."""
    handled()


def prepare() -> None:
    """The queue and the exchanges; the worker adds those of delays."""
    with app.connection_for_write() as connection:
        app.amqp.queues["bench"](connection.channel()).declare()


def enqueue(jobs: int) -> None:
    """Jobs that are due now."""
    spread(lambda: noop.apply_async(kwargs=ARGS), jobs, THREADS)


def schedule(jobs: int, at: float) -> None:
    """Jobs for one time, which wait in the broker (native delayed delivery)."""
    eta = datetime.fromtimestamp(at, UTC)
    spread(lambda: noop.apply_async(kwargs=ARGS, eta=eta), jobs, THREADS)
