"""Misfires, catch-up and clocks that step, over days and weeks: the store's clock is set, the scheduler's pipeline is real."""

from __future__ import annotations

import random
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from rota import Client
from rota.sched.store.conformance import House
from rota.sched.when import cron, every

from tests.clock import clock_of
from tests.store.conftest import PostgresTestbed
from tests.store.year import DAY, HOUR, MINUTE, Year

MONDAY = datetime(2027, 6, 7, tzinfo=UTC)


@pytest.fixture
def year(store_url):
    for clock in clock_of(store_url, MONDAY):
        with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
            yield Year(clock, house)


@pytest.fixture
def client(year):
    with Client.open(year.clock.url, "me@here") as found:
        yield found


@pytest.mark.parametrize("outage", [101 * MINUTE, 3 * DAY])
async def test_mis_01_after_more_than_a_hundred_missed_starts_the_next_slot_fires(year, outage):
    """Without `_limit(schedule)` in `backlog.latest` of `_choose` (sched/timing/plan.py) three days are run whole."""
    await year.begin()
    jobs = {
        misfire: year.submit(cron("* * * * *", misfire=misfire, catchup_limit=40))
        for misfire in ("skip", "run_latest", "run_all")
    }
    await year.until(MONDAY + 10 * MINUTE)
    before = {misfire: len(year.ran(job)) for misfire, job in jobs.items()}
    back = MONDAY + 10 * MINUTE + outage + timedelta(seconds=61)
    await year.until(back, up=False)
    await year.until(back + MINUTE)
    later = [back.replace(second=0) + MINUTE]
    last = back.replace(second=0)
    caught_up = {"skip": [last], "run_latest": [last], "run_all": [last - n * MINUTE for n in range(39, -1, -1)]}
    for misfire, job in jobs.items():  # the last one is a second late: within the grace of `skip`
        assert year.ran(job)[before[misfire] :] == caught_up[misfire] + later
        (told,) = year.skips(job)
        assert "too many to count" in told or "ticks from this one to" in told


async def test_mis_02_a_shorter_period_makes_nothing_missed_of_the_time_before(year, client):
    """Without `now` in the `max` of `amend` (sched/timing/edit.py) six days of minutes are caught up."""
    await year.begin()
    job = year.submit(cron("0 0 * * mon", misfire="run_all"), name="weekly")
    await year.until(MONDAY + 7 * DAY + MINUTE)
    assert year.ran(job) == [MONDAY + 7 * DAY]
    await year.until(MONDAY + 13 * DAY + timedelta(seconds=20))
    client.update("weekly", cron="* * * * *")
    await year.until(MONDAY + 13 * DAY + MINUTE)
    assert len(year.ran(job)) == 1
    await year.until(MONDAY + 13 * DAY + 2 * MINUTE + timedelta(seconds=1))
    assert year.ran(job)[1:] == [MONDAY + 13 * DAY + n * MINUTE for n in (1, 2)]
    assert year.skips(job) == []


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_mis_04_a_day_offline_is_no_storm(year, overlap):
    """144 slots. Without `catchup_limit` all would run; without `return [last]` for run_latest in `_choose`
    (sched/timing/plan.py) nothing would be the latest.
    """
    await year.begin()
    jobs = {
        misfire: year.submit(cron("*/10 * * * *", misfire=misfire, catchup_limit=25, overlap=overlap, grace=1))
        for misfire in ("skip", "run_latest", "run_all")
    }
    await year.until(MONDAY + DAY + 5 * MINUTE, up=False)
    await year.work()
    last = MONDAY + DAY
    most = [last - n * 10 * MINUTE for n in range(24, -1, -1)]
    runs = {"skip": [], "run_latest": [last], "run_all": most if overlap == "allow" else most[:1]}
    for misfire, job in jobs.items():
        assert year.ran(job) == runs[misfire]  # in the order of the slots, each as its own
        told = " ".join(year.skips(job))
        assert "ticks from this one to" in told
    assert ("overlap: 24 ticks" in " ".join(year.skips(jobs["run_all"]))) == (overlap == "skip")


async def test_mis_05_what_is_for_the_night_does_not_start_in_daytime(year):
    """Without `if on_time else []` of `skip` in `_choose` (sched/timing/plan.py) all of them run at ten."""
    await year.begin()
    policies = {
        "skip": {"misfire": "skip"},
        "half an hour": {"misfire": "skip", "grace": "30m"},
        "window": {"catchup_window": "30m"},
    }
    jobs = {name: year.submit(cron("0 2 * * *", **words)) for name, words in policies.items()}
    await year.until(MONDAY + 10 * HOUR, up=False)
    await year.work()
    for job in jobs.values():
        assert year.ran(job) == []
        (told,) = year.skips(job)
        assert "misfire: this tick was skipped" in told
    await year.until(MONDAY + DAY + 2 * HOUR + 20 * MINUTE, up=False)
    await year.work()
    assert {name: len(year.ran(job)) for name, job in jobs.items()} == {"skip": 0, "half an hour": 1, "window": 1}
    await year.until(MONDAY + 2 * DAY + 3 * HOUR)
    assert all(year.ran(job)[-1] == MONDAY + 2 * DAY + 2 * HOUR for job in jobs.values())


async def test_mis_07_a_store_whose_own_clock_is_set_back_repeats_nothing(year):
    """Twelve hours. Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) what ran would run again.

    What was waiting for 14:10 waits for 14:10: the store's time is the only one there is.
    """
    await year.begin()
    job = year.submit(cron("*/10 * * * *"))
    await year.until(MONDAY + 14 * HOUR + MINUTE)
    ran = year.ran(job)
    assert len(ran) == 14 * 6
    year.clock.step(-12 * HOUR)
    await year.until(MONDAY + 14 * HOUR + 5 * MINUTE)
    assert year.ran(job) == ran
    await year.until(MONDAY + 14 * HOUR + 21 * MINUTE)
    assert year.ran(job)[len(ran) :] == [MONDAY + 14 * HOUR + n * MINUTE for n in (10, 20)]
    assert year.skips(job) == []


async def test_mis_11_a_check_that_comes_late_misses_no_minute(year):
    """Eight hours of minutes, each looked at one to five seconds late.

    Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) each look gets the same tick; there is no look-back.
    """
    await year.begin()
    job = year.submit(cron("* * * * *"))
    draw = random.Random(11)
    for minute in range(1, 8 * 60 + 1):
        year.clock.set(MONDAY + minute * MINUTE + timedelta(seconds=draw.uniform(1, 5)))
        await year.work()
    assert year.ran(job) == [MONDAY + n * MINUTE for n in range(1, 8 * 60 + 1)]
    assert year.skips(job) == []


async def test_mis_16_a_long_run_pushes_nothing_later(year):
    """Four hours each, and each looked for some minutes late.

    With `next_tick(schedule, now, now)` in `_due` (sched/timing/plan.py) the next one would count from the claim.
    """
    year.clock.set(MONDAY - DAY + HOUR)
    await year.begin()
    job = year.submit(every("1d"))
    draw = random.Random(16)
    for day in range(5):
        year.clock.set(MONDAY + day * DAY + HOUR + timedelta(minutes=draw.uniform(0, 9)))
        year.hold = lambda _: True
        await year.work()
        assert len(year.held) == 1
        year.held = [(until - 22 * HOUR, begun) for until, begun in year.held]  # held for four hours, not for 26
        await year.until(MONDAY + day * DAY + 8 * HOUR)
    assert year.ran(job) == [MONDAY + day * DAY + HOUR for day in range(5)]


async def test_mis_17_a_scheduler_that_is_too_slow_sheds_what_is_old_and_comes_up_again(year):
    """A hundred a minute are due and fifty are claimed, for five minutes: older ones are skipped and counted.

    Without what `_left` tells of those before the first that runs (sched/timing/plan.py) they would just be gone.
    """
    await year.begin()
    jobs = [year.submit(cron("* * * * *", misfire="skip", grace="90s")) for _ in range(100)]
    year.dispatcher._batch = 50
    for minute in range(1, 6):
        year.clock.set(MONDAY + minute * MINUTE + timedelta(seconds=30))
        await year.work()

    def lag():
        return year.house.run(year.house.store.status()).lag["oldest_due_s"]

    assert lag() >= 30
    year.dispatcher._batch = 500
    year.clock.set(MONDAY + 6 * MINUTE + timedelta(seconds=1))
    await year.work()
    assert lag() == 0
    skipped = 0
    for job in jobs:
        told = [int(why.split()[1]) if "ticks" in why else 1 for why in year.skips(job)]
        assert len(year.ran(job)) + sum(told) == 6
        skipped += sum(told)
    assert skipped >= 200


async def test_mis_19_schedules_that_are_changed_in_bulk_do_not_start_together(year, client):
    """Two hundred, on the Sunday of the clock change. With `after` in place of the first tick after it in `amend`
    (sched/timing/edit.py) all of them start at once, as if they never ran.
    """
    sunday = datetime(2027, 10, 31, 0, 40, tzinfo=UTC)
    year.clock.set(sunday - DAY)
    await year.begin()
    jobs = [year.submit(cron("0 5 * * *", tz="Europe/Paris"), name=f"job-{n}") for n in range(200)]
    await year.until(sunday)
    assert all(len(year.ran(job)) == 1 for job in jobs)
    for n in range(200):
        client.update(f"job-{n}", tz="Europe/Rome") if n % 2 else client.update(f"job-{n}", cron="30 5 * * *")
    await year.until(sunday + 3 * HOUR)
    assert all(len(year.ran(job)) == 1 for job in jobs)
    client.update("job-0", misfire="skip", run_now=True)
    await year.work()
    assert [len(year.ran(job)) for job in jobs[:2]] == [2, 1]
    await year.until(sunday + 5 * HOUR)
    for n, job in enumerate(jobs):
        assert year.ran(job)[-1] == datetime(2027, 10, 31, 4, 0 if n % 2 else 30, tzinfo=UTC)
