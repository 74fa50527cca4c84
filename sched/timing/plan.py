"""What a claim does with a recurring job whose tick is due: which ticks run, which are skipped and why. Pure.

A tick is missed if nothing claimed it in time: a later one is due as well, or it is later than `grace`. The cursor only
moves forward, and every tick up to it either runs or is told in history; a long outage is told in one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rota.sched.durations import rfc3339
from rota.sched.timing.ticks import jitter_of, next_tick

if TYPE_CHECKING:
    from rota.sched.when import Schedule

LOOKED_AT = 1000
"""Most missed ticks that are looked at one by one; of a longer row the latest are found without walking it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Ticks that do not run. `count` is None where they were too many to be counted."""

    first: datetime
    last: datetime
    count: int | None
    reason: str

    def text(self) -> str:
        """For people: the reason, and which ticks."""
        if self.count == 1:
            return f"{self.reason}: this tick"
        if self.count is None:
            return f"{self.reason}: all ticks from this one on and before {rfc3339(self.last)}, too many to be counted"
        return f"{self.reason}: {self.count} ticks from this one to {rfc3339(self.last)}"


@dataclass(frozen=True, slots=True)
class Advance:
    """The plan: ticks to run now, ticks skipped, and the new cursor with its due time (None: there are no more)."""

    fire: tuple[datetime, ...]
    skipped: tuple[Skipped, ...]
    next: datetime | None
    due: datetime | None


def advance(schedule: Schedule, job_id: str, cursor: datetime, now: datetime, *, live: bool) -> Advance:
    """Plans the job whose tick `cursor` is due at `now`; `live`: a run of it is still alive."""
    due, more = _due(schedule, cursor, now)
    run, skipped = _choose(schedule, due, now, more=more)
    if live and schedule.overlap == "skip" and run:
        skipped.append(Skipped(run[0], run[-1], len(run), "overlap: a run of this job is still alive"))
        run = []
    following = next_tick(schedule, max(due[-1], now) if not more else now, cursor)
    if following is None:
        return Advance(tuple(run), tuple(skipped), None, None)
    jitter = jitter_of(schedule, job_id, following, next_tick(schedule, following, cursor))
    return Advance(tuple(run), tuple(skipped), following, following + jitter)


def _due(schedule: Schedule, cursor: datetime, now: datetime) -> tuple[list[datetime], bool]:
    """The ticks from the cursor to now, and whether there are more between the first and the others."""
    due = [cursor]
    while len(due) <= LOOKED_AT:
        tick = next_tick(schedule, due[-1], cursor)
        if tick is None or tick > now:
            return due, False
        due.append(tick)
    return [cursor, *_latest(schedule, cursor, now)], True


def _latest(schedule: Schedule, cursor: datetime, now: datetime) -> list[datetime]:
    """The latest ticks up to now, found by looking back over growing spans."""
    wanted = min(schedule.catchup_limit, LOOKED_AT) if schedule.misfire == "run_all" else 1
    span = timedelta(seconds=60)
    while True:
        start = max(cursor, now - span)
        found: list[datetime] = []
        tick = next_tick(schedule, start, cursor)
        while tick is not None and tick <= now and len(found) <= 5 * LOOKED_AT:
            found.append(tick)
            tick = next_tick(schedule, tick, cursor)
        if len(found) >= wanted or start == cursor:
            return found[-LOOKED_AT:]
        span *= 4


def _choose(
    schedule: Schedule, due: list[datetime], now: datetime, *, more: bool
) -> tuple[list[datetime], list[Skipped]]:
    """(ticks that run, what is skipped) by the misfire policy."""
    late = schedule.grace is not None and now - due[-1] > timedelta(seconds=schedule.grace)
    if len(due) == 1 and not late:
        return due, []
    candidates = due
    if schedule.catchup_window is not None:
        opened = now - timedelta(seconds=schedule.catchup_window)
        candidates = [tick for tick in due if tick >= opened]
    on_time = [] if late else due[-1:]
    run = {
        "skip": on_time,
        "run_latest": candidates[-1:],
        "run_earliest": candidates[:1],
        "run_all": candidates[-schedule.catchup_limit :],
    }[schedule.misfire]
    left = [tick for tick in due if tick not in set(run)]
    if not left:
        return run, []
    reason = f"misfire={schedule.misfire}"
    if more:  # what lies between the cursor and the latest was not counted
        return run, [Skipped(left[0], run[0] if run else due[-1], None, reason)]
    return run, [Skipped(left[0], left[-1], len(left), reason)]
