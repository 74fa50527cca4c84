"""What a person should know of a schedule that is right and may not be what was meant. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.timing.cron import Cron, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.when import Schedule

_WEEKS = {"1-7": 1, "8-14": 2, "15-21": 3, "22-28": 4}


def advice(schedule: Schedule) -> list[str]:
    """Sentences, most often none: how two restricted day fields are read, and which policies have no effect."""
    if schedule.cron is None:
        return []
    cron = parse(schedule.cron)
    return [*_day_rule(cron), *_without_effect(schedule, cron)]


def _day_rule(cron: Cron) -> Iterator[str]:
    fields = cron.text.split()
    if len(fields) < 5 or "*" in {fields[-3], fields[-1]} or "?" in {fields[-3], fields[-1]}:
        return
    days, weekdays = fields[-3], fields[-1]
    if not cron.days.either:
        yield f"day of month {days} and day of week {weekdays} must both hold, because one of them begins with '*'"
        return
    both = ""
    if days in _WEEKS and "," not in weekdays and "-" not in weekdays:
        nth = " ".join([*fields[:-3], "*", fields[-2], f"{weekdays}#{_WEEKS[days]}"])
        both = f"; if you mean both, write {nth!r}"
    yield f"day of month {days} or day of week {weekdays}: one of them is enough, as in cron{both}"


def _without_effect(schedule: Schedule, cron: Cron) -> Iterator[str]:
    given = [
        n for n, default in (("dst_gap", "run_after"), ("dst_overlap", "first")) if getattr(schedule, n) != default
    ]
    if given and not cron.fixed:
        yield f"{' and '.join(given)} changes nothing: with a wildcard minute or hour an expression follows elapsed time"
