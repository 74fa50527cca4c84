"""The servers that the tests stand on."""

import asyncio
import os
from collections.abc import Callable

import pika
import psycopg
import pytest
from servers import Postgres, RabbitMQ


def test_an_empty_database_is_a_database_of_ones_own(empty_store_url: str) -> None:
    with psycopg.connect(empty_store_url) as connection:
        assert connection.execute("SELECT to_regnamespace('rota') IS NULL").fetchone() == (True,)


def test_every_test_has_a_vhost_of_its_own(make_vhost: Callable[[], str]) -> None:
    assert make_vhost() != make_vhost()


def test_a_quorum_queue_can_be_declared_in_a_fresh_vhost(broker_url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    connection.channel().queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()


async def test_coroutine_tests_are_run() -> None:
    await asyncio.sleep(0)
    assert asyncio.get_running_loop().is_running()


@pytest.mark.xdist_group("group")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="only xdist has groups")
def test_groups_are_in_force(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@group")


def test_what_was_committed_survives_a_crash_of_postgres(make_postgres: Callable[..., Postgres]) -> None:
    server = make_postgres()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    server.crash()
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (1,)


def test_a_broker_that_was_killed_comes_back_under_its_url(node: RabbitMQ) -> None:
    url = node.url
    node.crash()
    assert not node.running
    node.start()
    assert node.url == url
    pika.BlockingConnection(pika.URLParameters(url)).close()
