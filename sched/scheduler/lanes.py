"""Which lanes a claim walks, in which order, and from which low watermark on. Pure.

A lane is a (partition, queue) pair. The walk starts behind the lane that was served last, so that an overload starves
nobody; so does the look at ready runs. The low watermark of a lane keeps the dead index entries at its head out of the
scan: it trails what was claimed by TRAIL, because a submit may commit late, and every few seconds a claim starts from the
very beginning.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rota.sched.ids import partition_of
from rota.sched.store.values import Claimed, Lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rota.sched.model import Dispatch

TRAIL = timedelta(seconds=2)
START = datetime.min.replace(tzinfo=UTC)


class LaneBook:
    """The lanes of one scheduler."""

    def __init__(self) -> None:
        self.parts: Sequence[int] = []
        self._lanes: list[tuple[int, str]] = []
        self._lows: dict[tuple[int, str], datetime] = {}
        self._next: tuple[int, str] | None = None
        self._next_ready: tuple[int, str] | None = None

    def set(self, parts: Sequence[int], queues: Iterable[str]) -> None:
        """The partitions that are mine and the queues with room. What is new begins from the start."""
        self.parts = list(parts)
        # Queue by queue inside a partition would serve one queue's 64 lanes in a row; this way neighbours differ.
        lanes = [(part, queue) for part in self.parts for queue in sorted(queues)]
        if lanes != self._lanes:
            self._lanes = lanes
            self._lows = {lane: self._lows.get(lane, START) for lane in lanes}

    def __len__(self) -> int:
        return len(self._lanes)

    def rewind(self) -> None:
        """The next claim looks at everything: rows may have appeared below the watermark."""
        self._lows = dict.fromkeys(self._lanes, START)

    def walk(self) -> Lanes:
        """The lanes for the next claim."""
        return self._walk_from(self._next)

    def walk_ready(self) -> Lanes:
        """The lanes for the next look at ready runs."""
        return self._walk_from(self._next_ready)

    def _walk_from(self, first: tuple[int, str] | None) -> Lanes:
        at = self._lanes.index(first) if first in self._lanes else 0
        order = self._lanes[at:] + self._lanes[:at]
        return Lanes([p for p, _ in order], [q for _, q in order], [self._lows[lane] for lane in order])

    def claimed(self, lanes: Lanes, claimed: Claimed, limit: int, per_lane: int) -> None:
        """Learns from a claim of `lanes`: where to start next, and what lies below the watermarks."""
        order = list(zip(lanes.parts, lanes.queues, strict=True))
        served = {s.lane: s for s in claimed.served}
        last = max(served, default=-1)
        full = claimed.rows >= limit
        for n, lane in enumerate(order[: last if full else len(order)]):
            s = served.get(n)
            reached = s.last_due if s and s.rows >= per_lane else claimed.claimed_at
            self._lows[lane] = max(self._lows.get(lane, START), reached - TRAIL)
        if full and order:
            self._next = order[(last + 1) % len(order)]

    def readied(self, lanes: Lanes, ready: Sequence[Dispatch], limit: int) -> None:
        """Learns from a look at `lanes`: if it was full, the next one starts behind the lane that was served last."""
        if len(ready) >= limit:
            order = list(zip(lanes.parts, lanes.queues, strict=True))
            served = {(partition_of(d.job_id), d.queue) for d in ready}
            last = max(n for n, lane in enumerate(order) if lane in served)
            self._next_ready = order[(last + 1) % len(order)]
