"""The bookkeeping of confirms against a model of what a broker may answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rota.sched.broker.confirms import Confirms
from rota.sched.broker.messages import Outgoing, Publish


def message(name: str, routing_key: str = "rota.q.mail") -> Outgoing:
    return Outgoing("rota.jobs", routing_key, b"", name)


class Told:
    """A channel with publishes, and the outcomes that were told, in order."""

    def __init__(self, count: int = 0) -> None:
        self.confirms = Confirms()
        self.outcomes: list[tuple[str, Publish]] = []
        for number in range(1, count + 1):
            self.add(str(number))

    def add(self, name: str, routing_key: str = "rota.q.mail") -> None:
        self.confirms.add(message(name, routing_key), lambda outcome: self.outcomes.append((name, outcome)))


def test_a_single_confirm_is_for_its_number_only():
    told = Told(3)
    told.confirms.settle(2, multiple=False, acked=True)
    assert told.outcomes == [("2", Publish.CONFIRMED)]
    assert len(told.confirms) == 2
    assert told.confirms.settled_through == 0


def test_a_multiple_confirm_is_for_all_up_to_it_that_are_left():
    told = Told(4)
    told.confirms.settle(2, multiple=False, acked=True)
    told.confirms.settle(3, multiple=True, acked=True)
    assert told.outcomes == [(name, Publish.CONFIRMED) for name in ("2", "1", "3")]
    assert told.confirms.settled_through == 3


def test_number_zero_with_multiple_means_all():
    told = Told(3)
    told.confirms.settle(0, multiple=True, acked=True)
    assert len(told.outcomes) == 3
    assert told.confirms.settled_through == 3


def test_a_refusal_is_told_as_one():
    told = Told(2)
    told.confirms.settle(2, multiple=True, acked=False)
    assert told.outcomes == [("1", Publish.NACKED), ("2", Publish.NACKED)]


def test_what_came_back_is_returned_although_it_is_confirmed_too():
    told = Told(2)
    told.confirms.returned(("1", "rota.jobs", "rota.q.mail"))
    told.confirms.settle(2, multiple=True, acked=True)
    assert told.outcomes == [("1", Publish.RETURNED), ("2", Publish.CONFIRMED)]


def test_of_two_with_one_message_id_only_the_one_that_came_back_is_returned():
    told = Told()
    told.add("same", "rota.q.there")
    told.add("same", "rota.q.missing")
    told.confirms.returned(("same", "rota.jobs", "rota.q.missing"))
    told.confirms.settle(2, multiple=True, acked=True)
    assert told.outcomes == [("same", Publish.CONFIRMED), ("same", Publish.RETURNED)]


def test_what_has_no_answer_when_the_channel_ends_is_unknown_and_later_answers_change_nothing():
    told = Told(3)
    told.confirms.settle(1, multiple=False, acked=True)
    told.confirms.abandon()
    told.confirms.settle(3, multiple=True, acked=True)
    assert told.outcomes == [("1", Publish.CONFIRMED), ("2", Publish.UNKNOWN), ("3", Publish.UNKNOWN)]
    assert len(told.confirms) == 0


def test_a_callback_that_publishes_again_while_the_channel_ends_does_not_disturb_the_others():
    told = Told()
    told.confirms.add(message("again"), lambda _: told.add("later"))
    told.add("last")
    told.confirms.abandon()
    assert told.outcomes == [("last", Publish.UNKNOWN)]
    told.confirms.abandon()
    assert told.outcomes[1:] == [("later", Publish.UNKNOWN)]


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), max_size=40))
def test_every_publish_has_exactly_one_outcome_whatever_the_broker_answers(answers):
    told = Told(30)
    for number, multiple, acked in answers:
        told.confirms.settle(number, multiple=multiple, acked=acked)
        open_numbers = {str(n) for n in range(1, 31)} - {name for name, _ in told.outcomes}
        assert len(told.confirms) == len(open_numbers)
        assert told.confirms.settled_through == min(map(int, open_numbers), default=31) - 1
    told.confirms.abandon()
    assert sorted(name for name, _ in told.outcomes) == sorted(str(n) for n in range(1, 31))
