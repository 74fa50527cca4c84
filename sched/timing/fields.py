"""One field of a cron expression: the values that it holds, or what to write instead of what it may not hold. Pure.

croniter expands plain parts, and each field is remembered: thousands of expressions consist of few. Where it is wrong, our reading wins: `5-5` is one value, and a range that descends goes round.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rota.sched.errors import UsageError

FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
LAST = 0
"""As a day of the month, and as the number of a weekday within its month: the last one."""
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DAYS = "sun|mon|tue|wed|thu|fri|sat"
_VALUE = {
    "second": r"\d{1,2}",
    "minute": r"\d{1,2}",
    "hour": r"\d{1,2}",
    "day of month": r"\d{1,2}",
    "month": rf"\d{{1,2}}|{_MONTHS}",
    "day of week": rf"\d|{_DAYS}",
}
_BOUNDS = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day of month": (1, 31),
    "month": (1, 12),
    "day of week": (0, 7),
}

_DATE = re.compile(r"(l|[1-9]|[12]\d|3[01])w|l", re.ASCII)
"""The month's last day (`L`), and the working day nearest to a day (`15W`, `LW`)."""
_NTH = re.compile(rf"([0-7]|{_DAYS})#([1-5])|l([0-7]|{_DAYS})|([0-7]|{_DAYS})l", re.ASCII)
"""A weekday with its number in the month (`1#2`), and the last such (`5L`, `L5`)."""


class Field(NamedTuple):
    """What a field holds. A weekday is 0 (Sunday) to 6; `LAST` among days of the month is its last day.

    `near`: days of the month of which the nearest working day is meant. `nth`: weekdays with their number in the month.
    `star`: the field begins with `*`.
    """

    values: frozenset[int]
    near: frozenset[int]
    nth: frozenset[tuple[int, int]]
    star: bool


@lru_cache(maxsize=16_384)
def read_field(name: str, field: str) -> Field:
    """The field `name` that is written so, in lower case. UsageError if it is none."""
    parts = field.split(",")
    if "" in parts:
        raise UsageError(f"a blank or nothing beside the comma of {field!r} in the {name}")
    values: set[int] = set()
    near: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for part in parts:
        if name == "day of month" and (found := _DATE.fullmatch(part)):
            (near if found[1] else values).add(LAST if found[1] in {None, "l"} else int(found[1]))
        elif name == "day of week" and (found := _NTH.fullmatch(part)):
            nth.add((_number(name, found[1] or found[3] or found[4]) % 7, int(found[2] or LAST)))
        else:
            values |= _values_of(name, _plain(name, part))
    return Field(frozenset(values), frozenset(near), frozenset(nth), field.startswith("*"))


def _values_of(name: str, parts: str) -> frozenset[int]:
    from croniter import croniter  # noqa: PLC0415 - most processes read no expression, and need not wait for it

    fields = ["*"] * 5
    at = max(FIELDS.index(name) - 1, 0)  # seconds are expanded as minutes are
    fields[at] = parts
    expanded = croniter.expand(" ".join(fields))[0][at]
    low, high = _BOUNDS[name]
    values = range(low, high + 1) if expanded == ["*"] else map(int, expanded)
    return frozenset(value % 7 for value in values) if name == "day of week" else frozenset(values)


def _plain(name: str, part: str) -> str:
    """A plain part in the form that croniter reads rightly."""
    value = _VALUE[name]
    found = re.fullmatch(rf"(?:\*|({value})(?:-({value}))?)(?:/(\d{{1,4}}))?", part, re.ASCII)
    if not found:
        raise UsageError(f"{part!r} is no {name}{_hint(name, part)}")
    low, high, step = found.groups()
    for number in (low, high):
        _check_bounds(name, number)
    if step is not None and int(step) == 0:
        raise UsageError(f"the step of {part!r} in the {name} is 0: write 1 or more")
    if low is None or high is None:
        return part
    return _range(name, _number(name, low), _number(name, high), int(step or 1), part)


def _range(name: str, low: int, high: int, step: int, part: str) -> str:
    """A range as a list where croniter is wrong: it takes 5-5 for every value, and steps amiss through 22-2/3."""
    if low < high:
        return part
    first, last = _BOUNDS[name]
    last = 6 if name == "day of week" else last
    numbers = [low] if low == high else [*range(low, last + 1), *range(first, high + 1)]
    return ",".join(str(number) for number in numbers[::step])


def _number(name: str, value: str) -> int:
    if value.isdigit():
        return int(value)
    months = name == "month"
    return (_MONTHS if months else _DAYS).split("|").index(value) + months


def _check_bounds(name: str, number: str | None) -> None:
    low, high = _BOUNDS[name]
    if number is not None and number.isdigit() and not low <= int(number) <= high:
        raise UsageError(f"{number} is no {name}: write {low} to {high}")


def _hint(name: str, part: str) -> str:
    if re.match(r"[hr](\W|$)", part) or "~" in part:
        return ": name a value, and spread jobs with jitter"
    if part.startswith("l-"):
        return ": days before the last of a month are not supported"
    if "#" in part:
        return ": write the weekday and its number in the month, 1 to 5, such as '1#2' for the second Monday"
    words = {"month": _MONTHS, "day of week": _DAYS}.get(name)
    if words and part[:3] in words.split("|"):
        return f": write {part[:3]!r}"
    low, high = _BOUNDS[name]
    return f": write {low} to {high}, ranges, lists or steps such as '*/2'"
