"""When a job runs, as users write it and as the store keeps it."""

# ruff: noqa: DTZ001 - wall times have no zone

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.timing.policies import Overlap
from rota.sched.when import Once, Schedule, after, at, cron, every, when_from_json

NINE = datetime(2026, 12, 1, 9, tzinfo=timezone(timedelta(hours=1)))
EARLIEST, LATEST = (datetime(*day, tzinfo=UTC).replace(tzinfo=None) for day in ((1, 1, 3), (9999, 12, 29)))


def test_an_instant_is_kept_in_utc():
    assert at(NINE).at == datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert at(NINE).to_json() == {"at": "2026-12-01T08:00:00.000000Z"}


def test_now_is_written_as_nothing():
    assert Once().to_json() == {}
    assert when_from_json(None) == when_from_json({}) == Once()


def test_durations_may_be_text():
    assert after("5m") == after(300) == after(timedelta(minutes=5))
    assert every("30s", jitter="5s") == every(30, jitter=5)


@given(st.datetimes(min_value=EARLIEST, max_value=LATEST, timezones=st.timezones()))
def test_an_instant_survives_json(instant):
    assert when_from_json(at(instant).to_json()) == at(instant)


schedules = st.builds(
    Schedule,
    every=st.floats(0.1, 1e6),
    misfire=st.sampled_from(["run_latest", "run_earliest", "run_all", "skip"]),
    overlap=st.sampled_from(get_args(Overlap)),
    max_runs=st.none() | st.integers(1, 1000),
    jitter=st.floats(0, 1e4),
    grace=st.none() | st.floats(0, 1e4),
    catchup_limit=st.integers(1, 1000),
    catchup_window=st.none() | st.floats(0, 1e6),
)


@given(schedules)
def test_a_schedule_survives_the_store(schedule):
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_only_what_differs_from_the_defaults_is_written():
    assert cron("0 2 * * *").to_json() == {"cron": "0 2 * * *"}
    assert cron("0 2 * * *", tz="Europe/Paris", dst_gap="skip").to_json() == {
        "cron": "0 2 * * *",
        "tz": "Europe/Paris",
        "dst_gap": "skip",
    }


def test_bounds_and_dates_survive_the_store_and_are_written_in_one_form():
    schedule = cron("0 2 * * *", start=NINE, end="2027-01-01T00:00:00Z", exclude=[date(2026, 12, 25), "2026-12-24"])
    kept = schedule.to_json()
    assert Schedule.from_json(json.loads(json.dumps(kept))) == schedule
    assert kept["start"] == "2026-12-01T08:00:00.000000Z"
    assert kept["exclude"] == ["2026-12-24", "2026-12-25"]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        (datetime(2026, 12, 1, 9), "2026-12-01T08:00:00"),
        (datetime(2027, 3, 28, 2, 30), "2027-03-28T01:00:00"),  # in a gap: its end
        (datetime(2027, 10, 31, 2, 30), "2027-10-31T00:30:00"),  # twice: the first
        (datetime(2027, 10, 31, 2, 30, fold=1), "2027-10-31T01:30:00"),
    ],
)
def test_a_wall_time_and_its_zone_are_an_instant(local, expected):
    assert at(local, tz="Europe/Paris").at.isoformat() == f"{expected}+00:00"
    if not local.fold:
        assert when_from_json({"at": local.isoformat(), "tz": "Europe/Paris"}) == at(local, tz="Europe/Paris")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: at(NINE.replace(tzinfo=None)), "no time zone"),
        (lambda: at(NINE, tz="Europe/Paris"), "give a naive datetime"),
        (lambda: at(NINE.replace(tzinfo=None), tz="Europe/Pari"), "did you mean 'Europe/Paris'"),
        (lambda: every(5, tz="Europe/Pari"), "did you mean 'Europe/Paris'"),
        (lambda: every(5, exclude=["2026-12-25"]), "an interval knows no dates"),
        (lambda: cron("0 2 * * *", exclude="2026-12-25"), "give a list of dates"),
        (lambda: cron("0 2 * * *", exclude=["25.12.2026"]), "exclude has '25.12.2026'"),
        (lambda: cron("0 2 * * *", exclude=[NINE]), "give dates such as"),
        (lambda: every(5, start="2026-12-01T09:00"), "start is '2026-12-01T09:00', without an offset"),
        (lambda: every(5, start=NINE, end=NINE - timedelta(1)), "before start"),
        (lambda: at("2026-12-01"), "give a datetime"),
        (lambda: Once(at=NINE, after=3), "one of them"),
        (lambda: after(-1), "must not be negative"),
        (lambda: every(0), "shortest interval"),
        (Schedule, "one of them"),
        (lambda: Schedule(cron="0 2 * * *", every=3), "one of them"),
        (lambda: cron("0 2 * *"), "4 fields"),
        (lambda: cron("0 0 31 2 *"), "never fires"),
        (lambda: cron("0 2 * * *", tz="Europe/Nowhere"), "Europe/Nowhere"),
        (lambda: every(5, misfire="sometimes"), "misfire is 'sometimes': use one of"),
        (lambda: every(5, overlap="buffer_two"), "overlap is 'buffer_two': use one of allow, skip, buffer_one"),
        (lambda: every(5, max_runs=0), "max_runs is 0: give a number of runs"),
        (lambda: every(5, max_runs=True), "max_runs is True"),
        (lambda: every(5, max_runs=10**10), "from 1 to 1000000000"),
        (lambda: every(5, catchup_limit=0), "catchup_limit is 0"),
        (lambda: every(5, jitter="soon"), "jitter is 'soon'"),
        (lambda: when_from_json({"at": "2026-12-01T09:00:00"}), "offset"),
        (lambda: when_from_json({"at": "2026-12-01T09:00:00Z", "tz": "Asia/Tokyo"}), "leave out one of them"),
        (lambda: when_from_json({"after": 1, "jitter": 2}), "when has 'jitter' beside 'after'"),
        (lambda: when_from_json({"every": 1, "colour": 2}), "unknown word 'colour'"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(make, told):
    with pytest.raises(UsageError, match=told):
        make()
