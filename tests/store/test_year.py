"""A year of ticks through the store and the scheduler's pipeline, in seconds: the test sets the store's clock.

An oracle that walks the year minute by minute says which ticks there are. Each of them must be found once: as a run, or
within a row of history that says why it did not run. Which they are is counted for each misfire and overlap policy, over both
clock changes, outages, a pause, and a clock that steps.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import pytest
from rota.sched.edits import Note
from rota.sched.store.conformance import House
from rota.sched.timing.policies import Misfire, Overlap
from rota.sched.when import Schedule

from tests.clock import clock_of
from tests.store.conftest import PostgresTestbed
from tests.store.year import DAY, END, HOUR, MINUTE, SLOW, START, Year, accounts, elapsed, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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
        {"every": 86_400, "start": "2027-01-01T01:30:00Z"},
        lambda: [START + 1.5 * HOUR + n * DAY for n in range(366)],
    ),
}


def ticks_of(kind: str) -> list[datetime]:
    return [tick for tick in KINDS[kind][1]() if START < tick < END]


@pytest.fixture
def year(store_url):
    for clock in clock_of(store_url, START):
        with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
            yield Year(clock, house)


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


AT_ONCE = {
    "allow": slice(None),
    "skip": slice(0, 1),
    "buffer_one": slice(0, 2),
    "buffer_all": slice(None),
    "cancel_other": slice(-1, None),
}
"""Which of several ticks that are caught up at once an overlap policy lets run."""


def expected(ticks: list[datetime], misfire: str, overlap: str) -> tuple[set[datetime], set[datetime]]:
    """Those that a misfire policy leaves out, and those that come while a run is alive."""
    missed = [late(ticks, *stretch) for stretch in STRETCHES]
    run = {tick for stretch in missed for tick in caught_up(stretch, misfire)[AT_ONCE[overlap]]}
    beside = set(overlapped(ticks)) if overlap == "skip" else set()  # others run beside or after what is alive
    return {tick for stretch in missed for tick in stretch} - run, beside


async def test_of_a_year_each_tick_ran_or_is_told_with_its_reason_under_every_policy(year):
    """Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) ticks come again, without `skipped` they are missing."""
    jobs: dict[str, tuple[str, str, str]] = {}
    for kind, misfire, overlap in product(KINDS, get_args(Misfire), get_args(Overlap)):
        schedule = Schedule(**KINDS[kind][0], misfire=misfire, overlap=overlap)
        jobs[year.submit(schedule)] = kind, misfire, overlap
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
        assert set(account.skipped) == out | beside, where
        assert {account.skipped[tick] for tick in beside} <= {"overlap"}, where
        if misfire != "run_all":
            assert {account.skipped[tick] for tick in out} <= {"misfire"}, where
        elif out:
            assert {account.skipped[tick] for tick in out} == {"overlap"}, where
