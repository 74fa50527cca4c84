"""Delays: the ladder of the broker, what waits in the store, and what a worker holds for long."""

from __future__ import annotations

import pytest
from app import effect, plain
from rota import Client

from tests.field.broker import QUEUE, RUNGS, ready
from tests.integration.conftest import party_on

HELD = "select coalesce(sum((stats->>'held')::int), 0) from rota.member where kind = 'worker' and state = 'live'"


@pytest.mark.rabbitmq4
def test_dly_06_a_run_that_is_longer_than_the_brokers_ack_timeout_is_executed_once(make_rabbitmq, store_url, tmp_path):
    """And what was sent to its worker, which has no room for it, is executed meanwhile by another.

    Without `settler.defer(job, longest)` in `_guard` (workers/service.py) the broker takes the run's delivery back by force,
    and without `intake.give_back_old(before)` there those that have not begun.
    """
    node = make_rabbitmq(configuration={"consumer_timeout": "10000"}, advanced={"channel_tick_interval": 1000})
    with party_on(store_url, node.url, tmp_path) as party, Client.open(party.store) as client:
        party.env["ROTA_ACK_TIMEOUT"] = "10"
        party.start("scheduler")
        first = party.start("worker", "--concurrency", "1")
        party.until_working()
        client.submit(plain.call(key="long", hold=33))
        party.until("it to begin", lambda: party.running_on(first))
        client.submit_many([effect.call(key=f"k{n}") for n in range(20)])
        party.until("the first worker to hold all", lambda: party.value(HELD) == 21)
        second = party.start("worker")
        party.until("the others", lambda: party.value("select count(*) from demo_effect") == 20, 30)
        assert party.running_on(first) == 1
        party.until("its end", lambda: party.value("select count(*) from rota.history") == 21)
        assert party.value("select attempt from rota.history where handler = 'plain' and losses = 0") == 1
        assert party.value("select count(*) from demo_plain") == 1
        party.until("no message to be left", lambda: party.value(HELD) == 0 and ready(node.url, QUEUE, *RUNGS) == 0)
        for worker in (first, second):
            assert party.log_of(worker).count("rota worker consume is") == 1, (
                "it came up, and its channel was never closed"
            )
        assert "timed out" not in "".join(log.read_text(errors="replace") for log in node.folder.glob("log/*.log"))
