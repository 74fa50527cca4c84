"""Expressions of other schedulers: why they are none here, and which form works. Pure.

Quartz, AWS and their kin have a `?`, a year, and weekdays that count from Sunday as 1. Nothing of that is guessed: numbers
that would silently mean another day are refused.
"""

from __future__ import annotations

import re

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WORDS = {
    "@reboot": "schedulers start and stop, and none of that is a boot",
    "@every": "give an interval instead of a cron expression (every)",
}


def refusal(expression: str) -> str | None:
    """What is to be said of an expression in lower case that another scheduler understands; None if it is none of those."""
    return _of_beginning(expression) or _of_fields(expression.split())


def _of_beginning(expression: str) -> str | None:
    first, _, rest = expression.partition(" ")
    if first in _WORDS:
        return f"has {first}, which is not supported: {_WORDS[first]}"
    if first.startswith(("tz=", "cron_tz=")):
        return f"has a zone in it: write {rest.strip()!r}, and the zone as the schedule's (tz)"
    if expression.startswith(("rate(", "at(")):
        return "is in AWS's form: give an interval (every) for rate(), and a time (at) for at()"
    if expression.startswith("cron("):
        fields = expression.removeprefix("cron(").removesuffix(")").split()
        form = repr(_form(fields[:5])) if len(fields) > 4 else "the five fields alone"
        return f"is in AWS's form: write {form}{_year(fields[5:])}"
    return None


def _of_fields(fields: list[str]) -> str | None:
    if len(fields) == 7:
        return f"has 7 fields; a year field is not supported: write {_form(fields[:6])!r}{_year(fields[6:])}"
    if "?" in fields[-3:] and any(character.isdigit() for character in fields[-1].partition("#")[0]):
        return f"has Quartz's '?', with which weekday 1 is Sunday (here it is Monday): write {_form(fields)!r}"
    if "?" in fields[-2:-1] and len(fields) == 6:
        return f"has AWS's order, with a year at the end: write {_form(fields[:5])!r}{_year(fields[5:])}"
    return None


def _form(fields: list[str]) -> str:
    """The same in fields of ours: `*` for `?`, and weekdays by name, if they are Quartz's."""
    quartz = fields if "?" not in fields else [*fields[:-1], re.sub(r"(?<![#/\d])[1-7](?!\d)", _name, fields[-1])]
    return " ".join("*" if field == "?" else field for field in quartz)


def _name(number: re.Match[str]) -> str:
    return _DAYS[int(number[0]) - 1]


def _year(rest: list[str]) -> str:
    return "" if rest in ([], ["*"]) else f" with the years {rest[0]} as the schedule's start and end"
