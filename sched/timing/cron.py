"""Cron expressions on naive local wall time: parsing, refusal with a reason, and the next match. Pure.

Fields are minute, hour, day of month, month, day of week; with six, seconds come first. croniter finds the matches; it is
asked with local times without a zone only, because with one it is wrong around clock changes. The day rule is vixie
cron's: two restricted day fields are ORed, but if one of them begins with `*` (`*/2`) both must hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from croniter import CroniterBadDateError, CroniterError, croniter
from rota.sched.errors import UsageError

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NAMES = ("minute", "hour", "day of month", "month", "day of week")
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DAYS = "sun|mon|tue|wed|thu|fri|sat"
_VALUE = {
    "second": r"\d{1,2}",
    "minute": r"\d{1,2}",
    "hour": r"\d{1,2}",
    "day of month": r"\d{1,2}|l",
    "month": rf"\d{{1,2}}|{_MONTHS}",
    "day of week": rf"\d|{_DAYS}",
}
_YEARS = 40
"""How far a match may lie ahead: 29 February on a given weekday comes at least once in 40 years."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. `fixed`: neither hour nor minute begins with `*`, so it names times of day."""

    text: str
    alternatives: tuple[str, ...]
    day_or: bool
    seconds: bool
    fixed: bool


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """The expression in `text`. UsageError with what is wrong with it."""
    expression = text.strip()
    if expression.startswith("@"):
        if expression.lower() not in MACROS:
            extra = ": Rota knows no boot" if expression.lower() == "@reboot" else ""
            raise UsageError(f"cron expression {text!r} is not supported{extra}; use one of {', '.join(MACROS)}")
        expression = MACROS[expression.lower()]
    fields = expression.split()
    if len(fields) not in {5, 6}:
        raise UsageError(
            f"cron expression {text!r} has {len(fields)} fields: write minute, hour, day of month, month, day of week "
            "(with six, seconds first)"
        )
    names = ("second", *_NAMES) if len(fields) == 6 else _NAMES
    fields = [_field(text, name, field.lower()) for name, field in zip(names, fields, strict=True)]
    minute, hour, dom, _, dow = fields[-5:]
    star = any(f != "*" and f.startswith("*") for f in (dom, dow))
    cron = Cron(
        text,
        _alternatives(fields, star=star),
        day_or=not star,
        seconds=len(fields) == 6,
        fixed=not (minute.startswith("*") or hour.startswith("*")),
    )
    _probe(cron)
    return cron


def _alternatives(fields: list[str], *, star: bool) -> tuple[str, ...]:
    """The expressions that together mean this one: croniter mixes no nth weekdays (`1#2`, `L5`) with other days."""
    *front, dom, month, dow = fields
    days = dow.split(",")
    nth = [day for day in days if "#" in day or day.startswith("l")]
    if not nth or (dom == "*" and len(nth) == len(days)):
        return (" ".join(fields),)
    plain = [day for day in days if day not in nth]
    kept = dom if star else "*"
    found = [[*front, kept, month, day] for day in (*nth, *([",".join(plain)] if plain else []))]
    if not star and dom != "*":
        found.append([*front, dom, month, "*"])
    return tuple(" ".join(each) for each in found)


def _field(text: str, name: str, field: str) -> str:
    """One field in the form that croniter reads rightly; UsageError if it is none."""
    if field == "?" and name.startswith("day"):
        return "*"
    return ",".join(_part(text, name, part) for part in field.split(","))


def _part(text: str, name: str, part: str) -> str:
    value = _VALUE[name]
    nth = r"(#[1-5])?" if name == "day of week" else ""
    found = re.fullmatch(rf"(\*|({value})(-({value}))?){nth}(/\d{{1,4}})?", part, re.ASCII)
    if name == "day of week" and not found:
        found = re.fullmatch(rf"l({value})", part, re.ASCII)  # the last such day of the month
        if found:
            return part
        found = re.fullmatch(rf"({value})l", part, re.ASCII)
        if found:
            return f"l{found.group(1)}"
    if not found:
        raise UsageError(f"cron expression {text!r}: {part!r} is no {name}")
    if found.group(2) and found.group(2) == found.group(4):
        part = part.replace(f"{found.group(2)}-{found.group(4)}", found.group(2), 1)  # 5-5 means every hour to croniter
        part = part.partition("/")[0]
    if part.endswith("/0") or re.search(r"/0+$", part):
        raise UsageError(f"cron expression {text!r}: a step of 0 in {name} {part!r}")
    return part


def _probe(cron: Cron) -> None:
    """Finds one match, so that what can never fire is refused."""
    try:
        next_match(cron, datetime(2024, 1, 1))  # noqa: DTZ001 - wall time has no zone here
    except CroniterBadDateError:
        raise UsageError(f"cron expression {cron.text!r} never fires: no date fits day, month and weekday") from None
    except (CroniterError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"cron expression {cron.text!r}: {error}") from None


@lru_cache(maxsize=65536)
def next_match(cron: Cron, after: datetime) -> datetime:
    """The first local time that matches, strictly after `after` (naive, whole seconds)."""
    return min(_next_of(each, cron, after) for each in cron.alternatives)


def _next_of(fields: str, cron: Cron, after: datetime) -> datetime:
    found = croniter(
        fields,
        after,
        ret_type=datetime,
        day_or=cron.day_or,
        second_at_beginning=cron.seconds,
        max_years_between_matches=_YEARS,
    ).get_next()
    assert isinstance(found, datetime)
    return found
