"""The load of a day: each fire is counted in its minute, spikes have their causes, and jitter spreads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.ids import new_job_id
from rota.sched.timing import fires
from rota.sched.timing import load as timing
from rota.sched.timing.load import MINUTES, Planned, load
from rota.sched.when import cron, every

START = datetime(2027, 3, 28, tzinfo=UTC)
DAY = timedelta(days=1)
SCHEDULES = st.sampled_from(
    [
        cron("*/7 * * * *", tz="Europe/Paris"),
        cron("0 * * * *"),
        cron("30 2 * * *", tz="Europe/Paris"),
        cron("0 0 1 1 *"),
        every("7m"),
        every(20),
        cron("0 3 * * *", jitter="10m"),
    ]
)


def planned(*schedules):
    return [Planned(new_job_id(), schedule, START) for schedule in schedules]


def fires_of_the_day(schedule):
    if schedule.every is not None:  # its cursor, a tick, is the start
        return len(range(0, 86_400, int(schedule.every)))
    return sum(fire.utc < START + DAY for fire in fires(schedule, START - timedelta(microseconds=1), 5000))


@given(st.lists(SCHEDULES, min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_each_fire_of_the_day_is_counted_once(schedules):
    day = load(planned(*schedules), START, 0)
    assert sum(day.due) == sum(map(fires_of_the_day, schedules)) == sum(sum(each.values()) for each in day.causes)
    assert len(day.due) == MINUTES


def test_a_spike_has_its_causes_and_jitter_spreads_it():
    jobs = planned(*[cron("0 * * * *")] * 600, *[cron("0 0 * * *")] * 50, every("1h"))
    day = load(jobs, START, 600)
    assert (day.due[0], day.due[60], day.due[61]) == (651, 601, 0)
    assert day.causes[0].most_common() == [("0 * * * * UTC", 600), ("0 0 * * * UTC", 50), ("every 3600 s", 1)]
    assert sum(day.spread) == sum(day.due)
    assert max(day.spread) < 200
    assert sum(day.spread[:10]) == 651
    assert not day.sampled


def test_of_too_many_fires_some_stand_for_the_others(monkeypatch):
    monkeypatch.setattr(timing, "MOST_JITTERS", 1_000)
    day = load(planned(*[cron("0 * * * *")] * 501), START, 600)
    assert day.sampled
    assert sum(day.due) == sum(day.spread) == 501 * 24
