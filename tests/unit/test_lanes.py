"""The lanes of a claim: all of them, in turn, and from watermarks that pass nothing that is due."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.ids import new_job_id
from rota.sched.model import Dispatch
from rota.sched.scheduler.lanes import DEEPEST, ORDERS, START, TRAIL, Depth, LaneBook
from rota.sched.store.values import Claimed, Look, Readied, Served

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pairs(lanes):
    return list(zip(lanes.parts, lanes.queues, strict=True))


def a_book(parts=(0, 1, 2), queues=("mail", "slow")):
    book = LaneBook()
    book.set(parts, queues)
    return book


def claimed(*served, at=NOW):
    return Claimed([], list(served), at, [], 0)


SECOND = timedelta(seconds=1)


def looked(book, at, number, oldest=None, due=(), depth=Depth.SEEN):
    """A look of this number at this time, when nothing older than `oldest` was open."""
    book.looked(book.walk_through(depth), Look(at, 5.0, list(due), True, number, oldest or number, [], [], {}))
    return book.walk_through(Depth.SEEN).lows[0]


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


def test_a_watermark_never_falls_by_a_claim():
    book = a_book()
    book.claimed(book.walk(), claimed(), 10, 5)
    book.claimed(book.walk(), claimed(*(Served(n, 5, NOW - timedelta(hours=1)) for n in range(6))), 100, 5)
    assert set(book.walk().lows) == {NOW - TRAIL}


def test_a_clock_that_was_set_back_makes_all_watermarks_start_over():
    """Without `_see_clock` (sched/scheduler/lanes.py) nothing that is submitted is found until the clock is where it was."""
    book = a_book()
    book.claimed(book.walk(), claimed(), 10, 5)
    looked(book, NOW + timedelta(seconds=1), 7)
    looked(book, NOW - timedelta(hours=1), 8)
    assert set(book.walk().lows) == set(book.walk_through(Depth.SEEN).lows) == {START}
    looked(book, NOW - timedelta(hours=1) + SECOND, 9)
    assert set(book.walk_through(Depth.SEEN).lows) == {NOW - timedelta(hours=1) - TRAIL}


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


def ready(*parts, order):
    """Runs of these partitions."""
    runs = [
        Dispatch(n, f"{new_job_id()[:-2]}{part:02x}", "", "mail", "send", None, None) for n, part in enumerate(parts)
    ]
    return Readied(runs, [Served(order.index(part), parts.count(part), NOW) for part in set(parts)], NOW)


def test_a_full_look_at_ready_runs_makes_the_next_start_behind_the_lane_served_last():
    book = a_book(parts=(3, 5, 7), queues=("mail",))
    for parts, first in (((3, 3, 5), 7), ((7,), 7), ((7, 3, 5), 7)):
        lanes = book.walk_ready()
        book.readied(lanes, ready(*parts, order=lanes.parts), 3, 5)
        assert book.walk_ready().parts[0] == first
    assert sorted(book.walk_ready().parts) == sorted(book.walk().parts)
    book.set((5, 3), ["mail"])
    assert list(book.walk_ready().parts) == [5, 3]


def test_walks_that_begin_at_thousands_of_lanes_are_not_all_kept():
    book = a_book(parts=range(64), queues=("mail", "other"))
    for _ in range(300):
        lanes = book.walk_ready()
        book.readied(lanes, ready(lanes.parts[0], order=lanes.parts), 1, 5)
    assert len(book._orders) <= ORDERS


def test_looks_at_ready_runs_have_watermarks_of_their_own():
    book = a_book(parts=(3, 5, 7), queues=("mail",))
    lanes, last = book.walk_ready(), NOW - timedelta(hours=1)
    book.readied(lanes, Readied(ready(5, 5, order=lanes.parts).dispatches, [Served(1, 2, last)], NOW), 10, 2)
    assert book.walk_ready().lows == [NOW - TRAIL, last - TRAIL, NOW - TRAIL]
    assert set(book.walk().lows) == {START}
    book.readied(book.walk_ready(), Readied([], [], None), 10, 2)
    assert book.walk_ready().lows[0] == NOW - TRAIL, "a member that is dead learns nothing"


def test_what_a_look_has_seen_is_below_what_was_written_since_an_earlier_one():
    book = a_book()
    assert looked(book, NOW, 10) == START
    assert looked(book, NOW + 5 * SECOND, 14) == NOW - TRAIL
    assert looked(book, NOW + 10 * SECOND, 19) == NOW + 5 * SECOND - TRAIL


def test_what_a_look_has_seen_does_not_pass_a_transaction_that_is_still_open():
    """It may have set something due at any time since it began. Without `oldest` that is passed by."""
    book = a_book()
    looked(book, NOW, 10)
    looked(book, NOW + 5 * SECOND, 14)
    for n in range(2, 11):
        assert looked(book, NOW + 5 * n * SECOND, 14 + n, oldest=13) == NOW - TRAIL
    assert looked(book, NOW + 55 * SECOND, 30) == NOW + 50 * SECOND - TRAIL
    young = a_book()
    looked(young, NOW, 10)
    assert looked(young, NOW + 5 * SECOND, 14, oldest=10) == START


def test_a_transaction_that_is_open_for_hours_does_not_make_looks_read_ever_more():
    book = a_book()
    for n in range(100):
        low = looked(book, NOW + 5 * n * SECOND, 10 + n, oldest=5)
    assert NOW + 495 * SECOND - low <= DEEPEST + 5 * SECOND + TRAIL


def test_what_a_look_finds_that_claims_have_passed_by_is_claimed_and_looked_for_until_it_is_gone():
    book, late = a_book(), NOW - timedelta(hours=1)
    looked(book, late - timedelta(hours=1), 5)
    looked(book, late - timedelta(minutes=30), 6)
    for n in range(3):
        at = NOW + 5 * n * SECOND
        book.claimed(book.walk(), claimed(at=at), 10, 5)
        assert book.walk().lows[0] == at - TRAIL
        looked(book, at, 10 + n, due=[(0, "mail", late)])
        assert book.walk().lows == [late] + [at - TRAIL] * 5
        assert book.walk_ready().lows[0] <= late
        assert book.walk_through(Depth.SEEN).lows[0] <= late


def test_what_a_whole_look_finds_below_all_that_was_seen_is_claimed():
    """Nobody told of it: a row was changed by hand."""
    book, late = a_book(), NOW - timedelta(hours=1)
    looked(book, NOW, 10)
    looked(book, NOW + 5 * SECOND, 11)
    book.claimed(book.walk(), claimed(at=NOW + 5 * SECOND), 10, 5)
    looked(book, NOW + 10 * SECOND, 12, due=[(0, "mail", late)], depth=Depth.WHOLE)
    assert book.walk().lows[:2] == [late, NOW + 5 * SECOND - TRAIL]
    assert book.walk_through(Depth.SEEN).lows[0] == late


def test_a_look_from_where_claims_go_proves_nothing_of_what_lies_below():
    book = a_book()
    looked(book, NOW, 10)
    seen = looked(book, NOW + SECOND, 11)
    book.claimed(book.walk(), claimed(at=NOW + timedelta(minutes=1)), 10, 5)
    book.readied(book.walk_ready(), Readied([], [], NOW + timedelta(minutes=1)), 10, 5)
    assert looked(book, NOW + timedelta(minutes=2), 12, depth=Depth.CLAIMED) == seen


def test_what_is_told_to_be_late_lowers_the_watermarks_of_its_queue():
    book, late = a_book(), NOW - timedelta(hours=1)
    book.claimed(book.walk(), claimed(), 10, 5)
    looked(book, NOW, 10)
    looked(book, NOW + SECOND, 11)
    book.lower("slow", late)
    for lanes in (book.walk(), book.walk_through(Depth.SEEN), book.walk_through(Depth.CLAIMED)):
        assert [low == late for low in lanes.lows] == [queue == "slow" for queue in lanes.queues]
    book.lower("slow", NOW)
    assert min(book.walk().lows) == late


def test_what_is_told_of_a_queue_holds_for_all_its_lanes():
    book = a_book()
    assert book.seen == {}
    looked(book, NOW, 10)
    looked(book, NOW + 5 * SECOND, 11, due=[(1, "mail", NOW - timedelta(hours=1))])
    assert book.seen == {"mail": (NOW - timedelta(hours=1)).isoformat(), "slow": (NOW - TRAIL).isoformat()}
    book.set([2], ["mail"])
    assert book.seen == {"mail": (NOW - TRAIL).isoformat()}
