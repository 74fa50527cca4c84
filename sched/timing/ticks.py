"""From a schedule and an instant to the ticks that follow: local wall time resolved to UTC by our own rule. Pure.

The default rule is that of Debian's cron. A job with a fixed hour and minute runs once a day of its own: right after a
gap that swallowed it, and the first time in an overlap. One with a wildcard hour or minute follows elapsed time: what a
gap swallows did not exist, and a repeated hour has its ticks twice. Ticks that fall on one instant are one.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from croniter import CroniterBadDateError
from rota.sched.durations import rfc3339
from rota.sched.errors import UsageError
from rota.sched.timing.cron import YEARS, Cron, next_match, parse
from rota.sched.timing.zones import transitions, zone

if TYPE_CHECKING:
    from rota.sched.timing.policies import DstGap, DstOverlap
    from rota.sched.timing.zones import Transition
    from rota.sched.when import Schedule

_NEAR = timedelta(hours=50)
"""Further from a clock change than this, local and UTC keep one distance (the largest change was a whole day)."""
_SECOND = timedelta(seconds=1)


def check_cron(expression: str, tz: str) -> None:
    """Raises UsageError for an expression that cannot be read or never fires, and for an unknown zone."""
    zone(tz)
    parse(expression)


def next_tick(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    """The first tick strictly after `after` (UTC), None if there is none in the next 40 years.

    An interval's ticks are `anchor` plus multiples of it; a cron expression needs no anchor.
    """
    try:
        if schedule.every is not None:
            step = timedelta(seconds=schedule.every)
            return anchor + ((after - anchor) // step + 1) * step
        assert schedule.cron is not None
        rule = _Rule(schedule.cron, schedule.tz, schedule.dst_gap, schedule.dst_overlap)
        return _next_of_cron(rule, after.astimezone(UTC).replace(microsecond=0))
    except OverflowError:  # past the year 9999
        return None


class _Rule(NamedTuple):
    """What of a schedule decides its ticks: many jobs share one."""

    cron: str
    tz: str
    dst_gap: DstGap
    dst_overlap: DstOverlap


@lru_cache(maxsize=65536)
def _next_of_cron(rule: _Rule, after: datetime) -> datetime | None:
    cron = parse(rule.cron)
    try:
        return _next_fixed(cron, rule, after) if cron.fixed else _next_elapsed(cron, rule.tz, after)
    except CroniterBadDateError:
        return None


def first_tick(schedule: Schedule, now: datetime) -> datetime:
    """The first tick of a job that is submitted now: an interval begins with one interval's wait.

    Raises UsageError if there is none, as for a time of day that exists in gaps only under dst_gap='skip'.
    """
    tick = next_tick(schedule, now, now)
    if tick is None:
        what = schedule.cron if schedule.cron is not None else schedule.every
        raise UsageError(
            f"schedule {what!r} in {schedule.tz} never fires after {rfc3339(now)}: change it or its policies"
        )
    return tick


def jitter_of(schedule: Schedule, job_id: str, tick: datetime, following: datetime | None) -> timedelta:
    """How much later than its tick a job is due: the same for the same job and tick, below the gap to the next."""
    bound = schedule.jitter
    if following is not None:
        bound = min(bound, (following - tick).total_seconds())
    if bound <= 0:
        return timedelta(0)
    digest = hashlib.blake2b(f"{job_id}@{tick.isoformat()}".encode(), digest_size=8).digest()
    return timedelta(microseconds=int(int.from_bytes(digest) / 2**64 * bound * 1e6))


class Fire(NamedTuple):
    """One fire of a preview. `note` tells what a clock change did to it."""

    utc: datetime
    local: datetime
    note: str | None


def fires(schedule: Schedule, after: datetime, count: int) -> list[Fire]:
    """The next `count` fires after an instant."""
    found: list[Fire] = []
    at: datetime | None = after
    while len(found) < count:
        at = next_tick(schedule, at, after) if at is not None else None
        if at is None:
            break
        found.append(Fire(at, at.astimezone(zone(schedule.tz)), _note(schedule, at)))
    return found


def _note(schedule: Schedule, at: datetime) -> str | None:
    for change in _changes(schedule.tz, at - _NEAR, at + _NEAR):
        instant = datetime.fromtimestamp(change.at, UTC)
        moved = abs(change.after - change.before)
        if change.after > change.before and at == instant:
            return "right after a gap of local time"
        if change.after < change.before and abs((at - instant).total_seconds()) < moved:
            return "second time of a repeated hour" if at >= instant else "first time of a repeated hour"
    return None


def _changes(tz: str, low: datetime, high: datetime) -> list[Transition]:
    return list(transitions(tz, int(low.timestamp()), int(high.timestamp())))


def _next_elapsed(cron: Cron, tz: str, after: datetime) -> datetime:
    """Each instant whose local time matches."""
    rules = zone(tz)
    at = after
    while True:
        offset = at.astimezone(rules).utcoffset() or timedelta(0)
        local = next_match(cron, (at + offset).replace(tzinfo=None))
        found = local.replace(tzinfo=UTC) - offset
        change = _first_change(tz, at, found)
        if change is None:
            return found
        # The offset ends before the match: look again from the change on, its own second included.
        at = change - _SECOND
        after_offset = change.astimezone(rules).utcoffset() or timedelta(0)
        local = next_match(cron, (at + after_offset).replace(tzinfo=None))
        found = local.replace(tzinfo=UTC) - after_offset
        if _first_change(tz, change, found) is None:
            return found
        at = change


def _first_change(tz: str, after: datetime, until: datetime) -> datetime | None:
    """The first clock change in (after, until]."""
    low = after
    while low < until:
        high = min(until, low + timedelta(days=400))
        for change in _changes(tz, low, high):
            instant = datetime.fromtimestamp(change.at, UTC)
            if after < instant <= until:
                return instant
        low = high
    return None


def _next_fixed(cron: Cron, rule: _Rule, after: datetime) -> datetime:
    """The first instant that a named time of day resolves to."""
    rules = zone(rule.tz)
    local = after.astimezone(rules).replace(tzinfo=None)
    if _changes(rule.tz, after - _NEAR, after + _NEAR):
        local -= _NEAR / 2
    last_year = local.year + YEARS
    best: datetime | None = None
    while local.year <= last_year:
        local = next_match(cron, local)
        instants = _resolve(local, cron, rule)
        best = min((i for i in instants if i > after), default=best) if best is None else best
        if best is None:
            continue
        # In an overlap a later local time may come earlier; nothing later can beat one that is a day behind.
        for instant in instants:
            if after < instant < best:
                best = instant
        if not _changes(rule.tz, best - _NEAR, best + _NEAR) or (instants and min(instants) > best):
            return best
    raise CroniterBadDateError(f"clock changes leave no tick of {cron.text!r} in {YEARS} years")


def _resolve(local: datetime, cron: Cron, rule: _Rule) -> list[datetime]:
    """The instants of a local time: none, one or two."""
    rules = zone(rule.tz)
    first = local.replace(tzinfo=rules, fold=0).astimezone(UTC)
    last = local.replace(tzinfo=rules, fold=1).astimezone(UTC)
    if first == last:
        return [first]
    if first.astimezone(rules).replace(tzinfo=None) != local:  # a gap: fold 0 has the offset from before it
        return _in_gap(first, last, cron, rule)
    return {"first": [first], "last": [last], "both": [first, last], "skip": []}[rule.dst_overlap]


def _in_gap(shifted: datetime, before: datetime, cron: Cron, rule: _Rule) -> list[datetime]:
    if rule.dst_gap == "skip":
        return []
    if rule.dst_gap == "shift":
        return [shifted]
    end = _first_change(rule.tz, before - _SECOND, shifted) or shifted
    # Some old offsets have seconds: cron wakes at whole minutes of local time.
    odd = 0 if cron.seconds else end.astimezone(zone(rule.tz)).second
    return [end + timedelta(seconds=-odd % 60)]
