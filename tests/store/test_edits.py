"""Schedules that are changed at any time: between ticks, at their very instant, and within their jitter. The clock is set.

The scheduler is always there, so every tick of what was in force at its time must run, once, and nothing else.
"""

from __future__ import annotations

import random
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from rota.sched import edits
from rota.sched.store.conformance import House
from rota.sched.timing import next_tick
from rota.sched.when import Schedule

from tests.clock import clock_of
from tests.store.conftest import PostgresTestbed
from tests.store.year import Year

BEGIN = datetime(2027, 3, 27, tzinfo=UTC)  # a day before Paris' clocks go forward
JITTER = timedelta(hours=2)
SCHEDULES = [
    {"cron": "30 * * * *"},
    {"cron": "0,30 * * * *", "jitter": 1200},
    {"cron": "0 2,3,4 * * *", "tz": "Europe/Paris"},
    {"cron": "30 2 * * *", "tz": "Europe/Paris", "jitter": JITTER.total_seconds()},
    {"cron": "*/20 * * * *", "tz": "America/New_York"},
    {"every": 5400, "start": "2027-01-01T00:00:00Z"},
    {"every": 3600, "start": "2027-01-01T00:30:00Z", "jitter": 3600},
]


@pytest.fixture
def year(store_url):
    for clock in clock_of(store_url, BEGIN):
        with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
            yield Year(clock, house)


def ticks(schedule, since, until):
    """Those in (since, until]."""
    found, at = [], since
    while (at := next_tick(schedule, at, at)) <= until:
        found.append(at)
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_through_any_changes_at_any_time_each_tick_runs_once(year, seed):
    """Without `_settle` in `amend` (sched/timing/edit.py) ticks within their jitter, and those due at that instant, are lost.

    With `place.cursor` in place of the first tick after now the new schedule waits for the old one's next tick.
    """
    draw = random.Random(seed)
    await year.begin()
    schedule = Schedule(**SCHEDULES[seed])
    job_id = year.submit(schedule)
    expected, since, version = [], BEGIN, 1
    for _ in range(60):
        at = since + timedelta(seconds=draw.randint(0, 3 * 3600))
        ((due, nominal),) = year.clock.sql("select next_run_at, scheduled_for from rota.job")
        chosen = draw.choice([at, at, due, nominal, max(due - timedelta(seconds=30), since)])
        at = chosen.astimezone(UTC)
        await year.until(at - timedelta(microseconds=1))  # what is due at that very instant nobody has claimed
        year.clock.set(at)
        new = Schedule(**draw.choice(SCHEDULES), misfire=draw.choice(["run_latest", "run_all"]))
        done = year.house.run(year.house.store.update(job_id, edits.edit("test", new, None, {}, version=version)))
        version = done.version
        expected += ticks(schedule, since, at)
        schedule, since = new, at
        if draw.random() < 0.5:
            await year.work()
    end = since + timedelta(hours=6)
    expected += ticks(schedule, since, end)
    await year.until(end + JITTER)
    ran = sorted(tick for (tick,) in year.clock.sql("select scheduled_for from rota.history") if tick <= end)
    assert ran == expected
    assert year.clock.sql("select count(*)::int from rota.history where outcome <> 'succeeded'") == [(0,)]
    early = "select count(*)::int from rota.history where begun_at < due_at or due_at < scheduled_for"
    assert year.clock.sql(early) == [(0,)]


async def test_a_clock_that_was_set_back_before_a_change_brings_no_tick_again(year):
    """Without `_before` in `amend` (sched/timing/edit.py) what ran at 14:00 runs at 14:00 once more."""
    await year.begin()
    job_id = year.submit(Schedule(cron="0 * * * *"))
    await year.until(BEGIN + timedelta(hours=3, minutes=1))
    year.clock.step(timedelta(hours=-2))
    year.house.run(year.house.store.update(job_id, edits.edit("test", None, None, {"cron": "*/20 * * * *"})))
    await year.until(BEGIN + timedelta(hours=4, minutes=1))
    ran = [tick for (tick,) in year.clock.sql("select scheduled_for from rota.history order by 1")]
    assert ran == [BEGIN + timedelta(minutes=m) for m in (60, 120, 180, 200, 220, 240)]
