"""A scheduler: claim, ready, sleep."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey, partition_of
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.when import Once, Schedule, every

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Look


def test_a_job_that_is_due_is_claimed_once(house: House) -> None:
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    assert dispatch.queue == "mail"
    assert dispatch.args == '{"n": 1}'
    assert house.claim(scheduler).dispatches == []


def test_what_runs_once_is_claimed_by_itself_and_what_recurs_is_told_and_left(house: House) -> None:
    scheduler = house.join()
    once, recurring = house.job(), house.job(when=every(60))
    house.submit(once, recurring)
    claimed = house.claim_once(scheduler)
    assert ([d.job_id for d in claimed.dispatches], claimed.recurring) == ([once.id], False)
    house.bed.pass_time(60)
    house.submit(second := house.job())
    claimed = house.claim_once(scheduler)
    assert ([d.job_id for d in claimed.dispatches], claimed.recurring) == ([second.id], True)
    assert claimed.rows == 2, "it takes part in the limits"
    again = house.claim_once(scheduler)
    assert (again.dispatches, again.recurring) == ([], True)
    whole = house.claim(scheduler)
    assert ([d.job_id for d in whole.dispatches], whole.recurring) == ([recurring.id], True)
    assert not house.claim_once(scheduler).recurring


def test_a_job_that_is_not_due_stays(house: House) -> None:
    scheduler = house.join()
    house.submit(house.job(when=Once(after=60)))
    assert house.claim(scheduler).rows == 0


def test_a_past_instant_is_due_at_once_and_keeps_its_nominal_tick(house: House) -> None:
    scheduler = house.join()
    house.submit(house.job(when=Once(at=datetime(2020, 1, 1, tzinfo=UTC))))
    (dispatch,) = house.claim(scheduler).dispatches
    assert dispatch.scheduled_for == "2020-01-01T00:00:00.000000Z"


def test_dispatch_numbers_rise_from_claim_to_claim(house: House) -> None:
    scheduler = house.join()
    numbers = []
    for _ in range(3):
        house.submit(house.job(), house.job())
        numbers += [d.dispatch for d in house.claim(scheduler).dispatches]
    assert numbers == sorted(set(numbers))


def test_the_dead_claim_nothing(house: House) -> None:
    scheduler = house.join()
    house.submit()
    house.lose(house.join(), scheduler)
    with pytest.raises(Superseded, match=str(scheduler)):
        house.claim(scheduler)
    with pytest.raises(Superseded, match=str(scheduler)):
        house.claim_once(scheduler)


def test_a_lane_that_is_not_asked_gives_nothing(house: House) -> None:
    scheduler = house.join()
    house.submit(house.job(queue="mail"), house.job(queue="slow"))
    claimed = house.claim(scheduler, lanes=house.lanes(["slow"]))
    assert [d.queue for d in claimed.dispatches] == ["slow"]


def test_a_claim_tells_what_each_lane_gave(house: House) -> None:
    scheduler = house.join()
    house.submit(*[house.job() for _ in range(200)])
    claimed = house.claim(scheduler, limit=500, per_lane=2)
    assert claimed.rows == len(claimed.dispatches)
    assert all(s.rows <= 2 for s in claimed.served)


def test_long_arguments_stay_out_of_the_message_and_come_with_begin(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(args='{"text":"' + "x" * 20_000 + '"}'))
    (d,) = house.claim(scheduler).dispatches
    assert d.args is None
    (begun,) = house.run(house.store.begin(worker, [(RunKey(d.job_id, d.scheduled_for), d.dispatch, True)]))
    assert len(begun.args or "") > 20_000


def test_a_recurring_job_stays_and_its_cursor_moves_on(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=3600))
    house.submit(job)
    house.bed.pass_time(3601)
    before = house.future(job.id)["scheduled_for"]
    claimed = house.claim(scheduler)
    (dispatch,) = claimed.dispatches
    assert dispatch.job_id == job.id
    assert dispatch.scheduled_for == before
    after = house.future(job.id)
    assert datetime.fromisoformat(after["scheduled_for"]) - datetime.fromisoformat(before) == timedelta(hours=1)
    assert after["next_run_at"] == after["scheduled_for"]
    assert house.claim(scheduler).rows == 0


def test_missed_ticks_are_told_in_history(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, misfire="run_latest"))
    house.submit(job)
    house.bed.pass_time(3600)
    claimed = house.claim(scheduler)
    assert len(claimed.dispatches) == 1
    assert house.outcomes(job.id) == ["skipped"]


def test_an_overlapping_tick_is_skipped_with_its_reason(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, overlap="skip"))
    house.submit(job)
    for _ in range(2):
        house.bed.pass_time(60.5)
        claimed = house.claim(scheduler)
    assert claimed.dispatches == []
    (past,) = house.shown(job.id).history
    assert past["outcome"] == "skipped"
    assert "overlap" in past["reason"]


def test_with_an_overload_every_lane_is_served(house: House) -> None:
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


def test_ready_runs_get_a_new_number_and_are_waiting_under_the_scheduler(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    house.lose(scheduler, worker)
    (again,) = house.ready(scheduler)
    assert again.job_id == dispatch.job_id
    assert again.dispatch > dispatch.dispatch
    assert house.standing(begun.key).state == "waiting"
    assert house.ready(scheduler) == []


def test_with_very_many_ready_runs_every_partition_is_served(house: House) -> None:
    """As after a redrive of everything: what recovery sets ready must not wait until the first partitions are empty."""
    old, new, book = house.join(), house.join(), LaneBook()
    book.set(range(64), ["mail"])
    house.submit(*[house.job() for _ in range(1000)])
    while house.claim(old).rows:
        pass
    assert house.lose(new, old).adopted == 1000
    served: set[int] = set()
    for _ in range(8):
        lanes = book.walk_ready()
        ready = house.run(house.store.ready(new, lanes, 100, 8))
        assert len(ready.dispatches) <= 100
        assert all(s.rows <= 8 for s in ready.served)
        book.readied(lanes, ready, 100, 8)
        served |= {partition_of(d.job_id) for d in ready.dispatches}
    assert len(served) == 64


def test_what_is_ready_in_a_queue_that_takes_nothing_is_left_alone(house: House) -> None:
    old, new = house.join(), house.join()
    house.queues = ["mail", "other"]
    house.submit(house.job(), house.job(queue="other"))
    assert len(house.claim(old).dispatches) == 2
    house.lose(new, old)
    (dispatch,) = house.run(house.store.ready(new, house.lanes(["other"]), 100)).dispatches
    assert dispatch.queue == "other"
    look = house.run(house.store.sleep(new, house.lanes(["other"]), 60))
    assert (look.due, look.seconds) == ([], 60)
    assert [d.queue for d in house.ready(new)] == ["mail"]


def test_sleep_tells_when_the_next_thing_is_due(house: House) -> None:
    scheduler = house.join()

    def sleep() -> Look:
        return house.run(house.store.sleep(scheduler, house.lanes(), 60))

    assert sleep().seconds == 60
    house.submit(house.job(when=Once(after=30)))
    assert 25 < sleep().seconds <= 30
    job = house.job()
    house.submit(job)
    look = sleep()
    ((part, queue, since),) = look.due
    assert (look.seconds, part, queue) == (0, partition_of(job.id), "mail")
    assert since <= look.at
    house.claim(scheduler)
    assert sleep().due == []


def test_sleep_looks_no_lower_than_it_is_told(house: House) -> None:
    scheduler, lanes = house.join(), house.lanes()
    house.submit()
    later = replace(lanes, lows=[datetime.now(UTC) + timedelta(hours=1)] * len(lanes.lows))
    assert house.run(house.store.sleep(scheduler, later, 60)).due == []
    assert len(house.run(house.store.sleep(scheduler, lanes, 60)).due) == 1


def test_sleep_tells_whether_an_earlier_promise_was_kept(house: House) -> None:
    scheduler = house.join()

    def kept(longest: float) -> bool:
        return house.run(house.store.sleep(scheduler, house.lanes(), longest)).kept

    assert not kept(60)
    assert kept(60)
    house.run(house.store.wake(scheduler))
    assert not kept(60)
    assert kept(0)
    assert not kept(60), "it looked and stayed awake"


def test_sleep_tells_how_the_partitions_are_shared_and_which_queues_there_are(house: House) -> None:
    one = house.join()
    parts = house.run(house.store.partitions(one))
    other, _ = house.join(), house.join("worker")
    house.submit(house.job(queue="slow"))
    look = house.run(house.store.sleep(one, house.lanes(), 60))
    assert [name for name, _ in look.queues] == ["slow"]
    assert look.schedulers == [one, other]
    assert look.owners == dict.fromkeys(parts, one)


def test_the_dead_promise_nothing(house: House) -> None:
    scheduler = house.join()
    house.lose(house.join(), scheduler)
    with pytest.raises(Superseded, match=str(scheduler)):
        house.run(house.store.sleep(scheduler, house.lanes(), 60))
