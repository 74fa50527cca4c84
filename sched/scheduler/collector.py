"""What becomes of dead letters: the queue `rota.dead`.

A dead letter is a verdict on a message, not on a run. `rejected` is ours: the worker ended the run in the ledger first.
Every other reason (a delivery limit, an expiry or a length limit, which an operator's policy can impose) has cost a
run the only message that it may have: the run is dispatched anew, if it still waits under the number that the message
carries. A message that cannot be read is parked with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.broker.probe import PROBE
from rota.sched.broker.topology import DEAD
from rota.sched.errors import UsageError
from rota.sched.ids import RunKey
from rota.sched.inbox import Inbox
from rota.sched.message import decode

if TYPE_CHECKING:
    from rota.sched.broker.messages import Delivery, Properties
    from rota.sched.broker.protocol import BrokerConsumer, BrokerPublisher
    from rota.sched.store.protocols import AsyncLink, Store

REJECTED = "rejected"


class Collector:
    """Consumes `rota.dead` in a scheduler process. `counters` tells what it did."""

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
        self._inbox = Inbox(DEAD, link, consumer, publisher, self._flush, longest_hold)
        self.counters = {"dead_letters": 0, "dispatched_anew": 0, "parked": 0}

    async def start(self) -> None:
        """Begins to consume, now or when the consumer is up."""
        await self._inbox.start()

    async def stop(self) -> None:
        """Ends it in bounded time; what is not settled goes back."""
        await self._inbox.stop()

    async def _flush(self, batch: list[Delivery]) -> None:
        self.counters["dead_letters"] += len(batch)
        lost: list[tuple[RunKey, int]] = []
        good: list[Delivery] = []
        for delivery in batch:
            if delivery.properties.type == PROBE:
                good.append(delivery)
                continue
            try:
                work = decode(delivery.body)
            except UsageError as error:
                await self._park(delivery, str(error))
                continue
            good.append(delivery)
            if reason_of(delivery.properties) != REJECTED:
                lost.append((RunKey(work.job_id, work.scheduled_for), work.dispatch))
        if lost:
            done = await self._inbox.patiently(lambda _: self._store.ready_again(lost), batch[0])
            self.counters["dispatched_anew"] += len(done)
        for delivery in good:
            self._consumer.ack(delivery)

    async def _park(self, delivery: Delivery, reason: str) -> None:
        await self._inbox.park(delivery, reason)
        self._consumer.ack(delivery)
        self.counters["parked"] += 1


def reason_of(properties: Properties) -> str | None:
    """Why the broker dead-lettered a message: the newest entry of `x-death`. None where there is none.

    `x-first-death-reason` says `expired` for everything that came through the delay ladder.
    """
    deaths = (properties.headers or {}).get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = newest.get("reason") if isinstance(newest, dict) else None
    return reason if isinstance(reason, str) else None
