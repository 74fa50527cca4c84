"""A worker: begin, finish, give back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey
from rota.sched.policy import Policy, Retry, policy
from rota.sched.store.values import End, HandlerRow, Return
from rota.sched.when import every

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House

_ERROR = '{"attempt": 1, "type": "ValueError", "message": "no"}'
_either_finish = pytest.mark.parametrize("finish", ["finish", "finish_unfollowed"])


def test_a_begun_run_is_running_under_its_worker_with_a_fence(house: House) -> None:
    _, worker, dispatch, begun = house.started()
    standing = house.standing(begun.key)
    assert (standing.state, standing.owner, standing.fence) == ("running", worker, begun.fence)
    assert begun.fence > dispatch.dispatch
    assert begun.attempt == 1


def test_a_copy_of_the_message_begins_nothing(house: House) -> None:
    _, worker, dispatch, _ = house.started()
    assert house.begin(worker, dispatch) == []


def test_a_stale_dispatch_number_begins_nothing(house: House) -> None:
    scheduler, worker, dispatch, _ = house.started()
    house.lose(scheduler, worker)
    house.ready(scheduler)
    assert house.begin(house.join("worker"), dispatch) == []


def test_the_dead_begin_nothing(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    house.lose(scheduler, worker)
    with pytest.raises(Superseded, match=str(worker)):
        house.begin(worker, dispatch)


@_either_finish
def test_a_finished_run_is_history_once(house: House, finish: str) -> None:
    *_, begun = house.started()
    end = End(begun.key, begun.fence, "succeeded", result='{"sum": 3}')
    assert house.run(getattr(house.store, finish)([end])) == {begun.key}
    assert house.run(getattr(house.store, finish)([end])) == set()
    (past,) = house.shown(begun.key.job_id).history
    assert [past[name] for name in ("outcome", "reason", "attempt", "errors", "result")] == [
        "succeeded",
        None,
        1,
        None,
        {"sum": 3},
    ]
    assert house.standing(begun.key).state is None


@_either_finish
def test_a_finish_under_another_fence_writes_nothing(house: House, finish: str) -> None:
    *_, begun = house.started()
    assert house.run(getattr(house.store, finish)([End(begun.key, begun.fence + 1, "succeeded")])) == set()
    assert house.standing(begun.key).state == "running"


@_either_finish
def test_an_attempt_that_was_taken_away_can_write_nothing(house: House, finish: str) -> None:
    scheduler, worker, _, begun = house.started()
    house.lose(scheduler, worker)
    (again,) = house.ready(scheduler)
    (second,) = house.begin(house.join("worker"), again)
    assert house.run(getattr(house.store, finish)([End(begun.key, begun.fence, "succeeded")])) == set()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 1, _ERROR)])) == set()
    assert house.run(getattr(house.store, finish)([End(second.key, second.fence, "succeeded")])) == {second.key}


@_either_finish
def test_between_its_loss_and_the_next_begin_a_run_is_nobodys(house: House, finish: str) -> None:
    scheduler, worker, _, begun = house.started()
    house.lose(scheduler, worker)
    assert house.standing(begun.key).fence is None
    assert house.run(getattr(house.store, finish)([End(begun.key, begun.fence, "succeeded")])) == set()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 1, _ERROR)])) == set()
    assert house.standing(begun.key).state == "waiting"


def test_a_return_under_another_fence_writes_nothing(house: House) -> None:
    *_, begun = house.started()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence + 1, "retry", 1, _ERROR)])) == set()
    assert house.standing(begun.key).state == "running"


def test_only_recovery_judges_the_dead(house: House) -> None:
    """A worker that is late keeps its run: nobody else begins it, and what it writes counts."""
    _, worker, dispatch, begun = house.started()
    house.bed.silence(worker)
    assert house.begin(house.join("worker"), dispatch) == []
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}


@pytest.mark.parametrize("kind", ["retry", "snooze", "release"])
def test_what_was_asked_to_stop_does_not_go_on(house: House, kind: Literal["retry", "snooze", "release"]) -> None:
    *_, begun = house.started()
    house.run(house.store.cancel(begun.key.job_id, None, running=True, reason="asked to"))
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, kind, 1)])) == set()
    standing = house.standing(begun.key)
    assert (standing.state, standing.fence, standing.cancel_requested) == ("running", begun.fence, True)
    house.run(house.store.finish([End(begun.key, begun.fence, "cancelled", "by its worker", error=_ERROR)]))
    (past,) = house.shown(begun.key.job_id).history
    assert (past["outcome"], past["reason"], len(past["errors"])) == ("cancelled", "asked to", 1)


def test_what_was_asked_to_stop_and_begun_without_an_answer_ends(house: House) -> None:
    _, worker, _, begun = house.started()
    house.run(house.store.cancel(begun.key.job_id, None, running=True, reason="asked to"))
    owned = house.run(house.store.owned(worker))
    assert house.run(house.store.disown(owned)) == 1
    assert house.outcomes(begun.key.job_id) == ["cancelled"]


def test_an_end_that_was_not_asked_for_has_the_handlers_reason(house: House) -> None:
    *_, begun = house.started()
    house.run(house.store.finish([End(begun.key, begun.fence, "cancelled", "not needed")]))
    assert house.shown(begun.key.job_id).history[0]["reason"] == "not needed"


def test_the_first_error_and_the_latest_are_kept(house: House) -> None:
    _, worker, dispatch, begun = house.started()
    for n in range(2, 30):
        error = f'{{"attempt": {n - 1}}}'
        house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 0, error)]))
        house.bed.pass_time(1)
        (begun,) = house.begin(worker, dispatch)
    (run,) = house.shown(begun.key.job_id).runs
    kept = [error["attempt"] for error in run["errors"]]
    assert kept == [1, *range(30 - len(kept), 29)]
    assert len(kept) == 20
    assert all(error["at"].endswith("Z") for error in run["errors"])


# What a job asks for itself, and what its attempts leave.


def test_a_jobs_policy_comes_with_its_attempts(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    asked = policy(Retry(attempts=9), timeout=30, expires=60)
    house.submit(house.job(policy=asked), house.job())
    begun = [b.policy for b in house.begin(worker, *house.claim(scheduler).dispatches)]
    assert None in begun
    assert asked in [Policy.from_json(each) for each in begun]


def test_what_cannot_begin_in_time_expires_and_says_so(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    late, other = house.job(policy=policy(expires=60)), house.job()
    house.submit(late, other)
    dispatches = house.claim(scheduler).dispatches
    house.bed.pass_time(59)
    assert house.run(house.store.expire()) == 0
    house.bed.pass_time(2)
    assert [b.key.job_id for b in house.begin(worker, *dispatches)] == [other.id]
    (key,) = (RunKey(d.job_id, d.scheduled_for) for d in dispatches if d.job_id == late.id)
    assert house.standing(key).expired
    assert house.recover(scheduler).expired == 1
    (past,) = house.shown(late.id).history
    assert past["outcome"] == "expired"
    assert "within 60 s of its due time" in past["reason"]


def test_what_runs_does_not_expire_and_its_retry_does(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(policy=policy(expires=60)))
    (begun,) = house.begin(worker, *house.claim(scheduler).dispatches)
    house.bed.pass_time(61)
    assert house.run(house.store.expire()) == house.run(house.store.expire([begun.key])) == 0
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60, _ERROR)]))
    assert house.run(house.store.expire([])) == 0
    assert house.run(house.store.expire([begun.key])) == 1
    assert house.outcomes(begun.key.job_id) == ["expired"]


def test_each_tick_of_a_schedule_has_its_own_time_to_begin(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=every(60, misfire="run_all"), policy=policy(expires=90))
    house.submit(job)
    house.bed.pass_time(180)
    assert len(house.claim(scheduler).dispatches) >= 2
    assert house.run(house.store.expire()) >= 1
    assert house.shown(job.id).runs


def test_a_handler_that_nobody_has_is_waited_for_and_then_the_run_is_dead(house: House) -> None:
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    refs = [(RunKey(dispatch.job_id, dispatch.scheduled_for), dispatch.dispatch)]
    for _ in range(2):
        assert house.run(house.store.set_aside(refs, 3600)) == []
        house.bed.pass_time(1799)
    house.bed.pass_time(10)
    assert house.run(house.store.set_aside([(refs[0][0], dispatch.dispatch + 1)], 3600)) == []  # a stale copy
    (death,) = house.run(house.store.set_aside(refs, 3600))
    assert (death.key, death.queue, death.handler) == (refs[0][0], "mail", "send")
    (dead,) = house.shown(dispatch.job_id).dead
    assert dead["reason"] == "unknown handler: no worker of queue mail has had handler send for 3600 s"
    assert (dead["attempt"], dead["losses"]) == (0, 0)


def test_a_handler_that_somebody_announces_keeps_its_runs_alive(house: House) -> None:
    scheduler = house.join()
    house.submit()
    (dispatch,) = house.claim(scheduler).dispatches
    refs = [(RunKey(dispatch.job_id, dispatch.scheduled_for), dispatch.dispatch)]
    house.run(house.store.set_aside(refs, 3600))
    house.bed.pass_time(3000)
    house.run(house.store.announce([HandlerRow("send", "app", "mail", {})], ["mail"]))
    house.bed.pass_time(3000)
    assert house.run(house.store.set_aside(refs, 3600)) == []
    house.bed.pass_time(700)
    assert [death.key for death in house.run(house.store.set_aside(refs, 3600))] == [refs[0][0]]


def test_a_checkpoint_outlives_its_worker(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    assert begun.checkpoint is None
    assert house.run(house.store.checkpoint(begun.key, begun.fence, '{"page": 7}'))
    house.lose(scheduler, worker)
    (again,) = house.ready(scheduler)
    (second,) = house.begin(house.join("worker"), again)
    assert second.checkpoint == '{"page": 7}'
    assert not house.run(house.store.checkpoint(begun.key, begun.fence, '{"page": 8}')), "a fenced write"
    assert dispatch.dispatch < again.dispatch


def test_progress_is_that_of_the_attempt_that_runs(house: House) -> None:
    *_, begun = house.started()
    told = [(begun.key, begun.fence, '{"fraction": 0.5}'), (begun.key, begun.fence + 1, '{"fraction": 0.9}')]
    assert house.run(house.store.progress(told)) == 1
    (run,) = house.shown(begun.key.job_id).runs
    assert run["progress"]["fraction"] == 0.5


def test_a_failed_attempt_is_retried_when_its_time_has_come(house: House) -> None:
    _, worker, dispatch, begun = house.started()
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60, _ERROR)])) == {begun.key}
    standing = house.standing(begun.key)
    assert (standing.state, standing.fence) == ("retrying", None)
    assert 55 < standing.seconds <= 60
    assert house.begin(worker, dispatch) == []
    house.bed.pass_time(61)
    (second,) = house.begin(worker, dispatch)
    assert (second.attempt, second.failures) == (2, 1)


def test_a_finish_that_commits_after_the_retry_is_refused(house: House) -> None:
    *_, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 60, _ERROR)]))
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == set()


@pytest.mark.parametrize("kind", ["snooze", "release"])
def test_snooze_and_release_spend_no_attempt(house: House, kind: Literal["snooze", "release"]) -> None:
    _, worker, dispatch, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, kind)]))
    (second,) = house.begin(worker, dispatch)
    assert (second.attempt, second.failures) == (1, 0)


def test_the_last_failure_goes_to_the_dead_with_all_errors(house: House) -> None:
    _, worker, dispatch, begun = house.started()
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 0, _ERROR)]))
    (second,) = house.begin(worker, dispatch)
    house.run(house.store.finish([End(second.key, second.fence, "dead", "two attempts failed", error=_ERROR)]))
    view = house.shown(begun.key.job_id)
    (dead,) = view.dead
    assert (dead["reason"], dead["attempt"], len(dead["errors"])) == ("two attempts failed", 2, 2)
    assert view.history == []
