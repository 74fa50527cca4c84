"""Who takes part: heartbeats, shares, and the recovery of what the dead left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.ids import RunKey
from rota.sched.store.conformance.house import LEASE, House
from rota.sched.store.values import Return

if TYPE_CHECKING:
    from rota.sched.model import Dispatch
    from rota.sched.store.values import Begun


def test_partitions_are_even_after_joins_leaves_and_deaths(house: House) -> None:
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
    house.lose(c, a)
    assert settle(c) == [64]


def test_a_lost_worker_spends_no_attempt_and_counts_as_a_loss(house: House) -> None:
    scheduler, worker, _, begun = house.started()
    done = house.lose(scheduler, worker)
    assert (done.dead_members, done.requeued) == ([worker], 1)
    (again,) = house.ready(scheduler)
    (second,) = house.begin(house.join("worker"), again)
    assert (second.attempt, second.losses) == (1, 1)
    assert second.key == begun.key


def _lost(house: House, scheduler: int, dispatch: Dispatch, *, alone: bool = False) -> tuple[Begun, list[Dispatch]]:
    worker = house.join("worker")
    (begun,) = house.begin(worker, dispatch, alone=alone)
    house.lose(scheduler, worker)
    return begun, house.ready(scheduler)


def test_a_run_that_lost_two_workers_is_begun_alone_and_the_third_loss_kills_it(house: House) -> None:
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    for _ in range(2):
        begun, (dispatch,) = _lost(house, scheduler, dispatch)
    assert house.begin(house.join("worker"), dispatch) == []
    begun, ready = _lost(house, scheduler, dispatch, alone=True)
    assert ready == []
    (dead,) = house.shown(begun.key.job_id).dead
    assert dead["losses"] == 3
    assert dead["reason"].startswith("poison")


def test_a_dead_member_does_not_come_back_to_life(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.lose(scheduler, worker)
    assert house.run(house.store.beat(worker, {})) is None
    assert house.run(house.store.beat(scheduler, {"running": 0}, 7)) == house.run(house.store.status()).now[:10]


def test_after_a_pause_of_all_nobody_is_judged_at_once(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.bed.pass_time(60)
    assert house.lose(scheduler, worker).dead_members == []
    assert house.recover(scheduler).dead_members == [worker]


def test_recovery_is_one_schedulers_duty_at_a_time(house: House) -> None:
    a, b = house.join(), house.join()
    assert house.run(house.store.recover(a, LEASE, 60)).ran
    assert not house.recover(b).ran
    house.bed.pass_time(61)
    assert house.recover(b).ran


def test_who_asks_for_recovery_is_told_when_its_round_is_due(house: House) -> None:
    """Nobody can be late before a lease has gone by."""
    a, b = house.join(), house.join()
    house.recover(a)
    quiet = house.run(house.store.recover(a, LEASE, 10))
    asked = house.recover(b)
    assert (quiet.ran, asked.ran) == (True, False)
    assert 0 < asked.again_s <= quiet.again_s <= 10
    house.bed.pass_time(11)
    assert LEASE - 5 < house.run(house.store.recover(b, LEASE, 3600)).again_s <= LEASE


def test_what_a_member_leaves_is_looked_at_before_the_next_round_was_due(house: House) -> None:
    old, new = house.join(), house.join()
    house.recover(new)
    assert house.run(house.store.recover(new, LEASE, 10)).again_s > 1
    house.submit()
    house.claim(old)
    house.run(house.store.leave(old))
    assert house.run(house.store.recover(new, LEASE, 10)).adopted == 1


def test_unconfirmed_runs_of_a_dead_scheduler_are_adopted_and_confirmed_ones_are_not(house: House) -> None:
    old, new = house.join(), house.join()
    house.submit(house.job(), house.job())
    first, second = house.claim(old).dispatches
    house.run(house.store.beat(old, {}, first.dispatch))
    assert house.lose(new, old).adopted == 1
    (again,) = house.ready(new)
    assert again.job_id == second.job_id


_AFTER = 60.0


def _reconcile(house: House, scheduler: int, *empty: str) -> list[RunKey]:
    return house.run(house.store.reconcile(scheduler, empty, _AFTER, 0))


def _waiting(house: House) -> tuple[int, RunKey]:
    """(scheduler, key) of a run whose publish is confirmed and that nobody has begun."""
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    house.run(house.store.beat(scheduler, {}, dispatch.dispatch))
    return scheduler, RunKey(dispatch.job_id, dispatch.scheduled_for)


def test_a_run_whose_message_was_lost_is_dispatched_anew_once_its_queue_has_been_empty_for_long(house: House) -> None:
    scheduler, key = _waiting(house)
    assert _reconcile(house, scheduler, "mail") == []
    house.bed.pass_time(_AFTER + 1)
    assert _reconcile(house, scheduler, "other") == []
    assert _reconcile(house, scheduler, "mail") == [key]
    (again,) = house.ready(scheduler)
    assert again.job_id == key.job_id


def test_what_a_live_scheduler_may_still_be_publishing_is_left_alone(house: House) -> None:
    scheduler = house.join()
    house.submit()
    house.claim(scheduler)
    house.bed.pass_time(10 * _AFTER)
    assert _reconcile(house, scheduler, "mail") == []


def test_a_run_is_taken_for_overtaken_when_a_much_later_message_was_begun(house: House) -> None:
    scheduler, key = _waiting(house)
    house.bed.pass_time(_AFTER + 1)
    house.submit()
    (later,) = house.claim(scheduler).dispatches
    assert _reconcile(house, scheduler) == []
    house.begin(house.join("worker"), later)
    assert _reconcile(house, scheduler) == [key]


def test_the_reconciler_waits_twice_as_long_each_time(house: House) -> None:
    scheduler, key = _waiting(house)
    for doubled in (1, 2, 4):
        house.bed.pass_time(doubled * _AFTER - 5)
        assert _reconcile(house, scheduler, "mail") == []
        house.bed.pass_time(10)
        assert _reconcile(house, scheduler, "mail") == [key]
        (again,) = house.ready(scheduler)
        house.run(house.store.beat(scheduler, {}, again.dispatch))


def test_a_retry_that_does_not_come_back_is_dispatched_anew(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    house.run(house.store.beat(scheduler, {}, dispatch.dispatch))
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 30)]))
    house.bed.pass_time(31 + _AFTER - 5)
    assert _reconcile(house, scheduler) == []
    house.bed.pass_time(10)
    assert _reconcile(house, scheduler) == [begun.key]
    (again,) = house.ready(scheduler)
    (second,) = house.begin(worker, again)
    assert second.attempt == 2


def test_what_a_scheduler_left_unconfirmed_is_adopted(house: House) -> None:
    """Nobody died: adoption is a standing sweep."""
    old, new = house.join(), house.join()
    house.submit()
    house.claim(old)
    house.run(house.store.leave(old))
    assert house.recover(new).adopted == 1
    assert len(house.ready(new)) == 1


def test_a_run_under_a_new_number_is_adopted_from_the_scheduler_that_gave_it(house: House) -> None:
    first, worker, _, _ = house.started()
    second = house.join()
    house.lose(first, worker)
    (again,) = house.ready(second)
    assert house.lose(first, second).adopted == 1
    (third,) = house.ready(first)
    assert third.dispatch > again.dispatch


def test_what_a_worker_left_running_is_recovered(house: House) -> None:
    scheduler, worker, _, _ = house.started()
    house.run(house.store.leave(worker))
    assert house.recover(scheduler).requeued == 1


def test_a_waiting_run_whose_message_is_a_dead_letter_is_dispatched_anew_once(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    key = RunKey(dispatch.job_id, dispatch.scheduled_for)
    assert house.run(house.store.ready_again([(key, dispatch.dispatch)])) == {key}
    (again,) = house.ready(scheduler)
    assert house.run(house.store.ready_again([(key, dispatch.dispatch)])) == set()
    assert house.begin(worker, dispatch) == []
    assert len(house.begin(worker, again)) == 1


def test_a_retry_whose_message_is_a_dead_letter_keeps_its_time_and_is_waiting_then(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60)]))
    assert house.run(house.store.ready_again([(begun.key, dispatch.dispatch)])) == {begun.key}
    assert house.ready(scheduler) == []
    house.bed.pass_time(61)
    (again,) = house.ready(scheduler)
    assert house.standing(begun.key).state == "waiting"
    assert len(house.begin(worker, again)) == 1


def test_a_running_run_is_left_to_recovery_by_the_dead_letter_of_its_message(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    assert house.run(house.store.ready_again([(begun.key, dispatch.dispatch)])) == set()
    house.lose(scheduler, worker)
    assert len(house.ready(scheduler)) == 1


def test_runs_whose_begin_was_not_answered_are_found_and_handed_back(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    owned = house.run(house.store.owned(worker))
    assert [(o.key, o.fence) for o in owned] == [(begun.key, begun.fence)]
    assert house.run(house.store.owned(worker, [begun.key])) == owned
    assert house.run(house.store.owned(worker, [])) == []
    assert house.run(house.store.owned(scheduler, [begun.key])) == []
    assert house.run(house.store.disown(owned)) == 1
    (again,) = house.ready(scheduler)
    (second,) = house.begin(worker, again)
    assert second.attempt == 1
    assert dispatch.dispatch != again.dispatch


def test_numbers_that_went_back_are_seen_and_moved_on(house: House) -> None:
    scheduler = house.join()
    house.submit(house.job(), house.job())
    first, second = house.claim(scheduler).dispatches
    health = house.run(house.store.health())
    assert health.number == second.dispatch
    assert health.highest == second.dispatch
    house.run(house.store.beat(scheduler, {"highest": second.dispatch + 1000}))
    health = house.run(house.store.health())
    assert health.highest == second.dispatch + 1000 > health.number
    moved = house.run(house.store.move_number(second.dispatch + 5000))
    house.submit()
    (third,) = house.claim(scheduler).dispatches
    assert third.dispatch > moved >= second.dispatch + 5000
    assert first.dispatch < second.dispatch
