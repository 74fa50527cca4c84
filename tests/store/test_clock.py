"""The clock that tests set is every statement's: what would still go by the real one would make the others worthless."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rota.sched.store.conformance import House
from rota.sched.when import Once

from tests.clock import clock_of
from tests.store.conftest import PostgresTestbed

THEN = datetime(2031, 5, 5, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clock(store_url):
    yield from clock_of(store_url, THEN)


def test_members_jobs_runs_and_history_have_the_time_that_is_set(clock):
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        scheduler, worker, dispatch, begun = house.started()
        house.run(house.store.beat(worker, {}))
        house.submit(house.job(when=Once(after=60)))
        assert house.claim(scheduler).rows == 0
        clock.step(timedelta(seconds=61))
        (late,) = house.claim(scheduler).dispatches
        assert late.scheduled_for == "2031-05-05T00:01:00.000000Z"
        house.run(house.store.cancel(late.job_id, None, running=False, reason="over"))
        assert house.shown(late.job_id).history[0]["ended_at"] == "2031-05-05T00:01:01.000000Z"
        house.run(house.store.retain(scheduler, 1_209_600, 0))
        house.run(house.store.sleep(scheduler, house.lanes(), 60))
        found = 0
        times = """select table_name, column_name from information_schema.columns
          where table_schema = 'rota' and data_type = 'timestamp with time zone'"""
        for table, column in clock.sql(times):
            for (value,) in clock.sql(f"select {column} from rota.{table} where isfinite({column})"):
                assert value == datetime.fromtimestamp(0, UTC) or abs(value - THEN) < timedelta(days=8), (table, column)
                found += 1
        assert found > 20
        assert dispatch.job_id == begun.key.job_id


def test_duties_go_on_though_the_clock_was_set_back(clock):
    """Without `ran_at > clock_timestamp()` in GLANCE and TAKE (sched/store/postgres/duties.py) they wait until it is again then."""
    ran = "select name from rota.duty where ran_at < %s order by name"
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        scheduler = house.join()
        for _ in range(2):
            clock.step(timedelta(days=-1))
            assert house.run(house.store.recover(scheduler, 60, 40)).ran
            assert not house.run(house.store.recover(scheduler, 60, 40)).ran
            house.run(house.store.reconcile(scheduler, [], 60, 40))
        told = clock.sql(ran, THEN - timedelta(days=1))
        assert {name for (name,) in told} >= {"recovery", "reconciler"}


def test_what_runs_since_the_clock_was_set_back_is_seen(clock):
    """Without `set_back` in GLANCE (sched/store/postgres/duties.py) it is not until the clock is where it was."""
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        scheduler, worker = house.join(), house.join("worker")

        def rounds() -> None:
            for _ in range(3):
                clock.step(timedelta(seconds=30))
                house.run(house.store.recover(scheduler, 3600, 20))

        def seen() -> int:
            house.submit()
            house.begin(worker, *house.claim(scheduler).dispatches)
            rounds()
            return house.run(house.store.status()).runs["running"]

        rounds()
        clock.step(timedelta(days=-1))
        rounds()
        assert seen() == 1
        clock.step(timedelta(days=-1))
        assert seen() == 2


def test_duties_go_by_the_settings_of_who_asks(clock):
    """A scheduler that takes a duty for long holds up none that wants it more often: without `least(due_at, ...)` in TAKE
    (sched/store/postgres/duties.py) a shorter ROTA_RECONCILE_AFTER would wait for what the longer one had set.
    """
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        scheduler = house.join()

        def ran(every: float) -> bool:
            before = clock.sql("select ran_at from rota.duty where name = 'reconciler'")
            house.run(house.store.reconcile(scheduler, [], 60, every))
            return clock.sql("select ran_at from rota.duty where name = 'reconciler'") != before

        assert ran(400)
        clock.step(timedelta(seconds=10))
        assert not ran(30)
        clock.step(timedelta(seconds=21))
        assert ran(30)


def test_a_clock_can_run(clock):
    clock.run()
    first = clock.now
    assert abs(first - THEN) < timedelta(seconds=60)
    clock.set(THEN + timedelta(days=7))
    assert timedelta(0) <= clock.now - THEN - timedelta(days=7) < timedelta(seconds=60)
    clock.step(timedelta(days=-1))
    assert clock.now < THEN + timedelta(days=6, minutes=1)


def test_no_statement_asks_for_the_time_by_another_name():
    """Nor qualified, which would go past the schema of tests/clock.py."""
    other = re.compile(
        r"\b(current_timestamp|localtimestamp|current_date|statement_timestamp|transaction_timestamp)\b|pg_catalog\."
    )
    for path in (ROOT / "sched" / "store").rglob("*.py"):
        assert other.search(path.read_text(encoding="utf-8")) is None, path
