"""A year of ticks through the store and the scheduler's pipeline, in seconds: the test sets the store's clock.

An oracle that walks the year minute by minute says which ticks there are. Each of them must be found once: as a run, or
within a row of history that says why it did not run. Which they are is counted for each misfire and overlap policy, over both
clock changes, outages, a pause, and a clock that steps.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args
from zoneinfo import ZoneInfo

import pytest
from rota.sched.broker.messages import Publish
from rota.sched.edits import Note
from rota.sched.errors import UsageError
from rota.sched.ids import RunKey, new_job_id, partition_of
from rota.sched.message import decode
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import Dispatcher
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.stats import Stats
from rota.sched.store.conformance import House
from rota.sched.store.values import End, NewMember
from rota.sched.timing.policies import Misfire, Overlap
from rota.sched.when import Schedule

from tests.clock import Clock, clock_of
from tests.store.conftest import PostgresTestbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

START = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def _day(month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2027, month, day, hour, minute, tzinfo=UTC)


OUTAGES = (
    (_day(3, 13, 20), _day(3, 15, 20, 17)),  # over New York's gap
    (_day(6, 10, 12, 17), _day(6, 17, 12, 20)),  # a week
    (_day(11, 6, 20), _day(11, 8, 20, 17)),  # over New York's overlap
)
PAUSE = (_day(4, 20, 6), _day(4, 23, 18, 10))
BACK = (_day(8, 5, 12), timedelta(hours=-15))
"""When the clock is set back, over ticks that have run."""
FORWARD = (_day(9, 9, 0, 5), timedelta(hours=10))
"""When it is set forward: what lay between is late."""
HELD = (_day(2, 9), _day(5, 11), _day(12, 14))
"""On these days what has begun runs for longer than a day, so that the next tick meets it."""
SLOW = timedelta(hours=26)
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


def _half_past_two(wall: datetime) -> bool:
    return (wall.hour, wall.minute) == (2, 30)


def _two_hourly(wall: datetime) -> bool:
    return wall.minute == 0 and wall.hour % 2 == 0 and wall.month in {3, 10} and wall.day >= 27


KINDS: dict[str, tuple[dict[str, Any], Callable[[], list[datetime]]]] = {
    "paris": ({"cron": "30 2 * * *", "tz": "Europe/Paris"}, lambda: named("Europe/Paris", _half_past_two)),
    "new york": ({"cron": "30 2 * * *", "tz": "America/New_York"}, lambda: named("America/New_York", _half_past_two)),
    "two-hourly": (
        {"cron": "0 */2 27-31 3,10 *", "tz": "Europe/Paris"},
        lambda: elapsed("Europe/Paris", _two_hourly),
    ),
    "daily": (
        {"every": 86_400, "start": "2027-01-01T17:00:00Z"},
        lambda: [START + 17 * HOUR + n * DAY for n in range(366)],
    ),
}


def ticks_of(kind: str) -> list[datetime]:
    return [tick for tick in KINDS[kind][1]() if START < tick < END]


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
class Year:
    """A year's members and what they have in hand."""

    clock: Clock
    house: House
    held: list[tuple[datetime, Any]] = field(default_factory=list)
    began: dict[RunKey, datetime] = field(default_factory=dict)
    hold: Callable[[datetime], bool] = lambda _: False

    async def begin(self) -> None:
        store = self.house.store
        self.link, self.mailbox, self.lanes = store.async_link("year"), Mailbox(), LaneBook()
        self.lanes.set(PARTS, ["mail"])
        self.scheduler = await self.link.run(store.join(NewMember("scheduler", "h", 1, "0")))
        self.worker = await self.link.run(store.join(NewMember("worker", "h", 1, "0")))
        parts = (store, self.link, self.mailbox, self.scheduler, SimpleNamespace(held=True), self.lanes)
        self.dispatcher = Dispatcher(*parts, Depths(), Stats(), batch=500, window=2000)

    async def end(self) -> None:
        assert not self.held
        assert self.clock.sql("select count(*)::int from rota.run") == [(0,)]
        await self.link.close()

    async def work(self) -> None:
        """All that is to be done at this instant."""
        self.lanes.rewind()  # as every few seconds
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
            self.held += [(now + SLOW, b) for b in begun]
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


@pytest.fixture
def year(store_url):
    for clock in clock_of(store_url, START):
        with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
            yield Year(clock, house)


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


# What the policies say, in their own few words.


def late(expected: list[datetime], since: datetime, until: datetime) -> list[datetime]:
    """The ticks that nobody could claim in time."""
    return [tick for tick in expected if since < tick <= until]


def caught_up(missed: list[datetime], misfire: str) -> list[datetime]:
    """Which of them run. Each stretch here ends more than a minute after its last tick: under `skip` none does."""
    if not missed:
        return []
    return {"run_latest": missed[-1:], "run_earliest": missed[:1], "run_all": missed, "skip": []}[misfire]


STRETCHES = [*OUTAGES, PAUSE, (FORWARD[0], FORWARD[0] + FORWARD[1])]
"""Nobody claims from the one instant to the other."""


def overlapped(expected: list[datetime]) -> list[datetime]:
    """Ticks that come while one of a held day runs."""
    found = []
    for day in HELD:
        first = [tick for tick in expected if day <= tick < day + DAY]
        found += [t for t in expected if first and first[0] < t < first[0] + SLOW]
    return found


def accepted(overlap: str) -> bool:
    try:
        Schedule(every=60, overlap=overlap)
    except UsageError:
        return False
    return True


OVERLAPS = [overlap for overlap in get_args(Overlap) if accepted(overlap)]


EVENTS = sorted(
    [
        *((begin, "down", end) for begin, end in OUTAGES),
        (PAUSE[0], "pause", PAUSE[1]),
        (BACK[0], "step", BACK[1]),
        (FORWARD[0], "step", FORWARD[1]),
    ],
    key=lambda event: event[0],
)


async def live(year: Year, jobs: Iterable[str]) -> None:
    """The year, with all that happens in it."""
    store = year.house.store
    year.hold = lambda now: any(day <= now < day + DAY for day in HELD)
    for at, what, argument in EVENTS:
        await year.until(at)
        if what == "step":
            year.clock.step(argument)
        elif what == "down":
            await year.until(argument, up=False)
        else:
            for job in jobs:
                year.house.run(store.pause(job, Note("test")))
            await year.until(argument)
            for job in jobs:
                year.house.run(store.resume(job, Note("test")))
    await year.until(END - MINUTE)


def expected(ticks: list[datetime], misfire: str, overlap: str) -> tuple[set[datetime], set[datetime]]:
    """Those that a misfire policy leaves out, and those that come while a run is alive."""
    missed = [late(ticks, *stretch) for stretch in STRETCHES]
    most = 1 if overlap == "skip" else None  # of several that are caught up the first
    run = {tick for stretch in missed for tick in caught_up(stretch, misfire)[:most]}
    return {tick for stretch in missed for tick in stretch} - run, set(overlapped(ticks))


async def test_of_a_year_each_tick_ran_or_is_told_with_its_reason_under_every_policy(year):
    """Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) ticks come again, without `skipped` they are missing."""
    jobs: dict[str, tuple[str, str, str]] = {}
    for kind, misfire, overlap in product(KINDS, get_args(Misfire), OVERLAPS):
        ids = (new_job_id() for _ in count())
        job_id = next(each for each in ids if partition_of(each) in PARTS)
        jobs[job_id] = kind, misfire, overlap
        year.house.submit(year.house.job(id=job_id, when=Schedule(**KINDS[kind][0], misfire=misfire, overlap=overlap)))
    await year.begin()
    await live(year, jobs)
    await year.end()

    oracle = {kind: ticks_of(kind) for kind in KINDS}
    assert len(oracle["paris"]) == len(oracle["new york"]) == len(oracle["daily"]) == 365
    assert len(oracle["two-hourly"]) == 5 * 12 - 1 + 5 * 12 + 1  # no 2:00 in March, two of them in October
    found = accounts(year.clock, {job: oracle[kind] for job, (kind, *_) in jobs.items()})
    for job, (kind, misfire, overlap) in jobs.items():
        account, ticks, where = found[job], oracle[kind], (kind, misfire, overlap)
        assert sorted([*account.ran, *account.skipped]) == ticks, where
        out, beside = expected(ticks, misfire, overlap)
        if overlap == "allow":
            assert set(account.skipped) == out, where
            assert set(account.skipped.values()) <= {"misfire"}, where
        elif overlap == "skip":
            assert set(account.skipped) == out | beside, where
            assert {account.skipped[tick] for tick in beside} <= {"overlap"}, where
