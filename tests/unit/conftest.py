"""Stand-ins for the store and the broker, for what a process does between them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rota.sched.ids import RunKey, new_job_id
from rota.sched.message import Work
from rota.workers.attempt import Attempt, Job

if TYPE_CHECKING:
    from rota.sched.broker.messages import Publish

TICK = "2026-01-01T00:00:00.000000Z"


class AnyStore:
    """Its transactions are their names and arguments."""

    def __getattr__(self, name):
        return lambda *args, **options: (name, args)


class ScriptedLink:
    """Answers each transaction by its name; an exception is raised. `sent` has what was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.sent = []

    async def run(self, txn):
        name, args = txn
        self.sent.append(name)
        answer = self.answers[name]
        if isinstance(answer, BaseException):
            raise answer
        return answer(*args) if callable(answer) else answer


class SilentPublisher:
    """Takes publishes and leaves their outcome to the test."""

    up, blocked = True, False

    def __init__(self):
        self.published = []
        self._outcomes = []

    def publish(self, message, outcome):
        self.published.append(message)
        self._outcomes.append(outcome)

    async def declare_work_queue(self, queue):
        await asyncio.sleep(0)

    def answer(self, outcome: Publish):
        """Tells the outcome of everything that has none yet."""
        outcomes, self._outcomes = self._outcomes, []
        for told in outcomes:
            told(outcome)


class RecordingConsumer:
    """Remembers how deliveries were settled."""

    epoch = 1

    def __init__(self):
        self.settled = []

    def ack(self, delivery):
        self.settled.append("ack")

    def nack(self, delivery):
        self.settled.append("nack")

    def reject(self, delivery):
        self.settled.append("reject")


def a_delivered_attempt(dispatch=1, fence=2):
    """An attempt whose message is held."""
    job_id = new_job_id()
    work = Work(job_id, TICK, dispatch, "work", {}, None)
    job = Job(SimpleNamespace(epoch=1, tag=1), work, RunKey(job_id, TICK), "mail", 0.0, b"{}")
    return Attempt(job, fence, 1, 0, None, {}, 0.0)
