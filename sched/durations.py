"""Durations, instants and sizes as people write them.

A duration is a number of seconds, a `timedelta`, or text: `90`, `90s`, `5m`, `26h`, `7d`. An instant is RFC 3339 with an
offset. Both are read here and nowhere else, so that the command line, the API and AMQP refuse the same things.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from rota.sched.errors import UsageError

UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
LONGEST = 100 * 366 * 86_400.0  # seconds; a hundred years, far inside what a date can hold

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw]?)", re.ASCII)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)


def seconds(value: float | str | timedelta, what: str) -> float:
    """The duration in seconds: zero or more, finite, at most a hundred years. `what` names it in the message.

    Raises UsageError for anything else.
    """
    number = _number(value, what)
    if not math.isfinite(number):
        raise UsageError(
            f"{what} is {value!r}: it must be a finite number of seconds, or text such as '90s', '5m', '26h'"
        )
    if number < 0:
        raise UsageError(f"{what} is {value!r}: it must not be negative")
    if number > LONGEST:
        raise UsageError(f"{what} is {value!r}: the longest duration is a hundred years ({LONGEST:.0f} seconds)")
    return number


def _number(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"{what} is {value!r}: give seconds, a timedelta, or text such as '90s', '5m', '26h', '7d'")
    if isinstance(value, str):
        return _read(value, what)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _read(text: str, what: str) -> float:
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{what} is {text!r}: write a number and one of s, m, h, d, w, such as '90s', '5m', '26h', '7d'"
        )
    return float(found[1]) * UNITS[found[2]]


def duration_text(value: float) -> str:
    """The shortest text that `seconds` reads back as the same value: 93600.0 is `26h`."""
    for unit in ("w", "d", "h", "m"):
        if value and value % UNITS[unit] == 0:
            return f"{int(value // UNITS[unit])}{unit}"
    return f"{int(value)}s" if value == int(value) else f"{value:f}".rstrip("0") + "s"


def size_text(size: int) -> str:
    """So many bytes as people read them."""
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def instant(text: str, what: str) -> datetime:
    """The instant that RFC 3339 text names, as an aware UTC datetime. Raises UsageError for text without an offset."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is {text!r}: give RFC 3339 text such as '2026-12-01T09:00:00+01:00'")
    found = _INSTANT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{what} is {text!r}, not RFC 3339: write it as '2026-12-01T09:00:00+01:00' or with Z for UTC")
    if found[3] is None:
        raise UsageError(
            f"{what} is {text!r}, without an offset: add one, such as '{text.strip()}+01:00', or Z for UTC"
        )
    try:
        return datetime.fromisoformat(text.strip().upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{what} is {text!r}, which is no instant: {error}") from error


def wall_time(text: str, what: str) -> datetime:
    """The naive datetime of text such as '2026-12-01T09:00'. Raises UsageError for text with an offset."""
    found = _INSTANT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise UsageError(f"{what} is {text!r}: write it as '2026-12-01T09:00'")
    if found[3] is not None:
        raise UsageError(
            f"{what} is {text!r}, which has an offset, and a zone is given beside it: leave out one of them"
        )
    try:
        return datetime.fromisoformat(text.strip().upper())
    except ValueError as error:
        raise UsageError(f"{what} is {text!r}, which is no time: {error}") from error


def utc(value: datetime, what: str) -> datetime:
    """The same instant in UTC. Raises UsageError for a naive datetime."""
    if not isinstance(value, datetime):
        raise UsageError(f"{what} is {value!r}: give a datetime with a time zone")
    if value.utcoffset() is None:
        raise UsageError(f"{what} is {value!r}, a naive datetime: add its zone, for example datetime(..., tzinfo=UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(f"{what} is {value!r}, outside the years 1 to 9999 in UTC") from error


def rfc3339(value: datetime) -> str:
    """RFC 3339 in UTC with microseconds and Z, the form of all stored and printed instants."""
    return utc(value, "the instant").strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
