"""The table of states against everything that has to agree with it."""

import re
from importlib import resources
from itertools import product
from typing import get_args

import pytest
from rota.sched import model
from rota.sched.model import OUTCOMES, STATES, TRANSITIONS, sources, targets

PLACES = {"job", "dead", *STATES, *(f"history:{outcome}" for outcome in OUTCOMES)}
NOWHERE = {"history:dead"}  # what is dead is in its own table

LEGAL = {
    "claim": {("job", "waiting")},
    "buffer": {("job", "buffered"), ("dead", "buffered")},
    "follow": {("buffered", "waiting")},
    "skip": {("job", "history:skipped")},
    "begin": {("waiting", "running"), ("retrying", "running")},
    "dispatch": {("waiting", "waiting"), ("retrying", "waiting")},
    "succeed": {("running", "history:succeeded")},
    "fail": {("running", "retrying")},
    "snooze": {("running", "retrying")},
    "release": {("running", "waiting")},
    "lose": {("running", "waiting")},
    "exhaust": {("running", "dead")},
    "poison": {("running", "dead")},
    "cancel": {(source, "history:cancelled") for source in ("job", "waiting", "running", "retrying", "buffered")},
    "expire": {(source, "history:expired") for source in ("waiting", "retrying", "buffered")},
    "disclaim": {("waiting", "dead"), ("retrying", "dead")},
    "redrive": {("dead", "waiting")},
    "discard": {("dead", "history:discarded")},
}


@pytest.mark.parametrize("event", sorted({t.event for t in TRANSITIONS} | set(LEGAL)))
def test_an_event_moves_a_tick_as_promised_and_not_otherwise(event):
    for source, target in product(PLACES, PLACES):
        listed = model.Transition(event, source, target) in TRANSITIONS
        assert listed == ((source, target) in LEGAL[event]), f"{event}: {source} -> {target}"


def test_each_transition_is_listed_once_between_places_that_exist():
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
    assert {place for t in TRANSITIONS for place in (t.source, t.target)} == PLACES - NOWHERE


def test_the_past_stays_as_it_is():
    for outcome in OUTCOMES:
        assert targets(f"history:{outcome}") == ()


def test_every_tick_can_come_to_an_end():
    ended = {f"history:{outcome}" for outcome in OUTCOMES}
    for start in PLACES - NOWHERE - ended:
        reached, to_visit = set(), [start]
        while to_visit:
            place = to_visit.pop()
            if place not in reached:
                reached.add(place)
                to_visit += targets(place)
        assert reached & ended, start


def test_an_event_ends_in_one_place_wherever_it_finds_the_tick():
    for event, moves in LEGAL.items():
        assert len({t.target for t in TRANSITIONS if t.event == event}) == 1
        assert set(sources(event)) == {source for source, _ in moves}
    assert sources("nothing") == ()


def test_types_and_tuples_name_the_same():
    assert get_args(model.State) == STATES
    assert get_args(model.Outcome) == OUTCOMES


@pytest.mark.parametrize(
    ("constraint", "names"), [("run_state", STATES), ("member_state", get_args(model.MemberState))]
)
def test_the_stores_check_constraint_lists_exactly_the_states(constraint, names):
    text = resources.files("rota.sched.store.migrations.versions").joinpath("0001_tenses.sql").read_text("utf-8")
    (listed,) = re.findall(rf"constraint {constraint} check \(state in \(([^)]*)\)\)", text)
    assert re.findall(r"'(\w+)'", listed) == list(names)
