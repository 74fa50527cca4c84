"""The plan of a claim: no tick is lost silently, a long outage costs little, and each policy does what its name says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.timing import advance, fires, first_tick, jitter_of, next_tick
from rota.sched.timing.plan import BUFFER, PER_CLAIM
from rota.sched.timing.policies import Overlap
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
        "overlap": st.sampled_from(get_args(Overlap)),
        "max_runs": st.sampled_from([None, None, 1, 3, 150]),
        "jitter": st.sampled_from([0.0, 20.0, 1e6]),
    }
)


def claims(schedule, cursor, now, *, live=False):
    """Plans until nothing is due, as a scheduler claims; no run ends meanwhile."""
    plans, standing = [], {"live": live, "waiting": 0, "left": schedule.max_runs, "missed": 0}
    while True:
        plan = advance(schedule, "job", cursor, now, **standing)
        plans.append(plan)
        assert len(plans) < 30
        if plan.next is None or plan.due > now:
            return plans
        assert plan.next > cursor
        cursor = plan.next
        if plan.cancel:
            standing["waiting"] = 0
        standing["live"] |= bool(plan.runs)
        standing["waiting"] += sum(run.waits for run in plan.runs)
        standing["left"] = standing["left"] and standing["left"] - len(plan.runs)
        standing["missed"] = plan.missed


def due_ticks(schedule, cursor, now):
    """Those that are due, jitter included."""
    tick = cursor
    while tick + jitter_of(schedule, "job", tick, following := next_tick(schedule, tick, cursor)) <= now:
        yield tick
        tick = following


@given(BASES, POLICIES, st.integers(0, 30_000), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_due_tick_runs_or_is_told_and_every_other_is_ahead(base, policy, late, live):
    schedule = Schedule(**base, **policy)
    cursor = next_tick(schedule, START, START)
    now = cursor + timedelta(seconds=late, microseconds=5)
    plans = claims(schedule, cursor, now, live=live)
    last = max(due_ticks(schedule, cursor, now), default=cursor)
    ahead = plans[-1].next
    ran = [tick for plan in plans for tick in plan.fire]
    told = [skip for plan in plans for skip in plan.skipped]
    over = ahead is None
    assert over == (schedule.max_runs is not None and len(ran) == schedule.max_runs)
    if over:
        ahead = next_tick(schedule, ran[-1], cursor)
    ticks, at = [], cursor
    while at < ahead:
        ticks.append(at)
        at = next_tick(schedule, at, cursor)
    assert at == ahead
    skipped = [tick for skip in told for tick in ticks if skip.first <= tick <= skip.last]
    assert sorted(ran + skipped) == ticks
    for skip in told:
        count = sum(skip.first <= tick <= skip.last for tick in ticks)
        assert skip.count == count or (skip.count is None and count > 200)
    assert all(len(plan.skipped) <= 3 and len(plan.fire) <= PER_CLAIM for plan in plans)
    counts = [*(run.missed for plan in plans for run in plan.runs), plans[-1].missed]
    assert None in counts or sum(counts) == len(skipped)
    assert over or ahead > now or ahead + jitter_of(schedule, "job", ahead, next_tick(schedule, ahead, cursor)) > now
    runs = [run for plan in plans for run in plan.runs]
    assert not (live and schedule.overlap == "skip" and ran)
    if schedule.overlap in {"allow", "skip"}:
        assert not any(run.waits for run in runs)
    elif schedule.overlap != "cancel_other":
        assert [run.waits for run in runs] == [live or n > 0 for n in range(len(runs))]
        assert sum(run.waits for run in runs) <= {"buffer_one": 1, "buffer_all": BUFFER}[schedule.overlap]
    assert all(not run.catchup for run in runs if now - run.at < MINUTE and run.at == last and schedule.grace is None)
    assert all(run.catchup for run in runs if run.at != last)


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
        ({"misfire": "run_all", "overlap": "buffer_one"}, [0, 1], ["9 ticks"]),
        ({"misfire": "run_all", "overlap": "buffer_all"}, list(range(11)), []),
        ({"misfire": "run_all", "overlap": "cancel_other"}, [10], ["10 ticks"]),
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
    ("overlap", "most", "why"),
    [
        ("buffer_one", 1, "overlap=buffer_one, and a tick of this job waits"),
        ("buffer_all", BUFFER, "overlap=buffer_all, and 1000 ticks of this job wait"),
    ],
)
def test_a_tick_is_skipped_where_as_many_wait_as_may(overlap, most, why):
    schedule = Schedule(every=60, overlap=overlap)
    for waiting in (most, most + 3):  # redriven runs are not counted before they wait
        plan = advance(schedule, "job", START, START, live=True, waiting=waiting)
        assert (plan.fire, plan.skipped[0].text()) == ((), f"overlap: this tick was skipped ({why})")
    (run,) = advance(schedule, "job", START, START, live=True, waiting=most - 1).runs
    assert run.waits


def test_a_tick_that_has_others_cancelled_waits_for_what_is_alive():
    schedule = Schedule(every=60, overlap="cancel_other")
    plan = advance(schedule, "job", START, START, live=True, waiting=1)
    assert (plan.fire, plan.cancel, plan.runs[0].waits) == ((START,), True, True)
    plan = advance(schedule, "job", START, START, live=False)
    assert (plan.fire, plan.cancel, plan.runs[0].waits) == ((START,), False, False)
    stale = Schedule(every=60, overlap="cancel_other", misfire="skip", grace=0)
    assert not advance(stale, "job", START, START + 30 * MINUTE / 60, live=True).cancel, "no tick, no cancel"


def test_a_job_is_over_with_the_last_of_its_max_runs():
    schedule = Schedule(every=60, misfire="run_all")
    plan = advance(schedule, "job", START, START + 10.5 * MINUTE, live=False, left=3)
    assert (plan.fire, plan.next, plan.due, plan.skipped) == (
        tuple(START + n * MINUTE for n in range(3)),
        None,
        None,
        (),
    )
    earliest = Schedule(every=60, misfire="run_earliest", catchup_window=150)
    plan = advance(earliest, "job", START, START + 10.5 * MINUTE, live=False, left=1)
    assert [skip.count for skip in plan.skipped] == [8], "what comes after its last run is no tick of it"
    plan = advance(schedule, "job", START, START, live=False, left=2)
    assert plan.next == START + MINUTE


def test_missed_ticks_are_counted_from_the_last_that_became_a_run():
    def plan(*, cron=None, missed=0, late=10.5, **policies):
        schedule = Schedule(cron=cron, every=None if cron else 60, **policies)
        return advance(schedule, "job", START, START + late * MINUTE, live=False, missed=missed)

    latest = plan()
    assert [(run.missed, run.catchup) for run in latest.runs] == [(10, False)]
    assert latest.missed == 0
    assert [(run.missed, run.catchup) for run in plan(missed=7, misfire="run_all", catchup_limit=2).runs] == [
        (16, True),
        (0, False),
    ]
    assert plan(misfire="run_earliest").missed == 10
    assert plan(misfire="skip", grace=0, missed=5).missed == 16
    assert plan(missed=None).runs[0].missed is None
    assert plan(missed=None).missed == 0
    assert plan(cron="* * * * *", late=1000).runs[0].missed is None
    assert plan(missed=2**31 - 5).runs[0].missed is None


def test_a_lone_tick_is_caught_up_once_it_is_later_than_its_grace():
    def late(minutes, **policies):
        (run,) = advance(Schedule(every=86400, **policies), "job", START, START + minutes * MINUTE, live=False).runs
        return run.catchup

    assert [late(1), late(1.1), late(5, grace="10m"), late(11, grace="10m")] == [False, True, False, True]


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
