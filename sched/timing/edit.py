"""Where a schedule goes on that is changed while it is stored: its next tick, and what becomes of those due before. Pure.

What was due under the old definition is settled as a claim would settle it just before the change: its misfire policy says
what runs. What comes after is the new definition's: no tick of it lies before the change, so that nothing is caught up
that nobody had asked for, and none of it is due at once. A tick whose time has come and whose jitter has not runs when it
was due.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rota.sched.timing.backlog import Backlog
from rota.sched.timing.plan import Advance, Skipped, advance, due_time
from rota.sched.timing.ticks import first_tick, next_tick

if TYPE_CHECKING:
    from datetime import datetime

    from rota.sched.when import Schedule

_LOOK_BACK = timedelta(days=4 * 366)
"""How far back the tick before a cursor is looked for."""
_RULES = ("cron", "every", "tz", "dst_gap", "dst_overlap", "start", "end", "exclude")
"""The fields of a schedule that decide when its ticks fall; the others decide what becomes of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands: its cursor, when that is due, and whether a run of it is alive.

    `since` is when the job was made or its definition changed last: ticks up to then were another one's.
    """

    cursor: datetime
    due: datetime
    since: datetime
    live: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class Amended:
    """The plan of a change: what is settled of the old definition, with when each run of it is due, and the new cursor."""

    settled: Advance
    ready: tuple[datetime, ...]


def amend(old: Schedule | None, new: Schedule, job_id: str, place: Place, now: datetime) -> Amended:
    """Plans a change at `now` of a job at `place`. `old` is None where it cannot be computed (any more).

    Raises UsageError if the new schedule has no tick.
    """
    if old is not None and all(getattr(old, name) == getattr(new, name) for name in _RULES):
        return Amended(Advance((), (), place.cursor, _due_again(old, new, job_id, place, now)), ())
    fire, ready, skipped = _settle(old, job_id, place, now)
    # A clock that was set back must not bring a tick again that was claimed before that.
    after = max(now, place.since, (old and _before(old, place.cursor)) or place.since)
    anchor = place.cursor if old is not None and old.every is not None and new.every is not None else after
    following = first_tick(new, after, anchor)
    return Amended(Advance(fire, skipped, following, due_time(new, job_id, following, anchor)), ready)


def _due_again(old: Schedule, new: Schedule, job_id: str, place: Place, now: datetime) -> datetime:
    """When the cursor is due under another jitter. What is due already stays so."""
    if old.jitter == new.jitter or place.due <= now:
        return place.due
    return due_time(new, job_id, place.cursor, place.cursor)


def _settle(
    old: Schedule | None, job_id: str, place: Place, now: datetime
) -> tuple[tuple[datetime, ...], tuple[datetime, ...], tuple[Skipped, ...]]:
    """What becomes of the ticks up to now: those that run, when each of them is due, and those that do not run."""
    if place.cursor > now:
        return (), (), ()
    if old is None:
        return (), (), (Skipped(place.cursor, place.cursor, 1, "edit", "its schedule could not be computed"),)
    if place.paused:
        backlog = Backlog(old, place.cursor, now if old.end is None else max(place.cursor, min(now, old.end)))
        why = "the job was paused when its schedule changed"
        return (), (), (Skipped(backlog.cursor, backlog.last(), backlog.count(), "edit", why),)
    fire: list[datetime] = []
    skipped: list[Skipped] = []
    cursor: datetime | None = place.cursor
    due: datetime | None = place.due
    while cursor is not None and due is not None and due <= now:
        step = advance(old, job_id, cursor, now, live=place.live)
        fire += step.fire
        skipped += step.skipped
        cursor, due = step.next, step.due
    ready = [now] * len(fire)
    if cursor is not None and due is not None and cursor <= now:
        fire.append(cursor)
        ready.append(due)
    return tuple(fire), tuple(ready), tuple(skipped)


def _before(schedule: Schedule, cursor: datetime) -> datetime | None:
    """The tick before a cursor; None if there is none within four years."""
    if schedule.every is not None:
        return cursor - timedelta(seconds=schedule.every)
    span = timedelta(minutes=1)
    while span < _LOOK_BACK:
        tick, found = next_tick(schedule, cursor - span, cursor), None
        while tick is not None and tick < cursor:
            tick, found = next_tick(schedule, tick, cursor), tick
        if found is not None:
            return found
        span *= 2
    return None
