"""That a loss and a repetition would be seen: what was acknowledged against the tables of effects."""

import contextlib
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from accounts import Accounts, Acknowledged
from app import prepare
from rota.sched.ids import new_job_id

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def store(store_url):
    prepare(store_url)
    with contextlib.closing(psycopg.connect(store_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
def acks():
    return Acknowledged()


@pytest.fixture
def accounts(store, acks):
    return Accounts(acks, lambda sql, *params: store.execute(sql, params or None).fetchall())


def effect(store, job, key, tick=NOON, table="demo_effect"):
    store.execute(f"insert into {table} (key, job, tick, attempt, fence) values (%s, %s, %s, 1, 1)", [key, job, tick])


def ended(store, job, tick, outcome, reason=None):
    store.execute(
        "insert into rota.history (ended_at, job_id, scheduled_for, outcome, reason, queue, handler, args, attempt,"
        " losses, due_at) values (clock_timestamp(), %s, %s, %s, %s, 'demo', 'effect', '{}', 1, 0, %s)",
        [job, tick, outcome, reason, tick],
    )


def schedule(acks, step):
    job = new_job_id()
    acks.steps["s"] = step
    acks.note(acks.schedules, [job], ["s"])
    return job


def test_an_acknowledged_job_without_an_effect_is_lost_whatever_the_ledger_says(store, acks, accounts):
    job = new_job_id()
    acks.note(acks.effects, [job], ["k"])
    ended(store, job, NOON, "succeeded")
    assert accounts.lost_jobs() == [job]
    assert accounts.lost() == 1
    assert not accounts.settled()
    effect(store, job, "another key")
    assert accounts.lost() == 1
    effect(store, job, "k")
    assert accounts.lost() == 0
    assert accounts.settled()


def test_a_plain_effect_is_looked_for_in_its_own_table(store, acks, accounts):
    job = new_job_id()
    acks.note(acks.plain, [job], ["k"])
    effect(store, job, "k")
    assert accounts.lost() == 1
    effect(store, job, "k", table="demo_plain")
    assert accounts.lost() == 0


def test_two_effects_of_one_tick_are_one_too_many(store, acks, accounts):
    job = new_job_id()
    acks.note(acks.effects, [job], ["k"])
    for tick in (NOON, NOON, NOON + timedelta(seconds=1)):
        effect(store, job, "k", tick)
    assert accounts.figures()["duplicate_effects"] == 1


@pytest.mark.parametrize("step", [1.0, 1.5, 0.1])
def test_a_tick_that_is_missing_between_the_first_and_the_last_is_lost(store, acks, accounts, step):
    job = schedule(acks, step)
    first = NOON + timedelta(microseconds=50_001)
    ticks = [first + n * timedelta(seconds=step) for n in range(100)]
    for tick in ticks[:40] + ticks[43:]:
        effect(store, job, "s", tick)
    assert accounts.lost() == 3
    assert accounts.ticks() == 100
    ended(store, job, ticks[40], "skipped", "overlap: this tick was skipped (...)")
    assert accounts.lost() == 2
    ended(store, job, ticks[41], "succeeded")
    assert accounts.lost() == 3  # missing from its effects and, done by the ledger, without one
    effect(store, job, "s", ticks[41])
    effect(store, job, "s", ticks[42])
    assert accounts.lost() == 0


def test_one_row_may_tell_of_many_skipped_ticks(store, acks, accounts):
    job = schedule(acks, 2.0)
    effect(store, job, "s", NOON)
    effect(store, job, "s", NOON + timedelta(seconds=20))
    assert accounts.lost() == 9
    last = "2026-11-30T12:00:18.000000Z"
    why = f"misfire: 9 ticks from this one to {last} were skipped (misfire=run_latest)"
    ended(store, job, NOON + timedelta(seconds=2), "skipped", why)
    assert accounts.lost() == 0


def test_a_schedule_that_never_ticked_is_lost(acks, accounts):
    schedule(acks, 2.0)
    assert accounts.lost() == 1
