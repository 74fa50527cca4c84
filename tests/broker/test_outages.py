"""A broker that crashes, freezes and runs out of memory or disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from rota.sched.broker import publisher as publishing
from rota.sched.broker.rabbitmq import Consumer, Outgoing, Publish, Publisher
from rota.sched.broker.topology import job_route, work_queue

from tests.broker.waiting import until
from tests.conftest import ALARMS, BOUND, low_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rota.sched.broker.rabbitmq import Delivery
    from servers import RabbitMQ


def publisher(url: str) -> Publisher:
    async def declare() -> None:
        assert await made.declare_work_queue("mail") is None

    async def on_up() -> None:
        assert await made.declare() == []
        await declare()

    made = Publisher(url, "publisher", on_up=on_up)
    return made


def outgoing(number: int) -> Outgoing:
    return Outgoing(*job_route("mail"), str(number).encode(), str(number))


async def test_a_crash_of_the_broker_loses_nothing_that_was_confirmed_and_both_sides_come_back(node, node_url):
    out = publisher(node_url)
    got: Counter[str] = Counter()
    lost: list[int] = []
    downs: list[str] = []
    source = Consumer(node_url, "consumer", on_lost=lost.append, on_down=downs.append)

    def take(delivery: Delivery) -> None:
        got[delivery.properties.message_id or ""] += 1
        source.ack(delivery)

    await out.start(BOUND)
    confirmed = {n for n in range(500) if await out.send(outgoing(n)) is Publish.CONFIRMED}
    await source.start(BOUND)
    await source.consume(work_queue("mail"), 50, take)
    await until(lambda: got)
    # 3.10 never finds the leader of a quorum queue that was declared moments before a kill -9: let it grow older.
    older = asyncio.get_running_loop().time() + 8
    await until(lambda: asyncio.get_running_loop().time() > older)
    await asyncio.to_thread(node.crash)
    await until(lambda: not (out.up or source.up))
    assert await out.send(outgoing(-1)) is Publish.UNKNOWN
    assert out.trouble
    await asyncio.to_thread(node.start)
    await until(lambda: out.up and source.up)
    assert await out.send(outgoing(500)) is Publish.CONFIRMED
    await until(lambda: len(got) == 501)
    assert set(got) == {str(n) for n in confirmed | {500}}
    assert lost == [1]
    assert source.epoch == 2
    assert len(downs) == 1
    await source.close()
    await out.close()


async def test_a_frozen_broker_leaves_outcomes_unknown_in_bounded_time_and_is_used_again_when_it_thaws(node, node_url):
    out = publisher(f"{node_url}?heartbeat=1")
    await out.start(BOUND)
    node.freeze()
    outcomes: list[Publish] = []
    for number in range(10):
        out.publish(outgoing(number), outcomes.append)
    assert not await out.flush(0.2) or not out.up, "on a busy machine it may be known to be down by then"
    await until(lambda: len(outcomes) == 10)
    assert set(outcomes) == {Publish.UNKNOWN}
    assert not out.up
    node.thaw()
    await until(lambda: out.up)
    assert await out.send(outgoing(10)) is Publish.CONFIRMED
    node.freeze()
    async with asyncio.timeout(BOUND):
        await out.close()
    node.thaw()


async def test_a_confirm_that_does_not_come_ends_the_connection(node, node_url, monkeypatch):
    monkeypatch.setattr(publishing, "CONFIRM_TIMEOUT", 0.5)
    monkeypatch.setattr(publishing, "_WATCH_EVERY", 0.1)
    out = publisher(f"{node_url}?heartbeat=600")
    await out.start(BOUND)
    node.freeze()
    async with asyncio.timeout(BOUND):
        assert await out.send(outgoing(1)) is Publish.UNKNOWN
    node.thaw()
    await until(lambda: out.up)
    assert await out.send(outgoing(2)) is Publish.CONFIRMED
    await out.close()


@contextlib.asynccontextmanager
async def alarm(what: str, node: RabbitMQ) -> AsyncIterator[None]:
    """Set by a thread: on a busy machine `rabbitmqctl` takes longer than the heartbeats of our connections may stay away."""
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, low_on(what, node))
        yield
        await asyncio.to_thread(stack.close)


@pytest.mark.parametrize("what", ALARMS)
async def test_an_alarm_holds_publishes_back_and_none_is_lost(node, node_url, monkeypatch, what):
    monkeypatch.setattr(publishing, "_WATCH_EVERY", 0.1)
    out = publisher(node_url)
    await out.start(BOUND)
    outcomes: list[Publish] = []
    held: list[Publish] = []
    numbers = itertools.count()
    async with alarm(what, node):
        async with asyncio.timeout(BOUND):
            while not out.blocked:  # told with a publish after the alarm, which may come later than this one
                out.publish(outgoing(next(numbers)), outcomes.append)
                await asyncio.sleep(0.1)
        for _ in range(200):
            out.publish(outgoing(next(numbers)), held.append)
        with monkeypatch.context() as short:  # not before and after the alarm, where the broker may be slow
            short.setattr(publishing, "CONFIRM_TIMEOUT", 0.5)
            with contextlib.suppress(TimeoutError):  # longer than a confirm may take while nothing is wrong
                await until(lambda: not out.up or held, 2)
            assert (out.up, out.trouble, out.blocked, held) == (True, None, True, [])
    sent = next(numbers)
    await until(lambda: len(outcomes) + len(held) == sent)
    assert {*outcomes, *held} == {Publish.CONFIRMED}
    assert not out.blocked
    await out.close()
