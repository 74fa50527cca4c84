"""Deliveries on their way into the ledger: begin in batches, no more than there are slots.

One begin is in flight; what arrives meanwhile is the next batch. A batch is bounded by the free slots and by what the
slots ended in the last 100 ms, so that short runs keep the pipeline full and long ones are not hoarded. A run that has
lost its worker twice is begun alone: nothing else runs in this worker then, and a third loss convicts only itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from rota.sched.broker.messages import Delivery, Outgoing
from rota.sched.broker.topology import PARKED, queue_of
from rota.sched.errors import Unreachable, UsageError
from rota.sched.ids import RunKey
from rota.sched.lifecycle import Backoff, set_within
from rota.sched.message import decode
from rota.sched.policy import NO_POLICY, Policy
from rota.workers.attempt import Attempt, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rota.sched.app import Handler
    from rota.sched.broker.protocol import BrokerConsumer, BrokerPublisher
    from rota.sched.heartbeat import Trust
    from rota.sched.store.protocols import AsyncLink, Store
    from rota.sched.store.values import Begun
    from rota.workers.settle import Settler

log = logging.getLogger(__name__)

_BATCH = 500
_RECENT = 0.1
IN_FLIGHT_SECONDS = 5.0
"""How long a begin that is under way is waited for when the membership ends."""
DOUBT_SECONDS = 120.0
"""For how long after a begin without an answer the ledger is asked what it gave: no statement takes so long to commit late."""
UNKNOWN_SECONDS = 60.0
"""How long the message of a handler that this worker does not have is set aside, at most."""
UNKNOWN_KEPT_SECONDS = 2 * UNKNOWN_SECONDS
"""How long it is told that such a message was here: it would have come again by then."""
PARK_AGAIN_SECONDS = 1.0
"""How long a message that could not be parked is kept before it goes back to its queue."""
IDLE_SECONDS = 60.0
"""How often it is looked whether anything waits where nothing does: what comes wakes it."""
HERD_LOSSES = 2
"""From so many losses on a run is begun alone."""
ALONE_PATIENCE = 3.0
"""Seconds that a worker begins nothing else for the sake of a run that is to be begun alone: what runs may take hours. Or a
tenth of what that run has waited already, so that in the end it finds a worker idle wherever runs are long.
"""
ALONE_AGAIN = 3.0
"""Seconds until the message of such a run comes again, to whichever worker, if this one was not idle by then."""
ALONE_REST = 20.0
"""Seconds after such a wait in which the worker goes on for the neighbours' sake: a run that is to be begun alone begins if it
finds nothing running, and else comes again later.
"""


class Intake:
    """The inbox of one membership. `run` begins; `started(attempts, begun)` gets what the ledger gave, one for each."""

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        store: Store,
        link: AsyncLink,
        consumer: BrokerConsumer,
        publisher: BrokerPublisher,
        handlers: dict[str, Handler[..., Any]],
        *,
        member: int,
        trust: Trust,
        concurrency: int,
        unknown_after: float,
        started: Callable[[list[Attempt], list[Begun]], None],
    ) -> None:
        self._store = store
        self._member = member
        self._trust = trust
        self._link = link
        self._consumer = consumer
        self._publisher = publisher
        self._handlers = handlers
        self._concurrency = concurrency
        self._unknown_after = unknown_after
        self._unknown_pause = min(UNKNOWN_SECONDS, max(1.0, unknown_after / 20))
        self._started = started
        self._inbox: deque[Job] = deque()
        self._alone: deque[Job] = deque()
        self._ended: deque[float] = deque()
        self._held_back: float | None = None
        """Since when nothing is begun for the sake of what is to be begun alone (monotonic)."""
        self._rest_until = -math.inf
        """Until when nothing is held back again (monotonic)."""
        self._wake = asyncio.Event()
        self.begin_lock = asyncio.Lock()
        self.running: dict[tuple[RunKey, int], Attempt] = {}
        self._unknown: dict[str, float] = {}
        """Handlers that this worker does not have, and when a message of theirs was here last (monotonic)."""
        self._doubtful: dict[RunKey, float] = {}
        """What a begin without an answer asked for, and until when it may have been given (monotonic)."""
        self.begun: Counter[str] = Counter()
        """How many runs of each queue have begun."""
        self.stirred = asyncio.Event()
        """Set when one begins. Who adapts the prefetch clears it before it waits."""
        self.open = True
        self.lost = 0
        """Slots that are taken for long by what was given up."""

    @property
    def able(self) -> bool:
        """Whether anything may begin here: the lease is held, and not all slots are lost."""
        return self._trust.held and self.lost < self._concurrency

    @property
    def unknown(self) -> set[str]:
        """Handlers of messages that came lately and that this worker does not have; asked from the heartbeat thread too."""
        since = time.monotonic() - UNKNOWN_KEPT_SECONDS
        return {name for name, seen in list(self._unknown.items()) if seen > since}

    @property
    def waiting(self) -> int:
        """Deliveries that have not begun."""
        return len(self._inbox) + len(self._alone)

    def receive(self, delivery: Delivery) -> None:
        """A message has come; one that is not ours is parked with its reason."""
        try:
            work = decode(delivery.body)
        except UsageError as error:
            self._park(delivery, str(error))
            return
        key = RunKey(work.job_id, work.scheduled_for)
        self.put(Job(delivery, work, key, queue_of(delivery.queue) or "", time.monotonic(), delivery.body))

    def put(self, job: Job) -> None:
        """A delivery to be begun (again)."""
        self._inbox.append(job)
        self._wake.set()

    def over(self, attempt: Attempt) -> None:
        """A slot is free."""
        if self.running.pop((attempt.job.key, attempt.fence), None) is not None:
            self._ended.append(time.monotonic())
            self._wake.set()

    def room(self) -> int:
        """How many may begin now."""
        if not self.open or not self.able:
            return 0
        if any(a.losses >= HERD_LOSSES for a in self.running.values()):
            return 0
        if self._alone:
            return 0 if self.running else 1
        now = time.monotonic()
        while self._ended and self._ended[0] < now - _RECENT:
            self._ended.popleft()
        return min(_BATCH, max(0, self._concurrency - self.lost + len(self._ended) - len(self.running)))

    async def run(self, settler: Settler) -> None:
        """Begins until cancelled. Raises Superseded when this member is taken for dead."""
        backoff = Backoff(0.1, 2.0)
        while True:
            if not self.waiting or not self.room():
                if self._let_go(settler):
                    continue
                self._wake.clear()
                await set_within(self._wake, 1.0 if self.waiting else IDLE_SECONDS)
                continue
            try:
                await self._round(settler)
                backoff.reset()
            except Unreachable as error:
                log.warning("%s deliveries wait for the store: %s", self.waiting, error)
                await asyncio.sleep(backoff.pause())

    def _let_go(self, settler: Settler) -> bool:
        """Whether the runs that are to be begun alone were put off: they have held back their neighbours long enough."""
        now = time.monotonic()
        if not self._alone or not self.running:
            self._held_back = None
            return False
        if now >= self._rest_until:
            self._held_back = self._held_back or now
            if now - self._held_back < max(ALONE_PATIENCE, *(job.waited / 10 for job in self._alone)):
                return False
            self._held_back = None
            self._rest_until = now + ALONE_REST
        while self._alone:
            settler.defer(self._alone.popleft(), ALONE_AGAIN)
        return True

    async def _round(self, settler: Settler) -> None:
        alone = bool(self._alone)
        source = self._alone if alone else self._inbox
        batch = [source.popleft() for _ in range(min(self.room(), len(source)))]
        batch = [job for job in batch if self.holds(job)]
        known = [job for job in batch if job.work.handler in self._handlers]
        aside: list[Job] = []
        try:
            unknown = [job for job in batch if job.work.handler not in self._handlers]
            await self._set_aside(unknown, settler)
            aside = unknown
            if not known:
                return
            missed = await self._begin(known, alone=alone)
            if missed:
                await self._sort_out(missed, settler)
        except BaseException:
            # Begun or not, we do not know: asked again, the ledger tells; what only it thinks begun is disowned. Where the
            # membership ends with it, all of it goes back to its queue: nobody else would see these messages again.
            begun = {attempt.job for attempt in self.running.values()}
            source.extendleft(reversed([job for job in batch if job not in aside and job not in begun]))
            raise

    def holds(self, job: Job) -> bool:
        """Whether the broker still counts the delivery as ours; if not it comes again."""
        return job.delivery is None or job.delivery.epoch == self._consumer.epoch

    async def _begin(self, jobs: list[Job], *, alone: bool) -> list[Job]:
        """One begin. Returns what the ledger did not give."""
        by_key: dict[RunKey, Job] = {}
        missed = [job for job in jobs if by_key.setdefault(job.key, job) is not job]  # copies beside their originals
        refs = [(job.key, job.work.dispatch, job.work.args is None) for job in by_key.values()]
        async with self.begin_lock:
            asked = asyncio.ensure_future(self._link.run(self._store.begin(self._member, refs, alone=alone)))
            try:
                begun = await asyncio.shield(asked)
            except asyncio.CancelledError:
                # A drain, say. What the store has begun by now would else be lost with a worker that is alive.
                await asyncio.wait([asked], timeout=IN_FLIGHT_SECONDS)
                if asked.done() and not asked.cancelled() and asked.exception() is None:
                    self._take(by_key, asked.result())
                else:
                    self._doubt(by_key)
                asked.cancel()
                raise
            except Unreachable:
                self._doubt(by_key)
                raise
            self._take(by_key, begun)
        return missed + list(by_key.values())

    def _doubt(self, keys: Iterable[RunKey]) -> None:
        self._doubtful |= dict.fromkeys(keys, time.monotonic() + DOUBT_SECONDS)

    def suspects(self) -> set[RunKey]:
        """What the ledger may say that this worker runs: what it holds, and what begins asked for that had no answer."""
        now = time.monotonic()
        self._doubtful = {key: until for key, until in self._doubtful.items() if until > now}
        return {key for key, _ in self.running} | self._doubtful.keys()

    def _take(self, jobs: dict[RunKey, Job], begun: list[Begun]) -> None:
        """Takes from `jobs` what the ledger has given to us."""
        self._started([self._attempt(jobs.pop(b.key), b) for b in begun], begun)

    def _attempt(self, job: Job, b: Begun) -> Attempt:
        args = job.work.args if b.args is None else json.loads(b.args)
        handler = self._handlers[job.work.handler]
        self.begun[job.queue] += 1
        self.stirred.set()
        attempt = Attempt(
            job,
            b.fence,
            b.attempt,
            b.losses,
            handler,
            args or {},
            time.monotonic(),
            policy=_policy(job, b.policy) if b.policy else NO_POLICY,
            age=b.schedule_lag + b.queue_lag,
            checkpoint=b.checkpoint,
            catchup=b.catchup,
            missed=b.missed,
        )
        self.running[job.key, b.fence] = attempt
        return attempt

    async def _sort_out(self, missed: list[Job], settler: Settler) -> None:
        """Not begun: to be begun alone, or settled by where the run stands."""
        standings = await settler.look([job.key for job in missed])
        if expired := [key for key, standing in standings.items() if standing.expired]:
            await settler.expire(expired)
        for job in missed:
            standing = standings[job.key]
            same = standing.dispatch == job.work.dispatch
            if same and standing.due and standing.losses >= HERD_LOSSES:
                job.waited = standing.age
                self._alone.append(job)
                self._wake.set()
            else:
                settler.explain(job, standing)

    async def _set_aside(self, jobs: list[Job], settler: Settler) -> None:
        """No such handler here: the run stays, its message comes back later, and status tells. In the end the run dies."""
        if not jobs:
            return
        names = {job.work.handler for job in jobs}
        for name in names - self.unknown:
            log.error("no handler %r in this app: its runs are set aside, until a worker comes that has it", name)
        self._unknown |= dict.fromkeys(names, time.monotonic())
        refs = [(job.key, job.work.dispatch) for job in jobs]
        deaths = await self._link.run(self._store.set_aside(refs, self._unknown_after))
        died = {death.key: death for death in deaths}
        for job in jobs:
            if job.key in died:
                settler.buried(job, died[job.key])
            else:
                settler.defer(job, self._unknown_pause)

    def _park(self, delivery: Delivery, reason: str) -> None:
        log.error("a message from %s is parked: %s", delivery.queue, reason)
        message = Outgoing(PARKED, "", delivery.body, f"parked-{delivery.tag}", headers={"x-rota-error": reason[:500]})
        self._publisher.publish(message, lambda outcome: self._parked(delivery, outcome.name == "CONFIRMED"))

    def _parked(self, delivery: Delivery, stored: bool) -> None:  # noqa: FBT001 - the outcome
        if stored:
            self._consumer.ack(delivery)
        else:  # it comes again at once: where nothing can be parked, that must not become a storm
            asyncio.get_running_loop().call_later(PARK_AGAIN_SECONDS, self._consumer.nack, delivery)

    def give_back(self) -> None:
        """What has not begun goes back to its queue."""
        self.give_back_old(math.inf)

    def give_back_surplus(self, queue: str, keep: int) -> None:
        """Of that queue's no more than `keep` wait here; what came last goes back."""
        surplus = [job for job in self._inbox if job.queue == queue][keep:]
        if surplus:
            gone = set(surplus)
            self._inbox = deque(job for job in self._inbox if job not in gone)
        for job in surplus:
            if job.delivery is not None:
                self._consumer.nack(job.delivery)

    def give_back_old(self, before: float) -> None:
        """What arrived before that instant (monotonic) goes back: the broker's ack timeout counts it too."""
        for source in (self._inbox, self._alone):
            for job in [job for job in source if job.arrived < before]:
                source.remove(job)
                if job.delivery is not None:
                    self._consumer.nack(job.delivery)


def _policy(job: Job, value: Mapping[str, Any]) -> Policy:
    """What the run's job asks for itself. A newer Rota may have stored words that this one does not know."""
    try:
        return Policy.from_json(value)
    except UsageError as error:
        log.error("run %s: its own policy is left out, its handler's is in force: %s", job.key, error)  # noqa: TRY400 - it says all
        return NO_POLICY
