"""The dead: chosen, redriven, discarded."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from rota.sched.ids import RunKey, new_job_id
from rota.sched.policy import policy
from rota.sched.store.values import DeadBatch, DeadFilter, End, Redrive

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Begun
    from rota.sched.store.views import Row

_ERROR = '{"attempt": 1, "type": "ValueError", "message": "no"}'
_BY = Redrive("ann@here")
_LONG_AGO, _FAR_OFF = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def _die(house: House, begun: Begun) -> RunKey:
    house.run(house.store.finish([End(begun.key, begun.fence, "dead", "broken pipe", error=_ERROR)]))
    return begun.key


def _died(house: House) -> RunKey:
    *_, begun = house.started()
    return _die(house, begun)


def _redrive(house: House, which: DeadFilter, how: Redrive = _BY) -> DeadBatch:
    return house.run(house.store.redrive(which, how))


def _dies_again(house: House, key: RunKey) -> None:
    _redrive(house, DeadFilter(keys=[key]))
    (again,) = house.ready(house.join())
    _die(house, house.begin(house.join("worker"), again)[0])


def _live(house: House, key: RunKey) -> Row:
    (run,) = house.shown(key.job_id).runs
    return run


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_redriven_run_starts_anew_with_other_arguments(house: House) -> None:
    scheduler, worker, dispatch, begun = house.started()
    key = _die(house, begun)
    assert _redrive(house, DeadFilter(keys=[key]), Redrive("ann@here", '{"n": 2}')).taken == [key]
    assert house.begin(worker, dispatch) == []
    (again,) = house.ready(scheduler)
    assert again.args == '{"n": 2}'
    (second,) = house.begin(worker, again)
    assert second.attempt == 1
    assert house.shown(key.job_id).dead == []


def test_each_redrive_is_remembered_with_who_did_it_and_what_it_was_for(house: House) -> None:
    key = _died(house)
    _dies_again(house, key)
    _redrive(house, DeadFilter(keys=[key]), Redrive("bob", '{"n": 2}'))
    run = _live(house, key)
    first, second = run["lineage"]
    assert run["redrives"] == 2
    assert {k: first[k] for k in ("by", "reason", "attempts")} == {
        "by": "ann@here",
        "reason": "broken pipe",
        "attempts": 1,
    }
    assert "args" not in first
    assert (second["by"], second["args"]) == ("bob", {"n": 1})
    assert _at(first["died_at"]) < _at(first["at"]) < _at(second["at"])


def test_the_lineage_stays_with_the_run_when_it_ends(house: House) -> None:
    key = _died(house)
    _dies_again(house, key)
    (dead,) = house.shown(key.job_id).dead
    assert (dead["redrives"], dead["attempt"], len(dead["errors"])) == (1, 1, 2)
    house.run(house.store.discard(DeadFilter(keys=[key]), "discarded by bob"))
    (past,) = house.shown(key.job_id).history
    assert [each["by"] for each in past["lineage"]] == ["ann@here"]


def test_what_was_redriven_often_enough_is_left_alone(house: House) -> None:
    once, never = _died(house), _died(house)
    _dies_again(house, once)
    chosen = house.run(house.store.choose_dead(DeadFilter(queue="mail", max_redrives=1)))
    assert (chosen.taken, chosen.spared) == ([never], [once])
    done = _redrive(house, DeadFilter(queue="mail", max_redrives=1))
    assert (done.taken, done.spared) == ([never], [once])
    assert _redrive(house, DeadFilter(queue="mail", max_redrives=2)).taken == [once]


def test_the_window_of_a_redriven_run_begins_with_its_redrive(house: House) -> None:
    scheduler, worker = house.join(), house.join("worker")
    job = house.job(policy=policy(None, None, 60))
    house.submit(job)
    (begun,) = house.begin(worker, *house.claim(scheduler).dispatches)
    key = _die(house, begun)
    house.bed.pass_time(3600)
    _redrive(house, DeadFilter(keys=[key]), Redrive("ann@here", per_second=0.1))
    run = _live(house, key)
    assert run["due_at"] == run["ready_at"]
    (again,) = house.ready(scheduler)
    assert house.begin(worker, again)[0].schedule_lag < 60


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (DeadFilter(), True),
        (DeadFilter(queue="mail"), True),
        (DeadFilter(queue="other"), False),
        (DeadFilter(handler="send"), True),
        (DeadFilter(handler="sent"), False),
        (DeadFilter(tenant="acme"), False),
        (DeadFilter(error="BROKEN"), True),
        (DeadFilter(error="valueerror"), True),
        (DeadFilter(error="100%"), False),
        (DeadFilter(since=_LONG_AGO, until=_FAR_OFF), True),
        (DeadFilter(since=_FAR_OFF), False),
        (DeadFilter(until=_LONG_AGO), False),
    ],
)
def test_dead_runs_are_chosen_by_what_is_asked(house: House, which: DeadFilter, found: bool) -> None:
    key = _died(house)
    expected = [key] if found else []
    assert house.run(house.store.choose_dead(which)).taken == expected
    assert _redrive(house, which).taken == expected


def test_a_limit_takes_the_oldest_and_says_that_there_are_more(house: House) -> None:
    first, second = _died(house), _died(house)
    done = _redrive(house, DeadFilter(queue="mail", limit=1))
    assert (done.taken, done.more) == ([first], True)
    done = _redrive(house, DeadFilter(queue="mail", limit=1))
    assert (done.taken, done.more) == ([second], False)


def test_new_arguments_are_for_some_handlers_only(house: House) -> None:
    key = _died(house)
    done = _redrive(house, DeadFilter(queue="mail", handlers=["other"]), Redrive("ann@here", "{}"))
    assert (done.taken, done.unfit) == ([], [key])


def test_a_rate_spreads_runs_and_goes_on_from_where_it_had_got_to(house: House) -> None:
    keys = [_died(house) for _ in range(3)]
    done = _redrive(house, DeadFilter(limit=2), Redrive("ann@here", per_second=0.01))
    assert done.ready_until is not None
    _redrive(
        house,
        DeadFilter(),
        Redrive("ann@here", per_second=0.01, ready_from=done.ready_until + timedelta(seconds=100)),
    )
    times = [_at(_live(house, key)["ready_at"]) for key in keys]
    assert [round((b - a).total_seconds(), 3) for a, b in itertools.pairwise(times)] == [100, 100]


def test_a_run_that_is_not_dead_says_where_it_is(house: House) -> None:
    key = _died(house)
    nowhere = RunKey(new_job_id(), key.scheduled_for)
    assert house.run(house.store.whereabouts([key, nowhere])) == {key: None, nowhere: None}
    _redrive(house, DeadFilter(keys=[key]))
    assert house.run(house.store.whereabouts([key])) == {key: "waiting"}
    house.run(house.store.cancel(key.job_id, None, running=False, reason="asked to"))
    assert house.run(house.store.whereabouts([key])) == {key: "cancelled"}
    assert _redrive(house, DeadFilter(keys=[key, nowhere])) == DeadBatch()


def test_a_survey_counts_what_there_is_to_look_at(house: House) -> None:
    keys = [_died(house) for _ in range(2)]
    assert house.run(house.store.survey_dead(DeadFilter(queue="mail"))).handlers == {"send": 2}
    assert house.run(house.store.survey_dead(DeadFilter(keys=keys[:1]))).handlers == {"send": 1}
    assert house.run(house.store.survey_dead(DeadFilter(queue="other"))).total == 0


def test_a_discarded_run_is_history_that_says_who_did_it_and_what_it_died_of(house: House) -> None:
    key = _died(house)
    assert house.run(house.store.discard(DeadFilter(keys=[key]), "discarded by bob: too late")).taken == [key]
    (past,) = house.shown(key.job_id).history
    assert (past["outcome"], past["reason"]) == ("discarded", "discarded by bob: too late; it died of: broken pipe")
    assert house.shown(key.job_id).dead == []
