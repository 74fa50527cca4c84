"""Ticks against an oracle of hard cases, and the plan of a claim."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rota.cli.main import app
from rota.sched.errors import UsageError
from rota.sched.ids import new_job_id
from rota.sched.timing import fires, first_tick, jitter_of, next_tick
from rota.sched.when import Schedule
from typer.testing import CliRunner

CASES = Path(__file__).parent.parent / "cases"
ORACLE = [json.loads(line) for line in (CASES / "cron_oracle.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def answers():
    done = CliRunner().invoke(app, ["preview", "--batch", str(CASES / "cron_oracle.jsonl")])
    return {row["id"]: json.loads(line) for row, line in zip(ORACLE, done.output.splitlines(), strict=True)}


@pytest.mark.parametrize("row", ORACLE, ids=[row["id"] for row in ORACLE])
def test_a_preview_of_all_rows_of_the_oracle_agrees_with_it(answers, row):
    answer = answers[row["id"]]
    if row["expected_utc"] is None:  # to be refused, or an extension that may be
        assert "error" in answer or "an extension" in row["basis"]
    else:
        assert answer["fires"] in [row["expected_utc"], row.get("or_utc")]


def test_an_expression_that_never_fires_is_refused():
    with pytest.raises(UsageError, match=r"0 0 31 2 .* never fires"):
        Schedule(cron="0 0 31 2 *")


def test_an_unknown_zone_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Europe/Pari"):
        Schedule(cron="0 2 * * *", tz="Europe/Pariss")


def ticks(schedule, after, count):
    return [fire.utc.isoformat()[:16] for fire in fires(schedule, after, count)]


def test_an_interval_with_a_start_counts_from_there_whenever_it_is_asked():
    schedule = Schedule(every=86_400.0, start="2026-12-01T01:00:00Z", end="2026-12-04T01:00:00Z")
    assert ticks(schedule, START, 9) == [f"2026-12-0{day}T01:00" for day in (1, 2, 3, 4)]
    assert ticks(schedule, datetime(2026, 12, 2, 1, tzinfo=UTC), 9) == ["2026-12-03T01:00", "2026-12-04T01:00"]


def test_a_schedule_that_has_ended_is_refused():
    with pytest.raises(UsageError, match=r"never fires after .* up to its end 2026-12-04T01"):
        first_tick(Schedule(every=60, end="2026-12-04T01:00:00Z"), datetime(2027, 1, 1, tzinfo=UTC))


def test_there_are_no_ticks_before_start_after_end_and_on_excluded_dates_of_the_zone():
    schedule = Schedule(
        cron="0 8 * * *",
        tz="Pacific/Auckland",  # 8:00 there is 19:00 UTC of the day before
        start="2026-12-23T19:00:00Z",
        end="2026-12-28T19:00:00Z",
        exclude=["2026-12-25", "2026-12-26"],
    )
    assert ticks(schedule, START, 9) == [f"2026-12-{day}T19:00" for day in (23, 26, 27, 28)]


def test_a_date_is_excluded_by_the_time_that_is_named_not_by_where_a_gap_moves_it():
    around = datetime(2022, 9, 9, 12, tzinfo=UTC)
    named = {"cron": "30 0 * * *", "tz": "America/Santiago"}  # 00:30 of 11 September does not exist
    assert ticks(Schedule(**named), around, 2) == ["2022-09-10T04:30", "2022-09-11T04:00"]
    assert ticks(Schedule(**named, exclude=["2022-09-11"]), around, 2) == ["2022-09-10T04:30", "2022-09-12T03:30"]


POLICIES = st.sampled_from(["run_latest", "run_earliest", "run_all", "skip"])
START = datetime(2026, 1, 1, tzinfo=UTC)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
EXPRESSIONS = st.sampled_from(["* * * * *", "30 2 * * *", "0 */3 * * *", "15 0,1,2,3 * * sun", "*/7 1-3 29 2 *"])
ZONES = st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"])


@given(EXPRESSIONS, ZONES, INSTANTS)
@settings(max_examples=150, deadline=None)
def test_the_next_tick_is_after_its_instant(expression, tz, after):
    schedule = Schedule(cron=expression, tz=tz)
    tick = next_tick(schedule, after, after)
    assert tick is not None
    assert tick > after


@given(st.floats(0, 10_000), st.integers(1, 5000))
def test_jitter_is_below_the_gap_and_the_same_each_time(jitter, gap):
    schedule, job = Schedule(every=float(gap), jitter=jitter), new_job_id()
    first = jitter_of(schedule, job, START, START + timedelta(seconds=gap))
    assert first == jitter_of(schedule, job, START, START + timedelta(seconds=gap))
    assert timedelta(0) <= first <= timedelta(seconds=min(jitter, gap))


def test_the_first_tick_of_an_interval_is_one_interval_away():
    assert first_tick(Schedule(every=30.0), START) == START + timedelta(seconds=30)
