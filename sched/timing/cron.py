"""Cron expressions on naive local wall time: parsing, refusal with a reason, and the next match. Pure.

Fields are minute, hour, day of month, month, day of week; with six, seconds come first. croniter finds the matches; it is
asked with local times without a zone only, because with one it is wrong around clock changes. The day rule is vixie
cron's: two restricted day fields are ORed, but if one of them begins with `*` (`*/2`) both must hold.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from croniter import CroniterBadDateError, CroniterError, croniter
from rota.sched.errors import UsageError
from rota.sched.timing.fields import FIELDS, WHOLE, part_of

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NO_MACRO = {
    "@reboot": "schedulers start and stop, and none of that is a boot",
    "@every": "give an interval instead of a cron expression (every)",
}
YEARS = 40
"""How far a match may lie ahead: 29 February on a given weekday comes at least once in 40 years."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Fields as croniter reads them. `near`: only on the working day nearest to that day, "l" the month's last one."""

    fields: str
    near: str | None = None


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. `fixed`: neither hour nor minute begins with `*`, so it names times of day."""

    text: str
    alternatives: tuple[Alternative, ...]
    day_or: bool
    seconds: bool
    fixed: bool


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """The expression in `text`. UsageError with what is wrong with it."""
    written = _split(text)
    names = FIELDS if len(written) == 6 else FIELDS[1:]
    fields = [_field(text, name, field.lower()) for name, field in zip(names, written, strict=True)]
    minute, hour, dom, _, dow = written[-5:]
    star = any(f != "*" and f.startswith("*") for f in (dom, dow))
    if star and "w" in dom.lower():
        raise UsageError(
            f"cron expression {text!r}: W in the day of month needs weekday '*' or plain days, not a step of '*'"
        )
    cron = Cron(
        text,
        tuple(_alternatives(fields, star=star)),
        day_or=not star,
        seconds=len(fields) == 6,
        fixed=not (minute.startswith("*") or hour.startswith("*")),
    )
    _probe(cron, fields)
    return cron


def _split(text: str) -> list[str]:
    expression = text.strip()
    if expression.startswith("@"):
        word = expression.lower().split()[0]
        if expression.lower() not in MACROS:
            why = _NO_MACRO.get(word, f"use one of {', '.join(MACROS)}")
            raise UsageError(f"cron expression {text!r}: {word} is not supported: {why}")
        expression = MACROS[word]
    if expression.upper().startswith(("TZ=", "CRON_TZ=")):
        raise UsageError(f"cron expression {text!r} has a zone in it: give it as the schedule's time zone (tz)")
    if expression.lower().startswith(("cron(", "rate(")):
        raise UsageError(f"cron expression {text!r} is in AWS's form: write the five fields alone, without a year")
    fields = expression.split()
    if len(fields) not in {5, 6}:
        year = "; a year field is not supported" if len(fields) == 7 else ""
        raise UsageError(
            f"cron expression {text!r} has {len(fields)} fields: write minute, hour, day of month, month, day of week "
            f"(with six, seconds first){year}"
        )
    return fields


def _field(text: str, name: str, field: str) -> str:
    """One field in the form that croniter reads rightly; UsageError if it is none."""
    if field == "?" and name.startswith("day"):
        return "*"
    if "" in field.split(","):
        raise UsageError(f"cron expression {text!r}: a blank or nothing beside the comma of {field!r} in the {name}")
    parts = field.split(",")
    if len(parts) > 1:  # croniter takes a list with a bare * in it for *, which the day rule is not to see
        parts = [WHOLE[name] if part == "*" else part for part in parts]
    return ",".join(part_of(text, name, part) for part in parts)


def _alternatives(fields: list[str], *, star: bool) -> list[Alternative]:
    """The expressions that together mean this one: croniter knows no W, and mixes no `1#2`, `L5` with other days."""
    *front, dom, month, dow = fields
    near = [day for day in dom.split(",") if day.endswith("w")]
    if near:
        found = [Alternative(" ".join([*front, "*", month, "1-5"]), day.removesuffix("w")) for day in near]
        others = ",".join(day for day in dom.split(",") if day not in near)
        if others or dow != "*":
            found += _alternatives([*front, others or "*", month, dow], star=star)
        return found
    days = dow.split(",")
    nth = [day for day in days if "#" in day or day.startswith("l")]
    if not nth or (dom == "*" and len(nth) == len(days)):
        return [Alternative(" ".join(fields))]
    plain = [day for day in days if day not in nth]
    kept = dom if star else "*"
    each = [[*front, kept, month, day] for day in (*nth, *([",".join(plain)] if plain else []))]
    if not star and dom != "*":
        each.append([*front, dom, month, "*"])
    return [Alternative(" ".join(one)) for one in each]


def _probe(cron: Cron, fields: list[str]) -> None:
    """Finds one match, so that what can never fire is refused."""
    *_, dom, month, dow = fields
    try:
        next_match(cron, datetime(2024, 1, 1))  # noqa: DTZ001 - wall time has no zone here
    except CroniterBadDateError:
        weekday = "" if dow == "*" else f" on weekday {dow}"
        raise UsageError(
            f"cron expression {cron.text!r} never fires: day {dom}{weekday} does not come in month {month}"
        ) from None
    except (CroniterError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"cron expression {cron.text!r}: {error}") from None


@lru_cache(maxsize=65536)
def next_match(cron: Cron, after: datetime) -> datetime:
    """The first local time that matches, strictly after `after` (naive, whole seconds).

    Raises CroniterBadDateError if there is none in `YEARS` years.
    """
    found = [match for match in (_next_of(each, cron, after) for each in cron.alternatives) if match is not None]
    if not found:
        raise CroniterBadDateError(f"no match of {cron.text!r} after {after}")
    return min(found)


def _next_of(each: Alternative, cron: Cron, after: datetime) -> datetime | None:
    start = after
    while start.year <= after.year + YEARS:
        try:
            found = croniter(
                each.fields,
                start,
                ret_type=datetime,
                day_or=cron.day_or,
                second_at_beginning=cron.seconds,
                max_years_between_matches=YEARS,
            ).get_next()
        except CroniterBadDateError:
            return None
        assert isinstance(found, datetime)
        if each.near is None or found.day == _working_day(found.year, found.month, each.near):
            return found
        start = found.replace(hour=0, minute=0, second=0) + timedelta(days=1, seconds=-1)
    return None


def _working_day(year: int, month: int, near: str) -> int | None:
    """The day from Monday to Friday that is nearest to a day, within its month; None if the month has no such day."""
    first_weekday, length = calendar.monthrange(year, month)
    day = length if near == "l" else int(near)
    if not 1 <= day <= length:
        return None
    weekday = (first_weekday + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else 3
    if weekday == 6:
        return day + 1 if day < length else day - 2
    return day
