"""Cron expressions on naive local wall time: parsing, refusal with a reason, and the next match. Pure.

Fields are minute, hour, day of month, month, day of week; with six, seconds come first. Wall time here has no zone and no
clock changes: what those do to a match is decided in ticks.py. The day rule is vixie cron's: two restricted day fields
are ORed, but if one of them begins with `*` (`*/2`) both must hold.

The search goes through months: the days of each that match are found once and remembered, the time within a day by
bisection. It ends `YEARS` years after its start.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

from rota.sched.errors import UsageError
from rota.sched.timing.dialects import refusal
from rota.sched.timing.fields import FIELDS, LAST, Field, read_field

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
YEARS = 40
"""How far a match may lie ahead: 29 February on a given weekday comes at least once in 40 years."""
LONGEST = 1_000
"""Characters of an expression at most."""
NO_DATES: frozenset[date] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """The two day fields. `either`: one of them is enough."""

    dates: Field
    weekdays: Field
    either: bool


@dataclass(frozen=True, slots=True, eq=False)
class Cron:
    """A parsed expression. `parse` gives the same object for the same text, and it is compared as such.

    `fixed`: neither hour nor minute begins with `*`, so it names times of day. `with_seconds`: it has six fields.
    """

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    months: frozenset[int]
    fixed: bool
    with_seconds: bool


@lru_cache(maxsize=16_384)
def parse(text: str) -> Cron:
    """The expression in `text`. UsageError with what is wrong with it."""
    if len(text) > LONGEST:
        raise UsageError(f"cron expression {text[:40]!r}... has {len(text)} characters: {LONGEST} are the most")
    written = _split(text)
    names = FIELDS[-len(written) :]
    try:
        fields = [read_field(name, field) for name, field in zip(names, written, strict=True)]
    except UsageError as error:
        raise UsageError(f"cron expression {text!r}: {error}") from None
    minute, hour, dates, months, weekdays = fields[-5:]
    cron = Cron(
        text,
        tuple(sorted(fields[0].values)) if len(fields) == 6 else (0,),
        tuple(sorted(minute.values)),
        tuple(sorted(hour.values)),
        _days_of_fields(dates, weekdays),
        months.values,
        fixed=not (minute.star or hour.star),
        with_seconds=len(fields) == 6,
    )
    _check_that_it_fires(cron, *written[-3:])
    return cron


@lru_cache(maxsize=4_096)
def _days_of_fields(dates: Field, weekdays: Field) -> Days:
    return Days(dates, weekdays, either=not (dates.star or weekdays.star))


def _split(text: str) -> list[str]:
    expression = text.strip().lower()
    why = refusal(expression)
    if why is not None:
        raise UsageError(f"cron expression {text!r} {why}")
    if expression.startswith("@") and expression not in MACROS:
        raise UsageError(f"cron expression {text!r}: use one of {', '.join(MACROS)}")
    fields = MACROS.get(expression, expression).split()
    if len(fields) not in {5, 6}:
        raise UsageError(
            f"cron expression {text!r} has {len(fields)} fields: write minute, hour, day of month, month, day of week "
            "(with six, seconds first)"
        )
    *front, day, month, weekday = fields
    return [*front, "*" if day == "?" else day, month, "*" if weekday == "?" else weekday]


def _check_that_it_fires(cron: Cron, day: str, month: str, weekday: str) -> None:
    if next_match(cron, datetime(2024, 1, 1)) is None:  # noqa: DTZ001 - wall time has no zone here
        on = "" if weekday == "*" else f" on day of week {weekday}"
        raise UsageError(
            f"cron expression {cron.text!r} never fires: day of month {day}{on} does not come in month {month}"
        )


def next_match(cron: Cron, after: datetime, without: frozenset[date] = NO_DATES) -> datetime | None:
    """The first local time that matches, strictly after `after` (naive, whole seconds), on none of the dates `without`.

    None if there is none in `YEARS` years.
    """
    year, month, today = after.year, after.month, after.day
    last_year = min(after.year + YEARS, 9999)
    while year <= last_year:
        if month in cron.months:
            for day in _days(cron.days, year, month):
                if day < today or (without and date(year, month, day) in without):
                    continue
                found = _next_time(cron, after) if day == today else _first_time(cron)
                if found is not None:
                    return datetime(year, month, day, *found)  # noqa: DTZ001
        today = 0
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return None


def is_match(cron: Cron, local: datetime) -> bool:
    """Whether a local time (naive, whole seconds) matches."""
    return (
        local.second in cron.seconds
        and local.minute in cron.minutes
        and local.hour in cron.hours
        and local.month in cron.months
        and local.day in _days(cron.days, local.year, local.month)
    )


def _first_time(cron: Cron) -> tuple[int, int, int]:
    return cron.hours[0], cron.minutes[0], cron.seconds[0]


def _next_time(cron: Cron, after: datetime) -> tuple[int, int, int] | None:
    """The first matching time of day after that of `after`, None if the day has no more."""
    hours, minutes, seconds = cron.hours, cron.minutes, cron.seconds
    at = bisect_left(hours, after.hour)
    if at == len(hours):
        return None
    if hours[at] > after.hour:
        return hours[at], minutes[0], seconds[0]
    minute = bisect_left(minutes, after.minute)
    if minute < len(minutes) and minutes[minute] == after.minute:
        second = bisect_left(seconds, after.second + 1)
        if second < len(seconds):
            return after.hour, after.minute, seconds[second]
        minute += 1
    if minute < len(minutes):
        return after.hour, minutes[minute], seconds[0]
    return (hours[at + 1], minutes[0], seconds[0]) if at + 1 < len(hours) else None


@lru_cache(maxsize=65_536)
def _days(rule: Days, year: int, month: int) -> tuple[int, ...]:
    """The days of a month that match, in order."""
    first, length = monthrange(year, month)
    days = range(1, length + 1)
    by_date = {length if day == LAST else day for day in rule.dates.values}
    by_date |= {_working_day(first, length, length if day == LAST else day) for day in rule.dates.near}
    by_weekday = {day for day in days if (first + day) % 7 in rule.weekdays.values}
    for weekday, number in rule.weekdays.nth:
        each = [day for day in days if (first + day) % 7 == weekday]
        by_weekday |= set(each[-1:] if number == LAST else each[number - 1 : number])
    chosen = by_date | by_weekday if rule.either else by_date & by_weekday
    return tuple(day for day in days if day in chosen)


def _working_day(first: int, length: int, day: int) -> int:
    """The day from Monday to Friday that is nearest to a day, within its month; 0 if the month has no such day."""
    if day > length:
        return 0
    weekday = (first + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else 3
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day
