"""The plan of a claim: no tick is lost silently, a long outage costs little, and each policy does what its name says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.timing import advance, fires, first_tick, jitter_of, next_tick
from rota.sched.timing.plan import PER_CLAIM
from rota.sched.when import Schedule

START = datetime(2027, 3, 28, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BASES = st.sampled_from(
    [
        {"every": 7.0},
        {"every": 60.0},
        {"cron": "* * * * *"},
        {"cron": "*/7 * * * *", "tz": "Europe/Paris"},
        {"cron": "0,30 1,2,3 * * *", "tz": "Europe/Paris"},
        {"cron": "15 2 * * *", "tz": "Europe/Paris", "dst_overlap": "both"},
    ]
)
POLICIES = st.fixed_dictionaries(
    {
        "misfire": st.sampled_from(["run_latest", "run_earliest", "run_all", "skip"]),
        "catchup_window": st.sampled_from([None, 0.0, 90.0, 3600.0]),
        "catchup_limit": st.sampled_from([1, 5, 250, 5000]),
        "grace": st.sampled_from([None, 0.0, 30.0]),
        "overlap": st.sampled_from(["allow", "skip"]),
        "jitter": st.sampled_from([0.0, 20.0, 1e6]),
    }
)


def claims(schedule, cursor, now, *, live=False):
    """Plans until nothing is due, as a scheduler claims."""
    plans = [advance(schedule, "job", cursor, now, live=live)]
    while plans[-1].next is not None and plans[-1].due <= now:
        assert plans[-1].next > cursor
        cursor = plans[-1].next
        plans.append(advance(schedule, "job", cursor, now, live=live))
        assert len(plans) < 30
    return plans


@given(BASES, POLICIES, st.integers(0, 30_000), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_due_tick_runs_or_is_told_and_every_other_is_ahead(base, policy, late, live):
    schedule = Schedule(**base, **policy)
    cursor = next_tick(schedule, START, START)
    now = cursor + timedelta(seconds=late, microseconds=5)
    plans = claims(schedule, cursor, now, live=live)
    ahead = plans[-1].next
    ticks, at = [], cursor
    while at < ahead:
        ticks.append(at)
        at = next_tick(schedule, at, cursor)
    assert at == ahead
    ran = [tick for plan in plans for tick in plan.fire]
    told = [skip for plan in plans for skip in plan.skipped]
    skipped = [tick for skip in told for tick in ticks if skip.first <= tick <= skip.last]
    assert sorted(ran + skipped) == ticks
    for skip in told:
        count = sum(skip.first <= tick <= skip.last for tick in ticks)
        assert skip.count == count or (skip.count is None and count > 200)
    assert all(len(plan.skipped) <= 3 and len(plan.fire) <= PER_CLAIM for plan in plans)
    assert ahead > now or ahead + jitter_of(schedule, "job", ahead, next_tick(schedule, ahead, cursor)) > now
    assert not (live and schedule.overlap == "skip" and ran)


@pytest.mark.parametrize(
    ("policy", "ran", "told"),
    [
        ({"misfire": "run_latest"}, [10], ["10 ticks"]),
        ({"misfire": "run_earliest"}, [0], ["10 ticks"]),
        ({"misfire": "run_all"}, list(range(11)), []),
        ({"misfire": "run_all", "catchup_limit": 3}, [8, 9, 10], ["8 ticks"]),
        ({"misfire": "run_all", "catchup_window": 150}, [8, 9, 10], ["8 ticks"]),
        ({"misfire": "run_earliest", "catchup_window": 150}, [8], ["8 ticks", "2 ticks"]),
        ({"misfire": "skip"}, [10], ["10 ticks"]),
        ({"misfire": "skip", "grace": 10}, [], ["11 ticks"]),
        ({"misfire": "run_latest", "grace": 10, "catchup_window": 10}, [], ["11 ticks"]),
        ({"misfire": "run_latest", "catchup_window": 0}, [10], ["10 ticks"]),
        ({"misfire": "run_all", "overlap": "skip"}, [0], ["10 ticks"]),
    ],
)
def test_after_ten_minutes_and_thirty_seconds_of_outage(policy, ran, told):
    schedule = Schedule(cron="* * * * *", **policy)
    plan = advance(schedule, "job", START, START + 10.5 * MINUTE, live=False)
    assert [(tick - START) // MINUTE for tick in plan.fire] == ran
    assert [skip.text().split(": ")[1].split(" from")[0] for skip in plan.skipped] == told
    assert plan.next == plan.due == START + 11 * MINUTE


def test_a_lone_late_tick_runs_unless_its_policy_leaves_it_out():
    eight_hours = START + timedelta(hours=8)
    for policy, runs in [
        ({}, True),
        ({"misfire": "skip"}, False),
        ({"misfire": "skip", "grace": "9h"}, True),
        ({"catchup_window": "9h"}, True),
        ({"catchup_window": "1h"}, False),
    ]:
        plan = advance(Schedule(cron="0 0 * * *", **policy), "job", START, eight_hours, live=False)
        assert bool(plan.fire) is runs, policy
        assert plan.next == START + timedelta(days=1)


def test_the_reason_names_the_policy_and_the_last_tick():
    plan = advance(Schedule(every=60), "job", START, START + 3 * MINUTE, live=False)
    expected = "misfire: 3 ticks from this one to 2027-03-28T00:02:00.000000Z were skipped (misfire=run_latest)"
    assert [skip.text() for skip in plan.skipped] == [expected]


def test_a_tick_is_skipped_while_a_run_is_alive():
    plan = advance(Schedule(every=60, overlap="skip"), "job", START, START, live=True)
    assert plan.fire == ()
    assert plan.skipped[0].text() == "overlap: this tick was skipped (overlap=skip, and a run of this job is alive)"
    assert advance(Schedule(every=60), "job", START, START, live=True).fire == (START,)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(every=0.1),
        Schedule(cron="* * * * * *"),
        Schedule(cron="* * * 1 1 *", misfire="run_earliest", catchup_window=86_400),
        Schedule(cron="* * * * *", tz="Europe/Paris", misfire="run_all", catchup_limit=100),
    ],
    ids=lambda s: str(s.cron or s.every),
)
def test_months_of_missed_ticks_cost_little(schedule):
    cursor = first_tick(schedule, datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC))
    began = time.process_time()
    plan = advance(schedule, "job", cursor, datetime(2026, 8, 1, 5, tzinfo=UTC), live=False)
    assert time.process_time() - began < 2
    assert plan.next > datetime(2026, 8, 1, 5, tzinfo=UTC)
    assert len(plan.fire) + len(plan.skipped) <= PER_CLAIM + 2


def test_more_ticks_than_one_claim_runs_stay_ahead_and_are_due_now():
    schedule, now = Schedule(every=60, misfire="run_all", catchup_limit=250), START + 300 * MINUTE
    first, second, third = claims(schedule, START, now)
    assert [len(plan.fire) for plan in (first, second, third)] == [PER_CLAIM, PER_CLAIM, 50]
    assert first.next == second.fire[0]
    assert first.due == now
    assert [len(plan.skipped) for plan in (first, second, third)] == [1, 0, 0]


def test_a_late_claim_runs_a_jittered_tick_and_leaves_the_next_its_own_jitter():
    schedule = Schedule(every=60, jitter=60)
    jitters = {
        job: [jitter_of(schedule, job, START + i * MINUTE, START + (i + 1) * MINUTE) for i in (0, 1)]
        for job in "abcdef"
    }
    for job, (_, later) in jitters.items():
        now = START + MINUTE + later / 2
        plan = advance(schedule, job, START, now, live=False)
        assert plan.fire == (START,)
        assert plan.skipped == ()
        assert (plan.next, plan.due) == (START + MINUTE, START + MINUTE + later)


def test_grace_is_counted_from_the_jittered_time():
    schedule = Schedule(cron="0 * * * *", jitter=3000, misfire="skip", grace=1)
    jitter = jitter_of(schedule, "job", START, START + timedelta(hours=1))
    assert jitter > timedelta(seconds=1)
    assert advance(schedule, "job", START, START + jitter, live=False).fire == (START,)
    assert advance(schedule, "job", START, START + jitter + timedelta(seconds=2), live=False).fire == ()


@given(st.text(max_size=20), st.floats(0, 1e7), st.integers(1, 10_000))
def test_jitter_is_the_same_each_time_and_below_both_bounds(job, jitter, gap):
    schedule, following = Schedule(every=float(gap), jitter=jitter), START + timedelta(seconds=gap)
    found = jitter_of(schedule, job, START, following)
    assert found == jitter_of(schedule, job, START, following)
    assert timedelta(0) <= found <= timedelta(seconds=jitter)
    assert START + found < following


def test_a_cursor_that_new_rules_no_longer_name_still_runs():
    plan = advance(Schedule(cron="0 9 * * *"), "job", START + 17 * MINUTE, START + 18 * MINUTE, live=False)
    assert plan.fire == (START + 17 * MINUTE,)
    assert plan.next == START + timedelta(hours=9)


def test_a_preview_marks_clock_changes():
    schedule = Schedule(cron="30 2 * * *", tz="Europe/Paris", dst_overlap="both")
    gap = fires(schedule, datetime(2027, 3, 27, 12, tzinfo=UTC), 2)
    assert [fire.note for fire in gap] == ["right after a gap of local time that swallowed 02:30", None]
    overlap = fires(schedule, datetime(2027, 10, 30, 12, tzinfo=UTC), 3)
    assert [fire.note for fire in overlap] == ["first time of a repeated hour", "second time of a repeated hour", None]


def test_a_time_of_day_that_only_gaps_have_never_fires_under_skip():
    schedule = Schedule(cron="30 2 8-14 3 0#2", tz="America/New_York", dst_gap="skip")
    assert next_tick(Schedule(cron="30 2 * 3 0#2", tz="America/New_York", dst_gap="skip"), START, START) is None
    assert first_tick(schedule, START) > START


@pytest.mark.parametrize("base", [{"every": 60.0}, {"cron": "* * * * *"}])
def test_an_outage_over_the_end_of_a_schedule_runs_its_last_tick_and_none_after_it(base):
    schedule = Schedule(**base, end=START + 5 * MINUTE)
    step = advance(schedule, "job", START + 2 * MINUTE, START + 90 * MINUTE, live=False)
    assert (step.fire, step.next, step.due) == ((START + 5 * MINUTE,), None, None)
    assert [(told.first, told.last, told.count) for told in step.skipped] == [
        (START + 2 * MINUTE, START + 4 * MINUTE, 3)
    ]
