"""Delays: the ladder of the broker, what waits in the store, and what a worker holds for long."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing

from app import effect, fail, flaky_effect
from field_app import fails, held, mends
from rota import Client, Retry, after
from rota.sched.broker.messages import Outgoing, Publish
from rota.sched.broker.rabbitmq import Consumer, Publisher
from rota.sched.broker.topology import (
    DELAY_DUE,
    JOBS,
    delay_route,
    shared_topology,
    work_queue,
    work_topology,
)

from tests.conftest import BOUND
from tests.field.broker import QUEUE, RUNGS, channel, ready
from tests.field.conftest import Field
from tests.integration.conftest import party_on

HELD = "select coalesce(sum((stats->>'held')::int), 0) from rota.member where kind = 'worker' and state = 'live'"
DUE_KEY = work_topology("demo").bindings[1].key
"""Of the binding that brings what leaves the ladder to the demo app's queue."""


async def test_dly_01_dly_09_delays_do_not_hold_each_other_up_and_each_message_returns_to_its_own_queue(broker_url):
    """An hour, then 3 s and 1 s, for three queues. Without `x_message_ttl=...` in `_rung_queue` (sched/broker/topology.py)
    nothing ever comes out, without `+ work_queue(queue)` in `delay_route` nothing finds its queue.
    """
    got: dict[str, list[str | None]] = defaultdict(list)
    publisher, consumer = Publisher(broker_url, "publisher"), Consumer(broker_url, "consumer")
    await publisher.start(BOUND)
    await publisher.declare()
    await consumer.start(BOUND)
    for queue in ("a", "b", "c"):
        await publisher.declare_work_queue(queue)
        await consumer.consume(
            work_queue(queue), 10, lambda delivery, queue=queue: got[queue].append(delivery.properties.message_id)
        )
    for seconds in (3600, 3, 1):
        for queue in ("a", "b", "c"):
            message = Outgoing(*delay_route(seconds, queue), b"{}", f"{queue} {seconds}")
            assert await publisher.send(message) is Publish.CONFIRMED
    async with asyncio.timeout(BOUND):
        while sum(map(len, got.values())) < 6:  # noqa: ASYNC110 - what is waited for is the broker's
            await asyncio.sleep(0.05)
    assert got == {queue: [f"{queue} 1", f"{queue} 3"] for queue in ("a", "b", "c")}
    assert await asyncio.to_thread(ready, broker_url, *RUNGS) == 3
    await consumer.close()
    await publisher.close()


def test_dly_03_what_the_ladder_cannot_deliver_is_told_and_runs_all_the_same(party):
    """Nothing leads from the ladder to the queue while 100 retries come out of it. Without `{"alternate-exchange": PARKED}`
    in `_ladder` (sched/broker/topology.py) they stay in their rung, and every retry behind them.
    """
    party.members[0].terminate()
    party.members[0].wait(BOUND)
    party.env["ROTA_RECONCILE_AFTER"] = "2"
    party.start("scheduler")
    party.until_connected()
    with Client.open(party.store) as client:
        client.submit(effect.call(key="first"))
        party.until("the queue to be declared by all who do", lambda: party.effects("first"))
        with channel(party.env["ROTA_BROKER"]) as admin:
            admin.queue_unbind(QUEUE, DELAY_DUE, DUE_KEY)
        client.submit_many([flaky_effect.call(key=f"k{n}", times=1) for n in range(100)])
    party.until("the alarm", lambda: party.status()["parked"] >= 100)
    told = party.doctor()[1]["rota.parked"]
    assert "it came out of the delay ladder for queue demo, which was not there" in told["told"]
    assert told["remedy"]
    party.until("all effects", lambda: party.value("select count(*) from demo_effect") == 101)
    party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
    assert party.value("select count(distinct key) from demo_effect") == 101
    assert party.value("select count(*) from rota.history where attempt = 2") == 100


def test_dly_04_no_plugin_holds_delays():
    """`_ladder` (sched/broker/topology.py) is where an exchange of the plugin's kind would be declared."""
    assert {exchange.kind for exchange in shared_topology().exchanges} == {"direct", "fanout", "topic"}


def test_dly_06_a_run_that_is_longer_than_the_brokers_ack_timeout_is_executed_once(make_rabbitmq, store_url, tmp_path):
    """And what was sent to its worker, which has no room for it, comes to another meanwhile.

    Without `settler.defer(job, longest)` in `_guard` (workers/service.py) the broker takes the run's delivery back by force,
    and without `intake.give_back_old(before)` there those that have not begun.
    """
    node = make_rabbitmq(configuration={"consumer_timeout": "20000"}, advanced={"channel_tick_interval": 1000})
    with closing(Field(store_url, node.url, tmp_path)) as field, Client.open(field.store) as client:
        field.env |= {
            "ROTA_ACK_TIMEOUT": "20",
            "ROTA_LEASE": "12",
        }  # copies of what runs come back when a lease is over
        field.open("mended")
        field.start("scheduler")
        first = field.start("worker", "--concurrency", "1")
        field.until_working()
        client.submit(held.call(key="long", way="return"))
        field.until("it to begin", lambda: field.running_on(first))
        client.submit_many([mends.call(key=f"k{n}") for n in range(20)])
        field.until("the first worker to hold all", lambda: field.value(HELD) == 21)
        second = field.start("worker")
        # What goes back may come to the first again: some of them may have to wait for its end.
        field.until("most of the others", lambda: field.value("select count(*) from field_effect") >= 12)
        old = "select begun_at < clock_timestamp() - interval '27 s' from rota.run where handler = 'held'"
        field.until("the timeout to be over for long", lambda: field.value(old))
        assert field.running_on(first) == 1
        field.open("long-1")
        field.until("its end", lambda: field.value("select count(*) from rota.history") == 21)
        assert field.value("select attempt from rota.history where handler = 'held' and losses = 0") == 1
        assert field.executions("long") == 1
        queue = work_queue("field")
        field.until("no message to be left", lambda: field.value(HELD) == 0 and ready(node.url, queue, *RUNGS) == 0)
        for worker in (first, second):
            assert field.log_of(worker).count("rota worker consume is") == 1, (
                "it came up, and its channel was never closed"
            )
        assert "timed out" not in "".join(log.read_text(errors="replace") for log in node.folder.glob("log/*.log"))


def test_dly_07_what_waits_for_longer_than_leases_is_handed_out_once(store_url, broker_url, tmp_path):
    """A job that is due in three leases, and a retry in two or more, with four workers. Without
    `and j.next_run_at <= now()` in CLAIM (sched/store/postgres/scheduling.py) the job runs at once.
    """
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_LEASE"] = "3"
        party.start("scheduler")
        for _ in range(4):
            party.start("worker")
        party.until_working()
        party.until_connected()
        with channel(broker_url) as spy:
            spy.queue_declare("spy", durable=True, arguments={"x-queue-type": "quorum"})
            spy.queue_bind("spy", JOBS, QUEUE)
            spy.queue_bind("spy", DELAY_DUE, DUE_KEY)
        with Client.open(party.store) as client:
            client.submit(effect.call(key="later"), after(9))
            client.submit(fail.call(times=1), retry=Retry(attempts=2, base=12))
        party.until("both to end", lambda: party.value("select count(*) from rota.history") == 2)
        assert party.effects("later") == 1
        assert party.value("select count(*) from rota.history where claimed_at < due_at") == 0
        assert party.db.execute("select attempt from rota.history order by 1").fetchall() == [(1,), (2,)]
        assert ready(broker_url, "spy") == 3


def test_dly_10_retries_come_when_they_were_planned(field):
    """At the time in the ledger or a little later (a second is the ladder's step), and never earlier. Without
    `self.defer(job, verdict.seconds)` in `_settle` (workers/settle.py) they come when the reconciler finds them.
    """
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    planned = {}
    with Client.open(field.store) as client:
        client.submit(fails.call(key="k"), retry=Retry(attempts=4, base=2))

    def dead():
        for attempt, at in field.db.execute("select attempt, retry_at from rota.run where state = 'retrying'"):
            planned[attempt + 1] = at
        return field.value("select count(*) from rota.dead")

    field.until("it to die", dead)
    begun = dict(field.db.execute("select attempt, time from field_seen").fetchall())
    assert set(begun) == {1, 2, 3, 4}
    for attempt, at in planned.items():
        assert 0 <= (begun[attempt] - at).total_seconds() < 100, "the reconciler finds them after two minutes"
