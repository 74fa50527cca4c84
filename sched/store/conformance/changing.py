"""What people do to jobs that are stored: change, pause, resume, trigger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rota.sched import edits
from rota.sched.edits import Note
from rota.sched.errors import Conflict, NotFound, Refused, UsageError
from rota.sched.ids import RunKey, new_job_id
from rota.sched.policy import policy
from rota.sched.store.values import End
from rota.sched.timing import jitter_of
from rota.sched.when import Once, Schedule, at, cron, every

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Edited, NewJob, Triggered
    from rota.sched.when import When

ME = "me@here"


def _stored(house: House, when: When, **fields: Any) -> NewJob:
    job = house.job(when=when, **fields)
    house.submit(job)
    return job


def _update(house: House, job: NewJob, when: When | None = None, **words: Any) -> Edited:
    own = {name: words.pop(name, None) for name in ("args", "version", "reason")}
    run_now = words.pop("run_now", False)
    return house.run(house.store.update(job.id, edits.edit(ME, when, own.pop("args"), words, **own, run_now=run_now)))


def _trigger(house: House, job: NewJob, note: Note | None = None) -> Triggered:
    return house.run(house.store.trigger(job.id, note or Note(ME)))


def _end_all(house: House, *dispatches: Any) -> None:
    begun = house.begin(house.join("worker"), *dispatches)
    assert len(begun) == len(dispatches)
    house.run(house.store.finish([End(b.key, b.fence, "succeeded") for b in begun]))


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_changed_schedule_goes_on_after_now_and_nothing_of_it_is_due_at_once(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every("7d"), name="weekly")
    house.bed.pass_time(6 * 86_400)
    done = _update(house, job, every("60s"), reason="more often")
    now = _at(house.run(house.store.health()).now)
    assert (done.changed, done.version, done.runs, done.skipped) == (True, 2, 0, 0)
    assert now < _at(done.next) <= now + timedelta(seconds=60)
    assert house.claim(scheduler).rows == 0
    house.bed.pass_time(60)
    assert len(house.claim(scheduler).dispatches) == 1
    assert house.outcomes(job.id) == []
    (change,) = house.future(job.id)["changes"]
    assert [change[name] for name in ("did", "by", "reason", "version")] == ["changed", ME, "more often", 2]
    assert (change["from"], change["to"]) == ({"every": 604_800.0}, {"every": 60.0})


def test_what_is_not_named_stays_as_it_is(house: House) -> None:
    job = _stored(house, cron("0 2 * * *", tz="Europe/Paris", jitter=30, misfire="skip"), policy=policy(timeout=5))
    _update(house, job, tz="Europe/Rome", misfire=None, expires=60, args={"n": 2})
    row = house.future(job.id)
    assert row["schedule"] == {"cron": "0 2 * * *", "tz": "Europe/Rome", "jitter": 30.0}
    assert (row["policy"], row["args"]) == ({"timeout": 5.0, "expires": 60.0}, {"n": 2})
    _update(house, job, retry={"attempts": 3, "base": 1})
    _update(house, job, retry={"attempts": 4})
    assert house.future(job.id)["policy"]["retry"] == {"attempts": 4, "base": 1.0}
    _update(house, job, retry={"base": None})
    assert house.future(job.id)["policy"]["retry"] == {"attempts": 4}
    _update(house, job, retry={"attempts": None})
    assert "retry" not in house.future(job.id)["policy"]
    _update(house, job, retry={"attempts": 2})
    _update(house, job, retry=None)
    _update(house, job, every=90)
    assert house.future(job.id)["schedule"] == {"every": 90.0, "jitter": 30.0}
    _update(house, job, cron="@daily", timeout=None)
    row = house.future(job.id)
    assert (row["schedule"], row["policy"]) == ({"cron": "@daily", "jitter": 30.0}, {"expires": 60.0})


def test_a_change_of_an_older_version_is_refused_with_who_changed_what(house: House) -> None:
    job = _stored(house, every(60))
    assert _update(house, job, every=90, version=1, reason="calmer").version == 2
    with pytest.raises(
        Conflict, match=r"at version 2, not 1 \(changed by me@here at .* every from 60.0 to 90.0: calmer\)"
    ):
        _update(house, job, every=30, version=1)
    assert house.future(job.id)["schedule"] == {"every": 90.0}
    assert _update(house, job, every=30, version=2).version == 3


def test_the_same_change_sent_again_is_one_change(house: House) -> None:
    job = _stored(house, every(3600))
    edit = edits.edit(ME, None, None, {"every": 60}, version=1, run_now=True)
    first, again = (house.run(house.store.update(job.id, edit)) for _ in range(2))
    assert (first.version, first.run) == (again.version, again.run)
    assert len(house.shown(job.id).runs) == 1
    assert _update(house, job, every=60, version=1).changed is False  # it is so already
    assert house.future(job.id)["version"] == 2
    assert len(house.future(job.id)["changes"]) == 1


def test_the_latest_changes_are_kept(house: House) -> None:
    job = _stored(house, every(60))
    for n in range(25):
        _update(house, job, every=100 + n)
    row = house.future(job.id)
    assert (row["version"], len(row["changes"]), row["changes"][-1]["version"]) == (26, 20, 26)


def test_a_tick_that_is_due_when_its_schedule_changes_runs_once_as_it_was(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(60))
    house.bed.pass_time(60.5)
    before = house.future(job.id)["scheduled_for"]
    done = _update(house, job, every=3600, args={"n": 2})
    assert (done.runs, done.skipped) == (1, 0)
    assert house.claim(scheduler).rows == 0
    (dispatch,) = house.ready(scheduler)
    assert (dispatch.scheduled_for, dispatch.args) == (before, '{"n": 1}')
    _end_all(house, dispatch)
    assert house.ready(scheduler) == []
    house.bed.pass_time(3600)
    (dispatch,) = house.claim(scheduler).dispatches
    assert dispatch.args == '{"n": 2}'


def test_what_was_missed_before_a_change_is_settled_by_the_old_policy(house: House) -> None:
    scheduler = house.join()
    for misfire, runs in (("run_latest", 1), ("run_all", 20), ("skip", 0)):
        job = _stored(house, every(60, misfire=misfire, catchup_limit=20, grace=1))
        house.bed.pass_time(3630)
        assert _update(house, job, every=1).runs == runs
        assert len(house.ready(scheduler)) == runs
        assert house.outcomes(job.id) == ["skipped"]
        assert _at(house.future(job.id)["scheduled_for"]) > _at(house.run(house.store.health()).now)
        house.run(house.store.cancel(job.id, None, running=False, reason="over"))


def _with_jitter(every_seconds: float, jitter: float) -> tuple[str, Schedule]:
    """A job whose next tick is due in the middle of its jitter, whenever it is submitted, and its schedule."""
    schedule = every(every_seconds, jitter=jitter, start="2020-01-01T00:00:00Z")
    now = datetime.now(UTC)
    assert schedule.start is not None
    tick = schedule.start + ((now - schedule.start) // timedelta(seconds=every_seconds) + 1) * timedelta(
        seconds=every_seconds
    )
    while True:
        job_id = new_job_id()
        if 0.4 * jitter < jitter_of(schedule, job_id, tick, None).total_seconds() < 0.6 * jitter:
            return job_id, schedule


def test_a_change_between_a_tick_and_its_jitter_keeps_the_tick_and_when_it_is_due(house: House) -> None:
    scheduler = house.join()
    for kind in ({"every": 60.0, "jitter": None, "start": None}, {"cron": "0 0 1 1 *", "jitter": None, "start": None}):
        job_id, schedule = _with_jitter(1e6, 50_000)
        job = _stored(house, schedule, id=job_id)
        row = house.future(job.id)
        tick, due = _at(row["scheduled_for"]), _at(row["next_run_at"])
        assert due - tick > timedelta(seconds=1000)
        ahead = (tick - _at(house.run(house.store.health()).now)).total_seconds()
        house.bed.pass_time(ahead + 600)
        assert _update(house, job, **kind).runs == 1
        assert house.claim(scheduler).rows == 0
        assert house.ready(scheduler) == []
        (run,) = house.shown(job.id).runs
        assert abs(_at(run["ready_at"]) - _at(run["scheduled_for"]) - (due - tick)).total_seconds() < 0.001
        house.run(house.store.pause(job.id, Note(ME)))
        house.bed.pass_time((due - tick).total_seconds())
        assert [d.scheduled_for for d in house.ready(scheduler)] == [run["scheduled_for"]]
        house.run(house.store.cancel(job.id, None, running=False, reason="over"))


def test_a_change_of_policies_keeps_the_cursor_and_of_jitter_moves_when_it_is_due(house: House) -> None:
    job = _stored(house, every(3600, jitter=600))
    before = house.future(job.id)
    _update(house, job, misfire="run_all", catchup_limit=3, grace="5m", overlap="skip")
    after = house.future(job.id)
    assert [after[n] for n in ("scheduled_for", "next_run_at")] == [before[n] for n in ("scheduled_for", "next_run_at")]
    _update(house, job, jitter=None)
    after = house.future(job.id)
    assert after["scheduled_for"] == before["scheduled_for"] == after["next_run_at"]


def test_a_change_to_a_schedule_without_ticks_is_refused_and_changes_nothing(house: House) -> None:
    job = _stored(house, every(3600))
    before = house.future(job.id)
    with pytest.raises(UsageError, match="never fires"):
        _update(house, job, end="2020-01-01T00:00:00Z")
    with pytest.raises(UsageError, match="has a schedule"):
        _update(house, job, Once(after=5))
    assert house.future(job.id) == before


def test_after_a_change_a_name_stands_for_the_new_request(house: House) -> None:
    first, same, other = (
        house.job(when=every(when), name="n", request=request) for when, request in ((60, "a"), (60, "a"), (90, "b"))
    )
    house.submit(first)
    request = edits.Definition("send", "mail", None, '{"n":1}', every(90), policy()).request
    _update(house, first, every=90)
    (answer,) = house.submit(house.job(when=every(90), name="n", request=request))
    assert (answer.job_id, answer.duplicate) == (first.id, True)
    for each in (same, other):
        (answer,) = house.submit(each)
        assert answer.conflict == "name 'n'"
    (answer,) = house.submit(first, repeated=True)
    assert answer.duplicate


def test_run_now_adds_one_run_and_only_that(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(3600))
    assert _update(house, job, every=60, args={"n": 3}, run_now=True).run
    (dispatch,) = house.ready(scheduler)
    assert dispatch.args == '{"n": 3}'
    assert house.claim(scheduler).rows == 0


def test_a_job_that_runs_once_can_be_moved_and_given_other_arguments(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, Once(after=3600))
    moved = _update(house, job, at(datetime(2020, 1, 1, tzinfo=UTC)), args={"n": 5})
    assert moved.next == "2020-01-01T00:00:00.000000Z"
    (dispatch,) = house.claim(scheduler).dispatches
    assert (dispatch.scheduled_for, dispatch.args) == (moved.next, '{"n": 5}')
    with pytest.raises(NotFound, match="no future"):
        _update(house, job, Once(after=5))
    with pytest.raises(UsageError, match="runs once"):
        _update(house, _stored(house, Once(after=60)), misfire="skip")


# Pause and resume.


def test_a_paused_job_is_not_claimed_and_says_by_whom_and_why(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(60))
    held = house.run(house.store.pause(job.id, Note(ME, "too many")))
    assert (held.changed, held.paused, held.by, held.reason) == (True, True, ME, "too many")
    again = house.run(house.store.pause(job.id, Note("you@there")))
    assert (again.changed, again.by, again.at) == (False, ME, held.at)
    house.bed.pass_time(3600)
    assert house.claim(scheduler).rows == 0
    assert house.shown(job.id).state == "paused"
    resumed = house.run(house.store.resume(job.id, Note("you@there", "fewer now")))
    assert (resumed.changed, resumed.paused, resumed.by) == (True, False, None)
    assert house.run(house.store.resume(job.id, Note(ME))).changed is False
    assert [(c["did"], c["by"], c["reason"]) for c in house.future(job.id)["changes"]] == [
        ("paused", ME, "too many"),
        ("resumed", "you@there", "fewer now"),
    ]


def test_what_a_pause_made_late_is_the_misfire_policys_after_it(house: House) -> None:
    scheduler = house.join()
    for misfire, runs in (("run_latest", 1), ("run_earliest", 1), ("run_all", 30), ("skip", 0)):
        job = _stored(house, every(60, misfire=misfire, catchup_limit=30, grace=1))
        house.run(house.store.pause(job.id, Note(ME)))
        house.bed.pass_time(3630)
        house.run(house.store.resume(job.id, Note(ME)))
        claimed = house.claim(scheduler)
        assert (len(claimed.dispatches), claimed.skipped >= 1) == (runs, True)
        assert "skipped" in house.outcomes(job.id)
        house.run(house.store.cancel(job.id, None, running=False, reason="over"))


def test_a_paused_job_that_runs_once_is_kept_and_runs_late(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, Once(after=60), policy=policy(expires=30))
    due = house.future(job.id)["next_run_at"]
    house.run(house.store.pause(job.id, Note(ME)))
    house.run(house.store.resume(job.id, Note(ME)))
    assert house.future(job.id)["next_run_at"] == due
    house.run(house.store.pause(job.id, Note(ME)))
    house.bed.pass_time(86_400)
    assert house.claim(scheduler).rows == 0
    house.run(house.store.resume(job.id, Note(ME)))
    _end_all(house, *house.claim(scheduler).dispatches)
    assert house.outcomes(job.id) == ["succeeded"]


def test_a_paused_schedule_that_is_changed_runs_nothing_of_the_pause(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(60, misfire="run_all"))
    house.run(house.store.pause(job.id, Note(ME)))
    house.bed.pass_time(3600)
    assert _update(house, job, every=3600).runs == 0
    (past,) = house.shown(job.id).history
    assert past["outcome"] == "skipped"
    assert "60 ticks" in past["reason"]
    assert "paused when its schedule changed" in past["reason"]
    assert house.claim(scheduler).rows == 0
    house.run(house.store.resume(job.id, Note(ME)))
    assert house.claim(scheduler).rows == 0


def test_a_resumed_job_wakes_no_scheduler_for_nothing(house: House) -> None:
    """What is due lies at now, not below the watermarks of claims, or schedulers would look in vain until they sweep."""
    job = _stored(house, Once(after=60))
    house.run(house.store.pause(job.id, Note(ME)))
    house.bed.pass_time(3600)
    before = _at(house.run(house.store.health()).now)
    house.run(house.store.resume(job.id, Note(ME)))
    assert _at(house.future(job.id)["next_run_at"]) >= before


def test_a_paused_queue_is_not_asked_and_status_says_by_whom(house: House) -> None:
    other = house.job()
    house.submit(house.job(queue="slow"), other)
    held = house.run(house.store.pause_queue("slow", Note(ME, "the other side is down")))
    assert (held.changed, held.by) == (True, ME)
    assert house.run(house.store.pause_queue("slow", Note("you@there"))).by == ME
    assert [name for name, _ in house.run(house.store.queues())] == ["mail"]
    house.bed.pass_time(3600)
    status = house.run(house.store.status())
    assert "stalled" in status.degraded  # the other one
    house.run(house.store.cancel(other.id, None, running=False, reason="over"))
    assert "stalled" not in house.run(house.store.status()).degraded
    row = next(q for q in house.run(house.store.status()).queues if q["name"] == "slow")
    assert (row["paused"], row["paused_by"], row["paused_reason"]) == (True, ME, "the other side is down")
    assert house.run(house.store.resume_queue("slow", Note(ME))).changed
    assert house.run(house.store.resume_queue("slow", Note(ME))).changed is False
    assert [name for name, _ in house.run(house.store.queues())] == ["mail", "slow"]
    with pytest.raises(NotFound, match="no queue 'none'"):
        house.run(house.store.pause_queue("none", Note(ME)))


# Trigger.


def test_a_trigger_is_one_run_now_and_moves_no_tick(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(3600))
    before, note = house.future(job.id)["scheduled_for"], Note(ME, "asked by phone")
    done, again = _trigger(house, job, note), _trigger(house, job, note)
    assert done == again
    assert house.claim(scheduler).rows == 0
    (dispatch,) = house.ready(scheduler)
    assert RunKey(dispatch.job_id, dispatch.scheduled_for) == done.key
    _end_all(house, dispatch)
    row = house.future(job.id)
    assert row["scheduled_for"] == before
    assert [(c["did"], c["run"]) for c in row["changes"]] == [("triggered", done.key.scheduled_for)]


def test_a_trigger_beside_a_live_run_is_the_overlap_policys(house: House) -> None:
    scheduler = house.join()
    alone, free = _stored(house, every(3600, overlap="skip")), _stored(house, every(3600))
    for job in (alone, free):
        _trigger(house, job)
    with pytest.raises(Refused, match="overlap=skip lets no other run beside it"):
        _trigger(house, alone)
    with pytest.raises(Refused, match="is alive"):
        _update(house, alone, every=60, run_now=True)
    assert house.future(alone.id)["schedule"]["every"] == 3600
    _trigger(house, free)
    assert len(house.ready(scheduler)) == 3
    house.bed.pass_time(3600)
    assert [d.job_id for d in house.claim(scheduler).dispatches] == [free.id]
    assert house.outcomes(alone.id) == ["skipped"]  # by the same word, its tick does not run beside the triggered run


def test_a_paused_schedule_can_be_triggered_and_what_runs_once_cannot(house: House) -> None:
    scheduler = house.join()
    job = _stored(house, every(3600))
    house.run(house.store.pause(job.id, Note(ME)))
    assert _trigger(house, job).paused
    assert len(house.ready(scheduler)) == 1
    once = _stored(house, Once(after=60))
    with pytest.raises(Refused, match="runs once"):
        _trigger(house, once)
    with pytest.raises(Refused, match="runs once"):
        _update(house, once, args={"n": 2}, run_now=True)
    assert house.future(once.id)["args"] == {"n": 1}
