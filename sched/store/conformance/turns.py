"""Ticks that are due while runs of their job are alive, jobs that end after so many runs, and what runs know of missed ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from rota.sched.ids import RunKey
from rota.sched.model import LOSSES_LIMIT
from rota.sched.policy import policy
from rota.sched.store.values import DeadFilter, End, HandlerRow, Owned, Redrive, Return
from rota.sched.when import Once, Schedule, every

if TYPE_CHECKING:
    from collections.abc import Callable

    from rota.sched.model import Dispatch
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Begun, Claimed, Recovered
    from rota.sched.store.views import Row

MINUTE = 60.5
"""A little more than an interval, so that each wait makes one tick due."""
_ERROR = '{"attempt": 1, "type": "ValueError", "message": "no"}'


class _Line:
    """A job whose first tick runs, and its members."""

    def __init__(self, house: House, overlap: str = "buffer_one", *, begin: bool = True, **more: Any) -> None:
        self.house = house
        self.scheduler, self.worker = house.join(), house.join("worker")
        policies: dict[str, Any] = {k: more.pop(k) for k in ("misfire", "catchup_limit", "max_runs") if k in more}
        self.job = house.job(when=every(60, overlap=overlap, **policies), **more)
        house.submit(self.job)
        (self.first,) = self.tick().dispatches
        self.key = _key(self.first)
        if begin:
            (self.begun,) = house.begin(self.worker, self.first)

    def tick(self) -> Claimed:
        self.house.bed.pass_time(MINUTE)
        return self.house.claim(self.scheduler)

    def end(self, begun: Begun, outcome: Any = "succeeded") -> None:
        assert self.house.run(self.house.store.finish([End(begun.key, begun.fence, outcome)])) == {begun.key}

    def begin_next(self) -> Begun:
        (dispatch,) = self.house.ready(self.scheduler)
        (begun,) = self.house.begin(self.worker, dispatch)
        return begun

    def lose(self) -> Recovered:
        """The worker's death. Time has passed: the first round of recovery judges nobody."""
        self.house.recover(self.scheduler)
        return self.house.lose(self.scheduler, self.worker)

    def states(self) -> list[str]:
        """Of the live runs, in order."""
        return [row["state"] for row in self.rows()]

    def waiting(self) -> list[str]:
        """The ticks that are buffered, in order."""
        return [row["scheduled_for"] for row in self.rows() if row["state"] == "buffered"]

    def rows(self) -> list[Row]:
        """The live runs, in the order in which they were claimed: a tick that had to wait for `pass_time` names another time."""
        return sorted(self.house.shown(self.job.id).runs, key=lambda row: (row["claimed_at"], row["scheduled_for"]))

    def skipped(self) -> list[str]:
        """Why ticks were skipped, the latest first."""
        return [row["reason"] for row in self.house.shown(self.job.id).history if row["outcome"] == "skipped"]


def _key(dispatch: Dispatch) -> RunKey:
    return RunKey(dispatch.job_id, dispatch.scheduled_for)


def test_with_buffer_one_the_next_tick_waits_and_those_after_it_are_skipped_and_told(house: House) -> None:
    line = _Line(house)
    assert line.tick().dispatches == []
    (waiting,) = line.waiting()
    assert line.tick().dispatches == []
    assert line.states() == ["running", "buffered"]
    assert line.skipped() == ["overlap: this tick was skipped (overlap=buffer_one, and a tick of this job waits)"]
    assert house.ready(line.scheduler) == []
    line.end(line.begun)
    assert line.states() == ["waiting"]
    begun = line.begin_next()
    assert begun.key.scheduled_for == waiting
    line.end(begun)
    assert line.states() == []


def test_what_was_buffered_is_followed_too(house: House) -> None:
    line = _Line(house)
    line.tick()
    line.end(line.begun)
    second = line.begin_next()
    line.tick()
    assert line.states() == ["running", "buffered"]
    line.end(second)
    third = line.begin_next()
    line.tick()
    (fourth,) = line.waiting()
    line.end(third)
    assert line.begin_next().key.scheduled_for == fourth


def test_with_buffer_all_every_tick_runs_one_after_the_other_in_order(house: House) -> None:
    line = _Line(house, "buffer_all")
    for _ in range(3):
        assert line.tick().dispatches == []
    assert line.states() == ["running", "buffered", "buffered", "buffered"]
    begun = line.begun
    for tick in line.waiting():
        line.end(begun)
        begun = line.begin_next()
        assert begun.key.scheduled_for == tick
    assert line.states() == ["running"]
    assert line.skipped() == []


def test_ticks_that_are_caught_up_line_up_behind_the_first(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, overlap="buffer_all", misfire="run_all"))
    house.submit(job)
    house.bed.pass_time(5 * 60 + 1)
    claimed = house.claim(scheduler)
    assert (len(claimed.dispatches), claimed.buffered) == (1, 4)
    worker = house.join("worker")
    (begun,) = house.begin(worker, *claimed.dispatches)
    house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")]))
    assert len(house.ready(scheduler)) == 1


def test_a_thousand_ticks_wait_at_most_and_the_rest_is_told(house: House) -> None:
    line = _Line(house, "buffer_all", misfire="run_all", catchup_limit=1000)
    house.bed.pass_time(998 * 60 + 0.5)
    while house.claim(line.scheduler).rows:
        pass
    line.tick()
    line.tick()
    assert house.run(house.store.status()).runs == {"waiting": 0, "running": 1, "retrying": 0, "buffered": 1000}
    line.tick()
    assert line.skipped()[0] == ("overlap: this tick was skipped (overlap=buffer_all, and 1000 ticks of this job wait)")


def test_with_cancel_other_what_runs_is_asked_to_stop_and_the_new_tick_waits_for_its_end(house: House) -> None:
    line = _Line(house, "cancel_other")
    assert line.tick().dispatches == []
    assert line.states() == ["running", "buffered"]
    assert house.standing(line.key).cancel_requested
    old, new = line.rows()
    assert old["cancel_reason"] == (
        f"cancelled by overlap=cancel_other: the tick {new['scheduled_for']} of this job was due"
    )
    line.end(line.begun, "cancelled")
    (past,) = house.shown(line.job.id).history
    assert (past["outcome"], past["reason"]) == ("cancelled", old["cancel_reason"])
    assert line.begin_next().key.scheduled_for == new["scheduled_for"]


def test_with_cancel_other_what_has_not_begun_ends_at_once_and_the_new_tick_runs(house: House) -> None:
    line = _Line(house, "cancel_other", begin=False)
    claimed = line.tick()
    assert (len(claimed.dispatches), claimed.cancelled) == (1, 1)
    assert line.states() == ["waiting"]
    (past,) = house.shown(line.job.id).history
    assert (past["scheduled_for"], past["outcome"]) == (line.key.scheduled_for, "cancelled")


def test_with_cancel_other_a_later_tick_takes_the_place_of_one_that_waits(house: House) -> None:
    line = _Line(house, "cancel_other")
    line.tick()
    (second,) = line.waiting()
    line.tick()
    assert line.states() == ["running", "buffered"]
    (past,) = house.shown(line.job.id).history
    assert (past["scheduled_for"], past["outcome"]) == (second, "cancelled")
    assert "overlap=cancel_other" in past["reason"]
    (third,) = line.waiting()
    line.end(line.begun)
    assert line.begin_next().key.scheduled_for == third


def test_what_is_retried_later_is_alive(house: House) -> None:
    line = _Line(house)
    house.run(house.store.give_back([Return(line.key, line.begun.fence, "retry", 3600, _ERROR)]))
    assert line.tick().dispatches == []
    assert line.tick().dispatches == []
    assert line.states() == ["retrying", "buffered"]
    assert len(line.skipped()) == 1


def test_what_has_not_begun_is_alive(house: House) -> None:
    line = _Line(house, begin=False)
    assert line.tick().dispatches == []
    assert line.states() == ["waiting", "buffered"]


def test_the_dead_are_not_alive(house: House) -> None:
    line = _Line(house)
    line.end(line.begun, "dead")
    assert len(line.tick().dispatches) == 1


# Each way in which a run ends, from one that runs.


def _finish(outcome: Any) -> Callable[[_Line], object]:
    return lambda line: line.end(line.begun, outcome)


def _lost_for_good(line: _Line) -> None:
    for _ in range(LOSSES_LIMIT - 1):
        line.lose()
        line.worker = line.house.join("worker")
        (again,) = line.house.ready(line.scheduler)
        (line.begun,) = line.house.begin(line.worker, again, alone=True)
        assert line.states() == ["running", "buffered"]
    assert line.lose().poisoned == 1


def _cancelled_and_lost(line: _Line) -> None:
    line.house.run(line.house.store.cancel(*line.key, running=True, reason="asked to"))
    assert line.lose().cancelled == 1


def _cancelled_and_disowned(line: _Line) -> None:
    line.house.run(line.house.store.cancel(*line.key, running=True, reason="asked to"))
    owned = [Owned(line.key, line.begun.fence, cancel_requested=True)]
    assert line.house.run(line.house.store.disown(owned)) == 1


def _cancelled_while_it_is_retried_later(line: _Line) -> None:
    line.house.run(line.house.store.give_back([Return(line.key, line.begun.fence, "retry", 3600, _ERROR)]))
    assert line.house.run(line.house.store.cancel(*line.key, running=False, reason="asked to")).runs == 1


def _unknown(line: _Line) -> None:
    store = line.house.store
    line.house.run(store.announce([HandlerRow("other", "app", "mail", {})], ["mail"]))
    line.house.run(store.give_back([Return(line.key, line.begun.fence, "release")]))
    refs = [(line.key, line.first.dispatch)]
    assert line.house.run(store.set_aside(refs, 3600)) == []
    line.house.bed.pass_time(3601)
    assert len(line.house.run(store.set_aside(refs, 3600))) == 1


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(_finish("succeeded"), id="succeeded"),
        pytest.param(_finish("dead"), id="dead"),
        pytest.param(_finish("cancelled"), id="cancelled"),
        pytest.param(_lost_for_good, id="poisoned"),
        pytest.param(_cancelled_and_lost, id="cancelled and lost"),
        pytest.param(_cancelled_and_disowned, id="cancelled and disowned"),
        pytest.param(_cancelled_while_it_is_retried_later, id="cancelled while retrying"),
        pytest.param(_unknown, id="of an unknown handler"),
    ],
)
def test_every_end_of_a_run_lets_the_next_one_go(house: House, end: Callable[[_Line], object]) -> None:
    line = _Line(house)
    line.tick()
    assert line.states() == ["running", "buffered"]
    (waiting,) = line.waiting()
    end(line)
    assert line.states() == ["waiting"]
    (dispatch,) = house.ready(line.scheduler)
    assert dispatch.scheduled_for == waiting


@pytest.mark.parametrize("by", ["expire", "recover"])
def test_a_run_that_expires_lets_the_next_one_go(house: House, by: str) -> None:
    line = _Line(house, begin=False, policy=policy(expires=100))
    line.tick()
    assert line.states() == ["waiting", "buffered"]
    house.bed.pass_time(50)
    if by == "expire":
        assert house.run(house.store.expire()) == 1
    else:
        assert house.recover(line.scheduler).expired == 1
    assert line.states() == ["waiting"]


def test_what_waits_for_its_turn_for_too_long_expires(house: House) -> None:
    line = _Line(house, policy=policy(expires=100))
    line.tick()
    house.bed.pass_time(101)
    assert house.run(house.store.expire()) == 1
    assert line.states() == ["running"]
    assert house.outcomes(line.job.id) == ["expired"]


def test_attempts_that_are_given_back_keep_their_turn(house: House) -> None:
    line = _Line(house)
    line.tick()
    kinds: tuple[Literal["release", "retry", "snooze"], ...] = ("release", "retry", "snooze")
    for kind in kinds:
        house.run(house.store.give_back([Return(line.key, line.begun.fence, kind, 0, from_store=True)]))
        assert line.states()[1:] == ["buffered"]
        (again,) = house.ready(line.scheduler)
        (line.begun,) = house.begin(line.worker, again)
        assert again.scheduled_for == line.key.scheduled_for
    line.lose()
    assert line.states() == ["waiting", "buffered"]


def test_a_run_that_waits_for_its_turn_can_be_cancelled_alone(house: House) -> None:
    line = _Line(house, "buffer_all")
    line.tick()
    line.tick()
    second, third = line.waiting()
    assert house.run(house.store.cancel(line.job.id, second, running=False, reason="asked to")).runs == 1
    assert line.states() == ["running", "buffered"]
    line.end(line.begun)
    assert line.begin_next().key.scheduled_for == third


def test_with_its_job_ends_what_waits_and_without_what_runs_nothing_is_left(house: House) -> None:
    line = _Line(house, "buffer_all")
    line.tick()
    line.tick()
    done = house.run(house.store.cancel(line.job.id, None, running=False, reason="asked to"))
    assert (done.job, done.runs, done.running) == (True, 2, 1)
    line.end(line.begun)
    assert line.states() == []
    assert house.outcomes(line.job.id).count("cancelled") == 3


def test_what_was_begun_under_another_policy_is_followed(house: House) -> None:
    """Two runs of a job are alive beside each other, because its policy allowed it then."""
    line = _Line(house, "allow")
    (second,) = house.begin(line.worker, *line.tick().dispatches)
    other = house.job(id=line.job.id, when=Schedule(every=60, overlap="buffer_one"))
    house.run(house.store.cancel(line.job.id, None, running=False, reason="to be changed"))
    house.submit(other)
    house.bed.pass_time(MINUTE)
    house.claim(line.scheduler)
    assert line.states() == ["running", "running", "buffered"]
    line.end(line.begun)
    assert line.states() == ["running", "buffered"]
    line.end(second)
    assert line.states() == ["waiting"]


def test_the_end_of_an_attempt_that_was_taken_away_releases_nothing(house: House) -> None:
    line = _Line(house)
    line.tick()
    line.lose()
    assert house.run(house.store.finish([End(line.key, line.begun.fence, "succeeded")])) == set()
    assert line.states() == ["waiting", "buffered"]


def test_what_a_tick_waits_for_is_no_run_that_nothing_waits_for(house: House) -> None:
    line = _Line(house)
    line.tick()
    end = End(line.key, line.begun.fence, "succeeded")
    assert house.run(house.store.finish_unfollowed([end])) == set()
    assert line.states() == ["running", "buffered"]
    line.end(line.begun)
    assert line.states() == ["waiting"]


def test_a_run_whose_answer_was_lost_releases_one(house: House) -> None:
    line = _Line(house, "buffer_all")
    line.tick()
    line.tick()
    line.end(line.begun)
    assert house.run(house.store.finish([End(line.key, line.begun.fence, "succeeded")])) == set()
    assert line.states() == ["waiting", "buffered"]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "cancel_other"])
def test_a_redriven_run_waits_for_its_turn(house: House, overlap: str) -> None:
    line = _Line(house, overlap)
    line.end(line.begun, "dead")
    (second,) = house.begin(line.worker, *line.tick().dispatches)
    again = house.store.redrive(DeadFilter(keys=[line.key]), Redrive("ann@here"))
    assert house.run(again).taken == [line.key]
    assert house.run(again).taken == []
    assert line.states() == ["running", "buffered"]
    assert house.ready(line.scheduler) == []
    line.end(second)
    assert line.begin_next().key == line.key


def test_a_redriven_run_runs_at_once_where_nothing_is_alive_or_its_schedule_is_gone(house: House) -> None:
    line = _Line(house)
    line.end(line.begun, "dead")
    again = house.store.redrive(DeadFilter(keys=[line.key]), Redrive("ann@here"))
    house.run(again)
    assert line.states() == ["waiting"]
    line.end(line.begin_next(), "dead")
    (second,) = house.begin(line.worker, *line.tick().dispatches)
    house.run(house.store.cancel(line.job.id, None, running=False, reason="asked to"))
    house.run(again)
    assert line.states() == ["running", "waiting"]
    assert second.key != line.key


def test_redriven_runs_of_one_job_follow_one_another(house: House) -> None:
    line = _Line(house)
    line.end(line.begun, "dead")
    (second,) = house.begin(line.worker, *line.tick().dispatches)
    line.end(second, "dead")
    assert len(house.run(house.store.redrive(DeadFilter(queue="mail"), Redrive("ann@here"))).taken) == 2
    assert line.states() == ["waiting", "buffered"]
    assert line.tick().dispatches == []
    assert "overlap=buffer_one" in line.skipped()[0]
    first = line.begin_next()
    line.end(first)
    assert {first.key, line.begin_next().key} == {line.key, second.key}


def test_a_policy_belongs_to_a_schedule_and_not_to_its_handler(house: House) -> None:
    line = _Line(house)
    house.submit(house.job(when=Once()), house.job(when=Schedule(every=60, overlap="skip")))
    assert len(line.tick().dispatches) == 2
    assert line.states() == ["running", "buffered"]


def test_what_is_buffered_behind_nothing_is_found_by_recovery(house: House) -> None:
    """Its predecessor may have been ended by somebody who knows nothing of turns. Here none is left to be found."""
    line = _Line(house)
    line.tick()
    assert house.recover(line.scheduler).stranded == 0
    assert line.states() == ["running", "buffered"]


# Jobs that end by themselves.


def test_a_job_with_max_runs_ends_after_so_many(house: House) -> None:
    line = _Line(house, "allow", max_runs=3)
    assert house.future(line.job.id)["runs_left"] == 2
    assert len(line.tick().dispatches) == 1
    assert len(line.tick().dispatches) == 1
    assert house.shown(line.job.id).job is None
    assert line.tick().dispatches == []


def test_skipped_ticks_are_not_among_the_max_runs(house: House) -> None:
    line = _Line(house, "skip", max_runs=2)
    line.tick()
    line.tick()
    assert (len(line.skipped()), house.future(line.job.id)["runs_left"]) == (2, 1)
    line.end(line.begun)
    assert len(line.tick().dispatches) == 1
    assert house.shown(line.job.id).job is None


def test_what_waits_for_its_turn_outlives_a_job_that_ends(house: House) -> None:
    line = _Line(house, "buffer_all", max_runs=3)
    line.tick()
    line.tick()
    assert house.shown(line.job.id).job is None
    assert line.states() == ["running", "buffered", "buffered"]
    line.end(line.begun)
    line.end(line.begin_next())
    line.end(line.begin_next())
    assert line.states() == []


def test_no_more_are_caught_up_than_max_runs_has_left(house: House) -> None:
    scheduler = house.join()
    job = house.job(when=Schedule(every=60, misfire="run_all", max_runs=3))
    house.submit(job)
    house.bed.pass_time(10 * 60 + 1)
    assert len(house.claim(scheduler).dispatches) == 3
    assert house.shown(job.id).job is None
    assert house.outcomes(job.id) == []


# What a run knows of ticks that were missed.


def _told(house: House, worker: int, dispatch: Dispatch) -> tuple[bool, int | None]:
    (begun,) = house.begin(worker, dispatch)
    house.run(house.store.finish([End(begun.key, begun.fence, "dead")]))
    return begun.catchup, begun.missed


def test_a_run_knows_how_many_ticks_were_skipped_before_it(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(when=Schedule(every=60)))

    def tick(seconds: float) -> Dispatch:
        house.bed.pass_time(seconds)
        (dispatch,) = house.claim(scheduler).dispatches
        return dispatch

    assert _told(house, worker, tick(MINUTE)) == (False, 0)
    assert _told(house, worker, tick(5 * 60)) == (False, 4)
    assert _told(house, worker, tick(60)) == (False, 0)


def test_a_tick_that_is_claimed_late_says_so(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(when=Schedule(every=3600)))
    house.bed.pass_time(3600 + 120)
    (late,) = house.claim(scheduler).dispatches
    assert _told(house, worker, late) == (True, 0)
    caught = house.job(when=Schedule(every=60, misfire="run_all"))
    house.submit(caught)
    house.bed.pass_time(3 * 60 + 1)
    runs = [d for d in house.claim(scheduler).dispatches if d.job_id == caught.id]
    assert [_told(house, worker, d) for d in runs] == [(True, 0), (True, 0), (False, 0)]


def test_ticks_that_an_overlap_skipped_are_counted_until_one_runs(house: House) -> None:
    line = _Line(house, "skip")
    for _ in range(3):
        line.tick()
    line.end(line.begun)
    (dispatch,) = line.tick().dispatches
    assert _told(house, line.worker, dispatch) == (False, 3)


def test_too_many_missed_ticks_are_not_counted(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(when=Schedule(cron="* * * * *")))
    house.bed.pass_time(30 * 86400)
    (dispatch,) = house.claim(scheduler).dispatches
    assert _told(house, worker, dispatch)[1] is None


def test_what_a_run_knows_survives_attempts_and_redrives(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(when=Schedule(every=60, misfire="run_earliest")))
    house.bed.pass_time(60.5)
    house.submit(job := house.job(when=Schedule(every=60, misfire="run_latest", grace=0)))
    house.bed.pass_time(5 * 60 + 30)
    (dispatch,) = [d for d in house.claim(scheduler).dispatches if d.job_id == job.id]
    (begun,) = house.begin(worker, dispatch)
    assert (begun.catchup, begun.missed) == (True, 4)
    house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", 0, _ERROR)]))
    (begun,) = house.begin(worker, dispatch)
    assert (begun.catchup, begun.missed) == (True, 4)
    house.run(house.store.finish([End(begun.key, begun.fence, "dead")]))
    house.run(house.store.redrive(DeadFilter(keys=[begun.key]), Redrive("ann@here")))
    (again,) = house.ready(scheduler)
    (begun,) = house.begin(worker, again)
    assert (begun.catchup, begun.missed) == (True, 4)
