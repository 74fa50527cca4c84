"""Cron expressions on a naive wall clock.

A wall clock is a line of seconds here, as if the local time were UTC: no zone, no gap, nothing twice. What a zone does to
it is `rota.sched.timing.walk`. Three questions are answered, none of which ever loops over ticks, so that a schedule of
every second that slept for a year costs no more than a daily one: the next match, the last match, and how many in between.

The day rule is Debian cron's: if either day field begins with a star both must hold, otherwise one of them is enough.
"""

from __future__ import annotations

import calendar
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from rota.sched.errors import UsageError
from rota.sched.timing.fields import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, Field, Spec, parse_field

DAY_S = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE = 400  # years after which the calendar repeats: what has not matched by then never does
_LAST_YEAR = 9_998

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True)
class Cron:
    """A parsed expression. `times` are the seconds of a day at which it matches, in order."""

    text: str
    times: array[int]
    day: Field
    month: Field
    weekday: Field
    fixed: bool
    """Whether minute and hour are both given: it names times of day, rather than a rhythm."""

    @property
    def either_day(self) -> bool:
        """Whether one matching day field is enough (OR), rather than both (AND)."""
        return not (self.day.starred or self.weekday.starred)

    def next(self, wall: int) -> int | None:
        """The first match at or after a wall second; None if there is none before the year 9999."""
        day, second = divmod(wall, DAY_S)
        if second <= self.times[-1] and self._matches(day):
            return day * DAY_S + self.times[bisect_left(self.times, second)]
        found = self._day_after(day)
        return None if found is None else found * DAY_S + self.times[0]

    def previous(self, wall: int, floor: int) -> int | None:
        """The last match before a wall second and at or after `floor`."""
        day, second = divmod(wall, DAY_S)
        if second > self.times[0] and self._matches(day):
            found = day * DAY_S + self.times[bisect_left(self.times, second) - 1]
            return found if found >= floor else None
        earlier = self._day_before(day, floor // DAY_S)
        found = None if earlier is None else earlier * DAY_S + self.times[-1]
        return None if found is None or found < floor else found

    def count(self, low: int, high: int) -> int:
        """How many matches lie in [low, high)."""
        if low >= high:
            return 0
        (first, start), (last, stop) = divmod(low, DAY_S), divmod(high, DAY_S)
        total = self._days_in(first, last) * len(self.times)
        if self._matches(first):
            total -= bisect_left(self.times, start)
        if self._matches(last):
            total += bisect_left(self.times, stop)
        return total

    def _matches(self, day: int) -> bool:
        on = date.fromordinal(day + _EPOCH)
        return on.day in days_of_month(self, on.year, on.month)

    def _day_after(self, day: int) -> int | None:
        on = date.fromordinal(day + _EPOCH)
        year, month = on.year, on.month
        for later in days_of_month(self, year, month):
            if later > on.day:
                return day + later - on.day
        for _ in range(_CYCLE * 12):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > _LAST_YEAR:
                return None
            if month in self.month.values and (days := days_of_month(self, year, month)):
                return date(year, month, days[0]).toordinal() - _EPOCH
        return None

    def _day_before(self, day: int, floor: int) -> int | None:
        on = date.fromordinal(day + _EPOCH)
        year, month, limit = on.year, on.month, on.day
        while date(year, month, 1).toordinal() - _EPOCH + 31 >= floor:
            for earlier in reversed(days_of_month(self, year, month)):
                if earlier < limit:
                    return date(year, month, earlier).toordinal() - _EPOCH
            year, month, limit = (year, month - 1, 32) if month > 1 else (year - 1, 12, 32)
            if year < 1:
                return None
        return None

    def _days_in(self, first: int, last: int) -> int:
        """How many days of [first, last) match."""
        begin, end = date.fromordinal(first + _EPOCH), date.fromordinal(last + _EPOCH)
        total = bisect_left(days_of_month(self, end.year, end.month), end.day)
        total -= bisect_left(days_of_month(self, begin.year, begin.month), begin.day)
        for months in range(begin.year * 12 + begin.month - 1, end.year * 12 + end.month - 1):
            total += len(days_of_month(self, months // 12, months % 12 + 1))
        return total

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cron) and self.text == other.text


@lru_cache(maxsize=16_384)
def days_of_month(cron: Cron, year: int, month: int) -> tuple[int, ...]:
    """The days of that month on which the expression matches, in order."""
    if month not in cron.month.values:
        return ()
    first_weekday, length = calendar.monthrange(year, month)
    first = (first_weekday + 1) % 7  # of the first of the month, Sunday is 0
    by_day = _by_day(cron.day, first, length)
    by_weekday = _by_weekday(cron.weekday, first, length)
    return tuple(sorted(by_day | by_weekday if cron.either_day else by_day & by_weekday))


def _by_day(field: Field, first: int, length: int) -> set[int]:
    days = {day for day in field.values if day <= length}
    days.update(length - back for back in field.from_end if back < length)
    days.update(_nearest_weekday(near or length, first, length) for near in field.near if near <= length)
    return days


def _nearest_weekday(day: int, first: int, length: int) -> int:
    """The Monday to Friday nearest to that day, in the same month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _by_weekday(field: Field, first: int, length: int) -> set[int]:
    days = {day for day in range(1, length + 1) if (first + day - 1) % 7 in field.values}
    for weekday, nth in field.nth:
        same = [day for day in range(1, length + 1) if (first + day - 1) % 7 == weekday]
        days.update(same[nth - 1 : nth] if nth else same[-1:])
    return days


@lru_cache(maxsize=4_096)
def parse(text: str) -> Cron:
    """The expression's meaning: five fields, six with seconds first, or a macro such as @daily.

    Raises UsageError that quotes the expression, names the field and says what to write, also if it can never fire.
    """
    fields = _fields(text)
    try:
        second, minute, hour, day, month, weekday = (parse_field(spec, field) for spec, field in fields)
    except UsageError as error:
        raise UsageError(f"cron expression {text!r} cannot be read: {error}") from None
    times = array("i", (h * 3600 + m * 60 + s for h in hour.values for m in minute.values for s in second.values))
    cron = Cron(" ".join(field for _, field in fields), times, day, month, weekday, not (minute.starred or hour.starred))
    if cron.next((date(2000, 1, 1).toordinal() - _EPOCH) * DAY_S) is None:
        raise UsageError(f"cron expression {text!r} never fires: {_why_never(cron)}")
    return cron


def _fields(text: str) -> list[tuple[Spec, str]]:
    if not isinstance(text, str):
        raise UsageError(f"cron expression {text!r} is not text: write such as '0 2 * * *'")
    if text.strip().startswith("@"):
        return _fields(_macro(text))
    if "=" in text:
        raise UsageError(f"cron expression {text!r} sets a zone: leave it out and give the zone by itself, as tz")
    parts = text.split()
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) == 7:
        raise UsageError(f"cron expression {text!r} has 7 fields: the year that Quartz puts last cannot be given")
    if len(parts) != 6:
        raise UsageError(f"cron expression {text!r} has {len(parts)} fields: write 5 (minute hour day month weekday), or 6 with seconds first")
    return list(zip((SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY), parts, strict=True))


def _macro(text: str) -> str:
    name = text.strip().lower()
    if name == "@reboot":
        raise UsageError(f"cron expression {text!r} has no meaning in a cluster, which does not boot: submit the job now instead")
    if name.startswith("@every"):
        raise UsageError(f"cron expression {text!r} is an interval: use every({text.strip()[6:].strip() or '5m'!r})")
    if name not in MACROS:
        raise UsageError(f"cron expression {text!r} is not known: the macros are {', '.join(MACROS)}")
    return MACROS[name]


def _why_never(cron: Cron) -> str:
    days, months = cron.day.text, cron.month.text
    if cron.weekday.text == "*":
        return f"{days} is not a day of month {months}"
    return f"no day of month {months} is both {days} and weekday {cron.weekday.text}"
