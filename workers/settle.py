"""Ends of attempts on their way to the ledger, and only then to the broker.

One flush is in flight; what ends meanwhile is the next batch. A message is acked after the ledger's commit, a retry's
after the ladder has confirmed the message that follows it. What a fenced write did not take is looked at: zero rows
never mean "ack" by themselves (rule 2 of docs/protocol.md). All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from rota.sched import events
from rota.sched.broker.messages import Outgoing, Publish
from rota.sched.broker.topology import MAX_DELAY, delay_route
from rota.sched.errors import RotaError, Unreachable, UsageError
from rota.sched.lifecycle import Backoff
from rota.sched.store.values import Death, End, Return

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from rota.sched.broker.protocol import BrokerConsumer, BrokerPublisher
    from rota.sched.ids import RunKey
    from rota.sched.stats import Refusal, Stats
    from rota.sched.store.protocols import AsyncLink, Store
    from rota.sched.store.values import Standing
    from rota.workers.attempt import Attempt, Job, Verdict

log = logging.getLogger(__name__)

_FLUSH = 500
"""Most ends in one statement."""


class Settler:
    """Writes ends, then settles messages. `again(job)` begins a delivery anew, `over(attempt)` frees its slot."""

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        store: Store,
        link: AsyncLink,
        publisher: BrokerPublisher,
        consumer: BrokerConsumer,
        *,
        lease: float,
        again: Callable[[Job], None],
        over: Callable[[Attempt], None],
        stats: Stats,
    ) -> None:
        self._store = store
        self._link = link
        self._publisher = publisher
        self._consumer = consumer
        self._lease = lease
        self._again = again
        self._over = over
        self._stats = stats
        self._outbox: list[tuple[Attempt, Verdict]] = []
        self._filled = asyncio.Event()
        self._flushing = False
        self._deferring = 0

    @property
    def idle(self) -> bool:
        """Whether everything that ended is written and settled."""
        return self.written and not self._deferring

    @property
    def written(self) -> bool:
        """Whether the ledger has answered for everything that ended."""
        return not (self._outbox or self._flushing)

    def put(self, attempt: Attempt, verdict: Verdict) -> None:
        """An attempt has ended."""
        self._outbox.append((attempt, verdict))
        self._filled.set()

    async def run(self) -> None:
        """Flushes until cancelled; a store that is away is waited for."""
        backoff = Backoff(0.1, 2.0)
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._outbox:
                batch, self._outbox = self._outbox[:_FLUSH], self._outbox[_FLUSH:]
                self._flushing = True
                try:
                    await self._flush_or_split(batch)
                    backoff.reset()
                except Unreachable as error:
                    # Some of it may be written: a repeated write finds no row, and the look that follows tells.
                    log.warning("%s ends are not written yet: %s", len(batch), error)
                    for attempt, _ in batch:
                        attempt.sent = True
                    self._outbox = batch + self._outbox
                    await asyncio.sleep(backoff.pause())
                finally:
                    self._flushing = False

    async def _flush_or_split(self, batch: Sequence[tuple[Attempt, Verdict]]) -> None:
        """Writes a batch; what the store refuses to hold harms nothing beside it, and its run ends all the same."""
        try:
            await self.flush(batch)
        except Unreachable:
            raise
        except RotaError as error:
            if len(batch) > 1:
                for each in batch:
                    await self._flush_or_split([each])
                return
            ((attempt, verdict),) = batch
            log.error("run %s: the store does not take its end: %s", attempt.job.key, error)  # noqa: TRY400 - it says all
            told = f"what the handler gave cannot be stored: {error}"
            await self.flush([(attempt, verdict._replace(reason=told, result=None, error=None))])

    async def flush(self, batch: Sequence[tuple[Attempt, Verdict]]) -> None:
        """Writes one batch and settles its messages. Raises Unreachable before anything is settled by it."""
        ends = [_end(a, v) for a, v in batch if v.kind in {"succeeded", "dead", "cancelled"}]
        returns = [_return(a, v) for a, v in batch if v.kind in {"retry", "snooze", "release"}]
        written: set[RunKey] = {a.job.key for a, v in batch if v.kind == "completed"}
        if ends:
            ended = await self._link.run(self._store.finish_unfollowed(ends))
            written |= ended
            if left := [end for end in ends if end.key not in ended]:
                ended = await self._link.run(self._store.finish(left))
                written |= ended
        if returns:
            returned = await self._link.run(self._store.give_back(returns))
            written |= returned
        refused = [a for a, _ in batch if a.job.key not in written]
        standings = await self.look([a.job.key for a in refused]) if refused else {}
        counts: Counter[str] = Counter()
        for attempt, verdict in batch:
            if attempt.job.key in written:
                counts["succeeded" if verdict.kind == "completed" else verdict.kind] += 1
                self._settle(attempt, verdict)
            else:
                self._refused(attempt, verdict, standings[attempt.job.key])
        for kind, n in counts.items():
            self._stats.ended(kind, n)

    def _settle(self, attempt: Attempt, verdict: Verdict) -> None:
        kind, job = verdict.kind, attempt.job
        self._over(attempt)
        if kind == "dead":
            self._reject(job)
            events.tell(self._publisher, events.run_dead(_death(attempt, verdict)))
        elif kind == "release":
            if job.delivery is not None:
                self._consumer.nack(job.delivery)
            else:
                self.defer(job, 1)
        elif kind in {"retry", "snooze"} and verdict.seconds <= MAX_DELAY:
            self.defer(job, verdict.seconds)
        else:
            self.ack(job)

    def _refused(self, attempt: Attempt, verdict: Verdict, standing: Standing) -> None:
        """A fenced write that found no row of its own: repeated, superseded, or to be cancelled."""
        if standing.fence == attempt.fence and standing.cancel_requested:
            self.put(attempt, verdict._replace(kind="cancelled", reason="cancelled while it ran", seconds=0.0))
            return
        if standing.fence == attempt.fence and verdict.kind == "superseded":
            self.put(attempt, verdict._replace(kind="release"))
            return
        self._over(attempt)
        committed = attempt.completed or attempt.committing
        if standing.state is None and (attempt.sent or committed):
            # By the try or the commit whose answer was lost, or by the transaction of a handler that was given up, as far as can
            # be told.
            self._stats.ended("succeeded" if committed else verdict.kind)
        else:
            self._stats.superseded(refusal(verdict))
            log.warning(
                "run %s has gone on without attempt %s (fence %s): its %s is refused",
                attempt.job.key,
                attempt.number,
                attempt.fence,
                refusal(verdict),
            )
        self.explain(attempt.job, standing)

    async def look(self, keys: Iterable[RunKey]) -> dict[RunKey, Standing]:
        """Where runs stand."""
        return await self._link.run(self._store.look(sorted(set(keys)), self._lease))

    def explain(self, job: Job, standing: Standing) -> None:
        """Settles a message by where its run stands: it may be the only one that the run has."""
        if standing.state is None or standing.dispatch != job.work.dispatch:
            self.ack(job)
        elif standing.state == "waiting":
            self._again(job)
        else:
            self.defer(job, max(1.0, standing.seconds))

    async def expire(self, keys: Collection[RunKey]) -> None:
        """Ends what did not begin in time; a look tells then that it is over."""
        self._stats.ended("expired", await self._link.run(self._store.expire(keys)))

    def buried(self, job: Job, death: Death) -> None:
        """The ledger has ended a run that never began here: it is dead."""
        log.error("run %s is dead: %s", job.key, death.reason)
        self._stats.ended("dead")
        events.tell(self._publisher, events.run_dead(death))
        self._reject(job)

    def defer(self, job: Job, seconds: float) -> None:
        """Publishes a fresh message to the delay ladder; acks the old one when it is confirmed."""
        exchange, key = delay_route(min(seconds, MAX_DELAY), job.queue)
        self._deferring += 1
        self._send(job, Outgoing(exchange, key, job.body, str(job.work.dispatch)))

    def _send(self, job: Job, message: Outgoing) -> None:
        try:
            self._publisher.publish(message, partial(self._sent, job, message))
        except UsageError:
            log.exception("a deferral cannot be published; the message goes back to its queue")
            self._deferring -= 1
            if job.delivery is not None:
                self._consumer.nack(job.delivery)

    def _sent(self, job: Job, message: Outgoing, outcome: Publish) -> None:
        if outcome is Publish.CONFIRMED:
            self._deferring -= 1
            self.ack(job)
        elif job.delivery is not None and job.delivery.epoch != self._consumer.epoch:
            self._deferring -= 1  # its channel is gone: the broker delivers it again
        else:
            self._stats.republished(outcome.value)
            asyncio.get_running_loop().call_later(1.0, self._send, job, message)

    def _reject(self, job: Job) -> None:
        if job.delivery is not None:
            self._consumer.reject(job.delivery)
            job.delivery = None

    def ack(self, job: Job) -> None:
        """The message is done with, or a copy has taken its place."""
        if job.delivery is not None:
            self._consumer.ack(job.delivery)
            job.delivery = None


def refusal(verdict: Verdict) -> Refusal:
    """What kind of write a verdict is, where it came too late."""
    if verdict.kind == "superseded":
        return "transaction"
    return "retry" if verdict.kind in {"retry", "snooze", "release"} else "finish"


def _death(attempt: Attempt, verdict: Verdict) -> Death:
    job = attempt.job
    reason = verdict.reason or "failed"
    return Death(job.key, job.queue, job.work.handler, job.work.tenant, reason, attempt.number, attempt.fence)


def _end(attempt: Attempt, verdict: Verdict) -> End:
    outcome = verdict.kind
    assert outcome == "succeeded" or outcome == "dead" or outcome == "cancelled"  # noqa: PLR1714 - narrows the type
    return End(attempt.job.key, attempt.fence, outcome, verdict.reason, verdict.result, verdict.error)


def _return(attempt: Attempt, verdict: Verdict) -> Return:
    kind = verdict.kind
    assert kind == "retry" or kind == "snooze" or kind == "release"  # noqa: PLR1714 - narrows the type
    beyond = kind != "release" and verdict.seconds > MAX_DELAY
    return Return(attempt.job.key, attempt.fence, kind, verdict.seconds, verdict.error, from_store=beyond)
