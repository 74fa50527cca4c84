"""Who submits, cancels and redrives: the Python API, and plain AMQP without any code of Rota. Both through the proxies.

A command whose outcome is unknown is repeated with the same keys until it is answered; what is answered is noted as
acknowledged, and nothing else is.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import app as demo
import pika
from app import aeffect, effect
from pika.exceptions import AMQPError
from rota import Client, Submission, Unreachable, after, cron, every

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from accounts import Acknowledged
    from pika.adapters.blocking_connection import BlockingChannel
    from plan import Batch, Job
    from world import World

ASK_AGAIN = 5.0
"""Seconds without an answer after which a command is sent again."""
WHY = "chaos has changed its mind"
CRON = {"Europe/Paris": 2, "Australia/Lord_Howe": 3, "Asia/Kolkata": 5}
EVERY = {1.0: "skip", 1.5: "buffer_one", 2.0: "buffer_all", 2.5: "allow"}


def noted(acks: Acknowledged, job: Job, job_id: str) -> None:
    """Notes the acknowledgement of a job by what it owes, and when it is to be cancelled."""
    if job.cancel is not None or job.expires is not None:
        kind = acks.excused
    else:
        kind = {"plain": acks.plain, "broken": acks.broken, "poison": acks.broken}.get(job.handler, acks.effects)
    acks.note(kind, [job_id], [job.key])
    if job.cancel is not None:
        acks.to_cancel.put((time.monotonic() + job.cancel, job_id))


def schedules(store: str, acks: Acknowledged) -> None:
    """Cron and intervals; some catch up with all ticks that they missed, one by one or not, others skip and have to say so."""
    submissions: dict[str, tuple[float, Submission]] = {}
    for n, (tz, step) in enumerate(CRON.items()):
        key = f"cron-{n}"
        when = cron(f"*/{step} * * * * *", tz=tz, misfire="run_latest" if n == 0 else "run_all")
        submissions[key] = (step, Submission(effect.call(key=key), when, name=key))
    for n, (interval, overlap) in enumerate(EVERY.items()):
        key = f"every-{n}"
        when = every(interval, misfire="run_all", overlap=overlap, catchup_limit=1000)
        submissions[key] = (interval, Submission(aeffect.call(key=key), when, name=key))
    with Client.open(store) as client:
        refs = client.submit_many([each for _, each in submissions.values()])
    acks.steps = {key: step for key, (step, _) in submissions.items()}
    acks.note(acks.schedules, [ref.id for ref in refs], list(submissions))


def insist(world: World, act: Callable[[], object]) -> None:
    """Does it again until the store has answered or the world is stopped."""
    while not world.stopping.is_set():
        with suppress(Unreachable):
            act()
            return


@dataclass(frozen=True)
class Order:
    """A command by AMQP: its idempotency key, its kind and body, and what is to be done with the answer if that is good."""

    key: str
    kind: str
    body: Mapping[str, Any]
    answered: Callable[[Mapping[str, Any]], None] = lambda _: None


class ByApi:
    """Submits each batch in one call, and again until it is answered."""

    def __init__(self, world: World, acks: Acknowledged) -> None:
        self._world = world
        self._acks = acks
        self._batches: SimpleQueue[Batch] = SimpleQueue()
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether everything that was given to it is answered."""
        return self._batches.empty() and not self._busy

    def put(self, batch: Batch) -> None:
        """A batch to submit. From any thread."""
        self._busy = True
        self._batches.put(batch)

    def run(self) -> None:
        """Until the world is stopped."""
        with Client.open(self._world.store_url) as client:
            while not self._world.stopping.is_set():
                self._busy = not self._batches.empty()
                with suppress(Empty):
                    self._submit(client, self._batches.get(timeout=0.2))

    def _submit(self, client: Client, batch: Batch) -> None:
        self._busy = True
        items = [_submission(job) for job in batch.jobs]

        def submit() -> None:
            for job, ref in zip(batch.jobs, client.submit_many(items), strict=True):
                noted(self._acks, job, ref.id)

        insist(self._world, submit)


class Canceller:
    """Cancels the jobs that are to be cancelled, each in its time, whatever state they are in then; every other by AMQP."""

    def __init__(self, world: World, acks: Acknowledged, amqp: ByAmqp) -> None:
        self._world = world
        self._acks = acks
        self._amqp = amqp
        self._count = 0
        self._asking = False

    @property
    def idle(self) -> bool:
        """Whether all that was to be cancelled has been."""
        return self._acks.to_cancel.empty() and not self._asking and self._amqp.idle

    def run(self) -> None:
        """Until the world is stopped."""
        with Client.open(self._world.store_url) as client:
            while not self._world.stopping.wait(0.05):
                self._asking = True
                with suppress(Empty):
                    at, job_id = self._acks.to_cancel.get_nowait()
                    self._world.stopping.wait(max(0.0, at - time.monotonic()))
                    self._cancel(client, job_id)
                self._asking = False

    def _cancel(self, client: Client, job_id: str) -> None:
        self._count += 1
        if self._count % 2:
            insist(self._world, lambda: client.cancel(job_id, running=True, reason=WHY))
        else:
            self._amqp.ask(Order(f"cancel-{job_id}", "job.cancel", {"id": job_id, "running": True, "reason": WHY}))


def _submission(job: Job) -> Submission:
    call = getattr(demo, job.handler).call(**job.args)
    return Submission(call, after(job.after), key=job.key, queue=job.queue, expires=job.expires)


class ByAmqp:
    """Publishes commands, reads the answers, and asks again what was not answered; over new connections as needed."""

    def __init__(self, world: World, acks: Acknowledged) -> None:
        self._world = world
        self._acks = acks
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._open: dict[str, tuple[Order, float]] = {}
        """What is not answered yet, by its key, and when it was sent last (monotonic)."""

    @property
    def idle(self) -> bool:
        """Whether everything that was given to it is answered."""
        return self._orders.empty() and not self._open

    def put(self, batch: Batch) -> None:
        """A batch to submit. From any thread."""
        for job in batch.jobs:
            self.ask(Order(job.key, "job.submit", _command(job), partial(self._noted, job)))

    def ask(self, order: Order) -> None:
        """Any command. From any thread."""
        self._orders.put(order)

    def _noted(self, job: Job, answer: Mapping[str, Any]) -> None:
        noted(self._acks, job, answer["job_id"])

    def run(self) -> None:
        """Until the world is stopped."""
        while not self._world.stopping.is_set():
            try:
                self._speak()
            except (AMQPError, OSError):
                self._world.stopping.wait(0.3)

    def _speak(self) -> None:
        """One connection's life."""
        connection = pika.BlockingConnection(pika.URLParameters(self._world.broker_url))
        try:
            channel = connection.channel()
            answers = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_consume(answers, self._answered, auto_ack=True)
            for key, (order, _) in list(self._open.items()):
                self._open[key] = (order, 0.0)  # its answer may have gone to the queue of the last connection
            while not self._world.stopping.is_set():
                self._send(channel, answers)
                connection.process_data_events(time_limit=0.1)
        finally:
            if connection.is_open:
                connection.close()

    def _send(self, channel: BlockingChannel, answers: str) -> None:
        while not self._orders.empty():
            order = self._orders.get()
            self._open[order.key] = (order, 0.0)
        now = time.monotonic()
        for key, (order, sent) in list(self._open.items()):
            if now - sent > ASK_AGAIN:
                self._open[key] = (order, now)
                body = json.dumps(order.body).encode()
                channel.basic_publish("rota.submit", order.kind, body, _properties(order, answers))

    def _answered(self, _channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        answer = json.loads(body)
        order, _ = self._open.get(properties.correlation_id, (None, 0.0))
        if order is None:
            return  # the second answer to what was sent twice
        if answer["ok"]:
            order.answered(answer)
        else:
            self._acks.errors.append(f"AMQP: {order.key}: {answer}")
        del self._open[order.key]


def _command(job: Job) -> dict[str, Any]:
    when = {"when": {"after": job.after}} if job.after else {}
    own = {"expires": job.expires} if job.expires is not None else {}
    return {"handler": job.handler, "args": job.args, "queue": job.queue, **when, **own}


def _properties(order: Order, answers: str) -> pika.BasicProperties:
    return pika.BasicProperties(
        type=order.kind,
        app_id="chaos",
        message_id=order.key,
        reply_to=answers,
        correlation_id=order.key,
        delivery_mode=2,
    )
