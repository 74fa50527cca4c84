"""The delay ladder under load: thousands of delays at once, a broker that is killed meanwhile, and a queue that goes away.

What is late is measured by one clock, from the publish to the arrival.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from rota.sched.broker.rabbitmq import Consumer, Outgoing, Publish, Publisher
from rota.sched.broker.topology import DELAY_PREFIX, PARKED, RUNGS, delay_route, delay_seconds, rung, work_queue

from tests.broker.test_rabbitmq import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rota.sched.broker.rabbitmq import Delivery

LONGEST = 20
"""Seconds: the delays are from 1 to so many."""
OWN = 5.0
"""Seconds that one in a hundred may be late besides its rounding. On a machine of its own it is a tenth; tests share theirs."""
WINDOW = 250
"""Publishes that are not confirmed yet: what waits in our own socket is not late by the ladder."""


class Wait(NamedTuple):
    """What was asked for, and when."""

    seconds: float
    sent: float


class Ladder:
    """Publishes with delays to the queue `mail` and notes what arrives, and when."""

    def __init__(self, url: str) -> None:
        self.waits: dict[str, Wait] = {}
        self.arrived: dict[str, float] = {}
        self.copies: Counter[str] = Counter()
        self.parked: list[Delivery] = []
        self.outcomes: Counter[Publish] = Counter()
        self.publisher = Publisher(url, "publisher", on_up=self._declare)
        self.consumer = Consumer(url, "consumer", on_up=self._declare_queue)

    async def _declare(self) -> None:
        assert await self.publisher.declare() == []

    async def _declare_queue(self) -> None:
        for queue in ("mail", "gone"):
            assert await self.consumer.declare_work_queue(queue) is None

    async def start(self) -> None:
        await self.publisher.start(30)
        await self.consumer.start(30)
        await self.consumer.consume(work_queue("mail"), 1000, self._take)
        await self.consumer.consume(PARKED, 100, self._park)

    async def close(self) -> None:
        await self.consumer.close()
        await self.publisher.close()

    def _take(self, delivery: Delivery) -> None:
        name = str(delivery.properties.message_id)
        self.copies[name] += 1
        self.arrived.setdefault(name, time.monotonic())
        self.consumer.ack(delivery)

    def _park(self, delivery: Delivery) -> None:
        self.parked.append(delivery)
        self.consumer.ack(delivery)

    async def send(self, names: Iterable[str], seconds: Callable[[], float], queue: str = "mail") -> None:
        """Publishes one message for each name; all are confirmed then."""
        for name in names:
            wait = Wait(seconds(), time.monotonic())
            if queue == "mail":
                self.waits[name] = wait
            message = Outgoing(*delay_route(wait.seconds, queue), b"{}", name)
            self.publisher.publish(message, lambda outcome: self.outcomes.update([outcome]))
            if self.publisher.in_flight == WINDOW:
                assert await self.publisher.flush(30)
        assert await self.publisher.flush(30)
        assert set(self.outcomes) == {Publish.CONFIRMED}

    def late(self) -> list[float]:
        """By how much each was later than asked for, the least first."""
        return sorted(self.arrived[name] - wait.sent - wait.seconds for name, wait in self.waits.items())

    async def stuck(self) -> int:
        """What is ready in the rungs."""
        depths = [await self.publisher.passive(rung(k)) for k in range(RUNGS)]
        return sum(depth.messages for depth in depths if depth)


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


@pytest.mark.rabbitmq4
async def test_thousands_of_delays_are_kept_while_a_queue_that_goes_away_harms_no_other(broker_url, management):
    """5,000 of 1 to 20 s. Then 40, which are more than stop a rung, whose queue is deleted while they wait."""
    ladder, draw = Ladder(broker_url), random.Random(5)
    await ladder.start()
    await ladder.send((f"gone-{n}" for n in range(40)), lambda: draw.uniform(3, 8), "gone")
    vhost = broker_url.rpartition("/")[2]
    await asyncio.to_thread(management.request, "DELETE", f"/api/queues/{vhost}/{work_queue('gone')}")
    await ladder.send((str(n) for n in range(5000)), lambda: draw.uniform(1, LONGEST))
    await until(lambda: len(ladder.arrived) == 5000, LONGEST + 20)
    assert max(ladder.copies.values()) == 1
    assert await ladder.stuck() == 0
    late = ladder.late()
    figures = {"min": late[0], "p50": percentile(late, 0.5), "p99": percentile(late, 0.99), "max": late[-1]}
    print({name: round(seconds, 3) for name, seconds in figures.items()})
    assert late[0] >= 0
    # A delay is rounded up to whole seconds: what is more than that is the ladder's own.
    own = sorted(ladder.arrived[name] - wait.sent - delay_seconds(wait.seconds) for name, wait in ladder.waits.items())
    print({"own p50": round(percentile(own, 0.5), 3), "own p99": round(percentile(own, 0.99), 3)})
    assert percentile(own, 0.99) < OWN
    assert {d.properties.message_id for d in ladder.parked} == {f"gone-{n}" for n in range(40)}
    for delivery in ladder.parked:
        death = (delivery.properties.headers or {})["x-death"][0]
        assert death["reason"] == "expired"
        assert death["queue"].startswith(DELAY_PREFIX)
        assert death["time"]
    await ladder.close()


@pytest.fixture
def restarted(node, node_url):
    """A broker that has been stopped since its queues were declared.

    3.10 never finds the leader of a quorum queue that was declared moments before a kill -9.
    """

    async def declare():
        ladder = Ladder(node_url)
        await ladder.start()
        await ladder.close()

    asyncio.run(declare())
    node.stop()
    node.start()
    return node


async def test_a_broker_that_is_killed_makes_delays_late_and_loses_none(restarted, node_url):
    ladder, draw = Ladder(node_url), random.Random(6)
    await ladder.start()
    await ladder.send((str(n) for n in range(5000)), lambda: draw.uniform(1, LONGEST))
    await until(lambda: len(ladder.arrived) >= 2500, LONGEST)
    await asyncio.to_thread(restarted.crash)
    await until(lambda: not (ladder.publisher.up or ladder.consumer.up), 20)
    down = time.monotonic()
    await asyncio.to_thread(restarted.start)
    await until(lambda: ladder.publisher.up and ladder.consumer.up, 40)
    outage = time.monotonic() - down
    await until(lambda: len(ladder.arrived) == 5000, LONGEST + 60)
    late = ladder.late()
    print({"outage": round(outage, 1), "max late": round(late[-1], 1), "copies": ladder.copies.total() - 5000})
    assert late[0] >= 0
    assert await ladder.stuck() == 0
    await ladder.close()
