"""What the store on Postgres must do besides."""

from __future__ import annotations

import psycopg
from rota.sched.control import SHARE_CALL
from rota.sched.ids import RunKey
from rota.sched.store.postgres.duties import FULL_SECONDS_A_DEAD_ROW
from rota.sched.store.transaction import Query, transaction
from rota.sched.store.values import DeadFilter, End, Redrive
from rota.sched.when import Once, Schedule
from servers import process

from tests.conftest import BOUND
from tests.store.conftest import heard


def test_a_schedule_that_cannot_be_computed_is_set_aside_and_stops_no_neighbour(house):
    scheduler = house.join()
    bad, good = house.job(when=Schedule(every=60)), house.job()
    house.submit(bad, good)
    house.sql('update rota.job set next_run_at = now(), schedule = \'{"cron": "nonsense"}\' where id = %s', bad.id)
    claimed = house.claim(scheduler)
    assert [d.job_id for d in claimed.dispatches] == [good.id]
    ((broken, reason),) = claimed.broken
    assert broken == bad.id
    assert house.sql("select paused, paused_reason from rota.job") == [(True, reason)]


def test_a_member_that_stands_still_inside_its_transaction_does_not_hold_up_recovery_of_the_others(house, store_url):
    """Frozen after its begin and before its commit, it keeps the lock on its own row."""
    scheduler, frozen, dead = house.join(), house.join("worker"), house.join("worker")
    house.bed.silence(frozen)
    house.bed.silence(dead)
    with psycopg.connect(store_url) as still:
        still.execute("select id from rota.member where id = %s for key share", [frozen])
        assert house.recover(scheduler).dead_members == [dead]
    assert house.recover(scheduler).dead_members == [frozen]


def test_a_begin_under_way_keeps_its_member_alive_until_it_is_over(house):
    """Its lock on its own row: a member that is dead when its begin commits would own a run that nobody looks for."""
    scheduler, worker = house.join(), house.join("worker")
    house.submit()
    (d,) = house.claim(scheduler).dispatches
    house.bed.silence(worker)
    engine = house.store.engine("test", 1)
    with engine.connect() as open_:
        begin = house.store.begin(worker, [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False)])
        assert len(house.store.drive(open_, begin)) == 1
        assert house.recover(scheduler).dead_members == []
        open_.commit()
    engine.dispose()
    done = house.recover(scheduler)
    assert (done.dead_members, done.requeued) == ([worker], 1)


def test_a_run_that_a_frozen_worker_is_about_to_end_does_not_hold_up_recovery_of_the_others(house, store_url):
    """Frozen after its finish and before its commit, it keeps the lock on that run's row."""
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(), house.job())
    held, other = house.begin(worker, *house.claim(scheduler).dispatches)
    house.bed.silence(worker)
    with psycopg.connect(store_url) as still:
        still.execute("delete from rota.run where job_id = %s", [held.key.job_id])
        done = house.recover(scheduler)
        assert (done.dead_members, done.requeued) == ([worker], 1)
        assert house.standing(other.key).state == "waiting"
        still.rollback()
    assert house.recover(scheduler).requeued == 1
    assert house.standing(held.key).state == "waiting"


def test_a_waiting_run_that_is_locked_does_not_hold_up_adoption_of_the_others(house, store_url):
    old, new = house.join(), house.join()
    house.submit(house.job(), house.job())
    first, _ = house.claim(old).dispatches
    house.bed.silence(old)
    with psycopg.connect(store_url) as still:
        still.execute("select from rota.run where job_id = %s for update", [first.job_id])
        assert house.recover(new).adopted == 1
    assert house.recover(new).adopted == 1


def asked(house, txn) -> int:
    """How many statements a transaction was."""
    count, steps, rows = 0, txn.steps(), None
    connection = house.link.connection()
    try:
        while True:
            query = steps.send(rows)
            count += 1
            cursor = connection.execute(query.sql, query.params)
            rows = cursor.fetchall() if cursor.description else []
    except StopIteration:
        return count


def test_recovery_that_has_nothing_to_do_is_one_statement(house):
    """Whoever asks, and also with members of yesterday in the store."""
    one, other, worker = house.join(), house.join(), house.join("worker")
    house.submit()
    house.begin(worker, *house.claim(one).dispatches)
    house.run(house.store.partitions(one))
    for _ in range(2):
        house.recover(one)
    assert asked(house, house.store.recover(one, 15, 60)) == 1
    assert asked(house, house.store.recover(other, 15, 60)) == 1


def test_ended_members_are_settled_when_nothing_is_left_of_them_and_kept_until_then(house, store_url):
    """A run that is locked is left, too: the next round finds it. Only settled members are ever forgotten."""
    scheduler, worker, idle = house.join(), house.join("worker"), house.join("worker")
    house.submit()
    (begun,) = house.begin(worker, *house.claim(scheduler).dispatches)
    settled = "select id from rota.member where settled order by id"
    for member in (worker, idle):
        house.bed.silence(member)
    with psycopg.connect(store_url) as still:
        still.execute("select from rota.run where job_id = %s for update", [begun.key.job_id])
        assert house.recover(scheduler).dead_members == [worker, idle]
        assert worker not in [row[0] for row in house.sql(settled)]
        assert (idle,) in house.sql(settled)
        house.sql("update rota.member set ended_at = ended_at - interval '3 days' where state <> 'live'")
        house.run(house.store.retain(scheduler, 86400, 0))
        assert house.sql("select id from rota.member where state <> 'live'") == [(worker,)]
    assert house.recover(scheduler).requeued == 1
    assert house.recover(scheduler).requeued == 0
    assert house.sql(settled) == [(worker,)]


def test_a_run_that_appears_under_a_settled_member_is_found_by_the_next_full_look(house):
    """By hand, say: nothing of ours writes it."""
    scheduler, worker, _, begun = house.started()
    house.recover(scheduler)
    house.sql("update rota.member set state = 'left', ended_at = now(), settled = true where id = %s", worker)
    assert house.recover(scheduler).requeued == 0
    house.look_at_all()
    assert house.recover(scheduler).requeued == 1
    assert house.standing(begun.key).state == "waiting"


def test_a_full_look_comes_later_the_more_dead_rows_it_would_read(house):
    """An old snapshot may keep millions. Without `pg_stat_get_dead_tuples` in GLANCE (sched/store/postgres/duties.py) it comes
    at once.
    """
    scheduler = house.join()
    house.recover(scheduler)
    house.submit(*(house.job() for _ in range(400)))
    house.claim(scheduler)
    house.sql("delete from rota.run")
    dead = "select pg_stat_get_dead_tuples('rota.run'::regclass)"
    assert process.wait_until(lambda: house.sql(dead)[0][0] >= 400, BOUND)
    late = FULL_SECONDS_A_DEAD_ROW * house.sql(dead)[0][0]
    next_full = "select full_at > clock_timestamp() from rota.duty where name = 'recovery'"
    for ago, looked in ((late / 2, False), (late + 1, True)):
        house.sql("update rota.duty set full_at = clock_timestamp() - make_interval(secs => %s)", ago)
        house.recover(scheduler)
        assert house.sql(next_full) == [(looked,)]


def test_the_store_ends_a_transaction_that_stands_still(house):
    @transaction()
    def ask():
        return (yield Query("show idle_in_transaction_session_timeout"))

    assert house.run(ask()) == [("10s",)]


def test_a_missing_day_of_history_is_made_by_the_finish_that_needs_it(house):
    *_, begun = house.started()
    for (name,) in house.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'rota.history'::regclass"
    ):
        house.sql(f"drop table {name}")
    assert house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")])) == {begun.key}
    assert len(house.outcomes(begun.key.job_id)) == 1


def test_paused_jobs_are_not_due(house):
    house.submit(*(house.job() for _ in range(3)))
    house.sql("update rota.job set paused = true where id = (select id from rota.job limit 1)")
    jobs = house.run(house.store.status()).jobs
    assert (jobs["scheduled"], jobs["paused"], jobs["due"]) == (3, 1, 2)


def test_totals_beyond_the_bound_are_estimates_and_say_so(house, monkeypatch):
    monkeypatch.setattr("rota.sched.store.postgres.reading.COUNTED", 2)
    house.submit(*(house.job() for _ in range(5)))
    view = house.run(house.store.status())
    assert {"jobs.scheduled", "jobs.due"} <= set(view.estimated)
    assert view.jobs["estimated"] is True
    assert view.jobs["due"] >= 3


def test_a_submit_of_something_earlier_wakes_a_sleeping_scheduler(house, store_url):
    scheduler = house.join()
    house.run(house.store.partitions(scheduler))
    house.submit(house.job(when=Once(after=30)))
    house.run(house.store.sleep(scheduler, house.lanes(), 60))
    with psycopg.connect(store_url, autocommit=True) as ear:
        ear.execute(f"listen {house.store.wake_channel}")
        house.submit(house.job(when=Once(after=40)))
        house.submit(house.job(when=Once(after=5)))
        house.run(house.store.wake(scheduler))
        house.submit(house.job())
        assert heard(ear, house) == ["mail"]


def test_who_gives_up_partitions_says_so_at_once(house, store_url):
    """Without TELL_FREE (members.py) what is due in them waits for the next beat of another scheduler."""
    first = house.join()
    house.run(house.store.partitions(first))
    second = house.join()
    with psycopg.connect(store_url, autocommit=True) as ear:
        ear.execute(f"listen {house.store.wake_channel}")
        assert len(house.run(house.store.partitions(first))) == 32, "half of them are another's"
        assert heard(ear, house) == [SHARE_CALL]
        house.run(house.store.leave(second))
        assert heard(ear, house) == [], "it had none"
        house.run(house.store.leave(first))
        assert heard(ear, house) == [SHARE_CALL]


DEAD = """
insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses, due_at, claimed_at,
  policy)
select gen_random_uuid(), '2026-01-01T00:00:00Z', now() - make_interval(secs => %s - n), 'no', 1, 'mail', 'send', '{}', 3, 0,
  now(), now(), '{"expires": 60}'
from generate_series(1, %s) n
"""


def test_a_run_that_is_alive_again_keeps_both_its_rows(house):
    scheduler = house.join()
    job = house.job()
    house.submit(job)
    (d,) = house.claim(scheduler).dispatches
    key = RunKey(d.job_id, d.scheduled_for)
    house.sql(DEAD, 1, 1)
    house.sql("update rota.dead set job_id = %s, scheduled_for = %s", *key)
    which = DeadFilter(keys=[key])
    assert house.run(house.store.choose_dead(which)).alive == [key]
    done = house.run(house.store.redrive(which, Redrive("ann@here")))
    assert (done.taken, done.alive) == ([], [key])
    assert house.sql("select dispatch from rota.run") == [(d.dispatch,)]
    assert house.run(house.store.choose_dead(which, alive=True)).taken == [key]
    assert house.run(house.store.discard(which, "discarded by ann@here")).taken == [key]
    assert house.standing(key).state == "waiting"
    assert house.sql("select count(*) from rota.dead") == [(0,)]


def test_of_a_tick_that_dies_once_more_the_latest_death_counts(house):
    *_, begun = house.started()
    house.sql(DEAD, 1, 1)
    house.sql("update rota.dead set job_id = %s, scheduled_for = %s", *begun.key)
    end = End(begun.key, begun.fence, "dead", "once more", None, '{"attempt": 1}')
    assert house.run(house.store.finish([end])) == {begun.key}
    assert house.sql("select reason, jsonb_array_length(errors), queue from rota.dead") == [("once more", 1, "mail")]


def test_the_dead_are_walked_portion_by_portion_and_what_is_locked_is_passed_by(house, store_url):
    house.submit()  # makes the queue
    house.sql(DEAD, 1200, 1200)
    with psycopg.connect(store_url) as other:
        other.execute("select from rota.dead order by died_at limit 10 for update")
        first = house.run(house.store.redrive(DeadFilter(), Redrive("ann@here")))
        assert (len(first.taken), len(first.elsewhere), first.looked) == (490, 10, 500)
        second = house.run(house.store.redrive(DeadFilter(after=first.last), Redrive("ann@here")))
        last = house.run(house.store.redrive(DeadFilter(after=second.last), Redrive("ann@here")))
    assert (len(second.taken), len(last.taken), last.last) == (500, 200, None)
    assert house.sql("select count(*) from rota.dead") == [(10,)]


def test_the_window_of_a_redriven_run_is_counted_from_when_it_is_ready(house):
    house.submit()
    house.sql(DEAD, 3, 3)
    house.run(house.store.redrive(DeadFilter(queue="mail"), Redrive("ann@here", per_second=0.1)))
    rows = house.sql(
        "select extract(epoch from expires_at - ready_at)::int, extract(epoch from ready_at - min(ready_at) over ())::int,"
        " policy from rota.run order by ready_at"
    )
    assert rows == [(60, n, {"expires": 60}) for n in (0, 10, 20)]


def test_the_status_tells_what_died_last_and_how_many_where(house, monkeypatch):
    monkeypatch.setattr("rota.sched.store.postgres.reading.COUNTED_DEAD", 3)
    house.submit(house.job(queue="other"), house.job())
    assert house.run(house.store.status()).last_death is None
    house.sql(DEAD, 10, 5)
    house.sql(
        "update rota.dead set queue = 'other', reason = 'the last' where died_at = (select max(died_at) from rota.dead)"
    )
    view = house.run(house.store.status())
    assert view.last_death is not None
    told = [view.last_death[name] for name in ("queue", "handler", "reason")]
    assert told == ["other", "send", "the last"]
    assert 5 <= view.last_death["age_s"] < 60
    assert {q["name"]: q["dead"] for q in view.queues} == {"mail": 3, "other": 1}
    assert (view.dead, view.estimated) == (5, ["queues.mail.dead"])


async def test_a_connection_that_was_lost_while_nobody_used_it_costs_nothing(house):
    """The server restarted: nothing was under way, so nothing is in doubt."""
    one, other = house.store.link("one"), house.store.async_link("other")
    one.run(house.store.queues())
    await other.run(house.store.queues())
    house.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name in ('rota one', 'rota other')"
    )
    one.run(house.store.queues())
    await other.run(house.store.queues())
    one.close()
    await other.close()
