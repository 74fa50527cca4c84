"""Which lanes a claim walks, in which order, and from which low watermark on. Pure.

A lane is a (partition, queue) pair. The walk starts behind the lane that was served last, so that an overload starves
nobody; so does the look at ready runs.

Low watermarks keep the index entries of what is gone out of the scans: as long as anybody holds an old snapshot they cannot
be removed. Each lane has three:

- **claim** and **ready** trail what was claimed, and what was given a new number, by TRAIL. Below them there may be something
  that a claim passed by: it was locked, or its commit came late.
- **seen** is the one that finds it. Nothing below it was left when a look that locks nothing (`sleep` of the store) came by, and
  nothing can appear there any more: it stays behind every transaction that is still open. A look notes its time and its own
  number. Who began to write after it has a higher number, and sets nothing due before that time, give or take TRAIL. So
  once a later look sees what all with lower numbers wrote, `seen` may follow to the time of the first one. A transaction
  that is open for hours holds it up for DEEPEST, no longer: then one look would have to read too much.

What is committed even later is told with its time (`lower`), and what nobody tells, such as a job that was changed by hand, is
found by the look that starts from the very beginning (`Depth.WHOLE`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from rota.sched.store.values import Claimed, Lanes, Look, Readied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rota.sched.store.values import Served

TRAIL = timedelta(seconds=2)
DEEPEST = timedelta(seconds=60)
MARKS_APART = timedelta(seconds=1)
"""Of the looks that come more often only one is remembered."""
ORDERS = 4
"""How many orders of the lanes are kept: claims, looks at ready runs and looks at all have one each."""
START = datetime.min.replace(tzinfo=UTC)


class Depth(Enum):
    """From where on a look goes through the lanes."""

    CLAIMED = 1
    """From where claims go: it finds no more than they do."""
    SEEN = 2
    """From where nothing can be left."""
    WHOLE = 3
    """From the start."""


@dataclass(slots=True)
class _Lows:
    claim: datetime = START
    ready: datetime = START
    seen: datetime = START

    def lower(self, at: datetime) -> None:
        """Something that is due from then on may have been passed by."""
        self.claim, self.ready, self.seen = min(self.claim, at), min(self.ready, at), min(self.seen, at)


class LaneBook:
    """The lanes of one scheduler."""

    def __init__(self) -> None:
        self.parts: Sequence[int] = []
        self._lanes: dict[tuple[int, str], _Lows] = {}
        self._next: tuple[int, str] | None = None
        self._next_ready: tuple[int, str] | None = None
        self._marks: deque[tuple[datetime, int]] = deque()
        self._latest = START
        self._orders: dict[tuple[int, str] | None, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def set(self, parts: Sequence[int], queues: Iterable[str]) -> bool:
        """The partitions that are mine and the queues with room. What is new begins from the start. Whether there is any."""
        self.parts = list(parts)
        # Queue by queue inside a partition would serve one queue's 64 lanes in a row; this way neighbours differ.
        lanes = [(part, queue) for part in self.parts for queue in sorted(queues)]
        if lanes == list(self._lanes):
            return False
        self._orders.clear()
        old, self._lanes = self._lanes, {lane: self._lanes.get(lane) or _Lows() for lane in lanes}
        return not self._lanes.keys() <= old.keys()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def seen(self) -> dict[str, str]:
        """By queue, below what nothing is left in any of its lanes: for the member row. The heartbeat's thread reads it."""
        found: dict[str, datetime] = {}
        for (_, queue), lows in list(self._lanes.items()):
            found[queue] = min(found.get(queue, lows.seen), lows.seen)
        return {queue: at.isoformat() for queue, at in found.items() if at > START}

    def lower(self, queue: str, at: datetime) -> None:
        """Something of this queue that is due from then on may have been passed by."""
        for (_, name), lows in self._lanes.items():
            if name == queue:
                lows.lower(at)

    def walk(self) -> Lanes:
        """The lanes for the next claim."""
        return self._walk_from(self._next, lambda lows: lows.claim)

    def walk_ready(self) -> Lanes:
        """The lanes for the next look at ready runs."""
        return self._walk_from(self._next_ready, lambda lows: lows.ready)

    def walk_through(self, depth: Depth) -> Lanes:
        """The lanes for a look at what is due, claimed or ready."""
        match depth:
            case Depth.CLAIMED:
                return self._walk_from(None, lambda lows: min(lows.claim, lows.ready))
            case Depth.SEEN:
                return self._walk_from(None, lambda lows: lows.seen)
            case Depth.WHOLE:
                return self._walk_from(None, lambda _: START)

    def _walk_from(self, first: tuple[int, str] | None, low: Callable[[_Lows], datetime]) -> Lanes:
        parts, queues = self._orders.get(first) or self._order_from(first)
        return Lanes(parts, queues, [low(self._lanes[lane]) for lane in zip(parts, queues, strict=True)])

    def _order_from(self, first: tuple[int, str] | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Partitions and queues of all lanes, from this one on. Kept, as rounds of a trickle all begin at the same one."""
        if len(self._orders) >= ORDERS:  # under load each walk begins at another one, and there may be thousands
            self._orders.clear()
        lanes = list(self._lanes)
        at = lanes.index(first) if first in self._lanes else 0
        order = lanes[at:] + lanes[:at]
        self._orders[first] = tuple(p for p, _ in order), tuple(q for _, q in order)
        return self._orders[first]

    def claimed(self, lanes: Lanes, claimed: Claimed, limit: int, per_lane: int) -> None:
        """Learns from a claim of `lanes`: where to start next, and what lies below the watermarks."""
        self._see_clock(claimed.claimed_at)
        order, full = _order(lanes), claimed.rows >= limit
        for lane, low in _lows_behind(order, claimed.served, claimed.claimed_at, per_lane, full=full):
            if (lows := self._lanes.get(lane)) and low > lows.claim:
                lows.claim = low
        if full and order:
            self._next = _behind(order, claimed.served)

    def readied(self, lanes: Lanes, ready: Readied, limit: int, per_lane: int) -> None:
        """Learns from a look at the ready runs of `lanes`, as from a claim."""
        order, full = _order(lanes), len(ready.dispatches) >= limit
        if ready.looked_at is None:
            return
        for lane, low in _lows_behind(order, ready.served, ready.looked_at, per_lane, full=full):
            if (lows := self._lanes.get(lane)) and low > lows.ready:
                lows.ready = low
        if full and order:
            self._next_ready = _behind(order, ready.served)

    def looked(self, lanes: Lanes, look: Look) -> None:
        """Learns from a look that locks nothing: what claims have passed by, and below what nothing is left."""
        self._see_clock(look.at)
        final = self._final(look)
        due = {(part, queue): at for part, queue, at in look.due}
        for lane, low in zip(_order(lanes), lanes.lows, strict=True):
            lows = self._lanes.get(lane)
            if lows is None:
                continue
            first = due.get(lane)
            if first is not None:
                lows.lower(first)
            if low <= lows.seen:
                lows.seen = max(lows.seen, final if first is None else min(final, first))
                # Else what was claimed long ago is read by the first claim after a long sleep.
                lows.claim, lows.ready = max(lows.claim, lows.seen), max(lows.ready, lows.seen)

    def _final(self, look: Look) -> datetime:
        """Below this nothing can appear that was not there."""
        marks = self._marks
        while len(marks) > 1 and (marks[1][1] < look.oldest or marks[1][0] < look.at - DEEPEST):
            marks.popleft()
        final = START
        if marks and (marks[0][1] < look.oldest or marks[0][0] < look.at - DEEPEST):
            final = marks[0][0] - TRAIL
        if not marks or look.at - marks[-1][0] >= MARKS_APART:
            marks.append((look.at, look.number))
        return final

    def _see_clock(self, now: datetime) -> None:
        """A clock that was set back sets due what lies below the watermarks: then they start over."""
        if now < self._latest:
            self._marks.clear()
            self._lanes = {lane: _Lows() for lane in self._lanes}
        self._latest = now


def _order(lanes: Lanes) -> list[tuple[int, str]]:
    return list(zip(lanes.parts, lanes.queues, strict=True))


def _lows_behind(
    order: Sequence[tuple[int, str]], served: Iterable[Served], until: datetime, per_lane: int, *, full: bool
) -> Iterable[tuple[tuple[int, str], datetime]]:
    """The low watermarks of lanes that are empty up to some time now; those behind a walk that was full were not looked at."""
    gave = {s.lane: s for s in served}
    low = until - TRAIL  # one object for nearly all lanes: whoever writes them down does it once
    for n, lane in enumerate(order[: max(gave, default=-1) if full else len(order)]):
        s = gave.get(n)
        yield lane, s.last_due - TRAIL if s and s.rows >= per_lane else low


def _behind(order: Sequence[tuple[int, str]], served: Iterable[Served]) -> tuple[int, str]:
    return order[(max((s.lane for s in served), default=-1) + 1) % len(order)]
