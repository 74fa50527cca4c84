"""Claims, leases, heartbeats and fences of runs."""

from __future__ import annotations

import signal
from contextlib import closing

import psycopg
from field_app import blocks, hangs, hangs_in_a_thread, held, mends, swallows
from rota import Client
from rota.sched.store import open_store
from rota.sched.store.values import End
from rota.sched.when import Schedule

from tests.conftest import BOUND
from tests.field.conftest import Field
from tests.field.relay import Relay

WAYS = ("transaction", "return", "raise")
LIVE = "select state = 'live' from rota.member where pid = %s order by id desc limit 1"


def test_lse_01_a_worker_that_is_killed_in_the_middle_costs_no_effect_and_makes_none_twice(field):
    """Without REQUEUE (sched/store/postgres/duties.py) the run is never begun again."""
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(held.call(key="k", way="transaction"))
    field.until("the run to begin", lambda: field.executions("k") == 1)
    killed = field.value("select clock_timestamp()")
    worker.kill()
    field.start("worker")
    field.open("k-2")
    field.until("the run to end", lambda: field.value("select count(*) from rota.history") == 1)
    assert field.value("select count(*) from field_effect") == 1
    waited = (field.value("select begun_at from rota.history") - killed).total_seconds()
    assert waited < 100, "a round of recovery, not the two minutes of the reconciler"
    assert field.value("select attempt from rota.history") == 1
    assert field.value("select losses from rota.history") == 1


def test_lse_18_after_crashes_of_store_and_workers_every_run_comes_to_its_end(make_postgres, broker_url, tmp_path):
    """Without ORPHANS (sched/store/postgres/duties.py) what the killed worker ran stays running under nobody."""
    server = make_postgres()
    open_store(server.url).migrate()
    with closing(Field(server.url, broker_url, tmp_path)) as field:
        field.open("mended")
        field.start("scheduler")
        worker = field.start("worker")
        field.until_working()
        with Client.open(field.store) as client:
            client.submit_many([held.call(key=f"s{n}", way="transaction") for n in range(5)])
            client.submit_many([mends.call(key=f"k{n}") for n in range(295)])
        field.until("some to run", lambda: all(field.executions(f"s{n}") for n in range(5)))
        worker.kill()
        field.db.close()
        server.crash()
        server.start()
        field.start("worker")
        field.db = psycopg.connect(field.store, autocommit=True)
        for n in range(5):
            field.open(f"s{n}-2")
        field.until("all runs to end", lambda: field.value("select count(*) from rota.history") == 300)
        assert field.value("select count(*) from rota.run") == 0
        assert field.value("select count(*) from field_effect") == 300
        assert field.value("select count(distinct key) from field_effect") == 300


def test_lse_16_a_worker_that_is_terminated_keeps_its_lease_until_what_runs_has_ended(field):
    """Another worker is there. With the heart stopped in front of the drain (`_membership` in workers/service.py) no heartbeat
    comes any more, and the run would be begun a second time when the lease is over.
    """
    field.env["ROTA_DRAIN_TIMEOUT"] = "120"
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(held.call(key="k", way="transaction"))
    field.until("the run to begin", lambda: field.executions("k") == 1)
    field.start("worker")
    worker.send_signal(signal.SIGTERM)
    field.until("it to drain", lambda: "draining: 1 running" in field.log_of(worker))
    since = field.value("select clock_timestamp()")
    later = "select beat_at > %s + interval '2 s' from rota.member where pid = %s"
    field.until("heartbeats while it drains", lambda: field.value(later, since, worker.pid))
    field.open("k-1")
    assert worker.wait(BOUND) == 0
    assert field.value("select count(*) from field_effect") == field.executions("k") == 1
    assert field.value("select losses from rota.history") == 0


def test_lse_10_deploys_leave_nothing_claimed_and_spend_no_attempt(field):
    """Workers with ten runs each, one after the other. Without `self._release(...)` in `_drain` (workers/service.py)
    the runs stay with those that have left until recovery finds them, and count as losses.
    """
    field.env["ROTA_DRAIN_TIMEOUT"] = "6"
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    keys = [f"k{n}" for n in range(10)]
    with Client.open(field.store) as client:
        client.submit_many([held.call(key=key, way="transaction") for key in keys])
    for _ in range(2):
        field.until("the runs to begin", lambda: field.running_on(worker) == 10)  # noqa: B023 - called in this turn
        successor = field.start("worker")
        worker.send_signal(signal.SIGTERM)
        worker, deployed = successor, worker
        assert deployed.wait(BOUND) == 0
        assert field.running_on(deployed) == 0
    for key in keys:
        for number in (1, 2, 3):
            field.open(f"{key}-{number}")
    field.until("all to end", lambda: field.value("select count(*) from rota.history") == 10)
    assert field.value("select count(*) from field_effect") == 10
    assert field.value("select max(attempt) from rota.history") == 1
    assert field.value("select max(losses) from rota.history") == 0


def test_lse_12_a_zombie_that_wakes_up_can_commit_end_and_retry_nothing(field):
    """Frozen past its lease in three runs, it wakes up while another worker is in the middle of them. One that is idle
    has nothing but its heartbeat to be refused; for the other it may be a begin that comes first.

    Without `r.fence = x.xfence` in FINISH (sched/store/postgres/working.py) its transaction ends the other one's run.
    """
    field.env["ROTA_BROKER"] += (
        "?heartbeat=2"  # the broker gives a frozen member's messages to others after two of them
    )
    field.start("scheduler")
    zombie = field.start("worker")
    idle = field.start("worker", "--queue", "other")
    field.until_working()
    with Client.open(field.store) as client:
        for way in WAYS:
            client.submit(held.call(key=way, way=way))
    field.until("all to begin", lambda: all(field.executions(way) for way in WAYS))
    for member in (zombie, idle):
        field.freeze(member)
    heir = field.start("worker")
    field.until("the other one to be in the middle of them", lambda: all(field.executions(w) == 2 for w in WAYS))
    for way in WAYS:
        field.open(f"{way}-1")
    for member in (zombie, idle):
        member.send_signal(signal.SIGCONT)
        field.until("it to join under a new id", lambda: field.value(LIVE, member.pid))  # noqa: B023 - called in this turn
    refused = "was taken from attempt 1"
    field.until("its commit to be refused", lambda: refused in field.log_of(zombie))
    counted = ("heartbeat", "transaction", "finish", "retry")
    field.until("all four to be counted", lambda: all(field.status()["superseded"][kind] for kind in counted))
    assert field.running_on(heir) == 3
    assert field.value("select count(*) from field_effect") == 0
    for way in WAYS[:2]:
        field.open(f"{way}-2")
    field.until("both to end", lambda: field.value("select count(*) from rota.history") == 2)
    assert field.value("select count(*) from field_effect") == 1
    (heirs,) = field.db.execute("select id from rota.member where pid = %s", [heir.pid]).fetchone()
    ends = field.db.execute("select outcome, attempt, losses, owner, errors from rota.history").fetchall()
    assert ends == [("succeeded", 1, 1, heirs, None)] * 2
    assert field.value("select attempt from rota.run where errors is null") == 1


def test_lse_03_recovery_whose_holder_dies_in_the_middle_is_taken_by_the_next(house, store_url):
    """Without `skip locked` in TAKE (sched/store/postgres/duties.py) the others wait for the one that stands still."""
    scheduler, worker, _, begun = house.started()
    house.bed.silence(worker)
    with closing(psycopg.connect(store_url)) as holder:
        holder.execute("update rota.duty set due_at = clock_timestamp() + interval '1 hour' where name = 'recovery'")
        assert not house.recover(scheduler).ran
    while not (done := house.recover(scheduler)).ran:
        pass  # until the server has seen that the holder is gone
    assert done.dead_members == [worker]
    assert house.standing(begun.key).state == "waiting"


def test_lse_04_thousands_that_run_under_nobody_are_found_whatever_they_are(house):
    """Handlers and queues that nobody knows, begun months ago. Without ORPHANS (sched/store/postgres/duties.py) they
    run for ever: the death of their owners is long past.
    """
    scheduler = house.join()
    house.sql(
        """insert into rota.run (job_id, scheduled_for, part, state, dispatch, fence, owner, queue, handler, args, due_at,
          claimed_at, begun_at)
        select gen_random_uuid(), t, n % 64, 'running', n, n, 10000 + n % 7, 'odd-' || n % 42, 'unknown-' || n % 42, '{}',
          t, t, t
        from generate_series(1, 5500) n, (select now() - interval '91 days' as t) x"""
    )
    house.look_at_all()
    assert [house.recover(scheduler).requeued for _ in range(2)] == [5000, 500]
    assert house.run(house.store.status()).runs["running"] == 0


def test_lse_06_a_run_is_never_too_long_while_its_worker_lives(house):
    """A month. Without `and not exists (...)` in ORPHANS (sched/store/postgres/duties.py) it is taken away."""
    scheduler, _, _, begun = house.started()
    for _ in range(2):
        house.bed.pass_time(15 * 86400)
        assert house.recover(scheduler).requeued == 0
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}


def test_lse_09_a_tick_whose_worker_was_lost_does_not_block_its_schedule(house):
    """With `overlap` skip a live run is the slot. It is given back by REQUEUE (sched/store/postgres/duties.py), without
    which every later tick is skipped.
    """
    scheduler, lost, worker = house.join(), house.join("worker"), house.join("worker")
    house.submit(house.job(when=Schedule(every=60, overlap="skip")))
    house.bed.pass_time(61)
    house.begin(lost, *house.claim(scheduler).dispatches)
    house.bed.pass_time(60)
    assert house.claim(scheduler).dispatches == []
    house.recover(scheduler)  # the first after a pause judges nobody
    house.lose(scheduler, lost)
    (begun,) = house.begin(worker, *house.ready(scheduler))
    house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")]))
    house.bed.pass_time(60)
    assert len(house.claim(scheduler).dispatches) == 1


HELD = "select (stats->>'held')::int from rota.member where pid = %s"


def cut_off(field, relay, more=0):
    """A worker of one slot that is cut off from the store, and not from the broker, in the middle of a run and with so many
    messages more. It trusts in a short lease.
    """
    field.start("scheduler")
    usual = field.env.copy()
    field.env |= {"ROTA_STORE": relay.url, "ROTA_LEASE": "3"}
    worker = field.start("worker", "--concurrency", "1")
    field.env = usual
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(held.call(key="k", way="transaction"))
        field.until("it to begin", lambda: field.executions("k"))
        for n in range(more):
            client.submit(held.call(key=f"new-{n}", way="return"))
            field.open(f"new-{n}-1")
    field.until("it to hold them", lambda: field.value(HELD, worker.pid) == 1 + more)
    relay.hold()
    silent = "select beat_at < clock_timestamp() - interval '3 s' from rota.member where pid = %s"
    field.until("its lease to be over", lambda: field.value(silent, worker.pid))
    field.until_dead(worker)
    return worker


def test_lse_13_a_worker_that_cannot_reach_the_store_loses_its_runs_and_comes_back_as_another(field):
    """Without the fence in FINISH (sched/store/postgres/working.py) its transaction ends the other one's run."""
    with Relay(field.store) as relay:
        worker = cut_off(field, relay)
        field.start("worker")
        relay.release()
        field.until("it to join under a new id", lambda: field.value(LIVE, worker.pid))
        field.until("the second execution", lambda: field.executions("k") == 2)
        field.open("k-1")
        field.until("its commit to be refused", lambda: "was taken from attempt 1" in field.log_of(worker))
        field.open("k-2")
        field.until("the run to end", lambda: field.value("select count(*) from rota.history") == 1)
        assert field.value("select count(*) from field_effect") == 1


def test_lse_13_a_worker_that_cannot_renew_its_lease_gives_back_what_it_was_sent(field):
    """Those that it has not begun are somebody else's when its lease is over.

    Without `intake.give_back()` in `_consume_while` (workers/service.py) they wait until it can reach the store again.
    """
    with Relay(field.store) as relay:
        cut_off(field, relay, 6)
        field.start("worker")
        field.until("the new ones to end", lambda: field.value("select count(*) from rota.history") == 6)


def test_lse_19_a_coroutine_that_hangs_ends_with_its_timeout(field):
    """The worker's heart goes on beating. Without `asyncio.timeout` (workers/executor.py) it hangs on, though its run is taken
    from it in the end, and is told of for ever.
    """
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(hangs.call(key="k"))
    field.until("the second attempt", lambda: field.value("select count(*) from rota.history") == 1)
    assert field.value("select errors->0->>'type' from rota.history") == "TimeoutError"
    since = field.value("select clock_timestamp()")
    beaten = "select count(*) from rota.member where kind = 'worker' and beat_at > %s + interval '1 s'"
    field.until(
        "heartbeats with nothing to tell", lambda: field.value(beaten, since) and not field.status()["degraded"]
    )


def test_lse_19_a_thread_that_hangs_loses_its_run_with_its_timeout(field):
    """Without `every(1.0, lambda: self._overdue(intake))` (workers/service.py) it keeps it."""
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(hangs_in_a_thread.call(key="k"))
    field.until("the second attempt", lambda: field.executions("k") >= 2)
    field.until("its end", lambda: field.value("select count(*) from rota.history") == 1)
    field.until("it to be told", lambda: field.status()["degraded"] == ["stuck_threads"])
    field.open("k-1")
    field.until("the thread to be free again", lambda: not field.status()["degraded"])


def test_lse_19_a_coroutine_that_swallows_its_cancel_loses_its_run(field):
    """To its timeout, or to somebody's cancel. Without `*(a for a in self._tasks if not a.handler.isolate)` (workers/executor.py)
    it keeps it.
    """
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(swallows.call(key="late"), timeout=0.5)
        told = client.submit(swallows.call(key="told")).id
        field.until("both to begin", lambda: field.executions("late") and field.executions("told"))
        client.cancel(told, running=True)
    field.until("both ends", lambda: field.value("select count(*) from rota.history") == 2)
    (told, late) = field.db.execute("select outcome, attempt from rota.history order by outcome").fetchall()
    assert told == ("cancelled", 1)
    assert (late[0], late[1] >= 2, field.executions("late") >= 2) == ("succeeded", True, True)
    field.until("it to be told", lambda: field.status()["degraded"] == ["stuck_coroutines"])
    field.open("late-1")
    field.open("told-1")
    field.until("the coroutines to end", lambda: not field.status()["degraded"])


def test_lse_19_a_worker_with_a_coroutine_that_swallows_its_cancel_ends_all_the_same(field):
    """Without `end_at_once(code)` (workers/service.py) its process stays, and its host believes that it drains."""
    field.env["ROTA_DRAIN_TIMEOUT"] = "6"
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(swallows.call(key="k"))
    field.until("it to begin", lambda: field.executions("k"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(BOUND) == 0
    assert field.db.execute("select state, losses, errors from rota.run").fetchall() == [("waiting", 0, None)]


def test_lse_19_a_coroutine_that_blocks_its_loop_is_told_of_and_loses_its_worker(field):
    """No timeout, cancel or signal reaches it. Without `self._ask_loop(pause)` (sched/heartbeat.py) it runs for ever."""
    field.start("scheduler")
    usual = field.env.copy()
    field.env["ROTA_LEASE"] = "3"  # its process goes on for four of them
    worker = field.start("worker")
    field.env = usual
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(blocks.call(key="k"))
    told = "select count(*) from rota.member where pid = %s and stats->'degraded' ? 'stuck_loop'"
    field.until("it to be told", lambda: field.value(told, worker.pid))
    assert "field_app.py" in field.log_of(worker)
    assert worker.wait(BOUND) == 1
    field.start("worker")
    field.until("the run to end elsewhere", lambda: field.value("select count(*) from rota.history") == 1)
    assert field.db.execute("select outcome, attempt, losses from rota.history").fetchall() == [("succeeded", 1, 1)]
