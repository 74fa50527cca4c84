"""The ticks of a schedule between two instants, however many: counted, cut and looked up with bounded work. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from rota.sched.timing.ticks import next_tick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.when import Schedule

COUNTED = 200
"""Most ticks of a cron expression that are counted; an interval's are counted by division."""
_JUST_BEFORE = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ticks from `cursor`, which is one itself, to `until` (included). Never empty."""

    schedule: Schedule
    cursor: datetime
    until: datetime

    def count(self) -> int | None:
        """How many there are; None for more than `COUNTED` of a cron expression."""
        if self.schedule.every is not None:
            return self._steps() + 1
        found = 1 + sum(1 for _ in islice(self._ticks(self.cursor), COUNTED))
        return found if found <= COUNTED else None

    def latest(self, wanted: int) -> list[datetime]:
        """The latest `wanted` of them in order, or all where they are fewer.

        Looks back over a growing span and, where one is too crowded, over one between the last two.
        """
        if self.schedule.every is not None:
            step, last = timedelta(seconds=self.schedule.every), self._steps()
            return [self.cursor + i * step for i in range(max(0, last - wanted + 1), last + 1)]
        crowded = 2 * wanted + 100
        short, long = timedelta(0), None
        whole = self.until - self.cursor + _JUST_BEFORE
        span = self._first_gap() * (wanted + 1)
        while True:
            span = min(span, whole)
            found = list(islice(self._from(self.until - span), crowded))
            if len(found) == crowded:
                long = span
            elif len(found) >= wanted or span == whole:
                return found[-wanted:]
            else:
                short = span
            span = short * 2 if long is None else (short + long) / 2

    def last(self) -> datetime:
        """The latest of them."""
        return self.latest(1)[0]

    def first_from(self, instant: datetime) -> datetime:
        """The first tick at or after an instant that is not after the last one."""
        if instant <= self.cursor:
            return self.cursor
        tick = next_tick(self.schedule, instant - _JUST_BEFORE, self.cursor)
        assert tick is not None
        return tick

    def before(self, tick: datetime) -> Backlog:
        """Those before one of the later ticks."""
        return replace(self, until=tick - _JUST_BEFORE)

    def after(self, tick: datetime) -> Backlog | None:
        """Those after a tick, None if there are none."""
        following = next_tick(self.schedule, tick, self.cursor)
        return None if following is None or following > self.until else replace(self, cursor=following)

    def _steps(self) -> int:
        assert self.schedule.every is not None
        return (self.until - self.cursor) // timedelta(seconds=self.schedule.every)

    def _first_gap(self) -> timedelta:
        following = next_tick(self.schedule, self.cursor, self.cursor)
        return self.until - self.cursor + _JUST_BEFORE if following is None else following - self.cursor

    def _from(self, start: datetime) -> Iterator[datetime]:
        if start < self.cursor:  # the cursor is a tick even if rules have changed since it was computed
            yield self.cursor
        yield from self._ticks(max(start, self.cursor))

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        tick = next_tick(self.schedule, after, self.cursor)
        while tick is not None and tick <= self.until:
            yield tick
            tick = next_tick(self.schedule, tick, self.cursor)
