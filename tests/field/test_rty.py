"""Retries: who counts them, and how often a message can come again."""

from __future__ import annotations

import time

import pika
from rota.sched.broker.rabbitmq import Link
from rota.sched.broker.topology import DEAD, PARKED, delay_route, shared_topology, work_queue

from tests.conftest import BOUND
from tests.field.broker import QUEUE, RUNGS, channel, ready

RETURNS = 25


async def test_rty_05_no_queue_drops_or_moves_what_is_returned_many_times(broker_url):
    """By rejecting it and by ending the channel that held it. Without `"x-delivery-limit": DELIVERY_LIMIT` in `_quorum`
    (sched/broker/topology.py) RabbitMQ 4 has dropped them after 20 returns.
    """
    link = Link(broker_url, "declares")
    await link.start(BOUND)
    assert await link.declare() == []
    assert await link.declare_work_queue("demo") is None
    await link.close()
    ends = [queue.name for queue in shared_topology().queues if queue.name not in RUNGS]
    targets = {name: ("", name) for name in [work_queue("demo"), *ends]}
    targets |= {name: delay_route(2**k, "demo") for k, name in enumerate(sorted(RUNGS))}
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        for queue, route in targets.items():
            publishing = connection.channel()
            publishing.confirm_delivery()
            publishing.basic_publish(*route, b"{}", pika.BasicProperties(delivery_mode=2), mandatory=True)
            give_back(connection, queue)
    # Short rungs let theirs go meanwhile, to the work queue.
    assert ready(broker_url, *targets) == len(targets)
    assert ready(broker_url, DEAD) == ready(broker_url, PARKED) == 1


def give_back(connection: pika.BlockingConnection, queue: str) -> None:
    """Takes a queue's message so many times, in turn to be rejected and to be lost with its channel."""
    end = time.monotonic() + BOUND
    returned = 0
    while returned < RETURNS:
        assert time.monotonic() < end, f"{queue} has lost its message after {returned} returns"
        taking = connection.channel()
        method, *_ = taking.basic_get(queue)
        if method is not None:
            returned += 1
            if returned % 2:
                taking.basic_reject(method.delivery_tag, requeue=True)
        elif queue in RUNGS[-4:]:
            taking.close()
            return  # it has expired
        taking.close()


def test_rty_07_what_cannot_be_used_nor_parked_comes_again_once_a_second(party):
    """The broker stops no loop of returns. Without `call_later(PARK_AGAIN_SECONDS, ...)` in `_parked` (workers/intake.py) it
    comes again thousands of times a second. What can be used is bounded by its attempts: they are counted in the ledger.
    """
    party.until_connected()
    worker = party.members[1]
    with channel(party.env["ROTA_BROKER"]) as admin:
        admin.queue_unbind(PARKED, PARKED, "")
        admin.basic_publish("", QUEUE, b"what?")
        party.until("it to come", lambda: tries(party, worker))
        since = time.monotonic()
        party.until("it to come again", lambda: tries(party, worker) >= 4)
        assert time.monotonic() - since > 2
        assert tries(party, worker) < 6 + 2 * (time.monotonic() - since)
        admin.queue_bind(PARKED, PARKED, "")
    party.until("it to be parked", lambda: ready(party.env["ROTA_BROKER"], PARKED) == 1)
    assert ready(party.env["ROTA_BROKER"]) == 0
    party.rota("submit", "fail", "--args", '{"times": 9}')
    party.until("what always fails to die", lambda: party.value("select count(*) from rota.dead"))
    assert party.value("select attempt from rota.dead") == party.value(
        "select jsonb_array_length(errors) from rota.dead"
    )


def tries(party, worker):
    return party.log_of(worker).count(f"a message from {QUEUE} is parked")
