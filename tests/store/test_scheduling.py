"""What any store must do for a scheduler. Written against the protocol."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey, partition_of
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.when import Once, Schedule


def test_a_job_that_is_due_is_claimed_once(house):
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    assert dispatch.queue == "mail"
    assert dispatch.args == '{"n": 1}'
    assert house.claim(scheduler).dispatches == []


def test_a_job_that_is_not_due_stays(house):
    scheduler = house.join()
    house.submit(house.job(when=Once(after=60)))
    assert house.claim(scheduler).rows == 0


def test_a_past_instant_is_due_at_once_and_keeps_its_nominal_tick(house):
    scheduler = house.join()
    house.submit(house.job(when=Once(at=datetime(2020, 1, 1, tzinfo=UTC))))
    (dispatch,) = house.claim(scheduler).dispatches
    assert dispatch.scheduled_for == "2020-01-01T00:00:00.000000Z"


def test_dispatch_numbers_rise_from_claim_to_claim(house):
    scheduler = house.join()
    numbers = []
    for _ in range(3):
        house.submit(house.job(), house.job())
        numbers += [d.dispatch for d in house.claim(scheduler).dispatches]
    assert numbers == sorted(set(numbers))


def test_the_dead_claim_nothing(house):
    scheduler = house.join()
    house.submit()
    house.kill(scheduler)
    house.recover(house.join())
    with pytest.raises(Superseded, match=str(scheduler)):
        house.claim(scheduler)


def test_a_lane_that_is_not_asked_gives_nothing(house):
    scheduler = house.join()
    house.submit(house.job(queue="mail"), house.job(queue="slow"))
    claimed = house.claim(scheduler, lanes=house.lanes(["slow"]))
    assert [d.queue for d in claimed.dispatches] == ["slow"]


def test_a_claim_tells_what_each_lane_gave(house):
    scheduler = house.join()
    house.submit(*[house.job() for _ in range(200)])
    claimed = house.claim(scheduler, limit=500, per_lane=2)
    assert claimed.rows == len(claimed.dispatches)
    assert all(s.rows <= 2 for s in claimed.served)


def test_long_arguments_stay_out_of_the_message_and_come_with_begin(house):
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(args='{"text":"' + "x" * 20_000 + '"}'))
    (d,) = house.claim(scheduler).dispatches
    assert d.args is None
    (begun,) = house.run(house.store.begin(worker, [(RunKey(d.job_id, d.scheduled_for), d.dispatch, True)]))
    assert len(begun.args) > 20_000


def test_a_recurring_job_stays_and_its_cursor_moves_on(house):
    scheduler = house.join()
    job = house.job(when=Schedule(every=3600))
    house.submit(job)
    house.sql(
        "update rota.job set next_run_at = now() - interval '1 second', scheduled_for = now() - interval '1 second'"
    )
    (before,) = house.sql("select scheduled_for from rota.job")
    claimed = house.claim(scheduler)
    (dispatch,) = claimed.dispatches
    assert dispatch.job_id == job.id
    assert datetime.fromisoformat(dispatch.scheduled_for) == before[0]
    ((after, due),) = house.sql("select scheduled_for, next_run_at from rota.job")
    assert after - before[0] == timedelta(hours=1)
    assert due == after
    assert house.claim(scheduler).rows == 0


def test_missed_ticks_are_told_in_history(house):
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, misfire="run_latest"))
    house.submit(job)
    house.sql("update rota.job set scheduled_for = now() - interval '1 hour', next_run_at = now() - interval '1 hour'")
    claimed = house.claim(scheduler)
    assert len(claimed.dispatches) == 1
    assert [row[0] for row in house.history(job.id)] == ["skipped"]


def test_an_overlapping_tick_is_skipped_with_its_reason(house):
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, overlap="skip"))
    house.submit(job)
    for _ in range(2):
        house.sql("update rota.job set scheduled_for = scheduled_for - interval '1 minute', next_run_at = now()")
        claimed = house.claim(scheduler)
    assert claimed.dispatches == []
    ((outcome, reason, *_),) = house.history(job.id)
    assert outcome == "skipped"
    assert "overlap" in reason


def test_a_schedule_that_cannot_be_computed_is_set_aside_and_stops_no_neighbour(house):
    scheduler = house.join()
    bad, good = house.job(when=Schedule(every=60)), house.job()
    house.submit(bad, good)
    house.sql('update rota.job set next_run_at = now(), schedule = \'{"cron": "nonsense"}\' where id = %s', bad.id)
    claimed = house.claim(scheduler)
    assert [d.job_id for d in claimed.dispatches] == [good.id]
    ((broken, reason),) = claimed.broken
    assert broken == bad.id
    assert house.sql("select paused, paused_reason from rota.job") == [(True, reason)]


def test_with_an_overload_every_lane_is_served(house):
    """20 % more is due than is claimed: no partition may starve."""
    scheduler, book = house.join(), LaneBook()
    book.set(range(64), ["mail"])
    served: Counter[int] = Counter()
    for _ in range(25):
        house.submit(*[house.job() for _ in range(120)])
        lanes = book.walk()
        claimed = house.claim(scheduler, limit=100, per_lane=16, lanes=lanes)
        book.claimed(lanes, claimed, 100, 16)
        served.update(partition_of(d.job_id) for d in claimed.dispatches)
    assert len(served) == 64
    assert max(served.values()) < 4 * min(served.values()) + 16


def test_ready_runs_get_a_new_number_and_are_waiting_under_the_scheduler(house):
    scheduler, worker, dispatch, begun = house.started()
    house.kill(worker)
    house.recover(scheduler)
    (again,) = house.run(house.store.ready(scheduler, list(range(64)), 10))
    assert again.job_id == dispatch.job_id
    assert again.dispatch > dispatch.dispatch
    assert house.state(begun.key).state == "waiting"
    assert house.run(house.store.ready(scheduler, list(range(64)), 10)) == []


def test_sleep_tells_when_the_next_thing_is_due_and_a_submit_of_something_earlier_wakes(house, store_url):
    scheduler = house.join()
    house.run(house.store.partitions(scheduler))
    house.submit(house.job(when=Once(after=30)))
    due = house.run(house.store.sleep(scheduler, house.lanes(), list(range(64)), 60))
    assert 25 < due.seconds <= 30
    with psycopg.connect(store_url, autocommit=True) as ear:
        ear.execute(f"listen {house.store.wake_channel}")
        house.submit(house.job(when=Once(after=40)))
        house.submit(house.job(when=Once(after=5)))
        house.run(house.store.wake(scheduler))
        house.submit(house.job())
        notes = list(ear.notifies(timeout=0.5))
    assert [note.payload for note in notes] == ["mail"]


def test_partitions_are_even_after_joins_leaves_and_deaths(house):
    def settle(*members: int) -> list[int]:
        for _ in range(4):
            shares = [len(house.run(house.store.partitions(m))) for m in members]
        return shares

    a = house.join()
    assert settle(a) == [64]
    b, c = house.join(), house.join()
    assert settle(a, b, c) == [22, 21, 21]
    house.run(house.store.leave(b))
    assert settle(a, c) == [32, 32]
    house.kill(a)
    house.recover(c)
    assert settle(c) == [64]
