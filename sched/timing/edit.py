"""Where a schedule goes on that is changed while it is stored: its next tick, and what becomes of those due before. Pure.

What was due under the old definition is settled as a claim would settle it just before the change: its misfire policy says
what runs. What comes after is the new definition's: no tick of it lies before the change, so that nothing is caught up
that nobody had asked for, and none of it is due at once. A tick whose time has come and whose jitter has not runs when it
was due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rota.sched.errors import UsageError
from rota.sched.timing.backlog import Backlog
from rota.sched.timing.plan import Advance, NewRun, Skipped, advance, due_time, sum_missed
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
    """Where a job stands: its cursor and when that is due, its runs and ticks (`live` to `missed`: as for `advance`).

    `since` is when the job was made or its definition changed last: ticks up to then were another one's.
    """

    cursor: datetime
    due: datetime
    since: datetime
    paused: bool
    live: bool
    waiting: int = 0
    left: int | None = None
    missed: int | None = 0


@dataclass(frozen=True, slots=True)
class Amended:
    """The plan of a change: what is settled of the old definition, with when each run of it is due, and the new cursor.

    `left`: how many ticks of the new definition may become runs, None for any number.
    """

    settled: Advance
    ready: tuple[datetime, ...] = ()
    left: int | None = None


def amend(old: Schedule | None, new: Schedule, job_id: str, place: Place, now: datetime) -> Amended:
    """Plans a change at `now` of a job at `place`. `old` is None where it cannot be computed (any more).

    Raises UsageError if the new schedule has no tick, or has had its `max_runs`.
    """
    if old is not None and all(getattr(old, name) == getattr(new, name) for name in _RULES):
        due = _due_again(old, new, job_id, place, now)
        return Amended(Advance((), (), place.cursor, due, place.missed), left=_left(old, new, place.left, 0))
    settled, ready = _settle(old, job_id, place, now)
    # A clock that was set back must not bring a tick again that was claimed before that.
    after = max(now, place.since, (old and _before(old, place.cursor)) or place.since)
    anchor = place.cursor if old is not None and old.every is not None and new.every is not None else after
    following = first_tick(new, after, anchor)
    due = due_time(new, job_id, following, anchor)
    return Amended(replace(settled, next=following, due=due), ready, _left(old, new, place.left, len(settled.runs)))


def _left(old: Schedule | None, new: Schedule, left: int | None, ran: int) -> int | None:
    """How many runs the new definition has, of which `ran` were settled just now. What was not counted before does not count."""
    if new.max_runs is None:
        return None
    had = 0 if old is None or old.max_runs is None or left is None else old.max_runs - left + ran
    if had >= new.max_runs:
        raise UsageError(
            f"max_runs is {new.max_runs}, and {had} of its ticks became runs: give more, or cancel the job"
        )
    return new.max_runs - had


def _due_again(old: Schedule, new: Schedule, job_id: str, place: Place, now: datetime) -> datetime:
    """When the cursor is due under another jitter. What is due already stays so."""
    if old.jitter == new.jitter or place.due <= now:
        return place.due
    return due_time(new, job_id, place.cursor, place.cursor)


def _settle(old: Schedule | None, job_id: str, place: Place, now: datetime) -> tuple[Advance, tuple[datetime, ...]]:
    """What becomes of the ticks up to now (the cursor that it has is not the new one), and when each of the runs is due."""
    skipped: list[Skipped] = []
    if place.cursor > now:
        return Advance((), (), None, None, place.missed), ()
    if old is None:
        skipped.append(Skipped(place.cursor, place.cursor, 1, "edit", "its schedule could not be computed"))
    elif place.paused:
        backlog = Backlog(old, place.cursor, now if old.end is None else max(place.cursor, min(now, old.end)))
        why = "the job was paused when its schedule changed"
        skipped.append(Skipped(backlog.cursor, backlog.last(), backlog.count(), "edit", why))
    else:
        return _claimed(old, job_id, place, now)
    return Advance((), tuple(skipped), None, None, sum_missed(place.missed, skipped[0].count)), ()


def _claimed(old: Schedule, job_id: str, place: Place, now: datetime) -> tuple[Advance, tuple[datetime, ...]]:
    """As claims just before the change would have it, and a tick that waits for its jitter."""
    runs: list[NewRun] = []
    skipped: list[Skipped] = []
    cursor: datetime | None = place.cursor
    due: datetime | None = place.due
    live, waiting, left, missed, cancel = place.live, place.waiting, place.left, place.missed, False
    while cursor is not None and due is not None and due <= now:
        step = advance(old, job_id, cursor, now, live=live, waiting=waiting, left=left, missed=missed)
        runs += step.runs
        skipped += step.skipped
        cancel = cancel or step.cancel
        live = live or bool(step.runs)
        waiting += sum(run.waits for run in step.runs)
        left = None if left is None else left - len(step.runs)
        cursor, due, missed = step.next, step.due, step.missed
    ready = [now] * len(runs)
    if cursor is not None and due is not None and cursor <= now:
        # Whether a run is alive when its jitter is over nobody knows: it waits for what is alive now, and is not skipped.
        runs.append(NewRun(cursor, catchup=False, missed=missed, waits=live and old.overlap != "allow"))
        ready.append(due)
        missed = 0
    return Advance(tuple(runs), tuple(skipped), None, None, missed, cancel), tuple(ready)


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
