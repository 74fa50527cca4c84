"""The topology as data: the delay ladder's arithmetic, and where a routing key leads by the bindings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.broker import topology
from rota.sched.broker.topology import (
    DELAY_BITS,
    DELAY_DUE,
    MAX_DELAY,
    RUNGS,
    delay_route,
    delay_seconds,
    delayed_queue,
    job_route,
    queue_of,
    shared_topology,
    work_queue,
    work_topology,
)
from rota.sched.errors import UsageError

DELAYS = st.one_of(st.floats(0, MAX_DELAY), st.integers(0, MAX_DELAY), st.floats(0, 100))


def matches(pattern: str, key: str) -> bool:
    """A topic exchange's rule, for patterns that have `#` only at their end."""
    words, wanted = key.split("."), pattern.split(".")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        words = words[: len(wanted)]
    return len(words) == len(wanted) and all(w in {"*", word} for w, word in zip(wanted, words, strict=True))


def walk(exchange: str, key: str) -> tuple[int, list[str]]:
    """Seconds waited until the ladder lets the message go, and the rungs it passed."""
    shared, waited, passed = shared_topology(), 0, []
    waits = {q.name: (int(q.arguments.get("x-message-ttl", 0)), q.arguments) for q in shared.queues}
    while exchange != DELAY_DUE:
        (binding,) = [b for b in shared.bindings if b.source == exchange and matches(b.key, key)]
        if binding.to_exchange:
            exchange = binding.target
            continue
        ttl, arguments = waits[binding.target]
        waited += ttl
        passed.append(binding.target)
        exchange = str(arguments["x-dead-letter-exchange"])
    return waited // 1000, passed


@given(DELAYS)
def test_a_delay_is_never_early_and_at_most_a_32nd_late(seconds):
    given_delay, whole = delay_seconds(seconds), max(1, math.ceil(seconds))
    assert seconds <= given_delay <= MAX_DELAY
    assert given_delay - whole < whole / 32
    assert given_delay.bit_count() <= DELAY_BITS


@given(DELAYS)
def test_the_route_through_the_ladder_waits_that_long_in_few_rungs(seconds):
    exchange, key = delay_route(seconds, "mail")
    waited, passed = walk(exchange, key)
    assert waited == delay_seconds(seconds)
    assert len(passed) == waited.bit_count()


@pytest.mark.parametrize("seconds", [MAX_DELAY + 1, math.inf, -math.inf, math.nan])
def test_a_delay_that_does_not_fit_is_refused(seconds):
    with pytest.raises(UsageError, match="does not fit the delay ladder"):
        delay_route(seconds, "mail")


def test_the_longest_delay_passes_the_top_rung_only():
    assert walk(*delay_route(MAX_DELAY, "mail")) == (MAX_DELAY, [topology.rung(RUNGS - 1)])
    assert delay_seconds(MAX_DELAY - 1) == MAX_DELAY


def test_a_past_delay_waits_on_the_lowest_rung():
    assert delay_seconds(-5) == 1


@pytest.mark.parametrize(("queue", "other"), [("mail", "x-mail"), ("mail", "mail2"), ("a", "b")])
def test_what_is_due_goes_to_its_own_queue_only(queue, other):
    (_, binding) = work_topology(queue).bindings
    assert binding.source == DELAY_DUE
    assert matches(binding.key, delay_route(9, queue)[1])
    assert not matches(binding.key, delay_route(9, other)[1])


@given(st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True))
def test_a_queues_name_can_be_told_from_its_work_queue(name):
    assert queue_of(work_queue(name)) == name
    assert job_route(name) == ("rota.jobs", work_queue(name))


@given(DELAYS, st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True))
def test_the_queue_of_a_delayed_message_can_be_told_from_its_key(seconds, name):
    assert delayed_queue(delay_route(seconds, name)[1]) == name


@pytest.mark.parametrize("key", ["", "job.submit", work_queue("mail"), "0." * RUNGS + "mail"])
def test_no_other_key_is_taken_for_one_of_the_ladder(key):
    assert delayed_queue(key) is None


@pytest.mark.parametrize("name", ["", "a.b", "a b", "é", "x" * 101, "mail\n", "#", "*"])
def test_a_name_that_would_route_otherwise_is_refused(name):
    with pytest.raises(UsageError, match="is not allowed"):
        work_queue(name)


def test_other_queues_are_no_work_queues():
    assert queue_of("rota.dead") is None


def test_every_queue_is_a_quorum_queue_that_drops_nothing():
    for queue in [*shared_topology().queues, *work_topology("mail").queues]:
        assert queue.arguments["x-queue-type"] == "quorum"
        assert queue.arguments["x-delivery-limit"] == topology.DELIVERY_LIMIT
        assert not {"x-max-length", "x-max-length-bytes", "x-expires"} & set(queue.arguments)
        if "x-dead-letter-exchange" in queue.arguments:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"


def test_brk_12_no_queue_has_a_single_active_consumer():
    """It is what some brokers of 4.3 wedge with; `_quorum` (sched/broker/topology.py) is where it would be asked for."""
    for queue in [*shared_topology().queues, *work_topology("mail").queues]:
        assert "x-single-active-consumer" not in queue.arguments


def test_what_is_bound_is_declared_before():
    shared, work = shared_topology(), work_topology("mail")
    exchanges = {e.name for e in shared.exchanges}
    queues = {q.name for q in (*shared.queues, *work.queues)}
    for binding in (*shared.bindings, *work.bindings):
        assert binding.source in exchanges
        assert binding.target in (exchanges if binding.to_exchange else queues)


def test_the_ladder_has_a_rung_for_each_power_of_two():
    rungs = [q for q in shared_topology().queues if "x-message-ttl" in q.arguments]
    assert sorted(int(q.arguments["x-message-ttl"]) for q in rungs) == [1000 * 2**k for k in range(RUNGS)]


def test_the_entrance_is_declared_last_and_with_nothing_between_it_and_its_bindings():
    inside, entrance = topology.stages()
    assert [exchange.name for exchange in entrance.exchanges] == ["rota.submit"]
    assert entrance.queues == ()
    words = ("submit", "cancel", "redrive", "update", "pause", "resume", "trigger")
    assert {binding.key for binding in entrance.bindings} == {f"job.{word}" for word in words}
    assert "rota.submit" in {queue.name for queue in inside.queues}
    assert "rota.submit" not in {exchange.name for exchange in inside.exchanges}
