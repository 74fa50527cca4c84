"""Commands in: what services publish to `rota.submit` becomes jobs, cancels, redrives and changes.

A batch of submits is one statement. A message is acknowledged after the store's commit and never before; a repeated
delivery finds its key and changes nothing. What can never be accepted is put into `rota.parked` with the reason, and
harms no neighbour.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from rota.sched import commands, dead, plans, requests
from rota.sched.broker.topology import SUBMIT
from rota.sched.commands import (
    CancelCommand,
    Command,
    HoldCommand,
    RedriveCommand,
    SubmitCommand,
    UpdateCommand,
)
from rota.sched.errors import RotaError, UsageError
from rota.sched.inbox import Inbox, Void

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rota.sched.broker.messages import Delivery
    from rota.sched.broker.protocol import BrokerConsumer, BrokerPublisher
    from rota.sched.edits import Note
    from rota.sched.plans import Plan
    from rota.sched.store.protocols import AsyncLink, Store
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import HandlerRow, NewJob, Submitted

T = TypeVar("T")

log = logging.getLogger(__name__)


class Ingest:
    """Consumes `rota.submit` in a scheduler process. `counters` tells what it did."""

    def __init__(
        self,
        store: Store,
        link: AsyncLink,
        consumer: BrokerConsumer,
        publisher: BrokerPublisher,
        *,
        longest_hold: float,
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._inbox = Inbox(SUBMIT, link, consumer, publisher, self._flush, longest_hold)
        self.counters = {
            "commands": 0,
            "stored": 0,
            "duplicate": 0,
            "cancelled": 0,
            "redriven": 0,
            "changed": 0,
            "refused": 0,
        }

    async def start(self) -> None:
        """Begins to consume, now or when the consumer is up."""
        await self._inbox.start()

    async def stop(self) -> None:
        """Ends it in bounded time; what is not settled goes back to the queue."""
        await self._inbox.stop()

    async def _flush(self, batch: list[Delivery]) -> None:
        """Reads a batch, stores its submits at once, and does the rest one by one."""
        self.counters["commands"] += len(batch)
        submits: list[tuple[Delivery, SubmitCommand]] = []
        for delivery in batch:
            command = self._read(delivery)
            if isinstance(command, SubmitCommand):
                submits.append((delivery, command))
            elif command is not None:
                await self._obey(delivery, command)
        if submits:
            await self._submit(submits)

    def _read(self, delivery: Delivery) -> Command | None:
        try:
            return commands.read(delivery)
        except RotaError as error:
            self._refuse(delivery, error)
            return None

    # Submits.

    async def _submit(self, submits: Sequence[tuple[Delivery, SubmitCommand]]) -> None:
        names = sorted({command.handler for _, command in submits})
        known = await self._inbox.patiently(lambda _: self._store.handlers(names), submits[0][0])
        deliveries: list[Delivery] = []
        jobs: list[NewJob] = []
        for delivery, command in submits:
            job = self._job_of(delivery, command, known)
            if job is not None:
                deliveries.append(delivery)
                jobs.append(job)
        if jobs:
            await self._keep(deliveries, jobs)

    def _job_of(self, delivery: Delivery, command: SubmitCommand, known: Mapping[str, HandlerRow]) -> NewJob | None:
        try:
            return commands.job_of(command, known)
        except RotaError as error:
            self._refuse(delivery, error)
            return None

    async def _keep(self, deliveries: Sequence[Delivery], jobs: Sequence[NewJob]) -> None:
        """Stores jobs; where the store refuses a value, one by one, so that only the bad one suffers."""
        try:
            answers = await self._inbox.patiently(
                lambda repeated: requests.storing(self._store, jobs, repeated=repeated), deliveries[0]
            )
        except Void:
            raise
        except Exception as error:  # noqa: BLE001 - an unforeseen fault harms one job only
            if len(jobs) == 1:
                self._refuse(deliveries[0], _ours(error))
                return
            for delivery, job in zip(deliveries, jobs, strict=True):
                await self._keep([delivery], [job])
            return
        for delivery, job, answer in zip(deliveries, jobs, answers, strict=True):
            self._stored(delivery, job, answer)

    def _stored(self, delivery: Delivery, job: NewJob, answer: Submitted) -> None:
        if answer.conflict is not None:
            self._refuse(delivery, requests.conflict(job, answer))
            return
        self.counters["duplicate" if answer.duplicate else "stored"] += 1
        self._accept(delivery, commands.stored(answer.job_id, duplicate=answer.duplicate))

    # The others.

    async def _obey(self, delivery: Delivery, command: Command) -> None:
        try:
            answer = await self._carry_out(delivery, command)
        except Void:
            raise
        except RotaError as error:
            self._refuse(delivery, error)
        else:
            self._accept(delivery, answer)

    async def _carry_out(self, delivery: Delivery, command: Command) -> Mapping[str, Any]:
        """Does what a command asks for; the answer to it."""
        store = self._store
        match command:
            case CancelCommand():
                why = plans.why_cancelled(command.by, command.reason)
                plan = plans.cancelling(store, command.target, running=command.running, reason=why)
                done = await self._follow(plan, delivery)
                self.counters["cancelled"] += 1
                return commands.cancelled(done)
            case RedriveCommand():
                result = await self._follow(dead.redriving(store, command.runs, command.which, command.how), delivery)
                self.counters["redriven"] += len(result)
                return commands.redriven(result)
            case UpdateCommand():
                done = await self._follow(plans.updating(store, command.target, command.edit), delivery)
                self.counters["changed"] += 1
                return commands.updated(done)
            case HoldCommand():
                steps, told = _HOLDS[command.kind]
                done = await self._follow(steps(store, command.target, command.note), delivery)
                self.counters["changed"] += 1
                return told(done)
        raise AssertionError(command)  # submits are stored in batches

    async def _follow(self, plan: Plan[Any], delivery: Delivery) -> Any:
        """Runs a plan to its end, as patiently as a batch. Its pauses are left out: other commands wait for it."""
        order = next(plan)
        try:
            while True:
                answer = None if isinstance(order, float) else await self._inbox.patiently(_always(order), delivery)
                order = plan.send(answer)
        except StopIteration as done:
            return done.value
        finally:
            plan.close()

    # Settling.

    def _accept(self, delivery: Delivery, answer: Mapping[str, Any]) -> None:
        message = commands.reply(delivery, answer)
        if message is None:
            self._consumer.ack(delivery)
        else:
            self._inbox.aside(self._answer_and_ack(delivery, answer))

    def _refuse(self, delivery: Delivery, error: RotaError) -> None:
        self.counters["refused"] += 1
        self._inbox.aside(self._park_and_ack(delivery, error))

    async def _answer_and_ack(self, delivery: Delivery, answer: Mapping[str, Any]) -> None:
        message = commands.reply(delivery, answer)
        if message is not None:
            await self._inbox.answer(message, delivery)
        self._consumer.ack(delivery)

    async def _park_and_ack(self, delivery: Delivery, error: RotaError) -> None:
        try:
            await self._inbox.park(delivery, str(error))
        except UsageError as too_big:
            # Dead-lettering moves it to the same queue whatever its size, without our header.
            log.warning("a refused command cannot be copied (%s), it is rejected: %s", too_big, error)
            self._consumer.reject(delivery)
            return
        await self._answer_and_ack(delivery, commands.refused(error))


_HOLDS: Mapping[str, tuple[Callable[[Store, str, Note], Plan[Any]], Callable[[Any], Mapping[str, Any]]]] = {
    commands.PAUSE: (plans.pausing, commands.held),
    commands.RESUME: (plans.resuming, commands.held),
    commands.TRIGGER: (plans.triggering, commands.triggered),
}


def _always(order: Transaction[T]) -> Callable[[bool], Transaction[T]]:
    return lambda _: order


def _ours(error: Exception) -> RotaError:
    """A fault that nobody foresaw concerns one job; its neighbours go on."""
    if isinstance(error, RotaError):
        return error
    log.error("a submit failed", exc_info=error)
    return RotaError(f"this job cannot be stored: {type(error).__name__}: {error}; see the scheduler's log")
