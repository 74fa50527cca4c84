"""From a schedule and an instant to the ticks that follow: local wall time resolved to UTC by our own rule. Pure.

The default rule is that of Debian's cron. A job with a fixed hour and minute runs once a day of its own: right after a
gap that swallowed it, and the first time in an overlap. One with a wildcard hour or minute follows elapsed time: what a
gap swallows did not exist, and a repeated hour has its ticks twice. Ticks that fall on one instant are one.

Far from changes of a zone's offset local time and UTC keep one distance, and nothing of that matters: most ticks are
found there, in a few microseconds. Whatever is found is remembered, many jobs share one expression.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rota.sched.durations import rfc3339
from rota.sched.errors import UsageError
from rota.sched.timing.cron import NO_DATES, YEARS, Cron, is_match, next_match, parse
from rota.sched.timing.zones import period, transitions, zone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.sched.timing.policies import DstGap, DstOverlap
    from rota.sched.timing.zones import Transition
    from rota.sched.when import Schedule

_NEAR = timedelta(hours=25)
"""Further from a clock change than this it moves no tick: the largest change was a whole day."""
_NEAR_SECONDS = int(_NEAR.total_seconds())
_SECOND = timedelta(seconds=1)
_JUST_BEFORE = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_cron(expression: str, tz: str) -> None:
    """Raises UsageError for an expression that cannot be read or never fires, and for an unknown zone."""
    zone(tz)
    parse(expression)


def next_tick(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    """The first tick strictly after `after` (UTC), None if there is none up to the schedule's end or in 40 years.

    An interval's ticks are multiples of it after the schedule's start or, without one, after `anchor`, which is one of
    them; a cron expression needs no anchor.
    """
    if schedule.start is not None and after < schedule.start:
        after = schedule.start - _JUST_BEFORE
    try:
        tick = _next(schedule, after, schedule.start or anchor)
    except OverflowError:  # past the year 9999
        return None
    return None if tick is None or (schedule.end is not None and tick > schedule.end) else tick


def _next(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    if schedule.every is not None:
        step = timedelta(seconds=schedule.every)
        return anchor + ((after - anchor) // step + 1) * step
    return _next_of_cron(_rule(schedule), after.astimezone(UTC).replace(microsecond=0))


class _Rule(NamedTuple):
    """What of a schedule decides its ticks: many jobs share one."""

    cron: str
    tz: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    without: frozenset[date]


def _rule(schedule: Schedule) -> _Rule:
    assert schedule.cron is not None
    without = frozenset(map(date.fromisoformat, schedule.exclude)) if schedule.exclude else NO_DATES
    return _Rule(schedule.cron, schedule.tz, schedule.dst_gap, schedule.dst_overlap, without)


@lru_cache(maxsize=131_072)
def _next_of_cron(rule: _Rule, after: datetime) -> datetime | None:
    cron = parse(rule.cron)
    return _next_fixed(cron, rule, after) if cron.fixed else _next_elapsed(cron, rule, after)


def first_tick(schedule: Schedule, now: datetime, anchor: datetime | None = None) -> datetime:
    """The first tick of a job that is submitted now: an interval without a start begins with one interval's wait.

    With an `anchor`, that of a job whose ticks went through it so far. Raises UsageError if there is none: the schedule has ended, or names a time that exists in gaps only under
    dst_gap='skip', or all of its dates are excluded.
    """
    tick = next_tick(schedule, now, anchor or now)
    if tick is None:
        what = schedule.cron if schedule.cron is not None else schedule.every
        until = "" if schedule.end is None else f" up to its end {rfc3339(schedule.end)}"
        raise UsageError(
            f"schedule {what!r} in {schedule.tz} never fires after {rfc3339(now)}{until}: change it or its policies"
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
    return timedelta(microseconds=int.from_bytes(digest) * int(bound * 1e6) >> 64)


class Fire(NamedTuple):
    """One fire of a preview: the instant in UTC and in the schedule's zone.

    `nominal` is the wall time that the expression names: not that of `local` where a gap swallowed it. `note` tells what
    a clock change did to it.
    """

    utc: datetime
    local: datetime
    nominal: datetime
    note: str | None


def fires(schedule: Schedule, after: datetime, count: int) -> list[Fire]:
    """The next `count` fires after an instant, of a schedule that has not fired yet: its `max_runs` at most."""
    found: list[Fire] = []
    count = count if schedule.max_runs is None else min(count, schedule.max_runs)
    at: datetime | None = after
    while len(found) < count:
        at = next_tick(schedule, at, after) if at is not None else None
        if at is None:
            break
        found.append(_fire(schedule, at))
    return found


def _fire(schedule: Schedule, at: datetime) -> Fire:
    local = at.astimezone(zone(schedule.tz))
    nominal = local.replace(tzinfo=None)
    changes = transitions(schedule.tz, int(_epoch(at - _NEAR)), int(_epoch(at + _NEAR)))
    if schedule.cron is not None and changes:
        nominal = _nominal(_rule(schedule), at, nominal)
    note = _note(changes, at)
    if nominal != local.replace(tzinfo=None):
        how = "shifted by" if schedule.dst_gap == "shift" else "right after"
        note = f"{how} a gap of local time that swallowed {nominal:%H:%M}"
    return Fire(at, local, nominal, note)


def _nominal(rule: _Rule, at: datetime, local: datetime) -> datetime:
    """The first wall time that the expression names and that became the tick `at`."""
    cron = parse(rule.cron)
    if is_match(cron, local):
        return local
    named = next_match(cron, local - _NEAR, rule.without)
    while named is not None and named <= local and at not in _resolve(named, cron, rule):
        named = next_match(cron, named, rule.without)
    return local if named is None or named > local else named


def _note(changes: Iterable[Transition], at: datetime) -> str | None:
    for change in changes:
        instant = _instant(change.at)
        moved = change.after - change.before
        if moved > 0 and at == instant:
            return "right after a gap of local time"
        if moved <= (at - instant).total_seconds() < -moved:
            return "second time of a repeated hour" if at >= instant else "first time of a repeated hour"
    return None


def _next_elapsed(cron: Cron, rule: _Rule, after: datetime) -> datetime | None:
    """The first instant whose local time matches, looked for in one period of the zone's offset after the other."""
    at, here = _naive(after), period(rule.tz, after)
    while True:
        local = next_match(cron, at + timedelta(seconds=here.offset), rule.without)
        if local is None:
            return None
        found = _from_local(local, here.offset)
        end = here.end
        if _epoch(found) < end:
            return found
        here = period(rule.tz, _instant(end))
        at = _naive(_instant(end)) - _SECOND  # the first second of the period is looked at, too


def _next_fixed(cron: Cron, rule: _Rule, after: datetime) -> datetime | None:
    """The first instant that a named time of day resolves to."""
    start, end, offset = period(rule.tz, after)
    local = next_match(cron, _naive(after) + timedelta(seconds=offset), rule.without)
    if local is None:
        return None
    tick = _from_local(local, offset)
    if _epoch(after) >= start + _NEAR_SECONDS and _epoch(tick) < end - _NEAR_SECONDS:
        return tick
    return _next_of_all(cron, rule, after)


def _next_of_all(cron: Cron, rule: _Rule, after: datetime) -> datetime | None:
    """The same near a change, where a later local time may have the earlier instant: all that could be it are compared."""
    lowest, _ = _offsets(rule.tz, after)
    local = next_match(cron, _naive(after) + lowest - timedelta(minutes=1), rule.without)
    last_year = after.year + YEARS
    best: datetime | None = None
    while local is not None and local.year <= last_year:
        as_utc = local.replace(tzinfo=UTC)
        if best is not None and as_utc - _offsets(rule.tz, as_utc)[1] > best:
            break
        later = [instant for instant in _resolve(local, cron, rule) if instant > after]
        best = min([*later, best] if best else later, default=None)
        local = next_match(cron, local, rule.without)
    return best


def _offsets(tz: str, at: datetime) -> tuple[timedelta, timedelta]:
    """The lowest and the highest offset near an instant."""
    low, high = sorted(period(tz, at + side).offset for side in (-_NEAR, _NEAR))
    return timedelta(seconds=low), timedelta(seconds=high)


def _naive(instant: datetime) -> datetime:
    """An instant in UTC as a naive datetime: with an offset added it is wall time."""
    return instant.replace(tzinfo=None)


def _from_local(local: datetime, offset: int) -> datetime:
    return local.replace(tzinfo=UTC) - timedelta(seconds=offset)


def _epoch(instant: datetime) -> float:
    return (instant - _EPOCH).total_seconds()


def _instant(epoch: int) -> datetime:
    return _EPOCH + timedelta(seconds=epoch)


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
    end = _instant(period(rule.tz, before).end)
    # Some old offsets have seconds: cron wakes at whole minutes of local time.
    odd = 0 if cron.with_seconds else end.astimezone(zone(rule.tz)).second
    return [end + timedelta(seconds=-odd % 60)]
