"""The ack window against a model of what a broker does with acks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rota.sched.broker.acks import AckWindow


def window(*tags: int) -> AckWindow:
    made = AckWindow()
    for tag in tags:
        made.delivered(tag)
    return made


def test_settled_deliveries_below_all_open_ones_share_one_ack():
    acks = window(1, 2, 3, 4)
    for tag in (2, 1, 3):
        assert acks.settle(tag)
    assert acks.flush() == [(3, True)]
    assert len(acks) == 1


def test_what_is_behind_an_open_delivery_is_acked_singly():
    acks = window(1, 2, 3)
    acks.settle(3)
    acks.settle(2)
    assert acks.flush() == [(2, False), (3, False)]
    acks.settle(1)
    assert acks.flush() == [(1, False)]


def test_a_single_ack_is_not_multiple():
    acks = window(1)
    acks.settle(1)
    assert acks.pending
    assert acks.flush() == [(1, False)]
    assert not acks.pending
    assert acks.flush() == []


def test_a_tag_that_is_not_open_is_ignored():
    acks = window(1, 2)
    assert not acks.settle(7)
    assert acks.settle(1)
    assert not acks.settle(1)
    assert acks.drop(2)
    assert not acks.drop(2)
    assert not acks.settle(2)
    assert acks.flush() == [(1, False)]
    assert not acks.settle(1)
    assert not acks.settle_through(9)


def test_settling_through_covers_what_is_open_up_to_there():
    acks = window(1, 2, 3, 4)
    acks.drop(2)
    assert acks.settle_through(3)
    assert acks.flush() == [(3, True)]
    assert len(acks) == 1


def test_a_long_run_at_the_head_does_not_make_the_window_grow():
    acks = window(1)
    for tag in range(2, 10_000):
        acks.delivered(tag)
        acks.settle(tag)
        assert acks.flush() == [(tag, False)]
    assert len(acks) == 1
    assert len(acks._order) < 2_000


STEPS = st.lists(st.tuples(st.sampled_from(["deliver", "settle", "through", "drop", "flush"]), st.integers(1, 40)))


@given(STEPS)
def test_a_broker_sees_each_settled_delivery_acked_once_and_no_other(steps):
    acks = AckWindow()
    broker: set[int] = set()  # what it counts as unacknowledged
    still_open: set[int] = set()
    last = 0

    def flush() -> None:
        for tag, multiple in acks.flush():
            assert tag in broker, "an ack of an unknown tag closes the channel"
            covered = {t for t in broker if t <= tag} if multiple else {tag}
            assert not covered & still_open
            broker.difference_update(covered)
        assert broker == still_open

    for step, tag in steps:
        if step == "deliver":
            last += 1
            acks.delivered(last)
            broker.add(last)
            still_open.add(last)
        elif step == "settle":
            assert acks.settle(tag) == (tag in still_open)
            still_open.discard(tag)
        elif step == "through":
            acks.settle_through(tag)
            still_open -= {t for t in still_open if t <= tag}
        elif step == "drop":
            if acks.drop(tag):
                broker.discard(tag)  # the nack is sent at once
            still_open.discard(tag)
        else:
            flush()
        assert len(acks) == len(broker)
    flush()
