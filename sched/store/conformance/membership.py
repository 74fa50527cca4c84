"""Who takes part: heartbeats, shares, and the recovery of what the dead left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.store.conformance.house import LEASE, House

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


def test_unconfirmed_runs_of_a_dead_scheduler_are_adopted_and_confirmed_ones_are_not(house: House) -> None:
    old, new = house.join(), house.join()
    house.submit(house.job(), house.job())
    first, second = house.claim(old).dispatches
    house.run(house.store.beat(old, {}, first.dispatch))
    assert house.lose(new, old).adopted == 1
    (again,) = house.ready(new)
    assert again.job_id == second.job_id


def test_runs_whose_begin_was_not_answered_are_found_and_handed_back(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    owned = house.run(house.store.owned(worker))
    assert [(o.key, o.fence) for o in owned] == [(begun.key, begun.fence)]
    assert house.run(house.store.disown(owned)) == 1
    (again,) = house.ready(scheduler)
    (second,) = house.begin(worker, again)
    assert second.attempt == 1
    assert dispatch.dispatch != again.dispatch
