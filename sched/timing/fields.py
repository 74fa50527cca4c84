"""One field of a cron expression: what may stand in it, and which values it means.

Accepted in every field: `*`, `N`, `N-M`, each with `/STEP`, and lists of them. Months and weekdays have their three-letter
names. Day of month also takes `L` (last day), `L-N`, `NW` (weekday nearest to N) and `LW`; weekday also takes `D#N` (the
N-th of the month) and `DL` (the last of the month). croniter expands what is plain; the grammar here comes first, because
croniter reads `5-5` as `*`, wraps descending ranges and takes digits of other scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from croniter import croniter

from rota.sched.errors import UsageError

MONTHS = {name: n for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
WEEKDAYS = {name: n for n, name in enumerate("sun mon tue wed thu fri sat".split())}


@dataclass(frozen=True, slots=True)
class Spec:
    """A field's name, its column for croniter (seconds go through the minutes column), bounds and value names."""

    title: str
    column: int
    low: int
    high: int
    names: dict[str, int]


SECOND = Spec("second", 0, 0, 59, {})
MINUTE = Spec("minute", 0, 0, 59, {})
HOUR = Spec("hour", 1, 0, 23, {})
DAY = Spec("day of month", 2, 1, 31, {})
MONTH = Spec("month", 3, 1, 12, MONTHS)
WEEKDAY = Spec("day of week", 4, 0, 7, WEEKDAYS)


@dataclass(frozen=True, slots=True)
class Field:
    """What a field means: plain values in order, and the special items of day fields.

    `from_end`: N of `L-N` (0 is the last day). `near`: N of `NW` (0 is `LW`). `nth`: (weekday, N) of `D#N` (0 is `DL`).
    """

    text: str
    values: tuple[int, ...]
    from_end: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()

    @property
    def starred(self) -> bool:
        """Whether it begins with a star, which is what Debian cron's rules ask."""
        return self.text.startswith("*")


_PLAIN = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_FROM_END = re.compile(r"l(?:-(\d+))?", re.ASCII)
_NEAR = re.compile(r"(\d+|l)w", re.ASCII)
_NTH = re.compile(r"(\w+)#(\d+)", re.ASCII)
_LAST = re.compile(r"(\d|sun|mon|tue|wed|thu|fri|sat)l", re.ASCII)


def parse_field(spec: Spec, text: str) -> Field:
    """The meaning of one field. Raises UsageError that begins with the field's name."""
    if not text.isascii():
        raise _bad(spec, text, "only ASCII characters may stand in it")
    plain: list[str] = []
    from_end: list[int] = []
    near: list[int] = []
    nth: list[tuple[int, int]] = []
    for item in text.lower().split(","):
        if spec is DAY and (found := _FROM_END.fullmatch(item)):
            from_end.append(_within(spec, text, int(found[1] or 0), 0, 30))
        elif spec is DAY and (found := _NEAR.fullmatch(item)):
            near.append(0 if found[1] == "l" else _within(spec, text, int(found[1]), 1, 31))
        elif spec is WEEKDAY and (found := _NTH.fullmatch(item)):
            nth.append((_value(spec, text, found[1]) % 7, _within(spec, text, int(found[2]), 1, 5)))
        elif spec is WEEKDAY and (found := _LAST.fullmatch(item)):
            nth.append((_value(spec, text, found[1]) % 7, 0))
        else:
            plain.append(_canonical(spec, text, item))
    return Field(text, _expand(spec, plain), tuple(from_end), tuple(near), tuple(nth))


def _canonical(spec: Spec, text: str, item: str) -> str:
    """The item with numbers only, in a form that croniter reads as cron does."""
    if not item:
        raise _bad(spec, text, "a list has an empty item: write it without blanks, such as '10,22'")
    found = _PLAIN.fullmatch(item)
    if found is None:
        raise _bad(spec, text, _why_not(spec, item))
    whole, first, last, step_text = found.groups()
    step = int(step_text) if step_text else 1
    if step == 0:
        raise _bad(spec, text, "a step of 0 never moves: use 1 or more")
    low, high = _bounds(spec, text, whole, first, last, stepped=step_text is not None)
    return str(low) if low + step > high else f"{low}-{high}/{step}"


def _bounds(spec: Spec, text: str, whole: str, first: str, last: str | None, *, stepped: bool) -> tuple[int, int]:
    top = 6 if spec is WEEKDAY else spec.high  # 7 is Sunday again: only a range that names it reaches it
    if whole == "*":
        return spec.low, top
    low = _value(spec, text, first)
    if last is None:
        return low, (max(low, top) if stepped else low)
    high = _value(spec, text, last)
    if high == 0 and spec is WEEKDAY and low > 0 and last == "sun":
        raise _bad(spec, text, f"{first}-{last} runs backwards, for sun is 0: write {low}-7")
    if high < low:
        first_half = f"{low}-{top}" if low < top else str(low)
        second_half = f"{spec.low}-{high}" if high > spec.low else str(high)
        raise _bad(spec, text, f"{first}-{last} runs backwards: write {first_half},{second_half}")
    return low, high


def _value(spec: Spec, text: str, token: str) -> int:
    if token in spec.names:
        return spec.names[token]
    if not token.isdecimal():
        raise _bad(spec, text, _why_not(spec, token))
    return _within(spec, text, int(token[:9]), spec.low, spec.high)


def _within(spec: Spec, text: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        year = "; a year cannot be given" if 1970 <= value <= 2199 else ""
        raise _bad(spec, text, f"{value} is not between {low} and {high}{year}")
    return value


def _why_not(spec: Spec, token: str) -> str:
    if token[:3] in spec.names and token.isalpha():
        return f"names have three letters: write {token[:3].upper()} for {token!r}"
    if token == "?":  # noqa: S105 - a character of an expression, no password
        return "'?' is Quartz's, whose weekdays count from SUN=1: write '*', and check the weekdays"
    if token.startswith(("h", "r")) or "~" in token:
        return f"{token!r} asks for a random value: give a number and use jitter to spread the load"
    if re.fullmatch(r"l\d", token) and spec is WEEKDAY:
        return f"write {token[1]}L for the last one of the month"
    return f"{token!r} is not a value, a range or a step: write such as '5', '1-5', '*/10' or '1,15'"


def _expand(spec: Spec, plain: list[str]) -> tuple[int, ...]:
    if not plain:
        return ()
    columns = ["*"] * 5
    columns[spec.column] = ",".join(plain)
    values = croniter.expand(" ".join(columns))[0][spec.column]
    if values == ["*"]:
        return tuple(range(spec.low, 7 if spec is WEEKDAY else spec.high + 1))
    return tuple(sorted({int(value) % 7 if spec is WEEKDAY else int(value) for value in values}))


def _bad(spec: Spec, text: str, why: str) -> UsageError:
    return UsageError(f"{spec.title} {text!r}: {why}")
