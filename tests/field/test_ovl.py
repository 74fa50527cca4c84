"""Ticks that are due while a run of their job is alive. Seconds stand for minutes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pika
from field_app import held, spans, tells, tells_itself
from rota import Client, every
from rota.sched.timing import advance
from rota.sched.timing.plan import BUFFER

from tests.conftest import BOUND
from tests.field.broker import channel
from tests.store.year import STRETCH

if TYPE_CHECKING:
    from tests.field.conftest import Field

BESIDE = """
select count(*) from field_span a join field_span b on a.key = b.key and a.tick < b.tick
where b.began < a.ended and a.began < b.ended
"""
SECOND = timedelta(seconds=1)


def working(field: Field) -> None:
    field.start("scheduler")
    field.start("worker")
    field.until_working()


BEATS = "select array_agg(beat_at order by id) from rota.member"


def ran(field: Field, key: str) -> int:
    return int(field.value("select count(*) from field_span where key = %s and ended is not null", key))


def states(field: Field, job_id: str) -> list[str]:
    order = "select state from rota.run where job_id = %s order by scheduled_for"
    return [state for (state,) in field.db.execute(order, [job_id])]


def accounted(field: Field, job_id: str) -> tuple[list[datetime], dict[datetime, str]]:
    """The ticks that ran, and those that did not with the reason, once nothing is alive. A claim that comes late tells several
    ticks in one row.
    """
    rows = field.db.execute(
        "select scheduled_for, outcome, reason from rota.history where job_id = %s order by 1", [job_id]
    )
    found = rows.fetchall()
    return (
        [tick for tick, outcome, _ in found if outcome == "succeeded"],
        {
            tick + n * SECOND: reason
            for tick, outcome, reason in found
            if outcome == "skipped"
            for n in range(int(STRETCH.match(reason)[2] or 1))
        },
    )


def test_ovl_01_with_skip_no_second_copy_starts_and_the_slots_between_are_told(field):
    """A run takes two and a half of its ticks. Without `live=` of what `abreast` has found, in `add`
    (sched/store/postgres/scheduling.py), each tick starts another one beside it.
    """
    working(field)
    with Client.open(field.store) as client:
        ref = client.submit(spans.call(key="slow", seconds=2.5), every(1, overlap="skip", misfire="run_all"))
        field.until("three runs", lambda: ran(field, "slow") >= 3)
        client.cancel(ref.id)
    field.until("what runs to end", lambda: states(field, ref.id) == [])
    assert field.value(BESIDE) == 0
    starts, skipped = accounted(field, ref.id)
    between = {starts[0] + n * SECOND for n in range((starts[-1] - starts[0]) // SECOND)} - set(starts)
    assert between
    assert between <= set(skipped)
    reasons = {skipped[tick] for tick in between}
    assert all(
        r.startswith("overlap: ") and r.endswith("(overlap=skip, and a run of this job is alive)") for r in reasons
    )


def test_ovl_02_a_policy_is_that_of_a_schedule_and_holds_for_none_of_its_handlers_other_jobs(field):
    """While a run of it is alive, the same handler is asked for by a message and by a one-off, and another schedule has it:
    all run at once, and its own ticks do not wait for them. Without `where r.job_id = x.id` in ABREAST
    (sched/store/postgres/turns.py) its next tick waits for what the others do.
    """
    working(field)
    args = {"key": "other", "way": "return"}
    with Client.open(field.store) as client:
        ref = client.submit(held.call(key="own", way="return"), every(1, overlap="buffer_one"))
        field.until("its first run, and one that waits", lambda: states(field, ref.id) == ["running", "buffered"])
        assert " buffered " in field.rota("runs", "--job", ref.id)
        assert "waits until the runs of this job that are alive have ended" in field.rota("show", ref.id)
        assert field.status()["runs"]["buffered"] == 1
        client.submit(held.call(**args))
        body = json.dumps({"handler": "held", "args": args, "key": "by message"}).encode()
        with channel(field.env["ROTA_BROKER"]) as service:
            service.basic_publish(
                "rota.submit", "job.submit", body, pika.BasicProperties(type="job.submit", app_id="shop")
            )
        field.until("both to run beside it", lambda: field.executions("other") == 2)
        twin = client.submit(held.call(key="twin", way="return"), every(1, overlap="buffer_one"))
        field.until("the other schedule's, too", lambda: states(field, twin.id) == ["running", "buffered"])
        assert field.executions("own") == 1
        field.open("own-1")
        field.until("its next tick, though those run", lambda: field.executions("own") == 2)
        assert field.value("select count(*) from rota.history where outcome = 'succeeded'") == 1
        for job in (ref, twin):
            client.cancel(job.id, running=True)
        for gate in ("own-2", "other-1", "other-2", "twin-1"):
            field.open(gate)


def test_ovl_04_with_buffer_one_one_tick_waits_and_with_buffer_all_a_thousand_at_most(field):
    """A run takes one and a half of its ticks. Without `- waiting` in `_in_turn` (sched/timing/plan.py) more and more wait."""
    working(field)
    waiting = "select count(*) from rota.run where state = 'buffered'"
    most = 0

    def watched() -> bool:
        nonlocal most
        most = max(most, field.value(waiting))
        return ran(field, "queue") >= 5

    with Client.open(field.store) as client:
        ref = client.submit(spans.call(key="queue", seconds=1.5), every(1, overlap="buffer_one", misfire="run_all"))
        field.until("five runs", watched)
        client.cancel(ref.id)
    field.until("what runs to end", lambda: states(field, ref.id) == [])
    assert most == 1
    assert field.value(BESIDE) == 0
    _, skipped = accounted(field, ref.id)
    assert any(reason.endswith("(overlap=buffer_one, and a tick of this job waits)") for reason in skipped.values())
    at = datetime(2026, 12, 1, tzinfo=UTC)
    full = advance(every(60, overlap="buffer_all"), ref.id, at, at, live=True, waiting=BUFFER)
    assert (full.runs, len(full.skipped), BUFFER) == ((), 1, 1000)


def test_ovl_05_what_is_retried_later_counts_as_alive_and_nothing_overtakes_what_waits(field):
    """One fails and is retried when the test has it, one waits for its turn, and more ticks come. With `= 'running'` for `<> 'buffered'` in
    ABREAST (sched/store/postgres/turns.py) a tick runs while the first is between its attempts.
    """
    working(field)
    with Client.open(field.store) as client:
        ref = client.submit(
            held.call(key="k", way="raise"), every(1, overlap="buffer_one"), retry={"attempts": 2, "base": 600}
        )
        field.until("the first to run", lambda: field.executions("k") == 1)
        field.open("k-1")
        field.until("its retry and a tick to wait", lambda: states(field, ref.id) == ["retrying", "buffered"])
        first, second = (
            tick for (tick,) in field.db.execute("select scheduled_for from rota.run order by scheduled_for").fetchall()
        )
        skipped = "select count(*) from rota.history where outcome = 'skipped' and reason like 'overlap%%'"
        field.until("more ticks", lambda: field.value(skipped) >= 2)
        assert states(field, ref.id) == ["retrying", "buffered"]
        field.db.execute("update rota.run set ready_at = clock_timestamp() where state = 'retrying'")
        field.until("the second attempt", lambda: field.executions("k") == 2)
        assert states(field, ref.id) == ["running", "buffered"]
        field.open("k-2")
        field.until("the one that waited to run", lambda: field.executions("k") == 3)
        client.cancel(ref.id, running=True)
        field.open("k-3")
    keys = field.db.execute("select idempotency_key from field_seen order by time").fetchall()
    ticks = [datetime.fromisoformat(key.partition("@")[2]) for (key,) in keys]
    assert ticks == [first, first, second]
    assert field.value("select count(*) from rota.dead") == 1


def test_what_waits_behind_a_run_whose_worker_is_killed_runs_once(field):
    """The run goes to another worker and keeps its turn; what waits is released by its end. Killed again right after that
    end, before anything else: what was released is there, and runs.
    """
    field.start("scheduler")
    victim = field.start("worker", "--concurrency", "1")
    field.until_working()
    with Client.open(field.store) as client:
        ref = client.submit(held.call(key="k", way="transaction"), every(1, overlap="buffer_one", max_runs=2))
        field.until("one to run and one to wait", lambda: states(field, ref.id) == ["running", "buffered"])
        field.until("its handler to be there", lambda: field.executions("k") == 1)
        assert field.value("select count(*) from rota.job") == 0
        victim.kill()
        heir = field.start("worker", "--concurrency", "1")
        field.until("another worker to have it", lambda: field.executions("k") == 2)
        assert states(field, ref.id) == ["running", "buffered"]
        field.open("k-2")
        field.until("the one that waited to run", lambda: field.executions("k") == 3)
        assert field.running_on(heir) == 1
        heir.kill()
        field.start("worker")
        field.until("it to run again", lambda: field.executions("k") == 4)
        field.open("k-4")
    field.until("all to end", lambda: states(field, ref.id) == [])
    assert field.value("select count(*) from field_effect") == 2
    assert field.value("select count(distinct fence) from field_effect") == 2
    assert field.value("select count(*) from rota.history where outcome = 'succeeded'") == 2


def test_a_tick_that_has_others_cancelled_stops_them_and_runs_when_they_have_ended(field):
    """Through the store's notification, the control exchange and `ctx.cancelled`, as by `rota cancel --running`: members look
    into the store by themselves only with a heartbeat, and none comes meanwhile. Without `self._publisher.publish(...)` in
    `_heard` (sched/scheduler/service.py), or `self._told.set()` in `_control` (workers/service.py), nothing is stopped.
    """
    field.env |= {"ROTA_BEAT": "600", "ROTA_LEASE": "1800"}
    working(field)
    field.until("both to have joined", lambda: len(field.value(BEATS)) == 2)
    joined = field.value(BEATS)
    with Client.open(field.store) as client:
        ref = client.submit(spans.call(key="long", seconds=600), every(2, overlap="cancel_other"))
        field.until("three to have been stopped", lambda: ran(field, "long") >= 3)
        client.cancel(ref.id, running=True)
    field.until("all to end", lambda: states(field, ref.id) == [])
    assert field.value(BEATS) == joined
    assert field.value(BESIDE) == 0
    reasons = field.db.execute("select distinct reason from rota.history where outcome = 'cancelled'").fetchall()
    assert sum("cancelled by overlap=cancel_other: the tick" in reason for (reason,) in reasons) >= 2


def test_handlers_know_what_they_catch_up(field):
    """Asked in a thread, and by one in a process of its own."""
    working(field)
    with Client.open(field.store) as client:
        refs = [client.submit(each.call(key=each.name), every(1)) for each in (tells, tells_itself)]
        on_time = "select count(distinct key) from field_missed where missed = 0 and not catchup"
        field.until("both to run on time", lambda: field.value(on_time) == 2)
        for member in field.members:
            member.terminate()
            member.wait(BOUND)
        due = "select count(*) from rota.job where scheduled_for < clock_timestamp() - interval '5 s'"
        field.until("ticks to be missed", lambda: field.value(due) == 2)
        field.start("scheduler")
        field.start("worker")
        late = "select count(distinct key) from field_missed where missed >= 3"
        field.until("both to know how many", lambda: field.value(late) == 2)
        for ref in refs:
            client.cancel(ref.id)
