"""Months of a schedule in seconds: an oracle of its ticks, the scheduler's pipeline under a clock that is set, and the books."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from rota.sched.broker.messages import Publish
from rota.sched.ids import RunKey, new_job_id, partition_of
from rota.sched.message import decode
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import Dispatcher
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.stats import Stats
from rota.sched.store.values import End, NewMember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rota.sched.store.conformance import House
    from rota.sched.when import Schedule

    from tests.clock import Clock

START = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SLOW = timedelta(hours=26)
"""How long a run lasts that is held, if nothing else is said."""
PARTS = (0, 1)
"""All jobs lie in these partitions: the walk along lanes is not what is tried here."""


# The oracle: minutes that exist, one after the other.


@cache
def local_minutes(tz: str) -> list[tuple[datetime, datetime]]:
    """Each minute of the year with its wall time in the zone, a day more at both ends."""
    zone, found, at = ZoneInfo(tz), [], START - DAY
    while at < END + DAY:
        found.append((at, at.astimezone(zone).replace(tzinfo=None)))
        at += MINUTE
    return found


def named(tz: str, fits: Callable[[datetime], bool]) -> list[datetime]:
    """What names times of day: each once, right after the gap that swallowed it, and the first time."""
    found, latest = [], None
    for at, wall in local_minutes(tz):
        if latest is None or wall > latest:
            missed = wall if latest is None else latest + MINUTE
            while missed <= wall:
                if fits(missed):
                    found.append(at)
                    break
                missed += MINUTE
            latest = wall
    return found


def elapsed(tz: str, fits: Callable[[datetime], bool]) -> list[datetime]:
    """What has a wildcard hour: each minute whose wall time fits, as often as it comes."""
    return [at for at, wall in local_minutes(tz) if fits(wall)]


NEXT = """select least((select min(next_run_at) from rota.job where not paused),
  (select min(ready_at) from rota.run where state in ('waiting', 'retrying')))"""


# The world: a scheduler's pipeline whose broker confirms at once, and a worker that ends what it gets, or holds it.


@dataclass
class Mailbox:
    """A broker that takes everything and keeps it for the worker."""

    up: bool = True
    blocked: bool = False
    messages: list[bytes] = field(default_factory=list)

    async def declare_work_queue(self, queue: str) -> None:
        return None

    def publish(self, message: Any, done: Callable[[Publish], None]) -> None:
        self.messages.append(message.body)
        asyncio.get_running_loop().call_soon(done, Publish.CONFIRMED)


@dataclass
class Linked:
    """The house's link as the pipeline wants one."""

    house: House

    async def run(self, txn: Any) -> Any:
        return self.house.run(txn)


@dataclass
class Year:
    """A year's members and what they have in hand."""

    clock: Clock
    house: House
    held: list[tuple[datetime, Any]] = field(default_factory=list)
    began: dict[RunKey, datetime] = field(default_factory=dict)
    hold: Callable[[datetime], bool] = lambda _: False
    slow: timedelta = SLOW

    async def begin(self) -> None:
        store = self.house.store
        self.link, self.mailbox, self.lanes = Linked(self.house), Mailbox(), LaneBook()
        self.lanes.set(PARTS, ["mail"])
        self.scheduler = await self.link.run(store.join(NewMember("scheduler", "h", 1, "0")))
        self.worker = await self.link.run(store.join(NewMember("worker", "h", 1, "0")))
        parts = (store, self.link, self.mailbox, self.scheduler, SimpleNamespace(held=True), self.lanes)
        self.dispatcher = Dispatcher(*parts, Depths(), Stats(), batch=500, window=2000, wake=asyncio.Event())

    async def end(self) -> None:
        assert not self.held
        assert self.clock.sql("select count(*)::int from rota.run") == [(0,)]

    def submit(self, when: Schedule, **fields: Any) -> str:
        """A job's id, in one of the partitions that are served."""
        job_id = next(each for each in iter(new_job_id, "") if partition_of(each) in PARTS)
        self.house.submit(self.house.job(id=job_id, when=when, **fields))
        return job_id

    def ran(self, job_id: str) -> list[datetime]:
        """The ticks of a job that ran, in the order of their begins."""
        rows = "select scheduled_for from rota.history where job_id = %s and outcome = 'succeeded' order by begun_at, fence"
        return [tick.astimezone(UTC) for (tick,) in self.clock.sql(rows, job_id)]

    def skips(self, job_id: str) -> list[str]:
        """Why others of its ticks did not."""
        rows = "select reason from rota.history where job_id = %s and outcome = 'skipped' order by scheduled_for"
        return [reason for (reason,) in self.clock.sql(rows, job_id)]

    async def work(self) -> None:
        """All that is to be done at this instant."""
        self.lanes.lower(
            "mail", datetime.min.replace(tzinfo=UTC)
        )  # as after every look that finds what claims have passed by
        await self.dispatcher.round()
        await asyncio.sleep(0)  # confirms
        if self.mailbox.messages:
            await self._execute()

    async def _execute(self) -> None:
        taken, self.mailbox.messages = self.mailbox.messages, []
        works = [decode(body) for body in taken]
        refs = [(RunKey(w.job_id, w.scheduled_for), w.dispatch, False) for w in works]
        begun = await self.link.run(self.house.store.begin(self.worker, refs)) if refs else []
        now = self.clock.now
        for b in begun:
            assert b.key not in self.began, f"{b.key} began twice"
            self.began[b.key] = now
        if self.hold(now):
            self.held += [(now + self.slow, b) for b in begun]
        else:
            await self._end(begun)

    async def _end(self, begun: Iterable[Any]) -> None:
        ends = [End(b.key, b.fence, "succeeded") for b in begun]
        if ends:
            await self.link.run(self.house.store.finish(ends))

    async def until(self, end: datetime, *, up: bool = True) -> None:
        """Goes from one instant at which something is due to the next, up to `end`."""
        while True:
            now = self.clock.now
            ((due,),) = self.clock.sql(NEXT) if up else ((None,),)
            times = [at for at in [due, *(at for at, _ in self.held)] if at is not None]
            at = min([end, *times])
            self.clock.set(max(at, now))
            over = [b for until, b in self.held if until <= self.clock.now]
            self.held = [(until, b) for until, b in self.held if until > self.clock.now]
            await self._end(over)
            if at >= end and not over:
                return
            if up:
                await self.work()


# What has become of each tick, as history tells it.

STRETCH = re.compile(r"(\w+): (?:this tick was|(\d+) ticks from this one to (\S+) were) skipped")


@dataclass
class Account:
    """A job's ticks by what became of them. A tick that is told twice is an error."""

    ran: list[datetime] = field(default_factory=list)
    skipped: dict[datetime, str] = field(default_factory=dict)


def accounts(clock: Clock, expected: dict[str, list[datetime]]) -> dict[str, Account]:
    found = {job: Account() for job in expected}
    rows = clock.sql("select job_id::text, scheduled_for, outcome, reason from rota.history order by scheduled_for")
    for job, first, outcome, reason in rows:
        account = found[job]
        if outcome != "skipped":
            account.ran.append(first)
            continue
        told = STRETCH.match(reason)
        assert told is not None, reason
        last = datetime.fromisoformat(told[3]) if told[3] else first
        stretch = [tick for tick in expected[job] if first <= tick <= last]
        assert len(stretch) == int(told[2] or 1), (reason, first, stretch)
        for tick in stretch:
            assert tick not in account.skipped, f"{tick} of {job} is told twice"
            account.skipped[tick] = told[1]
    return found
