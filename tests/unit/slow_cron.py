"""A second reading of cron expressions and clock changes, as plain and slow as can be: each minute is looked at."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta

from rota.sched.timing.zones import zone

BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def values(field, low, high):
    """The values of a field, read in the plainest way; without L, W and #."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        else:
            a, _, b = span.partition("-")
            first = int(a)
            last = int(b) if b else (high if step else first)
        numbers = range(first, last + 1) if first <= last else [*range(first, high + 1), *range(low, last + 1)]
        found |= {n for i, n in enumerate(numbers) if i % int(step or 1) == 0}
    return found


def nearest(year, month, day):
    """The working day that is nearest to a day of a month."""
    length = calendar.monthrange(year, month)[1]
    if day > length:
        return None
    working = [d for d in range(1, length + 1) if calendar.weekday(year, month, d) < 5]
    return min(working, key=lambda d: (abs(d - day), d))


class SlowCron:
    """An expression of five fields."""

    def __init__(self, expression):
        self.fields = expression.split()
        self.minutes, self.hours = (values(f, *b) for f, b in zip(self.fields[:2], BOUNDS[:2], strict=True))
        self.months = values(self.fields[3], 1, 12)
        self.fixed = not any(field.startswith("*") for field in self.fields[:2])
        self._dates = {}

    def matches(self, local):
        """Whether it names this wall time."""
        return local.minute in self.minutes and local.hour in self.hours and self.has_date(local)

    def has_date(self, local):
        """Whether it names this day."""
        if local.date() not in self._dates:
            self._dates[local.date()] = self._has_date(local)
        return self._dates[local.date()]

    def _has_date(self, local):
        by_day = any(self._is_day(part, local) for part in self.fields[2].split(","))
        by_weekday = any(self._is_weekday(part, local) for part in self.fields[4].split(","))
        both = self.fields[2].startswith("*") or self.fields[4].startswith("*")
        return local.month in self.months and ((by_day and by_weekday) if both else (by_day or by_weekday))

    def _is_day(self, part, local):
        last = calendar.monthrange(local.year, local.month)[1]
        if part == "L":
            return local.day == last
        if part.endswith("W"):
            return local.day == nearest(local.year, local.month, last if part == "LW" else int(part[:-1]))
        return local.day in values(part, 1, 31)

    def _is_weekday(self, part, local):
        weekday = (local.weekday() + 1) % 7
        if part.endswith("L"):
            return weekday == int(part[0]) and (local + 7 * DAY).month != local.month
        if "#" in part:
            return weekday == int(part[0]) and (local.day - 1) // 7 + 1 == int(part[2])
        return weekday in values(part, 0, 6)


class Window:
    """Each minute of UTC in some days around a clock change, with its wall time."""

    def __init__(self, tz, change, days=3):
        rules = zone(tz)
        first = datetime.fromtimestamp(change, UTC).replace(second=0) - days * DAY
        self.minutes = [first + n * MINUTE for n in range(2 * days * 1440)]
        self.walls = [minute.astimezone(rules).replace(tzinfo=None, fold=0) for minute in self.minutes]
        self.instants = {}
        for minute, wall in zip(self.minutes, self.walls, strict=True):
            self.instants.setdefault(wall, []).append(minute)

    def named(self):
        """Each minute of wall time with its instants: none in a gap, two where it comes twice."""
        wall, last = self.walls[0], self.walls[-1]
        while wall <= last:
            yield wall, self.instants.get(wall, [])
            wall += MINUTE

    def ticks(self, cron, gap, overlap):
        """The instants at which an expression fires under these policies, in order."""
        if not cron.fixed:
            return [minute for minute, wall in zip(self.minutes, self.walls, strict=True) if cron.matches(wall)]
        found, before = set(), None
        for wall, instants in self.named():
            if instants:
                before = instants[-1]
            if cron.matches(wall):
                found |= set(self._chosen(wall, instants, before, gap, overlap))
        return sorted(found)

    def _chosen(self, wall, instants, before, gap, overlap):
        if not instants:  # `before` is the last minute before the gap
            shifted = before + (wall - self.walls[self.minutes.index(before)])
            return {"run_after": [before + MINUTE], "shift": [shifted], "skip": []}[gap]
        if len(instants) == 1:
            return instants
        return {"first": instants[:1], "last": instants[-1:], "both": instants, "skip": []}[overlap]
