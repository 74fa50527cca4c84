"""What any store must do for a worker: begin, finish, give back, recover. Written against the protocol."""

from __future__ import annotations

import psycopg
import pytest
from rota.sched.errors import Superseded
from rota.sched.store.transaction import Query, transaction
from rota.sched.store.values import DeadFilter, End, Return

ERROR = '{"attempt": 1, "type": "ValueError", "message": "no"}'


def test_a_begun_run_is_running_under_its_worker_with_a_fence(house):
    _, worker, dispatch, begun = house.started()
    standing = house.state(begun.key)
    assert (standing.state, standing.owner, standing.fence) == ("running", worker, begun.fence)
    assert begun.fence > dispatch.dispatch
    assert begun.attempt == 1


def test_a_copy_of_the_message_begins_nothing(house):
    _, worker, dispatch, _ = house.started()
    assert house.begin(worker, dispatch) == []


def test_a_stale_dispatch_number_begins_nothing(house):
    scheduler, worker, dispatch, _ = house.started()
    house.kill(worker)
    house.recover(scheduler)
    house.run(house.store.ready(scheduler, list(range(64)), 10))
    assert house.begin(house.join("worker"), dispatch) == []


def test_the_dead_begin_nothing(house):
    scheduler, worker = house.join(), house.join("worker")
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    house.kill(worker)
    house.recover(scheduler)
    with pytest.raises(Superseded, match=str(worker)):
        house.begin(worker, dispatch)


def test_a_finished_run_is_history_once(house):
    *_, begun = house.started()
    end = End(begun.key, begun.fence, "succeeded", result='{"sum": 3}')
    assert house.run(house.store.finish([end])) == {begun.key}
    assert house.run(house.store.finish([end])) == set()
    assert house.history(begun.key.job_id) == [("succeeded", None, 1, None, {"sum": 3})]
    assert house.state(begun.key).state is None


def test_a_finish_under_another_fence_writes_nothing(house):
    *_, begun = house.started()
    assert house.run(house.store.finish([End(begun.key, begun.fence + 1, "succeeded")])) == set()
    assert house.state(begun.key).state == "running"


def test_an_attempt_that_was_taken_away_can_write_nothing(house):
    scheduler, worker, _, begun = house.started()
    house.kill(worker)
    house.recover(scheduler)
    (again,) = house.run(house.store.ready(scheduler, list(range(64)), 10))
    (second,) = house.begin(house.join("worker"), again)
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == set()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 1, ERROR)])) == set()
    assert house.run(house.store.finish([End(second.key, second.fence, "succeeded")])) == {second.key}


def test_a_failed_attempt_is_retried_when_its_time_has_come(house):
    _, worker, dispatch, begun = house.started()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60, ERROR)])) == {begun.key}
    standing = house.state(begun.key)
    assert standing.state == "retrying"
    assert 55 < standing.seconds <= 60
    assert house.begin(worker, dispatch) == []
    house.sql("update rota.run set retry_at = now()")
    (second,) = house.begin(worker, dispatch)
    assert (second.attempt, second.failures) == (2, 1)


def test_a_finish_that_commits_after_the_retry_is_refused(house):
    *_, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60, ERROR)]))
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == set()


@pytest.mark.parametrize("kind", ["snooze", "release"])
def test_snooze_and_release_spend_no_attempt(house, kind):
    _, worker, dispatch, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, kind)]))
    (second,) = house.begin(worker, dispatch)
    assert (second.attempt, second.failures) == (1, 0)


def test_the_last_failure_goes_to_the_dead_with_all_errors(house):
    _, worker, dispatch, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 0, ERROR)]))
    (second,) = house.begin(worker, dispatch)
    house.run(house.store.finish([End(second.key, second.fence, "dead", "two attempts failed", error=ERROR)]))
    ((reason, attempt, _, errors),) = house.dead(begun.key.job_id)
    assert (reason, attempt, len(errors)) == ("two attempts failed", 2, 2)
    assert house.history(begun.key.job_id) == []


def test_a_lost_worker_spends_no_attempt_and_counts_as_a_loss(house):
    scheduler, worker, _, begun = house.started()
    house.kill(worker)
    done = house.recover(scheduler)
    assert (done.dead_members, done.requeued) == ([worker], 1)
    (again,) = house.run(house.store.ready(scheduler, list(range(64)), 10))
    (second,) = house.begin(house.join("worker"), again)
    assert (second.attempt, second.losses) == (1, 1)
    assert second.key == begun.key


def lose(house, scheduler, dispatch, **options):
    worker = house.join("worker")
    (begun,) = house.begin(worker, dispatch, **options)
    house.kill(worker)
    house.recover(scheduler)
    return begun, house.run(house.store.ready(scheduler, list(range(64)), 10))


def test_a_run_that_lost_two_workers_is_begun_alone_and_the_third_loss_kills_it(house):
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    for _ in range(2):
        begun, (dispatch,) = lose(house, scheduler, dispatch)
    assert house.begin(house.join("worker"), dispatch) == []
    begun, ready = lose(house, scheduler, dispatch, alone=True)
    assert ready == []
    ((reason, _, losses, _),) = house.dead(begun.key.job_id)
    assert losses == 3
    assert reason.startswith("poison")


def test_a_dead_member_does_not_come_back_to_life(house):
    scheduler, worker = house.join(), house.join("worker")
    house.kill(worker)
    house.recover(scheduler)
    assert house.run(house.store.beat(worker, {})) is False
    assert house.run(house.store.beat(scheduler, {"running": 0}, 7)) is True


def test_after_a_pause_of_all_nobody_is_judged_at_once(house):
    scheduler, worker = house.join(), house.join("worker")
    house.kill(worker)
    house.sql("update rota.duty set due_at = to_timestamp(0), ran_at = now() - interval '1 minute'")
    assert house.run(house.store.recover(scheduler, 15, 0)).dead_members == []
    assert house.run(house.store.recover(scheduler, 15, 0)).dead_members == [worker]


def test_a_member_that_stands_still_inside_its_transaction_does_not_hold_up_recovery_of_the_others(house, store_url):
    """Frozen after its begin and before its commit, it keeps the lock on its own row."""
    scheduler, frozen, dead = house.join(), house.join("worker"), house.join("worker")
    house.kill(frozen)
    house.kill(dead)
    with psycopg.connect(store_url) as still:
        still.execute("select id from rota.member where id = %s for key share", [frozen])
        assert house.recover(scheduler).dead_members == [dead]
    assert house.recover(scheduler).dead_members == [frozen]


def test_a_run_that_a_frozen_worker_is_about_to_end_does_not_hold_up_recovery_of_the_others(house, store_url):
    """Frozen after its finish and before its commit, it keeps the lock on that run's row."""
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(), house.job())
    held, other = house.begin(worker, *house.claim(scheduler).dispatches)
    house.kill(worker)
    with psycopg.connect(store_url) as still:
        still.execute("delete from rota.run where job_id = %s", [held.key.job_id])
        done = house.recover(scheduler)
        assert (done.dead_members, done.requeued) == ([worker], 1)
        assert house.state(other.key).state == "waiting"
        still.rollback()
    assert house.recover(scheduler).requeued == 1
    assert house.state(held.key).state == "waiting"


def test_a_waiting_run_that_is_locked_does_not_hold_up_adoption_of_the_others(house, store_url):
    old, new = house.join(), house.join()
    house.submit(house.job(), house.job())
    first, _ = house.claim(old).dispatches
    house.kill(old)
    with psycopg.connect(store_url) as still:
        still.execute("select from rota.run where job_id = %s for update", [first.job_id])
        assert house.recover(new).adopted == 1
    assert house.recover(new).adopted == 1


def test_the_store_ends_a_transaction_that_stands_still(house):
    @transaction()
    def ask():
        return (yield Query("show idle_in_transaction_session_timeout"))

    assert house.run(ask()) == [("10s",)]


def test_recovery_is_one_schedulers_duty_at_a_time(house):
    a, b = house.join(), house.join()
    assert house.recover(a).ran
    assert not house.run(house.store.recover(b, 15, 2)).ran


def test_unconfirmed_runs_of_a_dead_scheduler_are_adopted_and_confirmed_ones_are_not(house):
    old, new = house.join(), house.join()
    house.submit(house.job(), house.job())
    first, second = house.claim(old).dispatches
    house.run(house.store.beat(old, {}, first.dispatch))
    house.kill(old)
    assert house.recover(new).adopted == 1
    (again,) = house.run(house.store.ready(new, list(range(64)), 10))
    assert again.job_id == second.job_id


def test_runs_whose_begin_was_not_answered_are_found_and_handed_back(house):
    scheduler, worker, dispatch, begun = house.started()
    owned = house.run(house.store.owned(worker))
    assert [(o.key, o.fence) for o in owned] == [(begun.key, begun.fence)]
    assert house.run(house.store.disown(owned)) == 1
    (again,) = house.run(house.store.ready(scheduler, list(range(64)), 10))
    (second,) = house.begin(worker, again)
    assert second.attempt == 1
    assert dispatch.dispatch != again.dispatch


def test_a_missing_day_of_history_is_made_by_the_finish_that_needs_it(house):
    *_, begun = house.started()
    for (name,) in house.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'rota.history'::regclass"
    ):
        house.sql(f"drop table {name}")
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}
    assert len(house.history(begun.key.job_id)) == 1


def died(house):
    scheduler, worker, dispatch, begun = house.started()
    house.run(house.store.finish([End(begun.key, begun.fence, "dead", "broken pipe", error=ERROR)]))
    return scheduler, worker, dispatch, begun


def test_a_redriven_run_starts_anew_with_other_arguments(house):
    scheduler, worker, dispatch, begun = died(house)
    assert house.run(house.store.redrive(DeadFilter(keys=[begun.key]), '{"n": 2}')) == [begun.key]
    assert house.begin(worker, dispatch) == []
    (again,) = house.run(house.store.ready(scheduler, list(range(64)), 10))
    assert again.args == '{"n": 2}'
    (second,) = house.begin(worker, again)
    assert second.attempt == 1
    assert house.dead(begun.key.job_id) == []


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (DeadFilter(queue="mail"), True),
        (DeadFilter(queue="other"), False),
        (DeadFilter(handler="send"), True),
        (DeadFilter(error="BROKEN"), True),
        (DeadFilter(error="valueerror"), True),
        (DeadFilter(error="100%"), False),
    ],
)
def test_dead_runs_are_chosen_by_what_is_asked(house, which, found):
    *_, begun = died(house)
    assert house.run(house.store.choose_dead(which)) == ([begun.key] if found else [])


def test_a_discarded_run_is_history(house):
    *_, begun = died(house)
    assert house.run(house.store.discard(DeadFilter(keys=[begun.key]))) == [begun.key]
    assert [row[0] for row in house.history(begun.key.job_id)] == ["discarded"]
