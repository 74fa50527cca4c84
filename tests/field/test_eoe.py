"""Effects: once, whatever dies between an effect, its record and its acknowledgement."""

from __future__ import annotations

import json

import pika
from field_app import credit, dies, fails
from rota import Client
from rota.sched.message import encode
from rota.sched.model import Dispatch

POINTS = ("before the effect", "before the commit", "before the ack", "never")


def test_eoe_01_a_worker_that_dies_between_effect_record_and_ack_has_one_effect(field):
    """One job dies at each point, alone in its process; the processes under one parent are replaced.

    Without REQUEUE (sched/store/postgres/duties.py) those that had not committed never have their effect.
    """
    field.start("scheduler")
    field.start("worker", "--processes", "2", "--concurrency", "1")
    field.until_working()
    with Client.open(field.store) as client:
        for point in POINTS:
            client.submit(dies.call(key=point, when=point))
    field.until("all to end", lambda: field.value("select count(*) from rota.history") == len(POINTS))
    effects = field.db.execute("select key, count(*) from field_effect group by key").fetchall()
    assert dict(effects) == dict.fromkeys(POINTS, 1)
    # Only what was not committed is executed again: before the ack the ledger knows already.
    assert field.executions("before the effect") == field.executions("before the commit") == 2
    assert field.executions("before the ack") == 1
    assert field.value("select count(distinct (key, idempotency_key)) from field_seen") == len(POINTS)
    field.until("the copies to be settled", lambda: unsettled(field) == 0)


def unsettled(field):
    with pika.BlockingConnection(pika.URLParameters(field.env["ROTA_BROKER"])) as connection:
        return connection.channel().queue_declare("rota.q.field", passive=True).method.message_count


def test_eoe_03_the_idempotency_key_is_one_over_attempts_and_redrives(field):
    """It is `str(self._attempt.job.key)` in workers/context.py: with the attempt's number added there are four."""
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    field.rota("submit", "fails", "--args", '{"key": "a"}')
    with Client.open(field.store) as client:
        other = client.submit(fails.call(key="b"))
    field.until("both to die", lambda: field.value("select count(*) from rota.dead") == 2)
    run = next(r for r in map(json.loads, field.rota("dead", "--json").splitlines()) if r["job_id"] != other.id)
    field.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}")
    field.until("two more attempts", lambda: field.executions("a") == 4)
    keys = "select distinct idempotency_key from field_seen where key = %s"
    assert field.db.execute(keys, ["a"]).fetchall() == [(f"{run['job_id']}@{run['scheduled_for']}",)]
    assert field.value(keys, "b").startswith(other.id)


def test_eoe_04_increments_add_up_with_copies_of_messages_and_killed_workers(field):
    """With a commit in front of `self._finish()` in `__exit__` (workers/context.py) copies add to the balance."""
    jobs, copies = 1000, 100
    field.start("scheduler")
    with Client.open(field.store) as client:
        client.submit_many([credit.call() for _ in range(jobs)])
        field.until("all to be published", lambda: waiting(field) == jobs)
        publish_again(field, copies)
        worker = field.start("worker")
        field.until("some to end", lambda: field.value("select n from field_balance") > jobs // 4)
        worker.kill()
        field.start("worker")
        field.until("all to end", lambda: field.value("select count(*) from rota.run") == 0)
    field.until("the copies to be settled", lambda: unsettled(field) == 0)
    assert field.value("select n from field_balance") == jobs
    assert field.value("select count(*) from rota.history where outcome = 'succeeded'") == jobs


def waiting(field):
    """The same of a queue that need not be there: it is declared before the first publish, a moment after the first claim."""
    try:
        return unsettled(field)
    except pika.exceptions.ChannelClosedByBroker:
        return 0


def publish_again(field, number):
    """Copies of messages, as a broker or a relay that repeats itself makes them."""
    rows = field.db.execute(
        """select dispatch, job_id::text, to_char(scheduled_for at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
          queue, handler, tenant, args::text from rota.run order by dispatch limit %s""",
        [number],
    ).fetchall()
    with pika.BlockingConnection(pika.URLParameters(field.env["ROTA_BROKER"])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for row in rows:
            channel.basic_publish("rota.jobs", "rota.q.field", encode(Dispatch(*row)), mandatory=True)
