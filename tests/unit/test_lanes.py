"""The lanes of a claim: all of them, in turn, and from watermarks that pass nothing that is due."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.ids import new_job_id
from rota.sched.model import Dispatch
from rota.sched.scheduler.lanes import START, TRAIL, LaneBook
from rota.sched.store.values import Claimed, Served

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pairs(lanes):
    return list(zip(lanes.parts, lanes.queues, strict=True))


def a_book(parts=(0, 1, 2), queues=("mail", "slow")):
    book = LaneBook()
    book.set(parts, queues)
    return book


def claimed(*served, at=NOW):
    return Claimed([], list(served), at, [], 0)


def test_every_lane_is_walked_from_the_start():
    lanes = a_book().walk()
    assert pairs(lanes) == [(part, queue) for part in (0, 1, 2) for queue in ("mail", "slow")]
    assert set(lanes.lows) == {START}


def test_without_lanes_nothing_is_walked():
    book = a_book(parts=())
    assert (len(book), pairs(book.walk())) == (0, [])
    book.claimed(book.walk(), claimed(), 10, 5)


def test_a_full_claim_makes_the_next_start_behind_the_lane_served_last():
    book = a_book()
    first = book.walk()
    book.claimed(first, claimed(Served(0, 5, NOW), Served(1, 5, NOW)), 10, 5)
    assert pairs(book.walk())[0] == pairs(first)[2]
    assert sorted(pairs(book.walk())) == sorted(pairs(first))


def test_a_claim_that_was_not_full_has_emptied_its_lanes_up_to_now():
    book = a_book()
    book.claimed(book.walk(), claimed(Served(0, 3, NOW - timedelta(hours=1))), 10, 5)
    assert set(book.walk().lows) == {NOW - TRAIL}


def test_a_lane_with_more_to_give_is_known_only_up_to_its_last_row():
    book, due = a_book(), NOW - timedelta(hours=1)
    book.claimed(book.walk(), claimed(Served(2, 5, due)), 10, 5)
    assert book.walk().lows == [NOW - TRAIL] * 2 + [due - TRAIL] + [NOW - TRAIL] * 3


def test_lanes_behind_a_full_claim_were_not_looked_at():
    book = a_book()
    first = book.walk()
    book.claimed(first, claimed(Served(1, 5, NOW), Served(2, 5, NOW)), 10, 5)
    lows = dict(zip(pairs(book.walk()), book.walk().lows, strict=True))
    assert [lows[lane] for lane in pairs(first)] == [NOW - TRAIL] * 2 + [START] * 4


def test_a_watermark_never_falls_by_a_claim_and_starts_over_by_a_rewind():
    book = a_book()
    book.claimed(book.walk(), claimed(), 10, 5)
    book.claimed(book.walk(), claimed(at=NOW - timedelta(minutes=1)), 10, 5)
    assert set(book.walk().lows) == {NOW - TRAIL}
    book.rewind()
    assert set(book.walk().lows) == {START}


def test_a_lane_that_comes_back_begins_from_the_start_and_the_others_go_on():
    book = a_book(queues=("mail",))
    book.claimed(book.walk(), claimed(), 10, 5)
    book.set([0, 1, 2], ["mail", "slow"])
    lows = dict(zip(pairs(book.walk()), book.walk().lows, strict=True))
    assert lows[0, "mail"] == NOW - TRAIL
    assert lows[0, "slow"] == START
    book.set([1, 2], ["mail"])
    book.set([0, 1, 2], ["mail"])
    assert book.walk().lows == [START, NOW - TRAIL, NOW - TRAIL]


@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 60), st.integers(1, 20))
@settings(deadline=None)
def test_an_overload_starves_no_lane(parts, queues, limit, per_lane):
    book = a_book(range(parts), [f"q{n}" for n in range(queues)])
    seen = set()
    for _ in range(len(book)):
        lanes, left, served = book.walk(), limit, []
        for n in range(len(book)):  # every lane has more than it may give
            rows = min(per_lane, left)
            if rows:
                served.append(Served(n, rows, NOW))
                seen.add(pairs(lanes)[n])
            left -= rows
        book.claimed(lanes, claimed(*served), limit, per_lane)
    assert len(seen) == len(book)


def ready(*parts):
    """Runs of these partitions."""
    return [
        Dispatch(n, f"{new_job_id()[:-2]}{part:02x}", "", "mail", "send", None, None) for n, part in enumerate(parts)
    ]


def test_a_full_look_at_ready_runs_makes_the_next_start_behind_the_lane_served_last():
    book = a_book(parts=(3, 5, 7), queues=("mail",))
    for runs, first in ((ready(3, 3, 5), 7), (ready(7), 7), (ready(7, 3, 5), 7)):
        book.readied(book.walk_ready(), runs, 3)
        assert book.walk_ready().parts[0] == first
    assert sorted(book.walk_ready().parts) == sorted(book.walk().parts)
    book.set((5, 3), ["mail"])
    assert book.walk_ready().parts == [5, 3]
