"""What is found out about a broker by trying."""

import asyncio

import pytest
from rota.sched.broker.probe import leads_somewhere
from rota.sched.broker.rabbitmq import Link, probe
from rota.sched.broker.topology import DEAD

from tests.conftest import BOUND


async def test_at_least_once_is_found_in_force_and_the_probe_leaves_nothing_behind(broker_url, management):
    link = Link(broker_url, "probe")
    await link.start(BOUND)
    try:
        found = await probe(link)
        assert found.supported
        assert found.at_least_once is True
        assert found.note == ""
        assert found.server.product == "RabbitMQ"
        assert await probe(link) == found
    finally:
        await link.close()
    assert management.request("GET", f"/api/queues/{broker_url.rpartition('/')[2]}") == []


@pytest.mark.parametrize("bound", [True, False])
async def test_an_exchange_that_leads_nowhere_is_found_and_the_probe_leaves_nothing_behind(
    broker_url, management, bound
):
    link = Link(broker_url, "probe")
    await link.start(BOUND)
    try:
        assert await leads_somewhere(link, DEAD), "it is not there yet"
        assert await link.declare() == []
        if not bound:
            vhost = broker_url.rpartition("/")[2]
            management.request("DELETE", f"/api/bindings/{vhost}/e/{DEAD}/q/{DEAD}/~")
        assert await leads_somewhere(link, DEAD) == bound
        async with asyncio.timeout(BOUND):
            while (await link.passive(DEAD)).messages:
                pass  # it expires at once, and is counted a little longer
    finally:
        await link.close()
