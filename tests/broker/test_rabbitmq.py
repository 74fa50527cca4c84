"""Publisher, consumer and declarations against a real RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote, urlsplit

import pytest
from rota.sched.broker.publisher import MAX_BODY
from rota.sched.broker.rabbitmq import Consumer, Link, LoginRefused, Outgoing, Publish, Publisher
from rota.sched.broker.topology import DEAD, DELIVERY_LIMIT, JOBS, PARKED, delay_route, job_route, rung, work_queue
from rota.sched.errors import UsageError

from tests.broker.waiting import until
from tests.conftest import BOUND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rota.sched.broker.rabbitmq import Delivery


class Pair:
    """A publisher and a consumer of one vhost, with the topology and the queue `mail`."""

    def __init__(self, url: str) -> None:
        self.vhost = unquote(urlsplit(url).path[1:])
        self.lost: list[int] = []
        self.publisher = Publisher(url, "publisher", on_up=self._declare)
        self.consumer = Consumer(url, "consumer", on_up=self._declare_queue, on_lost=self.lost.append)

    async def _declare(self) -> None:
        assert await self.publisher.declare() == []
        assert await self.publisher.declare_work_queue("mail") is None

    async def _declare_queue(self) -> None:
        assert await self.consumer.declare_work_queue("mail") is None

    async def __aenter__(self) -> Self:
        await self.publisher.start(BOUND)
        await self.consumer.start(BOUND)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.close()
        await self.publisher.close()

    async def send(self, body: str, queue: str = "mail") -> Publish:
        return await self.publisher.send(Outgoing(*job_route(queue), body.encode(), body))

    async def collect(self, queue: str, *, ack: bool = True) -> list[Delivery]:
        """What comes from a queue of the broker from now on."""
        got: list[Delivery] = []

        def take(delivery: Delivery) -> None:
            got.append(delivery)
            if ack:
                self.consumer.ack(delivery)

        await self.consumer.consume(queue, 100, take)
        return got


@contextlib.asynccontextmanager
async def link(url: str) -> AsyncIterator[Link]:
    made = Link(url, "link")
    await made.start(BOUND)
    try:
        yield made
    finally:
        await made.close()


async def cut(management: Any, vhost: str, name: str) -> None:
    """Close the connection called `name` from the broker's side."""
    found: list[str] = []

    def look() -> bool:
        listed = management.request("GET", f"/api/vhosts/{quote(vhost, safe='')}/connections")
        found.extend(c["name"] for c in listed if c.get("client_properties", {}).get("connection_name") == name)
        return bool(found)

    async with asyncio.timeout(BOUND):
        while not await asyncio.to_thread(look):  # noqa: ASYNC110 - the broker's list comes late
            await asyncio.sleep(0.05)
    await asyncio.to_thread(management.request, "DELETE", f"/api/connections/{quote(found[0], safe='')}")


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [d.body.decode() for d in deliveries]


# Declaring


async def test_declaring_twice_changes_nothing_and_finds_no_drift(broker_url):
    async with link(broker_url) as one:
        for _ in range(2):
            assert await one.declare() == []
            assert await one.declare_work_queue("mail") is None
        assert (await one.passive("rota.q.mail")).messages == 0
        assert await one.passive("rota.q.other") is None
        assert one.server.product == "RabbitMQ"
        assert one.server.version >= (3, 10)


async def test_what_exists_with_other_arguments_is_reported_and_left_as_it_is(broker_url, management):
    vhost = quote(unquote(urlsplit(broker_url).path[1:]), safe="")
    queues = f"/api/queues/{vhost}"
    classic = {"durable": True, "arguments": {"x-queue-type": "classic"}}
    management.request("PUT", f"{queues}/{DEAD}", classic)
    management.request("PUT", f"{queues}/{work_queue('mail')}", classic)
    management.request("PUT", f"/api/exchanges/{vhost}/{JOBS}", {"type": "topic", "durable": True})
    async with link(broker_url) as one:
        drifts = await one.declare()
        assert {d.name for d in drifts} == {DEAD, JOBS}
        drift = await one.declare_work_queue("mail")
        assert drift is not None
        assert drift.name == work_queue("mail")
        assert "inequivalent arg" in drift.reason
        assert await one.passive(rung(0)) is not None, "what comes after a difference is declared all the same"
    assert management.request("GET", f"{queues}/{DEAD}")["type"] == "classic"
    assert management.request("GET", f"/api/exchanges/{vhost}/{JOBS}")["type"] == "topic"
    assert management.request("GET", f"{queues}/{rung(3)}")["arguments"]["x-delivery-limit"] == DELIVERY_LIMIT


async def test_a_refused_login_is_told_at_once(broker_url):
    wrong = urlsplit(broker_url)
    publisher = Publisher(f"amqp://rota:wrong@{wrong.hostname}:{wrong.port}{wrong.path}", "p")
    with pytest.raises(LoginRefused, match="ROTA_BROKER"):
        await publisher.start(BOUND)


# Publishing


async def test_a_publish_that_no_queue_takes_is_returned_and_its_neighbours_are_confirmed(broker_url):
    async with Pair(broker_url) as pair:
        outcomes = await asyncio.gather(pair.send("a"), pair.send("b", "nobody"), pair.send("c"))
        assert outcomes == [Publish.CONFIRMED, Publish.RETURNED, Publish.CONFIRMED]


async def test_thousands_of_pipelined_publishes_are_each_confirmed_once(broker_url):
    async with Pair(broker_url) as pair:
        outcomes: list[Publish] = []
        exchange, key = job_route("mail")
        for n in range(5000):
            pair.publisher.publish(Outgoing(exchange, key, b"{}", str(n)), outcomes.append)
        assert outcomes == []
        assert pair.publisher.in_flight == 5000
        assert await pair.publisher.flush(BOUND)
        assert Counter(outcomes) == {Publish.CONFIRMED: 5000}
        got = await pair.collect("rota.q.mail")
        await until(lambda: len(got) == 5000)
        assert len({d.properties.message_id for d in got}) == 5000


REFUSED = [
    {"body": b"x" * (MAX_BODY + 1)},
    {"headers": {"n": 1.5}},
    {"headers": {"n": True}},
    {"headers": {"n": None}},
    {"headers": {"n": 2**63}},
    {"headers": {"n": {"deep": 1}}},
    {"headers": {"CC": "other"}},
    {"headers": {"n": "x" * 200_000}},
    {"headers": {"k" * 256: "x"}},
    {"exchange": "amq.nothing"},
    {"routing_key": "k" * 256},
    {"message_id": "m" * 256},
    {"message_id": "\ud800"},
    {"expiration": -1},
    {"priority": 256},
]


async def test_what_would_close_the_channel_is_refused_before_it_is_sent(broker_url):
    async with Pair(broker_url) as pair:
        wire, outcomes = pair.publisher.wire, []
        for wrong in REFUSED:
            good = {"exchange": JOBS, "routing_key": "rota.q.mail", "body": b"{}", "message_id": "m"}
            with pytest.raises(UsageError):
                pair.publisher.publish(Outgoing(**{**good, **wrong}), outcomes.append)
        assert pair.publisher.in_flight == 0
        assert outcomes == []
        fine = Outgoing(JOBS, "rota.q.mail", b"{}", "m", headers={"text": "é", "number": -(2**63)})
        assert await pair.publisher.send(fine) is Publish.CONFIRMED
        assert pair.publisher.wire is wire


async def test_what_an_outcomes_callback_raises_does_not_reach_its_neighbours(broker_url, caplog):
    def bad(_: Publish) -> None:
        raise RuntimeError("the caller's own")

    async with Pair(broker_url) as pair:
        pair.publisher.publish(Outgoing(JOBS, "rota.q.mail", b"{}", "m"), bad)
        assert await pair.send("next") is Publish.CONFIRMED
    assert "a callback for the outcome" in caplog.text


async def test_publishes_on_a_link_that_is_down_are_unknown(broker_url):
    publisher = Publisher(broker_url, "p")
    assert await publisher.send(Outgoing(JOBS, "rota.q.mail", b"{}", "m")) is Publish.UNKNOWN


# The delay ladder


async def test_a_delayed_message_comes_once_and_not_early(broker_url):
    async with Pair(broker_url) as pair:
        got = await pair.collect("rota.q.mail")
        sent = time.monotonic()
        assert await pair.publisher.send(Outgoing(*delay_route(2.2, "mail"), b"late", "late")) is Publish.CONFIRMED
        await pair.send("now")
        await until(lambda: len(got) == 2)
        assert time.monotonic() - sent >= 3  # two rungs: 2 s and 1 s
        assert sorted(bodies(got)) == ["late", "now"]
        assert await pair.publisher.send(Outgoing(*delay_route(1, "mail"), b"later", "later")) is Publish.CONFIRMED
        await until(lambda: len(got) > 2)
        assert sorted(bodies(got)) == ["late", "later", "now"]
        for k in range(3):
            assert (await pair.publisher.passive(rung(k))).messages == 0


async def test_what_is_due_for_an_unknown_queue_is_parked_and_holds_nobody_up(broker_url):
    async with Pair(broker_url) as pair:
        parked, got = await pair.collect(PARKED), await pair.collect("rota.q.mail")
        route = delay_route(1, "nobody")
        lost = [pair.publisher.send(Outgoing(*route, b"lost", str(n))) for n in range(40)]
        assert set(await asyncio.gather(*lost)) == {Publish.CONFIRMED}
        await pair.publisher.send(Outgoing(*delay_route(1, "mail"), b"fine", "fine"))
        await until(lambda: got and len(parked) == 40)
        assert {d.properties.message_id for d in parked} == {str(n) for n in range(40)}


# Consuming


async def test_a_rejected_delivery_is_a_dead_letter_with_its_reason(broker_url):
    async with Pair(broker_url) as pair:
        got, dead = await pair.collect("rota.q.mail", ack=False), await pair.collect(DEAD)
        await pair.send("bad")
        await until(lambda: got)
        assert pair.consumer.held == 1
        assert pair.consumer.reject(got[0])
        assert not pair.consumer.ack(got[0]), "it is settled already"
        await until(lambda: dead)
        death = dead[0].properties.headers["x-death"][0]
        assert (death["reason"], death["queue"]) == ("rejected", "rota.q.mail")
        assert (dead[0].body, dead[0].properties.message_id) == (b"bad", "bad")


async def test_a_delivery_given_back_comes_again(broker_url):
    async with Pair(broker_url) as pair:
        got = await pair.collect("rota.q.mail", ack=False)
        await pair.send("again")
        await until(lambda: got)
        assert pair.consumer.nack(got[0])
        await until(lambda: len(got) == 2)
        assert got[1].redelivered
        assert pair.consumer.ack(got[1], multiple=True)
        await until(lambda: pair.consumer.held == 0)


async def test_no_more_than_the_prefetch_is_held(broker_url):
    async with Pair(broker_url) as pair:
        got: list[Delivery] = []
        await pair.consumer.consume("rota.q.mail", 3, got.append)
        await asyncio.gather(*(pair.send(str(n)) for n in range(10)))
        await until(lambda: len(got) == 3)
        assert (await pair.publisher.passive("rota.q.mail")).messages == 7
        pair.consumer.ack(got[2], multiple=True)
        await until(lambda: len(got) == 6)


async def test_a_cancelled_consumer_takes_no_more_and_can_still_ack(broker_url):
    async with Pair(broker_url) as pair:
        got = await pair.collect("rota.q.mail", ack=False)
        await pair.send("held")
        await until(lambda: got)
        await pair.consumer.cancel()
        await pair.send("left")
        depth = await pair.publisher.passive("rota.q.mail")
        assert (depth.messages, depth.consumers) == (1, 1), "whoever holds something counts as a consumer"
        assert pair.consumer.ack(got[0])
        async with asyncio.timeout(BOUND):
            while (await pair.publisher.passive("rota.q.mail")).consumers:
                pass
        assert bodies(got) == ["held"]


async def test_a_cancel_that_was_itself_cancelled_is_made_good_by_the_next(broker_url):
    """A membership that ends while its consumers begin: else they go on for it, and nobody gets what they are given."""
    async with Pair(broker_url) as pair:
        old = await pair.collect("rota.q.mail")
        async with pair.consumer._changing:  # as while another queue's consumer begins
            interrupted = asyncio.create_task(pair.consumer.cancel())
            await asyncio.sleep(0)
            interrupted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await interrupted
        await pair.consumer.cancel()
        new = await pair.collect("rota.q.mail")
        for body in ("one", "two", "three"):
            await pair.send(body)
        await until(lambda: len(old) + len(new) == 3)
        assert bodies(new) == ["one", "two", "three"]


async def test_a_queue_can_be_taken_from_with_another_prefetch(broker_url):
    """What is held stays held and can be acknowledged, and nothing comes twice."""
    async with Pair(broker_url) as pair:
        got: list[Delivery] = []
        await pair.consumer.consume("rota.q.mail", 2, got.append)
        for body in "abcdefgh":
            await pair.send(body)
        await until(lambda: len(got) == 2)
        await pair.consumer.resize("rota.q.mail", 3)
        await until(lambda: len(got) == 5)
        await pair.consumer.resize("rota.q.other", 3)
        for delivery in got[:5]:
            assert pair.consumer.ack(delivery)
        await until(lambda: len(got) == 8)
        assert sorted(bodies(got)) == list("abcdefgh")
        assert not any(delivery.redelivered for delivery in got)


async def test_subscribers_hear_what_passes_an_exchange(broker_url):
    async with Pair(broker_url) as pair:
        heard: list[Delivery] = []
        await pair.consumer.subscribe("rota.control", [""], heard.append)
        await pair.publisher.send(Outgoing("rota.control", "", b"pause", "m"))
        await until(lambda: heard)
        assert heard[0].body == b"pause"


# Trouble


async def test_publishes_in_flight_when_the_connection_is_closed_are_unknown_and_the_next_are_confirmed(
    broker_url, management
):
    async with Pair(broker_url) as pair:
        publisher, outcomes, sent = pair.publisher, [await pair.send("before")], 1
        cutting = asyncio.create_task(cut(management, pair.vhost, "publisher"))
        async with asyncio.timeout(BOUND):
            while Publish.UNKNOWN not in outcomes:
                if publisher.in_flight < 200:
                    publisher.publish(Outgoing(JOBS, "rota.q.mail", b"{}", str(sent)), outcomes.append)
                    sent += 1
                else:
                    await asyncio.sleep(0)
        await cutting
        assert publisher.in_flight == 0
        await until(lambda: publisher.up)
        assert await pair.send("after") is Publish.CONFIRMED
        assert len(outcomes) == sent
        assert set(outcomes) == {Publish.CONFIRMED, Publish.UNKNOWN}


async def test_a_consumer_whose_connection_is_closed_comes_back_in_a_new_epoch_and_old_acks_are_void(
    broker_url, management
):
    async with Pair(broker_url) as pair:
        got = await pair.collect("rota.q.mail", ack=False)
        await pair.send("m")
        await until(lambda: got)
        first = pair.consumer.epoch
        await cut(management, pair.vhost, "consumer")
        await until(lambda: len(got) == 2)
        assert pair.lost == [first]
        assert got[1].epoch == pair.consumer.epoch == first + 1
        assert got[1].redelivered
        for settle in (pair.consumer.ack, pair.consumer.nack, pair.consumer.reject):
            assert not settle(got[0])
        assert pair.consumer.held == 1
        assert pair.consumer.ack(got[1])
        await pair.consumer.cancel()
        await until(lambda: pair.consumer.held == 0)
        assert (await pair.publisher.passive("rota.q.mail")).messages == 0


async def test_a_consumer_of_a_deleted_queue_declares_it_again_and_goes_on(broker_url, management):
    async with Pair(broker_url) as pair:
        got = await pair.collect("rota.q.mail")
        await pair.send("before")
        await until(lambda: got)
        epoch, wire = pair.consumer.epoch, pair.consumer.wire
        path = f"/api/queues/{quote(pair.vhost, safe='')}/rota.q.mail"
        await asyncio.to_thread(management.request, "DELETE", path)
        await until(lambda: pair.consumer.epoch > epoch and pair.consumer.up)
        assert await pair.send("after") is Publish.CONFIRMED
        await until(lambda: len(got) == 2)
        assert bodies(got) == ["before", "after"]
        assert pair.consumer.wire is wire, "the connection itself was in order"


async def test_an_exception_in_on_message_ends_the_epoch_and_not_the_link(broker_url, caplog):
    async with Pair(broker_url) as pair:
        got: list[Delivery] = []

        def take(delivery: Delivery) -> None:
            got.append(delivery)
            if len(got) == 1:
                raise RuntimeError("a mistake of the user's")
            pair.consumer.ack(delivery)

        wire = pair.consumer.wire
        await pair.consumer.consume("rota.q.mail", 10, take)
        await pair.send("m")
        await until(lambda: len(got) == 2)
        assert got[1].epoch > got[0].epoch
        assert not pair.consumer.ack(got[0])
        assert pair.consumer.wire is wire
    assert "taking a message from rota.q.mail failed" in caplog.text


async def test_an_exception_in_a_subscribers_callback_ends_nothing(broker_url, caplog):
    async with Pair(broker_url) as pair:
        heard: list[bytes] = []

        def listen(delivery: Delivery) -> None:
            heard.append(delivery.body)
            raise RuntimeError("a mistake of the user's")

        await pair.consumer.subscribe("rota.control", [""], listen)
        epoch = pair.consumer.epoch
        for body in (b"a", b"b"):
            await pair.publisher.send(Outgoing("rota.control", "", body, "m"))
        await until(lambda: len(heard) == 2)
        assert pair.consumer.epoch == epoch
    assert "a callback of the broker connection failed" in caplog.text


async def test_a_consumer_that_the_broker_has_forgotten_finds_out_and_begins_anew(broker_url):
    async with Pair(broker_url) as pair:
        got = await pair.collect(work_queue("mail"))
        calls = pair.consumer._calls
        await calls.call(calls.raw.basic_cancel, pair.consumer._tags[work_queue("mail")])  # behind its back
        await pair.send("1")
        assert got == []
        await pair.consumer.check()
        await until(lambda: got)
        epoch = pair.consumer.epoch
        await pair.send("2")
        await pair.consumer.check()
        await until(lambda: len(got) == 2)
        assert pair.consumer.epoch == epoch
