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
from rota.sched.timing import first_tick, jitter_of, next_tick
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
