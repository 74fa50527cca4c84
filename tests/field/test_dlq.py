"""Dead letters: the ledger has what died, and the broker's queue of them is a copy that may be late, cut or lost."""

from __future__ import annotations

import itertools
import json
import signal

import pika
from app import broken
from rota import Client
from rota.sched.broker.topology import DEAD, DELAY_DUE, JOBS, work_topology
from servers.management import Management

from tests.conftest import BOUND
from tests.field.broker import QUEUE, channel, path, ready, vhost
from tests.integration.conftest import party_on

DEATHS = "select count(*) from rota.dead"


def set_policy(management, broker_url, pattern, **definition):
    policy = {"pattern": pattern, "apply-to": "queues", "definition": definition}
    management.request("PUT", f"/api/policies/{vhost(broker_url)}/policy", policy)


def test_dlq_01_dead_letters_that_can_go_nowhere_are_told_and_arrive_when_they_can(make_rabbitmq, store_url, tmp_path):
    """Without `leads_somewhere(publisher, DEAD)` in `_broker_checks` (sched/doctor.py) nobody is told, and without
    `publisher.declare()` there they do not arrive.
    """
    # The broker tries again what could not be dead-lettered: by itself every three minutes.
    node = make_rabbitmq(advanced={"dead_letter_worker_publisher_confirm_timeout": 2000})
    with party_on(store_url, node.url, tmp_path) as party:
        assert party.doctor()[1]["topology"]["state"] == "ok", "doctor has declared it"
        worker = party.start("worker")
        party.until("the queue", lambda: ready(node.url) == 0)
        worker.kill()
        worker.wait()
        with channel(node.url) as admin:
            admin.queue_unbind(DEAD, DEAD, "")
            for n in range(100):
                admin.basic_publish("", QUEUE, b"{}", pika.BasicProperties(message_id=str(n), delivery_mode=2))
            for method, _, _ in itertools.islice(admin.consume(QUEUE, inactivity_timeout=BOUND), 100):
                admin.basic_reject(method.delivery_tag, requeue=False)
            admin.cancel()
        party.until("all to be kept, unseen", lambda: kept(node) == 100)
        code, checks = party.doctor()
        assert code == 1
        assert "no queue was bound to the exchange rota.dead" in checks["dead letters"]["told"]
        assert checks["dead letters"]["remedy"]
        party.until("all to arrive", lambda: ready(node.url, DEAD) == 100)
        assert "dead letters" not in party.doctor()[1]


def kept(node):
    """Dead letters that the broker could not deliver: its HTTP API has them, late."""
    found = Management(node.url, node.management_url).request("GET", path(node.url))
    return found.get("messages_dlx")


def test_dlq_11_a_policy_that_would_delete_waiting_dead_letters_is_told(management, store_url, broker_url, tmp_path):
    """It wins over the queue's own argument. Without the loop over `PREFIXES` in `probe` (sched/broker/probe.py) a policy for
    work queues or rungs alone is not found.
    """
    with party_on(store_url, broker_url, tmp_path) as party:
        assert "dead-lettering" not in party.doctor()[1]
        for pattern, queues in (
            ("^rota", "rota.q.* and rota.delay.v1.*"),
            ("^rota.q.", "rota.q.*"),
            ("^rota.delay.", "rota.delay.v1.*"),
        ):
            set_policy(management, broker_url, pattern, overflow="drop-head")
            found = party.doctor()[1]["dead-lettering"]
            assert found["state"] == "warning"
            assert f"not in force for queues {queues}:" in found["told"]
            assert "a policy with `overflow`" in found["told"]


def test_dlq_02_a_limit_on_the_queue_of_dead_letters_loses_none_of_what_died(party, management):
    """A policy keeps ten and drops the others, while no scheduler takes them. Without `insert into rota.dead` in FINISH
    (sched/store/postgres/working.py) they would be gone.
    """
    broker_url = party.env["ROTA_BROKER"]
    scheduler, worker = party.members
    party.until_connected()
    worker.send_signal(signal.SIGTERM)
    worker.wait(BOUND)
    set_policy(management, broker_url, "^rota.dead$", **{"max-length": 10, "overflow": "drop-head"})
    with Client.open(party.store) as client:
        client.submit_many([broken.call(key=f"k{n}") for n in range(30)])
    party.until("their messages", lambda: ready(broker_url) == 30)
    scheduler.send_signal(signal.SIGTERM)
    scheduler.wait(BOUND)
    party.start("worker")
    party.until("all to die", lambda: party.value(DEATHS) == 30)
    party.until("their messages", lambda: ready(broker_url, DEAD) == 10)
    assert "10 messages wait" in party.doctor()[1][DEAD]["told"]
    party.start("scheduler")
    with Client.open(party.store) as client:
        for run in map(json.loads, party.rota("dead", "--json").splitlines()):
            client.redrive(f"{run['job_id']}@{run['scheduled_for']}", args={**run["args"], "fixed": True})
    party.until("all effects", lambda: party.value("select count(distinct key) from demo_effect") == 30)
    party.until("the queue to be empty", lambda: ready(broker_url, DEAD) == 0)


def test_dlq_04_dlq_05_attempts_are_counted_in_the_ledger_and_no_header_grows(party):
    """A service submits with 64 KiB of headers; the job dies and is redriven, again and again, and its messages come once
    more from a tool that copies what it has received. Without `attempt = r.attempt + 1` in BEGIN
    (sched/store/postgres/working.py) it is tried for ever; if `defer` (workers/settle.py) passed headers on, they would grow.
    """
    broker_url = party.env["ROTA_BROKER"]
    party.until_connected()
    seen: list[tuple[str, int]] = []
    with channel(broker_url) as spy:
        spy.queue_declare("spy", durable=True, arguments={"x-queue-type": "quorum"})
        for exchange, key in ((JOBS, QUEUE), (DELAY_DUE, work_topology("demo").bindings[1].key), (DEAD, "")):
            spy.queue_bind("spy", exchange, key)
        command = {"handler": "broken", "args": {"key": "k"}, "retry": {"attempts": 4, "base": 0.5}}
        properties = pika.BasicProperties(
            type="job.submit", app_id="service", message_id="1", headers={"trace": "x" * 65_536}
        )
        spy.basic_publish("rota.submit", "job.submit", json.dumps(command).encode(), properties)

        def look() -> None:
            for method, properties, body in iter(lambda: spy.basic_get("spy", auto_ack=True), (None, None, None)):
                headers = properties.headers or {}
                seen.append((method.exchange, len(b"".join(pieces(headers)))))
                if (deaths := headers.get("x-death")) and len(seen) < 50:
                    copied = {**headers, "x-death": [{**deaths[0], "count": 99}], "x-delivery-count": 99}
                    spy.basic_publish("", QUEUE, body, pika.BasicProperties(headers=copied))

        for n in range(3):
            party.until("it to die", lambda: look() or party.value(DEATHS) == 1)
            assert party.value("select attempt from rota.dead") == 4
            assert party.value("select jsonb_array_length(errors) from rota.dead") == 4 * (n + 1)
            if n < 2:
                run = json.loads(party.rota("dead", "--json"))
                party.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}")
        party.until("its last message", lambda: look() or [exchange for exchange, _ in seen].count(DEAD) >= 3)
    party.until("the copies to be dropped", lambda: ready(broker_url) == 0)
    assert party.value(DEATHS) == 1
    sizes = {exchange: [size for e, size in seen if e == exchange] for exchange in {exchange for exchange, _ in seen}}
    assert max(sizes.pop(JOBS)) < 256
    assert len(sizes) > 1
    assert all(max(each) - min(each) < 1024 and max(each) < 4096 for each in sizes.values()), sizes


def pieces(headers):
    """A table as it is on the wire."""
    found: list[bytes] = []
    pika.data.encode_table(found, headers)
    return found
