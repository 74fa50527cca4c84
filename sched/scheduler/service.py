"""A scheduler process: memberships one after the other, each with its partitions, its pipeline and its duties.

One asyncio loop, a heartbeat thread, and three connections to the store: claims and duties, LISTEN, heartbeat (one more
for commands that come in by AMQP, and one now and then for retention). A membership ends when the process is asked to stop, when the store says
that it was taken for dead, or when the answer of a claim was lost: then the id is given up, and what it may have
claimed is adopted from the ledger like that of any dead scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from rota.sched import events
from rota.sched.broker.rabbitmq import Consumer, Publisher
from rota.sched.broker.topology import DEAD, SUBMIT, entrance
from rota.sched.control import SHARE_CALL, cancel_call, cancel_message, from_call
from rota.sched.errors import RotaError, StoreFault, Superseded, Unreachable
from rota.sched.heartbeat import Heartbeat, join
from rota.sched.ids import partition_of
from rota.sched.ingest import Ingest
from rota.sched.lifecycle import Backoff, every, set_within, stop_on_signals, until_first
from rota.sched.scheduler.collector import Collector
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import AGAIN_SECONDS, Dispatcher
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.scheduler.retention import ROUND_SECONDS, Retention
from rota.sched.scheduler.sleep import Sleeper
from rota.sched.scheduler.wakeup import Wakeup
from rota.sched.stats import Stats
from rota.sched.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rota.sched.heartbeat import Trust
    from rota.sched.settings import Settings
    from rota.sched.store.values import Recovered

log = logging.getLogger(__name__)

DEPTH_SECONDS = 1.0
"""How often the broker is asked how full the queues in use are."""
QUIET_SECONDS = 10.0
"""And the others. At least four times in `reconcile_after`: the reconciler goes by what was empty."""
WATCH_SECONDS = 5.0
FEW = 50
"""After a round that moved fewer jobs the scheduler rests for as long as the round took, REST_SECONDS at most."""
REST_SECONDS = 0.005
RECOVER_LEASES = 2 / 3
"""From one round of recovery to the next where all is well, in leases: a member that went on beating cannot die earlier. After a
pause of a whole lease a round judges nobody."""
RECOVER_AGAIN_SECONDS = 1.0
"""After a round that failed; and how much later than it is due another scheduler takes it, at most."""
RECOVER_REST_SECONDS = 0.05
"""How much later than it is due who had the last round takes the next: to come too early is to come twice."""
STUCK_SECONDS = 90.0
"""A pipeline that has not come round for so long, though every wait in it is shorter, is given up for a new one."""


def run_scheduler(settings: Settings) -> int:
    """Runs a scheduler until SIGTERM or SIGINT, then drains. Returns the exit code.

    Raises Unreachable (NotMigrated) if the store cannot be used at the start; later outages are waited out.
    """
    return asyncio.run(Scheduler(settings).run())


class Scheduler:
    """The process. `run` is its whole life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = open_store(settings.store)
        self._link = self._store.async_link("scheduler")
        self._command_link = self._store.async_link("commands")
        self._stats = Stats()
        self._publisher = Publisher(settings.broker, "rota scheduler publish", on_up=self._broker_up)
        self._consumer = Consumer(settings.broker, "rota scheduler consume", on_up=self._consumer_up)
        self._depths = Depths()
        self._retention = Retention(self._store, settings.history_keep)
        self._dispatcher: Dispatcher | None = None
        self._wake = asyncio.Event()
        self._free = asyncio.Event()
        """Somebody has given up partitions, or has to."""
        self._ended = asyncio.Event()
        """A scheduler has ended, it seems: it may have left claims that it did not publish."""
        self._deputy = False
        """Another scheduler had the duties when this one asked."""
        self._old: int | None = None
        self._parts: frozenset[int] = frozenset()
        self._lanes = LaneBook()

    async def run(self) -> int:
        """Joins, works, and leaves when asked to; joins anew after a loss."""
        stop = stop_on_signals()
        await self._link.run(self._store.queues())  # fails at once where the store is wrong or not migrated
        wakeup = Wakeup(self._store, self._heard)
        listening = asyncio.create_task(wakeup.run())
        parts = (self._store, self._command_link, self._consumer, self._publisher)
        commands = Ingest(*parts, longest_hold=self._settings.longest_hold)
        collector = Collector(*parts, longest_hold=self._settings.longest_hold)
        await self._publisher.start()
        await commands.start()
        await collector.start()
        await self._consumer.start()
        backoff = Backoff()
        while not stop.is_set():
            began = time.monotonic()
            try:
                await self._membership(stop, wakeup)
            except Superseded as error:
                self._stats.superseded("claim")
                log.warning("%s; joining under a new id", error)
            except RotaError as error:
                log.warning("membership %s ends: %s", self._old, error)
            if time.monotonic() - began > self._settings.lease:
                backoff.reset()
            if not stop.is_set():
                await asyncio.sleep(backoff.pause())
        await commands.stop()
        await collector.stop()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await self._consumer.close()
        await self._publisher.close()
        await self._link.close()
        await self._command_link.close()
        return 0

    def _heard(self, note: str) -> None:
        """The store's call: something is due, partitions are free, or a run was asked to cancel.

        Of the last the owner of its partition tells workers. What may have been passed by comes with the time from which on its
        queue is to be looked through.
        """
        job_id = cancel_call(note)
        if note == SHARE_CALL:
            self._free.set()
            self._ended.set()
        elif job_id is None:
            if late := from_call(note):
                self._lanes.lower(*late)
            self._wake.set()
        elif partition_of(job_id) in self._parts and self._publisher.up:
            self._publisher.publish(cancel_message(job_id), lambda _: None)

    async def _membership(self, stop: asyncio.Event, wakeup: Wakeup) -> None:
        """One life under one id."""
        store, settings = self._store, self._settings
        if self._old is not None:
            await self._link.run(store.leave(self._old))
            self._old = None
        member, trust = await join(store, self._link, "scheduler", settings.lease)
        self._old = member
        self._stats.rejoin()
        log.info("scheduler %s joined", member)
        lanes = self._lanes = LaneBook()
        dispatcher = self._dispatcher = Dispatcher(
            store,
            self._link,
            self._publisher,
            member,
            trust,
            lanes,
            self._depths,
            self._stats,
            batch=settings.batch,
            window=settings.confirm_window,
            wake=self._wake,
        )
        heart = Heartbeat(
            store,
            member,
            trust,
            self._stats,
            beat=settings.beat,
            figures=lambda: (self._figures(trust), dispatcher.watermark.value),
        )
        sleeper = Sleeper(
            store,
            self._link,
            member,
            lanes,
            self._depths,
            wakeup,
            self._wake,
            self._free.set,
            beat=settings.beat,
        )
        heart.start()
        try:
            await until_first(
                stop.wait(),
                heart.lost.wait(),
                self._share_when_unfair(member, lanes),
                every(WATCH_SECONDS, lambda: self._watch(dispatcher, sleeper)),
                self._measure_often(lanes),
                self._recover_often(member),
                every(settings.reconcile_after / 4, lambda: self._reconcile(member)),
                every(ROUND_SECONDS, lambda: self._retain(member)),
                self._dispatch(dispatcher, sleeper),
            )
            if stop.is_set():
                await dispatcher.drain(settings.drain_timeout / 2)
                await asyncio.to_thread(heart.stop)  # a beat after leaving would be taken for a death
                await self._link.run(store.leave(member, self._figures(trust), dispatcher.watermark.value))
                self._old = None
                log.info("scheduler %s left", member)
        finally:
            dispatcher.close()
            self._dispatcher = None
            await asyncio.to_thread(heart.stop)

    @staticmethod
    async def _dispatch(dispatcher: Dispatcher, sleeper: Sleeper) -> None:
        """Claims while there is something due; else sleeps until there is."""
        while True:
            began = time.monotonic()
            moved = await dispatcher.round()  # with a full window it still publishes again what came back
            if moved:
                await sleeper.stay_awake()
            if (moved or not dispatcher.room) and sleeper.overdue:
                await sleeper.look()
            if not dispatcher.room:
                await dispatcher.progress(0.5)
            elif dispatcher.repeating:
                await dispatcher.progress(AGAIN_SECONDS)
            elif not moved:
                await sleeper.until_due()
            elif moved < FEW:  # else it would turn round for each job of a trickle
                await asyncio.sleep(min(REST_SECONDS, time.monotonic() - began))

    async def _share_when_unfair(self, member: int, lanes: LaneBook) -> None:
        """At once, and when partitions are given up or have to be: nobody serves them until they are taken."""
        while True:
            self._free.clear()
            await self._share(member, lanes)
            await self._free.wait()

    async def _share(self, member: int, lanes: LaneBook) -> None:
        # A member that cannot do this may not stay one: nobody would serve the share that the others leave to it.
        parts = await self._link.run(self._store.partitions(member))
        if tuple(parts) != tuple(lanes.parts):
            log.info("scheduler %s has %s partitions", member, len(parts))
            lanes.set(parts, self._depths.open)
            self._parts = frozenset(parts)
            self._stats.set("partitions", len(parts))
            self._wake.set()

    @staticmethod
    async def _watch(dispatcher: Dispatcher, sleeper: Sleeper) -> None:
        """Awake or asleep, it comes round every few seconds."""
        idle = time.monotonic() - max(dispatcher.last_round, sleeper.last)
        if idle > STUCK_SECONDS:
            raise Unreachable(f"nothing was looked for during {idle:.0f} s: starting anew")

    async def _measure_often(self, lanes: LaneBook) -> None:
        """Asks the broker how full the queues are: what is in use every second, the others now and then."""
        quiet = min(QUIET_SECONDS, self._settings.reconcile_after / 4)
        while True:
            await self._measure(lanes, quiet=True)
            asked = time.monotonic()
            while (left := asked + quiet - time.monotonic()) > 0:
                if self._depths.quiet and not await set_within(self._depths.stirred, left):
                    break
                await asyncio.sleep(DEPTH_SECONDS)
                await self._measure(lanes, quiet=False)

    async def _measure(self, lanes: LaneBook, *, quiet: bool) -> None:
        """What has room again is claimed from at once."""
        if self._publisher.up:
            await self._tolerant("depths", self._depths.ask(self._publisher, quiet=quiet))
        if lanes.set(lanes.parts, self._depths.open):
            self._wake.set()

    async def _recover_often(self, member: int) -> None:
        """When a round is due; and who has not had the last one asks a little later than who had, should that one be gone.

        Who has the duty of recovery takes the others, too.
        """
        lease = self._settings.lease
        while True:
            self._ended.clear()
            done = await self._recover(member)
            if done is None:
                pause = RECOVER_AGAIN_SECONDS
            else:
                self._deputy = not done.ran
                pause = done.again_s + (
                    min(RECOVER_AGAIN_SECONDS, lease / 15) if self._deputy else RECOVER_REST_SECONDS
                )
            await set_within(self._ended, pause)

    async def _recover(self, member: int) -> Recovered | None:
        lease = self._settings.lease
        done: Recovered | None = await self._tolerant(
            "recovery", self._link.run(self._store.recover(member, lease, lease * RECOVER_LEASES))
        )
        if done and (done.dead_members or done.requeued or done.adopted or done.poisoned or done.cancelled):
            log.warning(
                "recovery: dead members %s, %s runs requeued, %s adopted, %s poisoned, %s cancelled",
                done.dead_members,
                done.requeued,
                done.adopted,
                done.poisoned,
                done.cancelled,
            )
            self._stats.ended("dead", done.poisoned)
            for death in done.deaths:
                events.tell(self._publisher, events.run_dead(death))
            self._stats.ended("cancelled", done.cancelled)
            self._wake.set()
        if done and done.stranded:
            log.warning("recovery: %s runs waited for their turn behind nothing: released", done.stranded)
            self._wake.set()
        if done and done.expired:
            log.info("%s runs could not begin in time: expired", done.expired)
            self._stats.ended("expired", done.expired)
        return done

    async def _reconcile(self, member: int) -> None:
        """Looks for runs whose message is gone; `reconcile_after` seconds is what a message may take to be begun."""
        if self._deputy:
            return
        after = self._settings.reconcile_after
        lost = await self._tolerant(
            "reconciler", self._link.run(self._store.reconcile(member, self._depths.empty, after, after / 4))
        )
        if lost:
            told = ", ".join(map(str, lost[:5]))
            log.warning("reconciler: the messages of %s runs seem to be lost, dispatched anew: %s", len(lost), told)
            self._wake.set()

    async def _retain(self, member: int) -> None:
        if self._deputy:
            return
        await self._tolerant("retention", self._retention.round(member))

    @staticmethod
    async def _tolerant(what: str, step: Any) -> Any:
        """The step's value, None if store or broker were away or refused: duties are standing, the next round does it."""
        try:
            return await step
        except (Unreachable, StoreFault) as error:
            log.warning("%s: %s", what, error)
            return None

    async def _consumer_up(self) -> None:
        """What it consumes has to be there, and the entrance: who sees a consumer may publish.

        The publisher declares all of it, too, and tells of differences.
        """
        there = None not in [await self._consumer.passive(queue) for queue in (SUBMIT, DEAD)]
        await self._consumer.declare(entrance() if there else None)

    async def _broker_up(self) -> None:
        for drift in await self._publisher.declare():
            log.warning("broker: %s differs from what Rota declares: %s", drift.name, drift.reason)
        if self._dispatcher is not None:
            self._dispatcher.forget_declared()

    def _figures(self, trust: Trust) -> Mapping[str, Any]:
        """What the member row tells of us; called from the heartbeat thread too."""
        degraded = [] if trust.held else ["lease"]
        if not self._publisher.up:
            degraded.append("broker")
        if self._publisher.blocked:
            degraded.append("broker_blocked")
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher.unroutable:
            degraded.append("unroutable")
        if dispatcher is not None and dispatcher.numbers_back:
            degraded.append("numbers_back")
        self._stats.set("degraded", degraded)
        self._stats.set("queues", self._depths.figures())
        self._stats.set("seen", self._lanes.seen)
        self._stats.set("parked", self._depths.parked)
        self._stats.set("unconfirmed", len(dispatcher.outstanding) if dispatcher else 0)
        return self._stats.to_json()
