"""A client: submit once, cancel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from rota.sched.ids import RunKey
from rota.sched.when import Once, Schedule

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Cancelled, Submitted


def _cancel(house: House, job_id: str, tick: str | None = None, *, running: bool = False) -> Cancelled:
    return house.run(house.store.cancel(job_id, tick, running=running, reason="asked to"))


def test_the_same_key_and_request_again_is_a_duplicate_with_the_first_id(house: House) -> None:
    first, second = house.job(key="k"), house.job(key="k")
    house.submit(first)
    (answer,) = house.submit(second)
    assert (answer.job_id, answer.duplicate, answer.conflict) == (first.id, True, None)
    assert house.stored() == 1


def test_the_same_key_with_another_request_is_refused(house: House) -> None:
    house.submit(house.job(key="k"))
    (answer,) = house.submit(house.job(key="k", request="other"))
    assert answer.conflict == "key 'k'"
    assert house.stored() == 1


def test_a_key_in_another_scope_is_another_key(house: House) -> None:
    house.submit(house.job(key="k", scope="a"), house.job(key="k", scope="b"))
    assert house.stored() == 2


def test_a_key_outlives_the_job_that_ran(house: House) -> None:
    scheduler = house.join()
    first = house.job(key="k")
    house.submit(first)
    house.claim(scheduler)
    (answer,) = house.submit(house.job(key="k"))
    assert (answer.job_id, answer.duplicate) == (first.id, True)


def test_a_key_may_be_used_again_after_its_time(house: House) -> None:
    first = house.job(key="k")
    house.submit(first)
    house.bed.pass_time(first.key_seconds + 1)
    (answer,) = house.submit(house.job(key="k", request="other"))
    assert answer.conflict is None
    assert not answer.duplicate


def test_one_key_twice_in_a_batch_is_stored_once(house: House) -> None:
    """Refused whole by some databases: the client takes duplicates out before."""
    house.submit(house.job(key="a"))
    answers = house.submit(house.job(key="a"), house.job(key="b"))
    assert [a.duplicate for a in answers] == [True, False]


def test_concurrent_submits_of_one_key_store_one_job(house: House) -> None:
    answers: list[Submitted] = []

    def go() -> None:
        link = house.store.link("other")
        answers.append(link.run(house.store.submit([house.job(key="k")]))[0])
        link.close()

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({a.job_id for a in answers}) == 1
    assert sorted(a.duplicate for a in answers) == [False] + [True] * 7


def test_a_name_belongs_to_one_job(house: House) -> None:
    first = house.job(name="nightly", when=Schedule(every=60))
    house.submit(first)
    (same,) = house.submit(house.job(name="nightly", when=Schedule(every=60)))
    (other,) = house.submit(house.job(name="nightly", request="other", when=Schedule(every=60)))
    assert (same.job_id, same.duplicate) == (first.id, True)
    assert other.conflict == "name 'nightly'"
    assert house.stored() == 1


@pytest.mark.parametrize("how_far", ["stored", "claimed", "ended"])
def test_a_submit_whose_answer_was_lost_may_be_repeated(house: House, how_far: str) -> None:
    scheduler = house.join()
    job = house.job()
    house.submit(job)
    if how_far != "stored":
        house.claim(scheduler)
    if how_far == "ended":
        _cancel(house, job.id)
    (answer,) = house.submit(job, repeated=True)
    assert answer.job_id == job.id
    assert house.claim(scheduler).rows == (1 if how_far == "stored" else 0)


def test_a_job_that_is_cancelled_before_its_claim_has_a_row_that_says_why(house: House) -> None:
    job = house.job(when=Once(after=60))
    house.submit(job)
    done = _cancel(house, job.id)
    assert done.job
    assert [(row["outcome"], row["reason"]) for row in house.shown(job.id).history] == [("cancelled", "asked to")]
    assert _cancel(house, job.id).nothing


def test_a_waiting_run_is_cancelled_at_once(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    job = house.job()
    house.submit(job)
    (dispatch,) = house.claim(scheduler).dispatches
    assert _cancel(house, job.id).runs == 1
    assert house.begin(worker, dispatch) == []
    assert house.outcomes(job.id) == ["cancelled"]


def test_a_running_run_is_asked_to_stop_only_if_wanted(house: House) -> None:
    _, worker, dispatch, begun = house.started()
    left = _cancel(house, begun.key.job_id)
    assert (left.nothing, left.running) == (True, 1)
    asked = _cancel(house, begun.key.job_id, running=True)
    assert asked.asked == 1
    (owned,) = house.run(house.store.owned(worker))
    assert owned.cancel_requested
    assert dispatch.job_id == begun.key.job_id


def test_one_run_is_cancelled_by_its_tick(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=60))
    house.submit(job)
    for _ in range(2):
        house.bed.pass_time(60.5)
        (dispatch,) = house.claim(scheduler).dispatches
    assert _cancel(house, job.id, dispatch.scheduled_for).runs == 1
    assert len(house.shown(job.id).runs) == 1
    assert house.stored() == 1
    assert house.standing(RunKey(job.id, dispatch.scheduled_for)).state is None


def test_a_cancelled_run_whose_worker_is_lost_does_not_run_again(house: House) -> None:
    scheduler, worker, _, begun = house.started()
    _cancel(house, begun.key.job_id, running=True)
    assert house.lose(scheduler, worker).cancelled == 1
    assert house.outcomes(begun.key.job_id) == ["cancelled"]
