"""Partitions come to even shares, whoever joins and leaves."""

from hypothesis import given
from hypothesis import strategies as st
from rota.sched.scheduler.shares import is_fair, rebalance

PARTS = 64


def beat(me, live, owners):
    change = rebalance(me, live, owners)
    assert all(owners[part] is None for part in change.take)
    assert all(owners[part] == me for part in change.release)
    owners.update(dict.fromkeys(change.take, me))
    owners.update(dict.fromkeys(change.release))
    return bool(change.take or change.release)


def sizes(live, owners):
    return [sum(owner == each for owner in owners.values()) for each in sorted(live)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 80), st.integers(0, 3)), max_size=25), st.randoms())
def test_shares_differ_by_one_at_most_two_rounds_after_any_joins_and_leaves(moves, random):
    live: set[int] = set()
    owners: dict[int, int | None] = dict.fromkeys(range(PARTS))
    for joins, member, beats in moves:
        if joins:
            live.add(member)
        elif member in live:
            live.discard(member)
            owners.update({part: None for part, owner in owners.items() if owner == member})
        for me in random.sample(sorted(live), min(beats, len(live))):
            beat(me, sorted(live), owners)
    if not live:
        return
    for _ in range(2):
        for me in random.sample(sorted(live), len(live)):
            beat(me, sorted(live), owners)
    base, extra = divmod(PARTS, len(live))
    assert sizes(live, owners) == [base + (n < extra) for n in range(len(live))]
    assert not any(beat(me, sorted(live), owners) for me in live)


def test_a_member_that_is_not_live_gives_up_what_it_has():
    owners = {0: 7, 1: 8, 2: None}
    assert rebalance(7, [8], owners) == ([], [0])


def test_two_that_join_together_want_different_partitions():
    owners = dict.fromkeys(range(PARTS))
    assert not set(rebalance(1, [1, 2], owners).take) & set(rebalance(2, [1, 2], owners).take)


def test_a_share_is_fair_when_nothing_is_to_be_taken_or_released_and_all_of_it_is_known():
    owners: dict[int, int | None] = {part: 1 + part % 2 for part in range(PARTS)}
    mine = range(0, PARTS, 2)
    assert is_fair(1, [1, 2], owners, mine)
    assert not is_fair(1, [1, 2], owners, [*mine, 1]), "it has lost one and does not know"
    assert not is_fair(1, [1, 2, 3], owners, mine), "somebody has joined"
    assert not is_fair(1, [1], {**owners, 1: None}, mine), "one is free"
    assert not is_fair(1, [1, 2], {part: owners[part] for part in range(1, PARTS)}, mine[1:]), "a row is lost"
