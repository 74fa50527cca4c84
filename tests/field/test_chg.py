"""Changed schedules: registered again and again, changed from outside, and with deaths between two ticks."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from field_app import ends_and_dies, mends
from rota import Client, cron, every
from rota.sched.store.values import End
from rota.sched.when import Schedule

FAR = datetime(2099, 1, 1, tzinfo=UTC)
"""Later than any test."""


def test_chg_01_the_same_schedules_registered_again_and_again_are_the_same_jobs(field):
    """Fifty times, half of them after runs.

    Without `left join rota.job j on j.name = i.name` in KNOWN (sched/store/postgres/submission.py) a registration that
    repeats another is told an id that is not there.
    """
    schedules = {
        "nightly": (mends.call(key="nightly"), cron("0 2 * * *", tz="Europe/Paris", start=FAR)),
        "yearly": (mends.call(key="yearly"), cron("0 0 1 1 *", jitter="1h", start=FAR)),
        "often": (mends.call(key="often"), every("1s")),
    }

    def register(client):
        refs = {name: client.submit(*what, name=name) for name, what in schedules.items()}
        return {name: ref.id for name, ref in refs.items()}

    def next_runs():
        rows = field.db.execute("select name, id::text, next_run_at from rota.job order by name").fetchall()
        assert len(rows) == 3
        return {name: (job, at) for name, job, at in rows if name != "often"}

    field.open("mended")
    with Client.open(field.store) as client:
        ids = register(client)
        before = next_runs()
        assert [register(client) for _ in range(25)] == [ids] * 25
        assert next_runs() == before
        field.start("scheduler")
        field.start("worker")
        field.until("some runs", lambda: field.value("select count(*) from field_effect") >= 2)
        assert [register(client) for _ in range(25)] == [ids] * 25
    assert next_runs() == before
    ended = "select count(*) - count(distinct (job_id, scheduled_for)) from rota.history"
    assert field.value(ended) == 0


def test_chg_03_a_series_goes_on_though_every_run_kills_its_worker_after_its_end(field):
    """The next tick is the store's: made by the claim, never by a run.

    Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) ticks that have ended are fired again and again.
    """
    field.start("scheduler")
    with Client.open(field.store) as client:
        client.submit(ends_and_dies.call(key="k"), every("1s", misfire="run_all"), name="series")
    for _ in range(8):
        worker = field.start("worker", "--concurrency", "1")
        field.until("it to be killed", lambda worker=worker: worker.poll() is not None)
    field.rota("cancel", "series")
    assert field.value("select count(*) from field_effect") >= 8
    twice = "select count(*) - count(distinct scheduled_for) from rota.history where outcome = 'succeeded'"
    assert field.value(twice) == 0


def test_chg_03_a_series_goes_on_though_its_scheduler_dies_after_each_tick(house):
    """A hundred times, between the end of a run and the claim of the next.

    Without `moved` of ADVANCE (sched/store/postgres/scheduling.py) it fails as the one above does.
    """
    job = house.job(when=Schedule(every=60, misfire="run_all"))
    house.submit(job)
    worker, scheduler = house.join("worker"), house.join()
    ticks = []
    for _ in range(100):
        house.bed.pass_time(60.1)  # the bed moves ticks, too
        (dispatch,) = house.claim(scheduler).dispatches
        ticks.append(dispatch.scheduled_for)
        (begun,) = house.begin(worker, dispatch)
        assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}
        house.run(house.store.beat(worker, {}))
        scheduler, dead = house.join(), scheduler
        house.recover(scheduler)  # the first round after a pause judges nobody
        assert house.lose(scheduler, dead).dead_members == [dead]
    assert len(set(ticks)) == 100
    assert house.stored() == 1


def test_chg_04_schedules_that_are_changed_from_outside_are_seen_by_a_sleeping_scheduler(field):
    """Added, replaced and taken away by the command line while the next thing that is due is far off.

    A scheduler keeps nothing of a schedule in memory, only the list of queues: without `self._depths.know`
    in `look` (sched/scheduler/sleep.py) a schedule in a queue that is new since its start never fires.
    """
    field.open("mended")
    field.start("scheduler")
    field.until("partitions to be owned", lambda: field.value("select count(owner) from rota.partition") == 64)
    field.start("worker", "--queue", "new")
    field.until_working()

    def schedule(key, period):
        args = json.dumps({"key": key})
        field.rota("submit", "mends", "--args", args, "--every", period, "--queue", "new", "--name", "changed")

    def runs(key):
        return field.value("select count(*) from field_effect where key = %s", key)

    def sleeps():
        return field.value("select count(*) from rota.member where wakes_at > clock_timestamp()")

    schedule("far", "90d")
    field.until("the scheduler to sleep", sleeps)
    field.rota("cancel", "changed")
    field.until("the scheduler to sleep", sleeps)
    schedule("added", "1s")
    field.until("it to run", lambda: runs("added") >= 2)
    field.rota("cancel", "changed")
    schedule("altered", "2s")
    field.until("the other one to run", lambda: runs("altered") >= 1)
    field.rota("cancel", "changed")
    field.until("what was under way to end", lambda: not field.value("select count(*) from rota.run"))
    before = [runs(key) for key in ("far", "added", "altered")]
    field.until("the scheduler to sleep", sleeps)
    assert [runs(key) for key in ("far", "added", "altered")] == before
    assert before[0] == 0
