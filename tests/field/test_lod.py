"""Everything at minute 0: what jitter makes of it. How fast a herd is claimed and published: bench/pipeline.py."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from field_app import spans
from rota import Client, at
from rota.sched.broker.topology import work_queue
from rota.sched.timing import advance, jitter_of, next_tick
from rota.sched.timing.load import Planned, load
from rota.sched.when import cron, every

from tests.clock import clock_of
from tests.field.broker import ready

HOUR = datetime(2027, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def clock(store_url):
    for found in clock_of(store_url, HOUR):
        found.run()
        yield found


def test_lod_01_jitter_spreads_a_herd_stays_the_same_and_never_reaches_the_next_tick():
    """Without the bound by `following` in `jitter_of` (sched/timing/ticks.py) some of an hour's come after the next hour's."""
    jobs = [f"01a22b2f-67dd-798b-aad5-{n:012x}" for n in range(10_000)]
    schedule = cron("0 * * * *", jitter="2h")
    following = next_tick(schedule, HOUR, HOUR)
    dues = [HOUR + jitter_of(schedule, job, HOUR, following) for job in jobs]
    assert dues == [HOUR + jitter_of(schedule, job, HOUR, following) for job in jobs]
    assert min(dues) >= HOUR
    assert max(dues) < following
    each_minute = Counter((due - HOUR) // timedelta(minutes=1) for due in dues)
    assert max(each_minute.values()) < 2 * 10_000 / 60
    planned = [Planned(job, cron("0 * * * *"), HOUR) for job in jobs]
    day = load(planned, HOUR, 1800)
    assert day.due[0] == 10_000
    assert max(day.spread) < 1_000


def test_lod_01_ten_thousand_schedules_of_one_instant_are_published_soon_and_once(field, clock):
    """Without `self.outstanding.pop(number)` in `_settled` (sched/scheduler/dispatch.py) it ends with the window of unconfirmed ones."""
    field.env["ROTA_STORE"] = clock.url
    field.start("scheduler")
    field.until("partitions", lambda: field.value("select count(owner) from rota.partition") == 64)
    minute = HOUR + timedelta(minutes=10)
    with Client.open(clock.url) as client:
        for _ in range(10):
            client.submit_many([(spans.call(key="k", seconds=0), every("1h", start=minute)) for _ in range(1000)])
    assert clock.now < minute, "all of them are stored in time"
    clock.set(minute)
    queue = work_queue(field.value("select min(queue) from rota.job"))
    field.until("all to be published", lambda: ready(field.env["ROTA_BROKER"], queue) == 10_000)
    ((late, runs),) = field.db.execute("select max(claimed_at) - min(due_at), count(*) from rota.run").fetchall()
    assert runs == 10_000
    assert late < timedelta(seconds=100), "none by the reconciler, after two minutes"


def test_lod_01_an_edit_of_the_jitter_or_the_expression_drops_and_doubles_no_tick():
    """Without the hash of the tick alone (`jitter_of` in sched/timing/ticks.py) a due time would depend on when it was asked for."""
    old, new = cron("0 * * * *", jitter="10m"), cron("0,30 * * * *", jitter="20m")
    job = "01a22b2f-67dd-798b-aad5-ddfa2588df71"
    due = HOUR + jitter_of(old, job, HOUR, HOUR + timedelta(hours=1))
    step = advance(new, job, HOUR, due + timedelta(minutes=20), live=False)
    assert step.fire == (HOUR,)
    assert step.next == HOUR + timedelta(minutes=30)
    assert step.next <= step.due < HOUR + timedelta(minutes=50)


def test_lod_02_of_what_is_due_at_once_the_next_begins_when_one_has_ended(field):
    """Three hundred runs for ten slots. Without `self._wake.set()` in `over` (workers/intake.py) a slot that is free is seen
    once a second, and in between nothing runs.
    """
    field.start("scheduler")
    field.start("worker", "--concurrency", "10")
    field.until_working()
    soon = field.value("select clock_timestamp() + interval '2 s'")
    with Client.open(field.store) as client:
        client.submit_many([(spans.call(key=str(n), seconds=0.1), at(soon)) for n in range(300)])
    field.until("all to end", lambda: field.value("select count(*) from rota.history") == 300)
    busy, gaps, until = timedelta(0), [], None
    for began, ended in field.db.execute("select began, ended from field_span order by began").fetchall():
        gaps.append(max(timedelta(0), began - (until or began)))
        busy += max(timedelta(0), ended - max(began, until or began))
        until = max(ended, until or ended)
    # Three times the machine may have stood still.
    assert sum(sorted(gaps)[:-3], timedelta(0)) < busy
