"""One part of a cron field: what it may hold, and what to write instead of what it may not. Pure."""

from __future__ import annotations

import re

from rota.sched.errors import UsageError

FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
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
WHOLE = {name: f"{low}-{high}" for name, (low, high) in _BOUNDS.items()}
"""Each field's whole range, written as one."""


def part_of(text: str, name: str, part: str) -> str:
    """A part of the field `name` as croniter reads it rightly. UsageError, naming the expression `text`, if it is none."""
    special = _special(name, part)
    if special is not None:
        return special
    value = _VALUE[name]
    nth = r"(#[1-5])?" if name == "day of week" else "()"
    found = re.fullmatch(rf"(?:\*|({value})(?:-({value}))?){nth}(?:/(\d{{1,4}}))?", part, re.ASCII)
    if not found or (found[3] and (found[1] is None or found[2] or found[4])):
        raise UsageError(f"cron expression {text!r}: {part!r} is no {name}{_hint(name, part)}")
    low, high, _, step = found.groups()
    for number in (low, high):
        _check_bounds(text, name, number)
    if step is not None and int(step) == 0:
        raise UsageError(f"cron expression {text!r}: the step of {part!r} in the {name} is 0: write 1 or more")
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


def _special(name: str, part: str) -> str | None:
    """A month's last day (`L`) or last such weekday (`5L`, `L5`), and the working day nearest to a day (`15W`, `LW`)."""
    if name == "day of week":
        found = re.fullmatch(rf"l({_VALUE[name]})|({_VALUE[name]})l", part, re.ASCII)
        return f"l{found[1] or found[2]}" if found else None
    if name == "day of month" and re.fullmatch(r"l|(l|[1-9]|[12]\d|3[01])w", part, re.ASCII):
        return part
    return None


def _check_bounds(text: str, name: str, number: str | None) -> None:
    low, high = _BOUNDS[name]
    if number is not None and number.isdigit() and not low <= int(number) <= high:
        raise UsageError(f"cron expression {text!r}: {number} is no {name}: write {low} to {high}")


def _hint(name: str, part: str) -> str:
    if re.match(r"[hr](\W|$)", part) or "~" in part:
        return ": name a value, and spread jobs with jitter"
    if part.startswith("l-"):
        return ": days before the last of a month are not supported"
    words = {"month": _MONTHS, "day of week": _DAYS}.get(name)
    if words and part[:3] in words.split("|"):
        return f": write {part[:3]!r}"
    low, high = _BOUNDS[name]
    return f": write {low} to {high}, ranges, lists or steps such as '*/2'"
