"""A service without Rota's code publishes commands; a scheduler's inboxes take them."""

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

import pika
import psycopg
import pytest
from rota.sched.app import Call
from rota.sched.broker.rabbitmq import Consumer, Publisher
from rota.sched.errors import Unreachable
from rota.sched.ids import new_job_id
from rota.sched.ingest import Ingest
from rota.sched.message import encode
from rota.sched.model import Dispatch
from rota.sched.requests import new_job
from rota.sched.scheduler.collector import Collector
from rota.sched.store import open_store
from rota.sched.store.values import HandlerRow, Lanes, NewMember
from rota.sched.when import Once

from tests.conftest import BOUND

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}},
    "required": ["to"],
    "additionalProperties": False,
}


class Service:
    """What a program in any language does: publish, and read its answers."""

    def __init__(self, broker_url):
        self.connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.answers = self.channel.queue_declare("", exclusive=True).method.queue

    def publish(self, body, *, kind="job.submit", reply=True, correlation_id=None, **properties):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        properties.setdefault("reply_to", self.answers if reply else None)
        self.channel.basic_publish(
            "rota.submit",
            kind,
            body,
            pika.BasicProperties(type=kind, correlation_id=correlation_id, **properties),
            mandatory=True,
        )

    def get(self, queue):
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        return None if method is None else (properties, body)

    def close(self):
        self.connection.close()


async def until(look, what):
    """Waits for what `look` gives."""
    async with asyncio.timeout(BOUND):
        while True:
            found = await asyncio.to_thread(look)
            if found:
                return found
            await asyncio.sleep(0.02)
    raise AssertionError(what)


async def answer(service):
    properties, body = await until(lambda: service.get(service.answers), "an answer")
    return properties.correlation_id, json.loads(body)


@contextlib.asynccontextmanager
async def scheduler(store_url, broker_url, link=None, longest_hold=600.0):
    """The part of a scheduler that consumes."""
    store = open_store(store_url)
    link = link or store.async_link("commands")
    publisher = Publisher(broker_url, "test publish")
    publisher._on_up = publisher.declare
    consumer = Consumer(broker_url, "test consume")
    ingest = Ingest(store, link, consumer, publisher, longest_hold=longest_hold)
    collector = Collector(store, link, consumer, publisher, longest_hold=longest_hold)
    await publisher.start(BOUND)
    await ingest.start()
    await collector.start()
    await consumer.start(BOUND)
    try:
        yield ingest, collector, consumer
    finally:
        await ingest.stop()
        await collector.stop()
        await consumer.close()
        await publisher.close()
        await link.close()


@pytest.fixture
def store(store_url):
    """The store, in which a worker has announced the handler `send` on the queue `mail`."""
    store = open_store(store_url)
    with contextlib.closing(store.link("test")) as link:
        link.run(store.announce([HandlerRow("send", "shop", "mail", SCHEMA)], []))
    return store


@pytest.fixture
def service(broker_url):
    service = Service(broker_url)
    yield service
    service.close()


def rows(store_url, sql):
    with psycopg.connect(store_url) as connection:
        return connection.execute(sql).fetchall()


def submit(to="a@b", **more):
    return {"handler": "send", "args": {"to": to}, **more}


async def parked(service):
    properties, body = await until(lambda: service.get("rota.parked"), "a parked message")
    return properties, body


async def test_a_submit_is_answered_with_an_id_and_a_repetition_with_the_same(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url):
        service.publish(submit(), message_id="m1", correlation_id="c1")
        correlation, first = await answer(service)
        assert correlation == "c1"
        assert first == {"ok": True, "job_id": first["job_id"], "duplicate": False}
        service.publish(submit(), message_id="m1")
        assert (await answer(service))[1] == {"ok": True, "job_id": first["job_id"], "duplicate": True}
        assert rows(store_url, "select id::text, queue, args from rota.job") == [
            (first["job_id"], "mail", {"to": "a@b"})
        ]


async def test_senders_do_not_share_keys(store, store_url, broker_url, service):
    user = urlsplit(broker_url).username
    async with scheduler(store_url, broker_url):
        found = set()
        for sender in ({"app_id": "one"}, {"app_id": "two"}, {"app_id": "one", "user_id": user}):
            service.publish(submit(), message_id="m1", **sender)
            found.add((await answer(service))[1]["job_id"])
        assert len(found) == 3


async def test_direct_reply_to_is_answered(store, store_url, broker_url, service):
    answers = []
    async with scheduler(store_url, broker_url):
        service.channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda *delivered: answers.append(json.loads(delivered[3])), auto_ack=True
        )
        service.publish(submit(), message_id="m1", reply_to="amq.rabbitmq.reply-to")
        await until(lambda: service.connection.process_data_events(0) or answers, "an answer")
    assert answers[0]["ok"]


@pytest.mark.parametrize(
    ("body", "properties", "code", "told"),
    [
        (b"{not json", {}, "invalid", "not UTF-8 JSON"),
        ({"handler": "send", "args": {"to": 7}}, {}, "invalid", "to"),
        ({"handler": "nobody"}, {}, "not_found", "'nobody'"),
        (submit(when={"cron": "0 0 31 2 *"}), {}, "invalid", "never"),
        (submit(to="nul\0"), {}, "invalid", "args.to contains a NUL"),
        (submit(), {"message_id": None}, "invalid", "no idempotency key"),
    ],
)
async def test_what_cannot_be_accepted_is_parked_and_answered_and_harms_no_neighbour(
    store, store_url, broker_url, service, body, properties, code, told
):
    async with scheduler(store_url, broker_url):
        service.publish(submit(), message_id="good1", reply=False)
        service.publish(body, **{"message_id": "bad", "correlation_id": "c", **properties})
        service.publish(submit(), message_id="good2", reply=False)
        correlation, given = await answer(service)
        assert correlation == "c"
        assert given["error"]["code"] == code
        assert told in given["error"]["message"]
        left, text = await parked(service)
        assert told in left.headers["x-rota-error"]
        assert left.type == "job.submit"
        assert text == (body if isinstance(body, bytes) else json.dumps(body).encode())
        await until(lambda: len(rows(store_url, "select 1 from rota.job")) == 2, "the neighbours")


async def test_a_key_with_another_request_is_a_conflict(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url):
        service.publish(submit("a"), message_id="m1")
        assert (await answer(service))[1]["ok"]
        service.publish(submit("b"), message_id="m1")
        assert (await answer(service))[1]["error"]["code"] == "conflict"
        assert "key 'm1'" in (await parked(service))[0].headers["x-rota-error"]


async def test_an_answer_to_a_queue_that_is_gone_hurts_nobody(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url) as (_, _, consumer):
        service.publish(submit(), message_id="m1", reply_to="gone")
        service.publish(submit(), message_id="m2")
        assert (await answer(service))[1]["ok"]
        await until(lambda: consumer.held == 0, "both acked")


async def test_a_burst_with_repeated_keys_is_stored_once_each(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url) as (ingest, _, consumer):
        for n in range(300):
            service.publish(submit(), message_id=f"m{n % 100}", reply=False)
        await until(lambda: ingest.counters["commands"] == 300 and consumer.held == 0, "all settled")
        assert (ingest.counters["stored"], ingest.counters["duplicate"]) == (100, 200)
        assert rows(store_url, "select count(*) from rota.job") == [(100,)]


async def test_a_job_is_cancelled_by_command(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url):
        service.publish(submit(when={"after": 3600}), message_id="m1")
        job_id = (await answer(service))[1]["job_id"]
        service.publish({"id": job_id}, kind="job.cancel")
        assert (await answer(service))[1] == {"ok": True, "job": True, "runs": 0, "asked": 0, "running": 0}
        service.publish({"id": new_job_id()}, kind="job.cancel")
        assert (await answer(service))[1]["error"]["code"] == "not_found"


async def test_jobs_are_changed_paused_and_triggered_by_command_and_each_message_is_one(
    store, store_url, broker_url, service
):
    async with scheduler(store_url, broker_url):
        service.publish({"handler": "send", "args": {"to": "a"}, "name": "nightly", "when": {"every": 3600}})
        job_id = (await answer(service))[1]["job_id"]
        change = {
            "id": "nightly",
            "set": {"every": 60, "misfire": "skip"},
            "version": 1,
            "run_now": True,
            "reason": "more",
        }
        for _ in range(2):
            service.publish(change, kind="job.update", message_id="m1", app_id="shop")
            told = (await answer(service))[1]
            assert (told["ok"], told["job_id"], told["version"], told["changed"]) == (True, job_id, 2, True)
        for _ in range(2):
            service.publish({"id": job_id}, kind="job.trigger", message_id="m2", app_id="shop")
            assert (await answer(service))[1]["run"].startswith(job_id)
        assert rows(store_url, "select count(*)::int from rota.run") == [(2,)]
        service.publish({"id": "nightly", "reason": "why"}, kind="job.pause", app_id="shop")
        assert (await answer(service))[1] == {
            "ok": True,
            "job_id": job_id,
            "paused": True,
            "changed": True,
            "by": "shop",
        }
        service.publish({"id": "nightly"}, kind="job.resume")
        assert (await answer(service))[1]["changed"]
        service.publish({"id": "nightly", "set": {"every": 60}, "when": {"every": 5}}, kind="job.update")
        assert "put every into it" in (await answer(service))[1]["error"]["message"]
        service.publish({"id": "nightly", "set": {"jitter": 5}, "version": 1}, kind="job.update")
        assert (await answer(service))[1]["error"]["code"] == "conflict"
        service.publish({"id": "nightly"}, kind="job.trigger")
        assert "message_id" in (await answer(service))[1]["error"]["message"]
        changes = rows(store_url, "select c ->> 'did', c ->> 'by' from rota.job, jsonb_array_elements(changes) c")
        assert changes[:3] == [("changed", "shop"), ("triggered", "shop"), ("paused", "shop")]


def a_dead_run(store_url, at="2026-01-01T00:00:00Z"):
    job_id = new_job_id()
    with psycopg.connect(store_url) as connection:
        connection.execute(
            "insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses,"
            " due_at, claimed_at) values (%s, %s, now(), 'x', 1, 'mail', 'send', '{}', 3, 0, now(), now())",
            [job_id, at],
        )
    return f"{job_id}@2026-01-01T00:00:00.000000Z"


async def test_dead_runs_are_redriven_by_command(store, store_url, broker_url, service):
    run = a_dead_run(store_url)
    user = urlsplit(broker_url).username
    async with scheduler(store_url, broker_url):
        service.publish({"queue": "mail", "args": {"to": "new"}, "rate": 10}, kind="job.redrive", user_id=user)
        assert (await answer(service))[1] == {
            "ok": True,
            "redriven": 1,
            "runs": [run],
            "refused": [],
            "left_alone": 0,
            "more": False,
        }
        assert rows(store_url, "select args, state, lineage -> 0 ->> 'by' from rota.run") == [
            ({"to": "new"}, "waiting", user)
        ]
        service.publish({"runs": [run]}, kind="job.redrive")
        (refused,) = (await answer(service))[1]["refused"]
        assert (refused["run"], "not dead but waiting" in refused["reason"]) == (run, True)


async def test_a_redrive_by_command_has_filters_and_checks_arguments(store, store_url, broker_url, service):
    a_dead_run(store_url)
    a_dead_run(store_url)
    async with scheduler(store_url, broker_url):
        service.publish({"all": True, "args": {"to": 7}}, kind="job.redrive")
        assert "to is 7" in (await answer(service))[1]["error"]["message"]
        service.publish({"until": "2026-01-01T00:00:00Z"}, kind="job.redrive")
        assert (await answer(service))[1]["redriven"] == 0
        service.publish({"all": True, "max_redrives": 1, "limit": 1}, kind="job.redrive", app_id="shop")
        done = (await answer(service))[1]
        assert (done["redriven"], done["more"]) == (1, True)
        assert rows(store_url, "select lineage -> 0 ->> 'by' from rota.run") == [("shop",)]


class Flaky:
    """A link whose first runs find no store: two fail before, one after the commit."""

    def __init__(self, link):
        self.link = link
        self.failures = ["before", "before", "after"]

    async def run(self, txn):
        failure = self.failures.pop(0) if txn.name == "submit" and self.failures else None
        if failure == "before":
            raise Unreachable("away")
        value = await self.link.run(txn)
        if failure == "after":
            raise Unreachable("the answer is lost")
        return value

    async def close(self):
        await self.link.close()


async def test_while_the_store_is_away_commands_are_held_and_stored_once_later(store, store_url, broker_url, service):
    link = Flaky(store.async_link("flaky"))
    async with scheduler(store_url, broker_url, link):
        service.publish(submit(), message_id="m1")
        assert (await answer(service))[1]["ok"]
    assert not link.failures
    assert rows(store_url, "select count(*) from rota.job") == [(1,)]


async def test_while_the_store_is_away_for_long_commands_go_back_and_come_again(store, store_url, broker_url, service):
    """The broker would take them back by force: it counts how long a delivery is held."""
    link = Flaky(store.async_link("flaky"))
    link.failures = ["before"] * 8
    async with scheduler(store_url, broker_url, link, longest_hold=0.4) as (ingest, _, consumer):
        epoch = consumer.epoch
        service.publish(submit(), message_id="m1")
        assert (await answer(service))[1]["ok"]
        assert ingest.counters["commands"] > 2
        assert consumer.epoch == epoch
    assert rows(store_url, "select count(*) from rota.job") == [(1,)]


# Dead letters.


async def a_waiting_run(store, store_url):
    """A job that has been claimed: its dispatch."""
    with contextlib.closing(store.link("test")) as link:
        job = new_job(Call("send", {"to": "a"}, "mail"), Once())
        link.run(store.submit([job]))
        member = link.run(store.join(NewMember("scheduler", "here", 1, "0")))
        parts = link.run(store.partitions(member))
        ((low,),) = rows(store_url, "select 'epoch'::timestamptz")
        lanes = Lanes(parts, ["mail"] * len(parts), [low] * len(parts))
        (dispatch,) = link.run(store.claim(member, lanes, 10, 10)).dispatches
    return dispatch


def dead_letter(service, body, reason):
    death = {"reason": reason, "queue": "rota.q.mail", "count": 1}
    service.channel.basic_publish("", "rota.dead", body, pika.BasicProperties(headers={"x-death": [death]}))


@pytest.mark.parametrize(
    ("reason", "older", "anew"), [("delivery_limit", 0, 1), ("expired", 0, 1), ("rejected", 0, 0), ("expired", -1, 0)]
)
async def test_a_dead_letter_that_is_no_verdict_has_its_run_dispatched_anew(
    store, store_url, broker_url, service, reason, older, anew
):
    d = await a_waiting_run(store, store_url)
    d = Dispatch(d.dispatch + older, d.job_id, d.scheduled_for, d.queue, d.handler, d.tenant, d.args)
    rows_ready = "select count(*) from rota.run where ready_at is not null"
    async with scheduler(store_url, broker_url) as (_, collector, consumer):
        dead_letter(
            service, encode(d) if d.dispatch > 0 else encode(d).replace(b'"dispatch":0', b'"dispatch":999'), reason
        )
        await until(lambda: collector.counters["dead_letters"] == 1 and consumer.held == 0, "settled")
        assert rows(store_url, rows_ready) == [(anew,)]
        assert collector.counters["dispatched_anew"] == anew


async def test_a_dead_letter_that_cannot_be_read_is_parked(store, store_url, broker_url, service):
    async with scheduler(store_url, broker_url):
        dead_letter(service, b"what?", "expired")
        properties, body = await parked(service)
        assert body == b"what?"
        assert "not a work message" in properties.headers["x-rota-error"]
        assert "x-death" not in properties.headers
