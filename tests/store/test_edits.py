"""Schedules that are changed at any time: between ticks, at their very instant, and within their jitter. The clock is set.

The scheduler is always there, so every tick of what was in force at its time must run, once, and nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest
from rota.sched import edits
from rota.sched.errors import UsageError
from rota.sched.store.conformance import House
from rota.sched.timing import next_tick
from rota.sched.when import Schedule, cron, every

from tests.clock import clock_of
from tests.store.conftest import PostgresTestbed, heard
from tests.store.year import Year, accounts

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


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "cancel_other"])
async def test_through_any_changes_no_two_runs_meet_and_each_tick_runs_or_is_told(year, overlap):
    """With `waits=False` in `_claimed` (sched/timing/edit.py) a tick within its jitter runs beside what is alive."""
    draw = random.Random(overlap)

    def hold(_):
        assert year.clock.sql("select count(*)::int from rota.run where state = 'running'") <= [(1,)]
        return draw.random() < 0.4

    year.hold, year.slow = hold, timedelta(minutes=100)
    await year.begin()
    schedule = Schedule(**SCHEDULES[1], overlap=overlap)
    job_id = year.submit(schedule)
    expected, since = [], BEGIN
    for _ in range(60):
        at = since + timedelta(seconds=draw.randint(60, 3 * 3600))
        await year.until(at - timedelta(microseconds=1))
        year.clock.set(at)
        new = Schedule(**draw.choice(SCHEDULES), overlap=overlap)
        year.house.run(year.house.store.update(job_id, edits.edit("test", new, None, {})))
        expected += ticks(schedule, since, at)
        schedule, since = new, at
    end = since + timedelta(hours=6)
    expected += ticks(schedule, since, end)
    await year.until(end)
    year.house.run(year.house.store.update(job_id, edits.edit("test", cron("0 0 1 1 *"), None, {})))
    await year.until(end + timedelta(days=40))
    await year.end()
    account = accounts(year.clock, {job_id: expected})[job_id]
    assert sorted([*account.ran, *account.skipped]) == expected
    assert len(account.ran) > 40


async def test_a_change_of_max_runs_counts_the_runs_before(year):
    await year.begin()
    job_id = year.submit(Schedule(every=3600, max_runs=5))

    def change(**words):
        return year.house.run(year.house.store.update(job_id, edits.edit("test", None, None, words)))

    await year.until(BEGIN + timedelta(hours=3.5))
    assert len(year.ran(job_id)) == 3
    with pytest.raises(UsageError, match="max_runs is 3, and 3 of its ticks became runs"):
        change(max_runs=3)
    year.clock.set(BEGIN + timedelta(hours=4))  # the fourth is due, and the change settles it
    change(max_runs=6, every=1800)
    assert year.clock.sql("select runs_left from rota.job") == [(2,)]
    change(misfire="run_all")
    assert year.clock.sql("select runs_left from rota.job") == [(2,)]
    await year.until(BEGIN + timedelta(hours=9))
    assert len(year.ran(job_id)) == 6
    assert year.clock.sql("select count(*)::int from rota.job") == [(0,)]


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


def test_a_sleeping_scheduler_is_woken_by_what_comes_before_its_time_and_by_nothing_else(house):
    """Without WAKE (sched/store/postgres/changing.py) it would be seen with the next look, seconds later."""
    scheduler, store = house.join(), house.store
    house.run(store.partitions(scheduler))
    job = house.job(when=every("30d"))
    house.submit(job)
    house.run(store.sleep(scheduler, house.lanes(), 60))
    with psycopg.connect(house.bed.url, autocommit=True) as connection:
        connection.execute(f"listen {store.wake_channel}")

        def update(**words):
            run_now = words.pop("run_now", False)
            house.run(store.update(job.id, edits.edit("me@here", None, None, words, run_now=run_now)))

        note = edits.Note("me@here")
        for do, woken in (
            (lambda: update(every="20d"), False),
            (lambda: update(misfire="skip"), False),
            (lambda: house.run(store.pause(job.id, note)), False),
            (lambda: house.run(store.resume(job.id, note)), False),
            (lambda: update(run_now=True), True),
            (lambda: house.run(store.trigger(job.id, note)), True),
            (lambda: update(every=30), True),
            (lambda: house.run(store.pause(job.id, note)), False),
            (lambda: house.run(store.resume(job.id, note)), True),
            (lambda: house.run(store.pause_queue("mail", note)), False),
            (lambda: house.run(store.resume_queue("mail", note)), True),
        ):
            do()
            assert heard(connection, house) == ["mail"] * woken


def test_a_schedule_that_was_set_aside_goes_on_when_it_is_changed(house):
    """Its tick is told; what a person has paused stays paused."""
    job, paused = house.job(when=every(3600)), house.job(when=every(3600))
    house.submit(job, paused)
    house.run(house.store.pause(paused.id, edits.Note("me@here")))
    house.sql("""update rota.job set schedule = '{"cron": "0 2 * * *", "tz": "Mars/Base"}'""")
    house.bed.pass_time(3601)
    scheduler = house.join()
    assert [broken for broken, _ in house.claim(scheduler).broken] == [job.id]
    with pytest.raises(UsageError, match="cannot be computed: give a whole one"):
        house.run(house.store.update(job.id, edits.edit("me@here", None, None, {"misfire": "skip"})))
    for each in (job, paused):
        house.run(house.store.update(each.id, edits.edit("me@here", every(60), None, {})))
    assert [house.shown(each.id).state for each in (job, paused)] == ["scheduled", "paused"]
    (past,) = house.shown(job.id).history
    assert "its schedule could not be computed" in past["reason"]
    house.bed.pass_time(61)
    assert [d.job_id for d in house.claim(scheduler).dispatches] == [job.id]


def test_changes_and_claims_at_once_lose_and_double_no_tick(house):
    """Two claim while one changes; both schedules have a tick at each whole second.

    Without `for update` in LOCK (sched/store/postgres/changing.py) a tick that is being claimed is settled as well.
    """
    start = datetime.now(UTC).replace(microsecond=0)
    schedules = [every(1, start=start, misfire="run_all"), every(0.5, start=start, misfire="run_all")]
    jobs = [house.job(when=schedules[0]) for _ in range(20)]
    house.submit(*jobs)
    members, end = [house.join(), house.join()], time.monotonic() + 4
    enough = threading.Event()

    def work(n):
        given = 0
        with closing(house.store.link("claim")) as link:
            while not enough.is_set():
                given += len(link.run(house.store.claim(members[n], house.lanes(), 100, 10)).dispatches)
                given += len(link.run(house.store.ready(members[n], house.lanes(), 100)).dispatches)
        return given

    def change():
        changed = 0
        with closing(house.store.link("change")) as link:
            while time.monotonic() < end or changed <= 40:
                for job in jobs:
                    edit = edits.edit("test", schedules[(changed // len(jobs) + 1) % 2], None, {})
                    changed += link.run(house.store.update(job.id, edit)).changed

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work, n) for n in range(2)]
        pool.submit(change).result()
        enough.set()
        given = sum(each.result() for each in working)
    given += len(house.claim(members[0]).dispatches) + len(
        house.run(house.store.ready(members[0], house.lanes(), 1000)).dispatches
    )
    assert house.sql("select count(*)::int from rota.run") == [(given,)]
    for job in jobs:
        rows = house.sql("select scheduled_for from rota.run where job_id = %s order by 1", job.id)
        whole = [tick for (tick,) in rows if not tick.microsecond]
        assert len(whole) >= 3
        assert {b - a for a, b in pairwise(whole)} == {timedelta(seconds=1)}
