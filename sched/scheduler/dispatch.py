"""Claim, publish, confirm: a scheduler's pipeline for one membership.

`round` is the loop's body: claim what is due, take what is ready, hand it to the publisher. Nothing here holds a
transaction open over a publish. What is claimed stays in `outstanding` until the broker confirms it: a returned,
refused or unknown publish is sent again, and workers drop the copies that the ledger does not know any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from rota.sched.broker.messages import Outgoing, Publish
from rota.sched.broker.topology import JOBS, work_queue
from rota.sched.errors import UsageError
from rota.sched.lifecycle import set_within
from rota.sched.message import encode
from rota.sched.scheduler.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.broker.protocol import BrokerPublisher
    from rota.sched.heartbeat import Trust
    from rota.sched.model import Dispatch
    from rota.sched.scheduler.depths import Depths
    from rota.sched.scheduler.lanes import LaneBook
    from rota.sched.stats import Stats
    from rota.sched.store.protocols import AsyncLink, Store

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Pause before a returned or refused publish is tried again."""
READY_SECONDS = 0.02
"""From one look at ready runs to the next while claims find something; a round that finds nothing has looked at both."""


class Dispatcher:
    """One scheduler's claims and publishes under one member id. Belongs to the event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 - what the pipeline joins
        self,
        store: Store,
        link: AsyncLink,
        publisher: BrokerPublisher,
        member: int,
        trust: Trust,
        lanes: LaneBook,
        depths: Depths,
        stats: Stats,
        *,
        batch: int,
        window: int,
        wake: asyncio.Event,
    ) -> None:
        """`wake` is set when a publish has to be repeated: its scheduler may be asleep."""
        self._store = store
        self._link = link
        self._publisher = publisher
        self._member = member
        self._trust = trust
        self._lanes = lanes
        self._depths = depths
        self._stats = stats
        self._batch = batch
        self._window = window
        self._declared: set[str] = set()
        self._again: list[int] = []
        self._progress = asyncio.Event()
        self._wake = wake
        self._closed = False
        self.outstanding: dict[int, tuple[str, Outgoing]] = {}
        self.watermark = Watermark()
        self.last_round = time.monotonic()
        self._looked_ready = 0.0
        self._recurring = False
        self.unroutable: set[str] = set()
        self.numbers_back = False

    @property
    def room(self) -> int:
        """How many more runs may be claimed now."""
        if not self._publisher.up or self._publisher.blocked or not self._trust.held:
            return 0
        return max(0, self._window - len(self.outstanding))

    async def round(self) -> int:
        """One claim and, now and then, one look at ready runs; returns how many jobs were moved. Raises what the store raises."""
        await self._repeat()
        limit = min(self._batch, self.room)
        moved = await self._move(limit) if limit else 0
        self.last_round = time.monotonic()
        return moved

    async def _move(self, limit: int) -> int:
        if not len(self._lanes):
            return 0
        per_lane = max(16, limit // 8)
        moved = await self._claim(limit, per_lane)
        if moved and time.monotonic() < self._looked_ready + READY_SECONDS:
            return moved
        self._looked_ready = time.monotonic()
        lanes = self._lanes.walk_ready()
        ready = await self._link.run(self._store.ready(self._member, lanes, limit, per_lane))
        self._lanes.readied(lanes, ready, limit, per_lane)
        await self.dispatch(ready.dispatches)
        return moved + len(ready.dispatches)

    async def _claim(self, limit: int, per_lane: int) -> int:
        """Claims what runs once by itself, as that takes one statement, as long as nothing recurring is due beside it."""
        lanes, once = self._lanes.walk(), 0
        if not self._recurring:
            claimed = await self._link.run(self._store.claim_once(self._member, lanes, limit, per_lane))
            await self.dispatch(claimed.dispatches)
            if not claimed.recurring:
                self._lanes.claimed(lanes, claimed, limit, per_lane)
                return claimed.rows
            self._recurring = True  # and nothing is learnt of the lanes: what recurs is still in them
            once = len(claimed.dispatches)
            limit -= once
            if not limit:
                return once
        claimed = await self._link.run(self._store.claim(self._member, lanes, limit, per_lane))
        self._recurring = claimed.recurring
        self._lanes.claimed(lanes, claimed, limit, per_lane)
        for job_id, reason in claimed.broken:
            log.error("job %s is paused: %s", job_id, reason)
        self._stats.ended("cancelled", claimed.cancelled)
        await self.dispatch(claimed.dispatches)
        return once + claimed.rows

    async def dispatch(self, runs: Sequence[Dispatch]) -> None:
        """Publishes runs that the store has given this scheduler."""
        runs = sorted(runs, key=lambda d: d.dispatch)
        self.watermark.add(d.dispatch for d in runs)
        rising = self._stats.seen(d.dispatch for d in runs)
        if runs and rising == self.numbers_back:
            self.numbers_back = not rising
            if not rising:
                log.error("the store gives numbers anew: was it restored from a backup? See `rota doctor`")
        for d in runs:
            queue = work_queue(d.queue)
            self.outstanding[d.dispatch] = (d.queue, Outgoing(JOBS, queue, encode(d), str(d.dispatch)))
            self._depths.published(d.queue)
            self._again.append(d.dispatch)
        await self._repeat()

    def _publish(self, number: int) -> None:
        # It may be another's by now; if it is still ours, it goes out after the next heartbeat.
        if not self._trust.held:
            self._later(number)
            return
        _, message = self.outstanding[number]
        try:
            self._publisher.publish(message, partial(self._settled, number))
        except UsageError as error:  # the broker could not take it; what is stored is checked, so this is ours
            log.error("dispatch %s cannot be published: %s", number, error)  # noqa: TRY400 - the text says it all
            self._later(number)

    def _settled(self, number: int, outcome: Publish) -> None:
        if self._closed or number not in self.outstanding:
            return
        if outcome is Publish.CONFIRMED:
            queue, _ = self.outstanding.pop(number)
            self.watermark.confirm(number)
            self.unroutable.discard(queue)
            self._progress.set()
            return
        self._stats.republished(outcome.value)
        if outcome is Publish.RETURNED:
            queue = self.outstanding[number][0]
            self._declared.discard(queue)
            self.unroutable.add(queue)
        self._later(number)

    def _later(self, number: int) -> None:
        self._again.append(number)
        if len(self._again) == 1:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._stir)

    def _stir(self) -> None:
        self._progress.set()
        self._wake.set()

    @property
    def repeating(self) -> bool:
        """Whether something has to be published again."""
        return bool(self._again)

    async def _repeat(self) -> None:
        """Publishes what was not yet, came back or has an unknown fate. Cancelled, it leaves all that to the next call."""
        if not self._again or not self._publisher.up:
            return
        numbers = list(self._again)
        await self._declare({self.outstanding[n][0] for n in numbers if n in self.outstanding})
        del self._again[: len(numbers)]
        for number in numbers:
            if number in self.outstanding:
                self._publish(number)

    async def _declare(self, queues: set[str]) -> None:
        for queue in queues - self._declared:
            drift = await self._publisher.declare_work_queue(queue)
            if drift:
                log.warning("queue %s differs from what Rota declares: %s", queue, drift.reason)
            self._declared.add(queue)

    def forget_declared(self) -> None:
        """After a reconnect: the broker may have lost its queues."""
        self._declared.clear()
        self._stir()

    async def progress(self, seconds: float) -> None:
        """Waits for a confirm or something to repeat, `seconds` at most."""
        self._progress.clear()
        await set_within(self._progress, seconds)

    async def drain(self, seconds: float) -> bool:
        """Waits until all is confirmed, `seconds` at most; whether it is."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.outstanding and asyncio.get_running_loop().time() < deadline:
            await self._repeat()
            await self.progress(0.2)
        return not self.outstanding

    def close(self) -> None:
        """Ends this membership's pipeline: what is outstanding is adopted from the ledger by a live scheduler."""
        self._closed = True
