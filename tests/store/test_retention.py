"""History's days are made ahead and go by age, and nothing that ends runs waits for that."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from rota.sched.scheduler.retention import ROUND_SECONDS, Retention
from rota.sched.store import open_store
from rota.sched.store.conformance import House
from rota.sched.store.postgres import retention
from rota.sched.store.values import End

from tests.clock import clock_of
from tests.conftest import BOUND
from tests.field.conftest import make_role  # noqa: F401 - a fixture
from tests.store.conftest import PostgresTestbed

DAY = 86_400.0
KEEP = 14 * DAY
OLD = "20200101"
THERE = f"select relispartition from pg_class where oid = to_regclass('rota.history_{OLD}')"
MARKED = "select right(inhrelid::regclass::text, 8) from pg_inherits where inhdetachpending"
WAITS = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like %s"
READ = "select count(*) from rota.history"


def old_day(house, day=OLD):
    house.sql(
        f"create table rota.history_{day} partition of rota.history for values from ('{day}') to ('{int(day) + 1}')"
    )
    house.sql(
        "insert into rota.history (ended_at, job_id, scheduled_for, outcome, queue, handler, args, attempt, losses, due_at)"
        f" values ('{day}', gen_random_uuid(), now(), 'succeeded', 'mail', 'send', '{{}}', 1, 0, now())"
    )


def again(house, store=None):
    """One round, at once."""
    house.sql("update rota.duty set due_at = to_timestamp(0) where name = 'retention'")
    one_round(store or house.store, house.join())


def until_marked(house, store=None):
    """One round, and more if the machine was so slow that it was over before it had begun to wait for readers."""
    until(lambda: again(house, store) or house.sql(MARKED) == [(OLD,)])


def one_round(store, member):
    asyncio.run(Retention(store, KEEP).round(member))


def until(done):
    end = time.monotonic() + BOUND
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def told(house):
    return house.sql("select told from rota.duty where name = 'retention'")[0][0]


@pytest.fixture
def reader(store_url):
    """Somebody reads history, and goes on to have his transaction open."""
    with psycopg.connect(store_url, application_name="a long report") as connection:
        yield connection


def test_a_day_goes_with_its_rows_and_the_younger_stay(house):
    before = house.sql(READ)
    old_day(house)
    again(house)
    assert house.sql(THERE) == []
    assert house.sql(READ) == before
    assert told(house) == {"keep_s": KEEP, "why": {}}


def test_runs_end_and_days_are_made_while_the_duty_waits_for_a_reader(house, reader, monkeypatch):
    monkeypatch.setattr(retention, "DETACH_SECONDS", 600.0)
    scheduler, worker = house.join(), house.join("worker")
    house.submit(*(house.job() for _ in range(20)))
    begun = house.begin(worker, *house.claim(scheduler).dispatches)
    old_day(house)
    ((last,),) = house.sql(
        "select max(inhrelid::regclass::text) from pg_inherits where inhparent = 'rota.history'::regclass"
    )
    house.sql(f"drop table {last}")
    reader.execute(READ)
    house.sql("update rota.duty set due_at = to_timestamp(0) where name = 'retention'")
    duty = threading.Thread(target=one_round, args=[house.store, scheduler], daemon=True)
    duty.start()
    until(lambda: house.sql(WAITS, "%concurrently") == [(1,)])
    for each in begun:
        assert house.run(house.store.finish([End(each.key, each.fence, "succeeded")])) == {each.key}
    assert house.sql(READ) == [(20,)]  # without the old one
    house.run(house.store.make_history())
    assert house.sql("select relispartition from pg_class where oid = to_regclass(%s)", last) == [(True,)]
    assert house.sql(WAITS, "%concurrently") == [(1,)]
    reader.rollback()
    duty.join(BOUND)
    assert house.sql(THERE) == []


def test_a_day_that_a_reader_holds_is_tried_again_and_goes_when_the_reader_ends(house, reader, monkeypatch):
    monkeypatch.setattr(retention, "DETACH_SECONDS", 0.2)
    old_day(house)
    reader.execute(READ)
    for _ in range(2):
        until_marked(house)
        assert told(house)["why"][OLD].startswith(f"session {reader.info.backend_pid} (a long report, user ")
    *_, begun = house.started()
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}
    reader.rollback()
    again(house)
    assert house.sql(THERE) == []
    assert told(house)["why"] == {}


KILLED = """
import asyncio, os, signal, sys
from rota.sched.scheduler.retention import Retention
from rota.sched.store import open_store
from rota.sched.store.postgres import retention

if sys.argv[2] == "drop":
    async def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    retention._locked = die
asyncio.run(Retention(open_store(sys.argv[1]), 86400.0).round(1))
"""


@pytest.mark.parametrize("step", ["detach", "drop"])
def test_what_a_killed_process_left_half_done_is_done_by_the_next_round(house, reader, step):
    """It is killed while it waits for a reader, or between detach and drop."""
    old_day(house)
    house.sql("update rota.duty set due_at = to_timestamp(0)")
    if step == "detach":
        reader.execute(READ)
    with subprocess.Popen([sys.executable, "-c", KILLED, house.bed.url, step]) as process:
        if step == "detach":
            until(lambda: house.sql(MARKED))
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert house.sql(THERE) == [(step == "detach",)]
    reader.rollback()
    again(house)
    assert house.sql(THERE) == []


def test_a_pooler_in_transaction_mode_changes_nothing(house, reader, make_pgbouncer, monkeypatch):
    monkeypatch.setattr(retention, "DETACH_SECONDS", 0.5)
    pooled = open_store(make_pgbouncer(store=house.bed.url).url)
    old_day(house)
    old_day(house, "20200103")
    reader.execute(READ)
    until_marked(house, pooled)
    until(lambda: house.sql(WAITS, "%concurrently") == [(0,)])  # behind a pooler a session ends a moment later
    assert set(told(house)["why"]) == {OLD, "20200103"}
    reader.rollback()
    house.sql("update rota.duty set due_at = to_timestamp(0) where name = 'retention'")
    one_round(pooled, house.join())
    assert house.sql(THERE) == []
    assert house.sql("select to_regclass('rota.history_20200103')") == [(None,)]


def test_where_a_default_partition_forbids_it_concurrently_a_day_goes_all_the_same(house, reader):
    house.sql("create table rota.history_default partition of rota.history default")
    old_day(house)
    reader.execute(READ)
    again(house)
    assert house.sql(THERE) == [(True,)]
    assert house.sql(MARKED) == []
    reader.rollback()
    again(house)
    assert house.sql(THERE) == []


async def test_two_rounds_at_once_do_no_harm(house):
    old_day(house)
    links = [house.store.async_link(f"round {n}") for n in range(4)]
    await asyncio.gather(*(house.store.drop_day(link, OLD) for link in links))
    await house.store.drop_day(links[0], OLD)
    assert house.sql(THERE) == []
    for link in links:
        await link.close()


def test_one_scheduler_at_a_time_has_the_duty(house):
    one, other = house.join(), house.join()
    assert house.run(house.store.retain(one, KEEP, ROUND_SECONDS)).ran
    assert not house.run(house.store.retain(other, KEEP, ROUND_SECONDS)).ran
    house.bed.pass_time(ROUND_SECONDS)
    assert house.run(house.store.retain(other, KEEP, ROUND_SECONDS)).ran


def test_a_missing_day_is_made_by_many_at_once(house):
    days = house.sql("select inhrelid::regclass::text from pg_inherits where inhparent = 'rota.history'::regclass")
    for (name,) in days:
        house.sql(f"drop table {name}")
    errors = []

    def make():
        with closing(house.store.link("maker")) as link:
            try:
                link.run(house.store.make_history())
            except Exception as error:  # noqa: BLE001 - told below
                errors.append(error)

    makers = [threading.Thread(target=make) for _ in range(6)]
    for each in makers:
        each.start()
    for each in makers:
        each.join()
    assert errors == []
    assert house.sql("select count(*) from pg_inherits where inhparent = 'rota.history'::regclass") == [(len(days),)]


def test_keys_whose_time_is_over_are_forgotten_in_portions(house, monkeypatch):
    monkeypatch.setattr(retention, "KEYS_AT_ONCE", 2)
    house.submit(*(house.job(key=f"k{n}", key_seconds=60.0) for n in range(5)), house.job(key="kept"))
    house.bed.pass_time(61)
    again(house)
    assert house.sql("select key from rota.key") == [("kept",)]


def test_a_user_who_may_not_drop_days_is_told_so(house, make_role):  # noqa: F811
    old_day(house)
    store = open_store(make_role("revoke create on schema rota"))
    one_round(store, house.join())
    assert house.sql(THERE) == [(True,)]
    assert "may not do this: must be owner" in told(house)["why"][OLD]
    assert "must be owner" in house.run(house.store.status()).history["late"][0]["why"]


THEN = datetime(2031, 5, 5, 12, tzinfo=UTC)


@pytest.fixture
def clock(store_url):
    yield from clock_of(store_url, THEN)


def test_a_day_is_kept_until_its_last_run_is_older_than_the_keep(clock):
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        house.run(house.store.make_history())
        keep = 36 * 3600.0
        # May 5th is over at midnight: it goes 36 hours later.
        clock.set(datetime(2031, 5, 7, 11, 59, 59, tzinfo=UTC))
        assert "20310505" not in house.run(house.store.retain(1, keep, 0)).stale
        clock.set(datetime(2031, 5, 7, 12, 0, 0, tzinfo=UTC))
        stale = house.run(house.store.retain(1, keep, 0)).stale
        assert stale[-1] == "20310505"
        assert stale == sorted(stale)


def test_after_two_weeks_without_a_scheduler_runs_end_and_the_first_round_makes_up_for_it(clock):
    with closing(PostgresTestbed(clock.url)) as bed, closing(House(bed)) as house:
        house.run(house.store.make_history())
        *_, begun = house.started()
        clock.step(timedelta(days=15))
        assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}
        asyncio.run(Retention(house.store, 7 * DAY).round(house.join()))
        days = [
            d
            for ((d),) in bed.sql(
                "select right(inhrelid::regclass::text, 8) from pg_inherits where inhparent = "
                "'rota.history'::regclass order by 1"
            )
        ]
        assert days[0] == "20310513"
        assert days[-1] == "20310528"
