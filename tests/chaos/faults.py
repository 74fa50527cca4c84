"""The faults, one method each: what they do to the world, and what they hit.

Each is aimed: it submits its bait and waits, for a bounded time, until something is in flight where it strikes.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clocks
import pika
from pika.exceptions import AMQPError
from plan import LEASE, QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pika.adapters.blocking_connection import BlockingChannel
    from plan import Batch, Fault
    from world import World

AIM = 5.0
"""Seconds to wait for something in flight."""
TAKE = 2.0
"""Seconds for messages to come to one who takes them away."""
PAST = 2.0
"""Seconds over the lease that a member is frozen, and up to as many again."""
DOWN = 1.5
"""Seconds that a server stays away, at most, beside what its start takes."""
LONGEST_CUT = 3000
"""Bytes that a connection still carries, at most, before it is cut."""
CUT_SECONDS = 1.5
HELD = 6.0
"""Seconds that a message is held back, at most: past the lease now and then."""
CLOCKS = ("+3600", "-3600", "+5", "-5", "+86400", "-600")
"""Seconds that a host's clock steps by."""

COLUMNS = "select r.job_id::text, r.scheduled_for, clock_timestamp() from rota.run r "
RUNNING = COLUMNS + "where r.state = 'running'"
RUNNING_ON = COLUMNS + "join rota.member m on m.id = r.owner where r.state = 'running' and m.pid = %s"
WAITING_OF = (
    COLUMNS + "join rota.member m on m.id = r.scheduler where r.state = 'waiting' and m.state = 'live' and m.pid = %s"
)
OF_JOBS = COLUMNS + "where r.state in ('waiting', 'running', 'retrying') and r.job_id = any(%s::uuid[])"


@dataclass
class Hit:
    """What a fault hit: the runs in flight when it struck, and when that was by the store's clock (None: nothing)."""

    kind: str
    what: str = ""
    runs: list[tuple[str, datetime]] = field(default_factory=list)
    at: datetime | None = None


class Faults:
    """Carries faults out. `bait` submits a batch, `hits` is what came of each fault."""

    def __init__(self, world: World, bait: Callable[[Batch], None]) -> None:
        self.world = world
        self.hits: list[Hit] = []
        self._bait = bait

    def run(self, fault: Fault) -> None:
        """One fault, from the bait to the end of its consequences that it has in its hand."""
        hit = Hit(fault.kind)
        self._bait(fault.bait)
        act: Callable[[Fault, Hit], None] = getattr(self, f"_{fault.kind}")
        act(fault, hit)
        self.hits.append(hit)
        self.world.progress.say(f"{hit.what}, {len(hit.runs)} runs in flight")

    def _aim(self, hit: Hit, sql: str, *params: Any, enough: int = 1) -> None:
        """Waits until enough runs are where it strikes, and keeps which."""

        def found() -> bool:
            rows = self.world.database.rows(sql, *params)
            hit.runs = [(job, tick) for job, tick, _ in rows]
            hit.at = rows[0][2] if rows else None
            return len(rows) >= enough

        self.world.until(found, AIM)

    # Members.

    def _kill_worker(self, fault: Fault, hit: Hit) -> None:
        with self.world.crew.reserve("worker", fault.pick) as worker:
            self._aim(hit, RUNNING_ON, worker.pid)
            self.world.crew.replace(worker)
        hit.what = f"killed worker {worker.pid}"

    def _kill_scheduler(self, fault: Fault, hit: Hit) -> None:
        with self.world.crew.reserve("scheduler", fault.pick) as scheduler:
            self._aim(hit, WAITING_OF, scheduler.pid)
            self.world.crew.replace(scheduler)
        hit.what = f"killed scheduler {scheduler.pid}"

    def _freeze_worker(self, fault: Fault, hit: Hit) -> None:
        self._freeze(fault, hit, "worker", RUNNING_ON)

    def _freeze_scheduler(self, fault: Fault, hit: Hit) -> None:
        self._freeze(fault, hit, "scheduler", WAITING_OF)

    def _freeze(self, fault: Fault, hit: Hit, kind: str, where: str) -> None:
        """Past its lease: it wakes up after others have taken over."""
        seconds = LEASE + PAST * (1 + fault.amount)
        with self.world.crew.reserve(kind, fault.pick) as member:
            self._aim(hit, where, member.pid, enough=3)
            member.freeze()
            try:
                self.world.stopping.wait(seconds)
            finally:
                member.thaw()
        hit.what = f"froze {kind} {member.pid} for {seconds:.1f} s"

    def _deploy(self, fault: Fault, hit: Hit) -> None:
        self._aim(hit, RUNNING, enough=3)
        begun = time.monotonic()
        count = self.world.crew.deploy()
        hit.what = f"drained and replaced all {count} members in {time.monotonic() - begun:.1f} s"

    def _clock_worker(self, fault: Fault, hit: Hit) -> None:
        self._clock(fault, hit, "worker", RUNNING_ON)

    def _clock_scheduler(self, fault: Fault, hit: Hit) -> None:
        self._clock(fault, hit, "scheduler", WAITING_OF)

    def _clock(self, fault: Fault, hit: Hit, kind: str, where: str) -> None:
        """Steps to a wrong time, and back again."""
        step = CLOCKS[int(fault.amount * len(CLOCKS))]
        with self.world.crew.reserve(kind, fault.pick, clocked=True) as member:
            self._aim(hit, where, member.pid)
            clock = Path(member.env[clocks.FILE])
            clocks.step(clock, step)
            self.world.stopping.wait(LEASE * fault.amount + 1)
            clocks.step(clock, "+0")
        hit.what = f"stepped the clock of {kind} {member.pid} by {step} s and back"

    # Servers.

    def _postgres(self, fault: Fault, hit: Hit) -> None:
        self._aim(hit, RUNNING)
        self.world.postgres.crash()
        self.world.stopping.wait(fault.amount * DOWN)
        self.world.postgres.start()
        hit.what = "restarted Postgres, at once and without a checkpoint"

    def _broker(self, fault: Fault, hit: Hit) -> None:
        self._aim(hit, RUNNING)
        self.world.broker_up.clear()
        self.world.rabbitmq.crash()
        self.world.stopping.wait(fault.amount * DOWN)
        self.world.rabbitmq.start()
        self.world.broker_up.set()
        hit.what = "killed the broker and brought it back"

    def _cluster(self, fault: Fault, hit: Hit) -> None:
        node = self.world.nodes[1 + int(fault.pick * (len(self.world.nodes) - 1))]
        self._aim(hit, RUNNING)
        node.crash()
        self.world.stopping.wait(fault.amount * DOWN)
        node.start()
        hit.what = f"killed node {node.nodename} of the broker's cluster and brought it back"

    # What is between them.

    def _cut(self, fault: Fault, hit: Hit) -> None:
        store = fault.pick < 0.5
        proxy = self.world.store_proxy if store else self.world.broker_proxy
        every = fault.amount < 0.3
        after = int(fault.amount * LONGEST_CUT)
        self._aim(hit, RUNNING)
        count = proxy.cut(after, None if every else fault.pick * 2 % 1, CUT_SECONDS)
        hit.what = f"cut {count} connections to {'Postgres' if store else 'the broker'} after {after} bytes more"

    def _duplicate(self, fault: Fault, hit: Hit) -> None:
        def twice(channel: BlockingChannel, queue: str, messages: list[tuple[int, bytes]]) -> None:
            for tag, body in messages:
                for _ in range(2):
                    _publish(channel, queue, body)
                channel.basic_ack(tag)

        self._intercept(fault, hit, twice)
        hit.what = f"doubled messages: {hit.what}"

    def _delay(self, fault: Fault, hit: Hit) -> None:
        def later(channel: BlockingChannel, queue: str, messages: list[tuple[int, bytes]]) -> None:
            channel.connection.sleep(HELD * fault.amount)
            for tag, body in messages:
                _publish(channel, queue, body)
                channel.basic_ack(tag)

        self._intercept(fault, hit, later)
        hit.what = f"held messages back for {HELD * fault.amount:.1f} s: {hit.what}"

    def _intercept(
        self, fault: Fault, hit: Hit, tamper: Callable[[BlockingChannel, str, list[tuple[int, bytes]]], None]
    ) -> None:
        """Takes some messages from a work queue, as one more consumer, and has them tampered with."""
        queue = f"rota.q.{QUEUES[int(fault.pick * len(QUEUES))]}"
        self.world.until(self.world.broker_up.is_set, 30)
        hit.what = "none"
        try:
            connection = pika.BlockingConnection(pika.URLParameters(self.world.rabbitmq.url))
            try:
                channel = connection.channel()
                channel.confirm_delivery()
                messages = _take(channel, queue, 1 + int(fault.amount * 20))
                self._aim(hit, OF_JOBS, [json.loads(body)["job_id"] for _, body in messages])
                tamper(channel, queue, messages)
                hit.what = f"{len(messages)}"
            finally:
                if connection.is_open:
                    connection.close()
        except (AMQPError, OSError) as error:
            hit.what = f"the broker went away meanwhile ({type(error).__name__})"


def _take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[int, bytes]]:
    """Up to so many messages, what comes within `TAKE`."""
    found: list[tuple[int, bytes]] = []
    channel.basic_qos(prefetch_count=count)
    end = time.monotonic() + TAKE
    for method, _, body in channel.consume(queue, inactivity_timeout=0.5):
        if method is not None:
            found.append((method.delivery_tag, body))
        if len(found) == count or time.monotonic() > end:
            break
    channel.cancel()
    return found


def _publish(channel: BlockingChannel, queue: str, body: bytes) -> None:
    """As a new message, confirmed: 3.10 takes the headers of a received one for a dead-letter cycle."""
    channel.basic_publish("rota.jobs", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
