"""The broker: connections, confirms, consumers, topology. That no queue has a single active consumer: test_topology.py."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
import time
from urllib.parse import urlsplit

import pika
from app import effect
from field_app import held as waits
from field_app import mends
from rota import Client, every
from rota.sched.broker.topology import work_queue

from tests.conftest import BOUND, low_on
from tests.field.broker import QUEUE, RUNGS, path, ready
from tests.field.conftest import Field
from tests.field.relay import Relay
from tests.integration.conftest import party_on

SCHEDULERS = "select id from rota.member where kind = 'scheduler' and state = 'live' and stats->'degraded' ? %s"
WORKERS = SCHEDULERS.replace("scheduler", "worker")


class Service(threading.Thread):
    """A program that submits by AMQP, one job after the other until it is stopped: what is not confirmed it sends again."""

    def __init__(self, broker_url):
        super().__init__(daemon=True)
        self.confirmed = 0
        self.over = threading.Event()
        self._broker_url = broker_url

    def run(self):
        while not self.over.is_set():
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self._submit()

    def _submit(self):
        with pika.BlockingConnection(pika.URLParameters(self._broker_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.over.wait(0.02):
                body = {"handler": "effect", "args": {"key": f"amqp-{self.confirmed}"}}
                properties = pika.BasicProperties(
                    type="job.submit", app_id="service", message_id=str(self.confirmed), delivery_mode=2
                )
                channel.basic_publish(
                    "rota.submit", "job.submit", json.dumps(body).encode(), properties, mandatory=True
                )
                self.confirmed += 1


def test_brk_01_brk_06_brk_16_what_was_accepted_while_connections_broke_runs_once(node, node_url, store_url, tmp_path):
    """Jobs come in by both doors all the time; connections are cut, and the broker itself stops and starts.

    Without `self._later(number)` in `_settled` (sched/scheduler/dispatch.py) what was not confirmed is lost; without
    `await self._begin(calls, queue)` in `_activate` (sched/broker/consumer.py) nobody consumes after the first cut.
    """
    with Relay(node_url) as relay, party_on(store_url, relay.url, tmp_path) as party:
        party.start("scheduler")
        party.start("worker")
        party.until_working()
        party.until("the entrance", lambda: party.value(f"{READY}") == 2)
        service = Service(node_url)
        service.start()
        with Client.open(party.store) as client:
            for n in itertools.count():
                client.submit(effect.call(key=f"store-{n}"))
                if n in {15, 30, 45}:
                    relay.cut()
                if n == 60:
                    node.ctl("stop_app")
                    node.ctl("start_app")
                    client.submit(effect.call(key="probe"))
                    party.until("the probe", lambda: party.effects("probe"))
                if n == 80:
                    break
                time.sleep(0.02)
        service.over.set()
        service.join()
        expected = {"probe", *(f"store-{m}" for m in range(81)), *(f"amqp-{m}" for m in range(service.confirmed))}
        party.until("all effects", lambda: party.value("select count(*) from demo_effect") >= len(expected))
        party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
        rows = party.db.execute("select key, count(*) from demo_effect group by key").fetchall()
        assert set(dict(rows)) - expected <= {f"amqp-{service.confirmed}"}, "it was sent, and no answer came"
        assert {key: n for key, n in rows if key in expected} == dict.fromkeys(expected, 1)
        assert not any("Traceback" in party.log_of(member) for member in party.members)


READY = "select count(*) from rota.member where state = 'live' and stats->'degraded' = '[]'"


def test_brk_03_brk_07_a_queue_that_is_deleted_is_made_again_by_whoever_needs_it(party, management):
    """First by the worker that consumes it; then nobody does, and what is published to it comes back.

    Without `add_on_cancel_callback` (sched/broker/consumer.py) nobody consumes any more. Without
    `self._declared.discard(queue)` in `_settled` (sched/scheduler/dispatch.py) publishes are returned for ever.
    """
    worker, broker_url = party.members[1], party.env["ROTA_BROKER"]
    with Client.open(party.store) as client:
        for key in ("first", "second"):
            client.submit(effect.call(key=key))
            party.until(f"the effect of {key}", lambda key=key: party.effects(key))
            party.until("its ack", lambda: held(party) == 0 and ready(broker_url) == 0)
            if key == "first":
                management.request("DELETE", path(broker_url))
                party.until("the worker to make it again", lambda: ready(broker_url) == 0)
        worker.send_signal(signal.SIGTERM)
        worker.wait(BOUND)
        management.request("DELETE", path(broker_url))
        client.submit_many([effect.call(key=f"k{n}") for n in range(10)])
        party.until("the queue to be there again, with all of them", lambda: ready(broker_url) == 10)
    party.until("a word about it", lambda: party.status()["republished"]["returned"])
    party.start("worker")
    party.until("all effects", lambda: party.value("select count(*) from demo_effect") == 12)
    assert party.value("select count(distinct key) from demo_effect") == 12


OWNERS = "select count(distinct owner) from rota.partition {}"


def test_brk_04_an_alarm_of_the_broker_makes_ticks_late_and_loses_none(node, node_url, store_url, tmp_path):
    """Without `self._publisher.blocked` in `_figures` (sched/scheduler/service.py) nobody is told."""
    with party_on(store_url, node_url, tmp_path) as party:
        party.start("scheduler")
        second = party.start("scheduler", "--drain-timeout", "4s")
        party.start("worker")
        party.until_working()
        with Client.open(party.store) as client:
            party.until("both to have partitions", lambda: party.value(OWNERS.format("")) == 2)
            beats = itertools.count()
            while party.value(OWNERS.format("join rota.job using (part)")) < 2:
                n = next(beats)
                client.submit(effect.call(key=f"beat-{n}"), every(1, misfire="run_all"), name=f"beat-{n}")
            keys = [f"beat-{n}" for n in range(next(beats))]
            party.until("ticks", lambda: all(map(party.effects, keys)))
            with low_on("memory", node):
                party.until(
                    "both to say so", lambda: len(party.db.execute(SCHEDULERS, ["broker_blocked"]).fetchall()) == 2
                )
                assert "broker_blocked" in party.status()["degraded"]
                asked = time.monotonic()
                second.send_signal(signal.SIGTERM)
                assert second.wait(BOUND) == 0
                assert time.monotonic() - asked < 30, "its own bound on draining, not the usual 30 s"
            party.db.execute("delete from rota.job")  # a cancel would end the runs that wait, too
        party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
        for key in keys:
            rows = party.db.execute("select tick from demo_effect where key = %s order by tick", [key]).fetchall()
            assert {(b - a).total_seconds() for (a,), (b,) in itertools.pairwise(rows)} == {1}


def test_brk_09_a_worker_that_hears_nothing_of_the_broker_says_so_and_connects_anew(store_url, broker_url, tmp_path):
    """A half-open connection: nothing passes and nobody is told. A heartbeat of 0, with which this is never noticed, is
    refused (tests/broker/test_urls.py). Without `heartbeat=address.heartbeat` (sched/broker/connection.py) one of its two
    connections finds out by a question that nobody answers for half a minute, the other by the server's heartbeat of a minute.
    """
    with Relay(f"{broker_url}?heartbeat=1") as relay, party_on(store_url, broker_url, tmp_path) as party:
        party.start("scheduler")
        party.env["ROTA_BROKER"] = relay.url
        worker = party.start("worker")
        party.until_working()
        party.until("both to be up", lambda: party.value(READY) == 2)
        relay.hold()
        party.until("it to say so", lambda: party.value(WORKERS, "broker"))
        missed = "is down: No activity or too many missed heartbeats in the last 1 seconds"
        party.until("both connections to miss them", lambda: party.log_of(worker).count(missed) == 2)
        relay.release()
        party.rota("submit", "effect", "--args", '{"key": "k"}')
        party.until("the effect", lambda: party.effects("k"))


def test_brk_10_a_run_whose_delivery_is_void_ends_once_and_its_second_delivery_is_settled(
    store_url, broker_url, tmp_path
):
    """Without `self.defer(...)` in `explain` (workers/settle.py) the second delivery is held for ever."""
    with Relay(broker_url) as relay, contextlib.closing(Field(store_url, broker_url, tmp_path)) as field:
        field.open("mended")
        field.start("scheduler")
        field.env["ROTA_BROKER"] = relay.url
        worker = field.start("worker")
        field.until_working()
        queue = work_queue("field")
        with Client.open(field.store) as client:
            client.submit(waits.call(key="k", way="transaction"))
            field.until("it to begin", lambda: field.executions("k"))
            relay.cut()
            field.until("the second delivery to be put off", lambda: ready(broker_url, *RUNGS))
            field.open("k-1")
            field.until("the effect", lambda: field.value("select count(*) from field_effect where key = 'k'"))
            client.submit(mends.call(key="next"))
        field.until("the next one", lambda: field.value("select count(*) from field_effect where key = 'next'"))
        field.until("nothing to be left", lambda: held(field) == 0 and ready(broker_url, queue) == 0)
        assert field.value("select count(*) from field_effect") == 2
        assert worker.poll() is None
        assert "PRECONDITION" not in field.log_of(worker)


def held(party):
    return party.value("select (stats->>'held')::int from rota.member where kind = 'worker' and state = 'live'")


def test_brk_13_what_cannot_be_published_to_a_queue_without_leader_waits_in_the_store(
    node, node_url, store_url, tmp_path
):
    """Its member is stopped and started, as those of a cluster that has lost its majority; meanwhile the scheduler that
    has published to it is killed. Without ADOPT (sched/store/postgres/duties.py) what it published is lost.
    """
    name = f"{urlsplit(node_url).path[1:]}_{QUEUE}"
    server = f"{{'{name}', node()}}"
    with party_on(store_url, node_url, tmp_path) as party:
        scheduler, worker = party.start("scheduler"), party.start("worker")
        party.until_working()
        with Client.open(party.store) as client:
            client.submit(effect.call(key="first"))
            party.until("the effect", lambda: party.effects("first"))
            node.ctl("eval", f"ra:stop_server(quorum_queues, {server}).")
            client.submit_many([effect.call(key=f"k{n}") for n in range(50)])
            party.until("their claim", lambda: party.value("select count(*) from rota.run") == 50)
            scheduler.kill()
            scheduler = party.start("scheduler")
            node.ctl("eval", f"ra:restart_server(quorum_queues, {server}).")
        party.until("all effects", lambda: party.value("select count(*) from demo_effect") == 51)
        party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
        assert party.value("select count(distinct key) from demo_effect") == 51
        assert [scheduler.poll(), worker.poll()] == [None, None]
        assert max(party.log_of(m).count("\n") for m in party.members) < 100, "no hot loop"


def test_brk_15_a_queue_with_other_arguments_is_told_with_both_and_used_as_it_is(
    store_url, broker_url, management, tmp_path
):
    """Without `log.warning("queue %s differs ...")` in `_declare` (sched/scheduler/dispatch.py) nobody is told."""
    management.request("PUT", path(broker_url), {"durable": True, "arguments": {"x-queue-type": "classic"}})
    management.request(
        "PUT", path(broker_url, "rota.dead"), {"durable": True, "arguments": {"x-queue-type": "classic"}}
    )
    with party_on(store_url, broker_url, tmp_path) as party:
        scheduler = party.start("scheduler")
        party.start("worker")
        party.until_working()
        party.rota("submit", "effect", "--args", '{"key": "k"}')
        party.until("the effect", lambda: party.effects("k"))
        told = [line for line in party.log_of(scheduler).splitlines() if "inequivalent arg 'x-" in line]
        assert [name for line in told for name in ("rota.dead", QUEUE) if f"for queue '{name}'" in line] == [
            "rota.dead",
            QUEUE,
        ]
        assert all("received" in line and "but current is" in line for line in told)
