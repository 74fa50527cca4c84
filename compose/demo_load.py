"""What the demo submits, and who: the Python API, the command line, and plain AMQP without any code of Rota."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pika
from app import aeffect, broken, careful_effect, effect, flaky_effect, plain
from rota import Client, after, cron, every

if TYPE_CHECKING:
    from accounts import Acknowledged
    from members import Members
    from rota.sched.requests import Submittable

API_BATCHES = 46
BATCH = 100
AMQP_JOBS = 400
CLI_JOBS = 15
FLAKY = 100
PLAIN = 100
BROKEN = 10
ZONES = {
    "Europe/Paris": 2, "America/New_York": 3, "Asia/Kolkata": 4, "Australia/Lord_Howe": 5, "Pacific/Apia": 6, "UTC": 10
}  # fmt: skip
"""Where, and how many seconds lie between the ticks there."""
SPREAD = 20.0
"""Seconds over which the submissions are spread."""


def schedules(store: str, acks: Acknowledged) -> None:
    """A dozen schedules, half by cron in several zones, half by intervals. What a killed member delays runs late."""
    with Client.open(store) as client:
        for tz, step in ZONES.items():
            key = f"cron-{tz.replace('/', '-')}"
            acks.steps[key] = step
            when = cron(f"*/{step} * * * * *", tz=tz, misfire="run_all")
            ref = client.submit(effect.call(key=key), when, name=key)
            acks.note(acks.schedules, [ref.id], [key])
        for n in range(6):
            key = f"every-{n}"
            acks.steps[key] = 1.0 + n / 2
            ref = client.submit(aeffect.call(key=key), every(acks.steps[key], misfire="run_all"), name=key)
            acks.note(acks.schedules, [ref.id], [key])


def by_api(store: str, acks: Acknowledged) -> None:
    """Most of the jobs: now, and up to some seconds ahead."""
    with Client.open(store) as client:
        begun = time.monotonic()
        for batch in range(API_BATCHES):
            keys = [f"api-{batch}-{n}" for n in range(BATCH)]
            jobs: list[Submittable] = [
                (aeffect.call(key=key) if n % 5 == 0 else effect.call(key=key), after(n % 4 if n % 2 else 0))
                for n, key in enumerate(keys)
            ]
            acks.note(acks.effects, [ref.id for ref in client.submit_many(jobs)], keys)
            if batch == 5:
                _special(client, acks)
            time.sleep(max(0.0, begun + (batch + 1) * SPREAD / API_BATCHES - time.monotonic()))


def _special(client: Client, acks: Acknowledged) -> None:
    """Jobs that fail twice, that fail for good, and that write without a transaction of Rota's."""
    keys = [f"flaky-{n}" for n in range(FLAKY)]
    acks.note(acks.effects, [r.id for r in client.submit_many([flaky_effect.call(key=k, times=2) for k in keys])], keys)
    keys = [f"plain-{n}" for n in range(PLAIN)]
    acks.note(acks.plain, [r.id for r in client.submit_many([plain.call(key=k) for k in keys])], keys)
    keys = [f"broken-{n}" for n in range(BROKEN)]
    acks.note(acks.broken, [r.id for r in client.submit_many([broken.call(key=k) for k in keys])], keys)


def slow(store: str, acks: Acknowledged, name: str, count: int, hold: float) -> list[str]:
    """Jobs that hold their transaction open; their ids."""
    keys = [f"{name}-{n}" for n in range(count)]
    with Client.open(store) as client:
        ids = [r.id for r in client.submit_many([careful_effect.call(key=k, hold=hold) for k in keys])]
    acks.note(acks.effects, ids, keys)
    return ids


def slow_plain(store: str, acks: Acknowledged, count: int, hold: float) -> None:
    """Jobs that have written, outside any transaction of Rota's, and are not done."""
    keys = [f"plain-slow-{n}" for n in range(count)]
    with Client.open(store) as client:
        ids = [r.id for r in client.submit_many([plain.call(key=k, hold=hold) for k in keys])]
    acks.note(acks.plain, ids, keys)


def by_cli(members: Members, acks: Acknowledged) -> None:
    """As a person would."""
    for n in range(CLI_JOBS):
        key = f"cli-{n}"
        told = members.rota("submit", "effect", "--args", json.dumps({"key": key}), "--key", key)
        acks.note(acks.effects, [told.strip()], [key])


def _entrance(connection: pika.BlockingConnection) -> pika.adapters.blocking_connection.BlockingChannel:
    """A channel, once a scheduler takes commands: before the first set-up the broker refuses them."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        channel = connection.channel()
        try:
            if channel.queue_declare("rota.submit", passive=True).method.consumer_count:
                return channel
        except pika.exceptions.ChannelClosedByBroker:
            pass
        connection.sleep(0.2)
    raise SystemExit("demo: no scheduler takes commands by AMQP: see .rota/demo/*.log")


def by_amqp(broker: str, acks: Acknowledged) -> None:
    """As a service in any language would: publish, wait for the answers. Every tenth is sent twice."""
    connection = pika.BlockingConnection(pika.URLParameters(broker))
    channel = _entrance(connection)
    answers = channel.queue_declare("", exclusive=True).method.queue
    for n in range(AMQP_JOBS):
        body = json.dumps({"handler": "effect", "args": {"key": f"amqp-{n}"}})
        properties = pika.BasicProperties(
            type="job.submit", app_id="demo", message_id=f"amqp-{n}", reply_to=answers, correlation_id=f"amqp-{n}",
            delivery_mode=2,
        )  # fmt: skip
        for _ in range(2 if n % 10 == 0 else 1):
            channel.basic_publish("rota.submit", "job.submit", body.encode(), properties)
        if n % 20 == 0:
            connection.sleep(SPREAD / (AMQP_JOBS / 20) * 0.8)
    expected = AMQP_JOBS + AMQP_JOBS // 10
    for count, (_, properties, body) in enumerate(channel.consume(answers, auto_ack=True, inactivity_timeout=30), 1):
        if body is None:
            acks.errors.append("an AMQP command was not answered within 30 s")
            break
        answer = json.loads(body)
        if answer.get("ok"):
            acks.note(acks.effects, [answer["job_id"]], [properties.correlation_id])
        else:
            acks.errors.append(f"AMQP: {answer}")
        if count == expected:
            break
    connection.close()
