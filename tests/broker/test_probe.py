"""What is found out about a broker by trying."""

from __future__ import annotations

from rota.sched.broker.rabbitmq import Link, probe


async def test_at_least_once_is_found_in_force_and_the_probe_leaves_nothing_behind(broker_url, management):
    link = Link(broker_url, "probe")
    await link.start(20)
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
