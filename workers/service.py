"""A worker process: memberships one after the other, each with its intake, executor and settler.

One asyncio loop, a heartbeat thread, handler threads, and three connections to the store: begin, finish, heartbeat,
beside what handlers use. A worker that was taken for dead stops consuming at once, drops everything it holds and
joins under a new id: its attempts are fenced, whatever they still write is refused.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any

from rota.sched.broker.rabbitmq import Consumer, Publisher
from rota.sched.broker.topology import CONTROL, work_queue
from rota.sched.control import cancelled_job
from rota.sched.errors import RotaError, StoreFault, Superseded, Unreachable
from rota.sched.heartbeat import Heartbeat, join
from rota.sched.lifecycle import Backoff, end_at_once, every, stop_on_signals, until_first
from rota.sched.stats import Stats
from rota.sched.store import open_store
from rota.sched.store.values import HandlerRow
from rota.workers import prefetch
from rota.workers.attempt import Verdict, judge
from rota.workers.context import RunContext
from rota.workers.executor import Executor
from rota.workers.intake import Intake
from rota.workers.isolated import Isolated
from rota.workers.pools import Pools
from rota.workers.settle import Settler, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rota.sched.app import App
    from rota.sched.broker.messages import Delivery
    from rota.sched.heartbeat import Trust
    from rota.sched.settings import Settings
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import Begun
    from rota.workers.attempt import Attempt
    from rota.workers.executor import End

log = logging.getLogger(__name__)

COMPARE_ALL_SECONDS = 600.0
"""How often a worker asks for all that it runs by the ledger, not only for what that may have given to it."""
GUARD_SECONDS = 10.0
"""How often deliveries are looked at that are held for long; more often where the broker's ack timeout is short."""
LAST_WORDS_SECONDS = 2.0
"""How long a membership that ends tries to write what has ended in it, and coroutines that it cancels have for their end."""
HAND_BACK_SECONDS = 3.0
"""What a drain keeps of its time for handing back what still runs."""


def run_worker(settings: Settings, app: App, prepare: Callable[[], None] | None = None) -> int:
    """Runs a worker until SIGTERM or SIGINT, then drains. Returns the exit code.

    `prepare` is called first in each process of an isolated handler: a function that can be pickled. Raises Unreachable (NotMigrated) if the store cannot be used at the start; later outages are waited out.
    """
    worker = Worker(settings, app, prepare)
    with asyncio.Runner() as runner:
        try:
            code = runner.run(worker.run())
        except Exception:
            if not worker.abandoned:
                raise
            log.exception("the worker ends")
            code = 1
        if worker.abandoned:
            # Handlers that do not end: threads cannot be stopped, and the runner would wait for coroutines. Their runs are
            # handed back, their fences are void.
            end_at_once(code)
    return code


async def _end_of(task: asyncio.Task[None]) -> None:
    """Waits for a task that somebody else ends; raises what it raises."""
    await asyncio.shield(task)


class Worker:
    """The process. `run` is its whole life."""

    def __init__(self, settings: Settings, app: App, prepare: Callable[[], None] | None = None) -> None:
        self._settings = settings
        self._app = app
        self._isolated = Isolated(settings, prepare)
        self._queues = sorted(settings.queues or {app.name, *(h.queue for h in app.handlers.values())})
        self._store = open_store(settings.store)
        self._begin_link = self._store.async_link("worker begin")
        self._finish_link = self._store.async_link("worker finish")
        self._pools = Pools(self._store, settings.concurrency)
        self._stats = Stats()
        self._publisher = Publisher(settings.broker, "rota worker publish")
        self._consumer = Consumer(settings.broker, "rota worker consume", on_up=self._broker_up)
        self._intake: Intake | None = None
        self._settler: Settler | None = None
        self._executor: Executor | None = None
        self._told = asyncio.Event()
        self._prefetch: dict[str, int] = {}
        self.abandoned = False

    async def run(self) -> int:
        """Joins, works, and leaves when asked to; joins anew after a loss."""
        try:
            return await self._run()
        finally:
            await self._isolated.close()

    async def _run(self) -> int:
        stop = stop_on_signals()
        await self._begin_link.run(self._announcement())
        await self._publisher.start()
        await self._consumer.subscribe(CONTROL, [""], self._control)
        await self._consumer.start()
        backoff = Backoff()
        while not stop.is_set():
            began = time.monotonic()
            try:
                await self._membership(stop)
            except Superseded as error:
                self._stats.superseded("begin")
                log.warning("%s; joining under a new id", error)
            except RotaError as error:
                log.warning("membership ends: %s", error)
            if time.monotonic() - began > self._settings.lease:
                backoff.reset()
            if not stop.is_set():
                await asyncio.sleep(backoff.pause())
        await self._consumer.close()
        await self._publisher.close()
        await self._begin_link.close()
        await self._finish_link.close()
        if not self.abandoned:
            await self._pools.close()
        return 0

    def _announcement(self) -> Transaction[None]:
        rows = [HandlerRow(h.name, self._app.name, h.queue, h.schema, h.options) for h in self._app.handlers.values()]
        return self._store.announce(rows, self._queues)

    async def _announce(self) -> None:
        """Says again what we can run: what nobody says for long is taken for gone."""
        try:
            await self._finish_link.run(self._announcement())
        except (Unreachable, StoreFault) as error:
            log.warning("handlers are not announced: %s", error)

    def _control(self, delivery: Delivery) -> None:
        """A word to all members: if it is about something that runs here, the ledger is asked at once."""
        job_id = cancelled_job(delivery.body)
        if self._intake is not None and any(key.job_id == job_id for key, _ in self._intake.running):
            self._told.set()

    async def _compare_when_told(self, member: int) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            await self._compare(member)

    async def _overdue(self, intake: Intake) -> None:
        assert self._executor is not None
        self._executor.give_up_overdue()
        intake.lost = self._executor.lost
        if not intake.running and not intake.lost:
            await intake.stirred.wait()

    async def _broker_up(self) -> None:
        for drift in await self._consumer.declare():
            log.warning("broker: %s differs from what Rota declares: %s", drift.name, drift.reason)
        for queue in self._queues:
            await self._consumer.declare_work_queue(queue)

    async def _membership(self, stop: asyncio.Event) -> None:
        """One life under one id."""
        store, settings = self._store, self._settings
        member, trust = await join(store, self._begin_link, "worker", settings.lease)
        self._stats.rejoin()
        log.info("worker %s joined, queues %s", member, ", ".join(self._queues))
        intake = self._intake = Intake(
            store,
            self._begin_link,
            self._consumer,
            self._publisher,
            self._app.handlers,
            member=member,
            trust=trust,
            concurrency=settings.concurrency,
            unknown_after=settings.unknown_after,
            started=self._started,
        )
        settler = self._settler = Settler(
            store,
            self._finish_link,
            self._publisher,
            self._consumer,
            lease=settings.lease,
            again=intake.put,
            over=intake.over,
            stats=self._stats,
        )
        executor = self._executor = Executor(
            settings.concurrency, lambda attempt: RunContext(attempt, self._pools, trust), self._ended, self._isolated
        )
        heart = Heartbeat(
            store,
            member,
            trust,
            self._stats,
            beat=settings.beat,
            figures=lambda: (self._figures(trust), None),
        )
        heart.start()
        settling = asyncio.create_task(settler.run())
        try:
            await until_first(
                stop.wait(),
                heart.lost.wait(),
                self._consume_while(trust, intake),
                intake.run(settler),
                _end_of(settling),
                every(settings.beat, lambda: self._compare(member)),
                every(COMPARE_ALL_SECONDS, lambda: self._compare(member, whole=True)),
                self._compare_when_told(member),
                every(1.0, lambda: self._overdue(intake)),
                self._adapt(intake),
                every(min(600.0, settings.unknown_after / 3), self._announce),
                every(self._guard_pause, self._guard),
            )
            if stop.is_set():
                await self._drain(intake, settler, executor)
                await asyncio.to_thread(heart.stop)  # a beat after leaving would be taken for a death
                await self._finish_link.run(store.leave(member, self._figures(trust)))
                log.info("worker %s left", member)
        finally:
            await self._consumer.cancel()
            intake.open = False
            intake.give_back()
            self._drop(intake, executor)
            # What has ended is still offered to the ledger, which refuses what is not ours any more.
            await self._quiet(lambda: settler.written and not executor.ending, time.monotonic() + LAST_WORDS_SECONDS)
            self.abandoned = self.abandoned or executor.busy
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            await asyncio.to_thread(heart.stop)

    async def _consume_while(self, trust: Trust, intake: Intake) -> None:
        """Takes messages while they may begin; what has not begun when that is over is somebody else's to begin."""
        pause = min(1.0, self._settings.beat / 2)
        consuming = False
        while True:
            if intake.able and not consuming:
                self._prefetch = dict.fromkeys(self._queues, self._least)
                for queue in self._queues:
                    await self._consumer.consume(work_queue(queue), self._least, intake.receive)
                consuming = True
            elif not intake.able and (consuming or intake.waiting):  # what was being begun comes back later
                why = (
                    "all slots are taken by what does not end"
                    if intake.lost
                    else "the store does not answer for a lease"
                )
                log.warning("nothing can begin, %s: %s messages go back", why, intake.waiting)
                await self._consumer.cancel()
                intake.give_back()
                consuming = False
            await asyncio.sleep(pause if intake.running or intake.lost else max(pause, trust.left))

    @property
    def _least(self) -> int:
        return prefetch.narrow(self._settings.prefetch, self._settings.concurrency)

    async def _adapt(self, intake: Intake) -> None:
        """Holds more of queues whose runs are over at once. A prefetch that somebody has set stays as it is."""
        begun, then, lately = intake.begun.copy(), time.monotonic(), intake.begun
        while not self._settings.prefetch:
            if not lately:
                intake.stirred.clear()
                await intake.stirred.wait()
                then = time.monotonic()
            await asyncio.sleep(prefetch.LOOK_SECONDS)
            now, lately = time.monotonic(), intake.begun - begun
            for queue in self._queues:
                held = self._prefetch.get(queue, self._least)
                wanted = prefetch.wanted(held, self._least, lately[queue] / (now - then))
                if wanted != held:
                    self._prefetch[queue] = wanted
                    await self._consumer.resize(work_queue(queue), wanted)
                    intake.give_back_surplus(queue, wanted)
            begun, then = intake.begun.copy(), now
        await asyncio.Event().wait()  # for ever: its end would be the membership's

    def _started(self, attempts: list[Attempt], begun: list[Begun]) -> None:
        fresh = [
            b for b in begun if b.attempt == 1 and not b.losses
        ]  # the waits of those that come again are not the queue's
        self._stats.observe("schedule", [b.schedule_lag for b in fresh])
        self._stats.observe("queue", [b.queue_lag for b in fresh])
        assert self._executor is not None
        self._executor.submit(attempts)

    def _ended(self, ends: list[End]) -> None:
        assert self._settler is not None
        now, times = time.monotonic(), []
        for attempt, value, error in ends:
            if attempt.completed and error is not None:
                log.warning("run %s is completed; raised afterwards: %r", attempt.job.key, error)
            elif error is not None:
                log.info("run %s attempt %s: %s: %s", attempt.job.key, attempt.number, type(error).__name__, error)
            if attempt.released:
                continue
            elapsed = now - attempt.begun
            verdict = judge(attempt, value, error, random.random(), elapsed)  # noqa: S311 - jitter
            if not attempt.dropped:
                times.append(elapsed)
                self._settler.put(attempt, verdict)
            elif attempt.completed:
                self._stats.ended("succeeded")
            else:
                self._stats.superseded(refusal(verdict))
                log.warning(
                    "run %s is not this worker's any more: its %s is dropped", attempt.job.key, refusal(verdict)
                )
        self._stats.observe("run", times)

    async def _compare(self, member: int, *, whole: bool = False) -> None:
        """Compares what the store says we run with what we hold (rule 3), and learns of cancels.

        The store is asked about what it may have given to us; `whole`: for whatever else there is, too.
        """
        intake = self._intake
        assert intake is not None
        assert self._executor is not None
        async with intake.begin_lock:
            suspects = intake.suspects()
            if not suspects and not whole:
                return
            try:
                owned = await self._finish_link.run(self._store.owned(member, None if whole else suspects))
                strangers = [o for o in owned if (o.key, o.fence) not in intake.running]
                for o in owned:
                    attempt = intake.running.get((o.key, o.fence))
                    if attempt is not None and o.cancel_requested and not attempt.cancelled:
                        log.info("run %s was asked to cancel", o.key)
                        attempt.cancelled = True
                        self._executor.abandon(attempt)
                if strangers:
                    log.warning("%s runs were begun and the answer was lost: handed back", len(strangers))
                    await self._finish_link.run(self._store.disown(strangers))
                told = {a: a.progress for a in intake.running.values() if a.progress is not None}
                if told:
                    rows = [(a.job.key, a.fence, text) for a, text in told.items()]
                    await self._finish_link.run(self._store.progress(rows))
                for attempt, text in told.items():
                    if attempt.progress is text:
                        attempt.progress = None
            except (Unreachable, StoreFault) as error:
                log.warning("comparing with the ledger: %s", error)

    @property
    def _guard_pause(self) -> float:
        return min(GUARD_SECONDS, self._settings.longest_hold / 4)

    async def _guard(self) -> None:
        """Replaces deliveries that are held for long by copies in the delay ladder; gives unbegun ones back.

        What would be held for too long by the next look is old now. And sees that the broker still knows that we consume.
        """
        intake, settler = self._intake, self._settler
        assert intake is not None
        assert settler is not None
        longest = self._settings.longest_hold
        before = time.monotonic() - (longest - self._guard_pause)
        intake.give_back_old(before)
        for attempt in list(intake.running.values()):
            job = attempt.job
            if job.delivery is not None and job.arrived < before and intake.holds(job) and not job.guarded:
                log.info("run %s takes long: a copy in the delay ladder takes the place of its message", job.key)
                settler.defer(job, longest)
                job.guarded = True  # once: the settler publishes again what is not confirmed
        try:
            await self._consumer.check()
        except Unreachable as error:
            log.info("consumers were not looked at: %s", error)

    async def _drain(self, intake: Intake, settler: Settler, executor: Executor) -> None:
        """No new begins; what runs may end; what has not by then is handed back, with no attempt spent."""
        log.info("draining: %s running, %s not begun", len(intake.running), intake.waiting)
        patience = self._settings.drain_timeout
        deadline = time.monotonic() + patience - min(HAND_BACK_SECONDS, patience / 2)
        intake.open = False
        await self._consumer.cancel()
        intake.give_back()
        for attempt in executor.unstarted():
            self._release(settler, attempt)
        await self._quiet(lambda: not intake.running and settler.idle, deadline)
        for attempt in list(intake.running.values()):
            log.warning("run %s is handed back: it did not end in time", attempt.job.key)
            self._release(settler, attempt)
            executor.abandon(attempt)
        deadline = time.monotonic() + min(HAND_BACK_SECONDS, patience / 2) * 0.7
        await self._quiet(lambda: not intake.running and settler.idle, deadline)
        await self._publisher.flush(0.5)

    @staticmethod
    async def _quiet(done: Callable[[], bool], deadline: float) -> None:
        """Waits until it is done, or the deadline (monotonic) has come."""
        while not done() and time.monotonic() < deadline:  # noqa: ASYNC110 - several parties
            await asyncio.sleep(0.02)

    @staticmethod
    def _release(settler: Settler, attempt: Attempt) -> None:
        if attempt.completed:
            return
        attempt.released = True
        settler.put(attempt, Verdict("release"))

    def _drop(self, intake: Intake, executor: Executor) -> None:
        """The end of a membership: nothing it holds is ours any more."""
        for attempt in list(intake.running.values()):
            attempt.dropped = True
            executor.abandon(attempt)
            if attempt.job.delivery is not None:
                self._consumer.nack(attempt.job.delivery)
        executor.unstarted()
        executor.close()
        executor.join(0.5)

    def _figures(self, trust: Trust) -> Mapping[str, Any]:
        """What the member row tells of us; called from the heartbeat thread too."""
        intake = self._intake
        degraded = [] if trust.held else ["lease"]
        if not (self._consumer.up and self._publisher.up):
            degraded.append("broker")
        if self._publisher.blocked:
            degraded.append("broker_blocked")
        if intake is not None and intake.unknown:
            degraded.append("unknown_handler")
        if self._executor is not None and self._executor.stuck_threads:
            degraded.append("stuck_threads")
        if self._executor is not None and self._executor.stuck_coroutines:
            degraded.append("stuck_coroutines")
        self._stats.set("degraded", degraded)
        self._stats.set("running", len(intake.running) if intake else 0)
        self._stats.set("held", self._consumer.held)
        return self._stats.to_json()
