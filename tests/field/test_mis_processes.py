"""Misfires of real members: asleep, restarted, without a store, and with more work than they can do."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from app import effect, plain
from rota import Client, every
from rota.sched.store import open_store

from tests.clock import Clock
from tests.conftest import BOUND
from tests.integration.conftest import party_on

MONDAY = datetime(2027, 6, 7, tzinfo=UTC)


@pytest.fixture
def clock(store_url):
    with closing(Clock(store_url, MONDAY)) as found:
        found.run()
        yield found


@pytest.fixture
def timed(clock, store_url, broker_url, tmp_path):
    """A party in which nobody is yet, and whose store has the test's time."""
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_STORE"] = clock.url
        yield party


SLEEPS = "select count(*) from rota.member where state = 'live' and wakes_at is not null"


def test_mis_08_a_scheduler_that_was_asleep_is_late_by_one_look_and_no_more(timed, clock):
    """It is stopped, and an hour passes; its own timer has not moved on.

    Without `pause` in `min(pause, look.seconds)` of `until_due` (sched/scheduler/sleep.py), and with a promise of hours in place
    of `LOOKS_AHEAD`, it sleeps the rest of the hour.
    """
    scheduler = timed.start("scheduler")
    timed.start("worker")
    timed.until_working()
    timed.rota("submit", "effect", "--args", '{"key": "k"}', "--every", "1h", "--name", "hourly")
    timed.until("the scheduler to sleep", lambda: timed.value(SLEEPS))
    scheduler.send_signal(signal.SIGSTOP)
    clock.step(timedelta(hours=1, minutes=10))
    time.sleep(0.5)
    assert timed.effects("k") == 0
    scheduler.send_signal(signal.SIGCONT)
    timed.until("the tick", lambda: timed.effects("k"))
    assert scheduler.poll() is None
    late = "select extract(epoch from claimed_at - due_at)::float8 from rota.history where outcome = 'succeeded'"
    timed.until("its end", lambda: timed.value(late))
    assert 600 <= timed.value(late) < 600 + BOUND
    assert timed.effects("k") == 1


def test_mis_10_a_weekly_interval_runs_once_a_week_though_the_scheduler_restarts_every_day(timed, clock):
    """Eight days, six starts. Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) the new process claims the old tick."""
    timed.start("worker")
    timed.until("a handler", lambda: timed.value("select count(*) from rota.handler"))
    timed.rota("submit", "effect", "--args", '{"key": "k"}', "--every", "7d", "--name", "weekly")
    ran = []
    for day, days in ((0, 2), (2, 2), (4, 2), (6, 1), (7, 1), (8, 1)):
        scheduler = timed.start("scheduler")
        timed.until("it to have looked", lambda: timed.value(SLEEPS))
        if day == 7:
            timed.until("the run", lambda: timed.effects("k"))
        timed.until("nothing to be left", lambda: not timed.value("select count(*) from rota.run"))
        ran.append(timed.effects("k"))
        scheduler.terminate()
        assert scheduler.wait(BOUND) == 0
        clock.step(timedelta(days=days))
    assert ran == [0, 0, 0, 0, 1, 1]


def test_mis_13_after_a_long_outage_of_the_store_schedules_go_on_by_themselves(make_postgres, broker_url, tmp_path):
    """Longer than leases and grace. Without `except RotaError` around `_membership` (sched/scheduler/service.py) the process
    ends.
    """
    server = make_postgres()
    open_store(server.url).migrate()
    with party_on(server.url, broker_url, tmp_path) as party:
        party.env["ROTA_LEASE"] = "3"
        scheduler, worker = party.start("scheduler"), party.start("worker")
        party.until_working()
        policies = {"all": {"misfire": "run_all"}, "latest": {}, "skip": {"misfire": "skip", "grace": 0.9}}
        with Client.open(server.url) as client:
            for name, words in policies.items():
                client.submit(effect.call(key=name), every(1, **words), name=name)
        party.until("ticks of all", lambda: all(party.effects(name) for name in policies))
        server.crash()
        time.sleep(7)
        server.start()
        party.db.close()
        party.db = psycopg.connect(server.url, autocommit=True)
        (back,) = party.db.execute("select clock_timestamp()").fetchone()
        later = "select count(distinct key) from demo_effect where tick > %s"
        party.until("ticks again", lambda: party.value(later, back) == 3)
        party.until("a healthy doctor", lambda: party.doctor()[0] == 0)
        assert (scheduler.poll(), worker.poll()) == (None, None)
        party.rota("cancel", *policies)
        party.until("the rest to end", lambda: not party.value("select count(*) from rota.run"))
        ticks = "select extract(epoch from max(tick) - min(tick))::int + 1 - count(*) from demo_effect where key = %s"
        assert party.value(ticks, "all") == 0
        assert party.value(ticks, "latest") >= 5
        told = "select count(*) from rota.history where outcome = 'skipped' and args ->> 'key' = %s"
        assert party.value(told, "all") == 0
        assert party.value(told, "latest") >= 1
        assert party.value(told, "skip") >= 1
        assert party.value("select count(*) - count(distinct (key, tick)) from demo_effect") == 0


def test_mis_14_under_an_overload_each_tick_has_its_run(party):
    """Five hundred schedules at one instant, again and again, and two workers that can do forty a second.

    Without `await self.dispatch(claimed.dispatches)` in `_move` (sched/scheduler/dispatch.py) ticks are marked and never run.
    """
    party.start("worker", "--concurrency", "2")
    start = datetime.now(UTC) + timedelta(seconds=12)
    schedule = every(3, start=start, end=start + timedelta(seconds=6), misfire="run_all")
    with Client.open(party.store) as client:
        client.submit_many([(plain.call(key=f"k{n}", hold=0.02), schedule) for n in range(500)])
    party.until("all ticks to be claimed", lambda: not party.value("select count(*) from rota.job"))
    party.until("all to end", lambda: not party.value("select count(*) from rota.run"))
    ended = "select scheduled_for, outcome, count(*) from rota.history group by 1, 2 order by 1"
    ticks = [start + timedelta(seconds=n) for n in (0, 3, 6)]
    assert party.db.execute(ended).fetchall() == [(tick, "succeeded", 500) for tick in ticks]
    assert party.value("select count(*) from demo_plain") == 1500
