"""What a claim does with a recurring job whose tick is due: which ticks run, which are skipped and why. Pure.

A tick is missed if nothing claimed it in time: a later one is due as well, or it is later than `grace`. The cursor only
moves forward, and every tick up to it either runs or is told in history; a long outage is told in few rows, and is never
walked tick by tick. A tick is due at its nominal time plus its jitter, and lateness is counted from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rota.sched.durations import duration_text, rfc3339
from rota.sched.timing.backlog import Backlog
from rota.sched.timing.ticks import jitter_of, next_tick

if TYPE_CHECKING:
    from datetime import datetime

    from rota.sched.when import Schedule

PER_CLAIM = 100
"""Most ticks of one job that one claim runs; the rest of them stays ahead for the next claim."""
MOST_CAUGHT_UP = 1000
"""What a larger `catchup_limit` counts as: the latest ticks of a long outage have to be found one by one."""
RULES_MOVE = timedelta(hours=3)
"""How far new rules of a zone may have moved a tick that is stored."""
_JUST_BEFORE = timedelta(microseconds=1)
GRACE = 60.0
"""Seconds: the grace, where none is given, of a schedule whose policy may leave a late tick out."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Ticks that do not run, `first` to `last`. `count` is None where they were too many to be counted.

    `reason` is the word `misfire` or `overlap`, `why` the policy that says so.
    """

    first: datetime
    last: datetime
    count: int | None
    reason: str
    why: str

    def text(self) -> str:
        """For people: the reason, and which ticks."""
        if self.count == 1:
            return f"{self.reason}: this tick was skipped ({self.why})"
        many = "all ticks (too many to count)" if self.count is None else f"{self.count} ticks"
        return f"{self.reason}: {many} from this one to {rfc3339(self.last)} were skipped ({self.why})"


@dataclass(frozen=True, slots=True)
class Advance:
    """The plan: ticks to run now, ticks skipped, and the new cursor with its due time (None: there are no more)."""

    fire: tuple[datetime, ...]
    skipped: tuple[Skipped, ...]
    next: datetime | None
    due: datetime | None


def advance(schedule: Schedule, job_id: str, cursor: datetime, now: datetime, *, live: bool) -> Advance:
    """Plans the job whose tick `cursor` is due at `now`; `live`: a run of it is still alive.

    The new cursor is due after now, except where more than `PER_CLAIM` ticks are to run: then it is the first of
    those left, due now.
    """
    moved = _moved_by_new_rules(schedule, cursor)
    if moved is not None:
        return Advance((), (), moved, due_time(schedule, job_id, moved, cursor))
    backlog, following = _due(schedule, job_id, cursor, now)
    run = _choose(schedule, job_id, backlog, now)
    skipped = _left(backlog, run, _policy(schedule))
    if schedule.overlap == "skip" and run:
        run, told = _without_overlap(run, live=live)
        skipped += told
    if len(run) > PER_CLAIM:
        # Nothing after the last of `run` is skipped under run_all, so what is told lies before the new cursor.
        return Advance(tuple(run[:PER_CLAIM]), _sorted(skipped), run[PER_CLAIM], now)
    if following is None:
        return Advance(tuple(run), _sorted(skipped), None, None)
    return Advance(tuple(run), _sorted(skipped), following, due_time(schedule, job_id, following, cursor))


def due_time(schedule: Schedule, job_id: str, tick: datetime, anchor: datetime) -> datetime:
    """When a tick is due: at its nominal time plus its jitter. `anchor` as for `next_tick`."""
    return tick + jitter_of(schedule, job_id, tick, next_tick(schedule, tick, anchor))


def _moved_by_new_rules(schedule: Schedule, cursor: datetime) -> datetime | None:
    """The later tick that a cursor stands for which was computed with other rules of its zone than these.

    None if the cursor is a tick, and also if a tick lies just before it: that one is late and runs as the cursor.
    """
    if schedule.cron is None or schedule.tz == "UTC":
        return None
    tick = next_tick(schedule, cursor - _JUST_BEFORE, cursor)
    if tick is None or tick == cursor or tick - cursor > RULES_MOVE:
        return None
    before = next_tick(schedule, cursor - RULES_MOVE - _JUST_BEFORE, cursor)
    return tick if before == tick else None


def _due(schedule: Schedule, job_id: str, cursor: datetime, now: datetime) -> tuple[Backlog, datetime | None]:
    """The due ticks from the cursor on, and the first that is not due yet."""
    until = now if schedule.end is None else min(now, schedule.end)
    backlog = Backlog(schedule, cursor, max(cursor, until))
    last = backlog.last()
    following = next_tick(schedule, last, cursor)
    if last > cursor and last + jitter_of(schedule, job_id, last, following) > now:
        # Its nominal time has come, its jitter has not: it is still ahead. Jitter is below the gap: it is the only one.
        return backlog.before(last), last
    return backlog, following


def _choose(schedule: Schedule, job_id: str, backlog: Backlog, now: datetime) -> list[datetime]:
    """The ticks that run by the misfire policy, in order."""
    cursor, last = backlog.cursor, backlog.last()
    lateness = now - due_time(schedule, job_id, last, cursor)
    on_time = lateness <= _grace(schedule)
    if on_time and last == cursor:
        return [cursor]
    opened = _opened(schedule, now, cursor)
    if on_time:
        opened = min(opened, last)
    if last < opened:
        return []
    match schedule.misfire:
        case "skip":
            return [last] if on_time else []
        case "run_latest":
            return [last]
        case "run_earliest":
            return [backlog.first_from(opened)]
        case "run_all":
            return [tick for tick in backlog.latest(_limit(schedule)) if tick >= opened]


def _grace(schedule: Schedule) -> timedelta:
    """How late the last due tick may be without being missed. Under other policies it runs in any case."""
    if schedule.grace is not None:
        return timedelta(seconds=schedule.grace)
    strict = schedule.misfire == "skip" or schedule.catchup_window is not None
    return timedelta(seconds=GRACE) if strict else timedelta.max


def _opened(schedule: Schedule, now: datetime, cursor: datetime) -> datetime:
    """Missed ticks before this are too old to run. Jitter makes a tick due later, so it widens the window."""
    if schedule.catchup_window is None:
        return cursor
    return max(cursor, now - timedelta(seconds=schedule.catchup_window + schedule.jitter))


def _limit(schedule: Schedule) -> int:
    return min(schedule.catchup_limit, MOST_CAUGHT_UP)


def _policy(schedule: Schedule) -> str:
    names = ("catchup_window", "grace")
    given = [f", {n}={duration_text(v)}" for n in names if (v := getattr(schedule, n)) is not None]
    limit = f", catchup_limit={_limit(schedule)}" if schedule.misfire == "run_all" else ""
    return f"misfire={schedule.misfire}{limit}{''.join(given)}"


def _left(backlog: Backlog, run: list[datetime], why: str) -> list[Skipped]:
    """What is due and does not run: before the first that does, and after the last."""
    if not run:
        return [_skipped(backlog, why)]
    told = []
    if run[0] > backlog.cursor:
        told.append(_skipped(backlog.before(run[0]), why))
    after = backlog.after(run[-1])
    if after is not None:
        told.append(_skipped(after, why))
    return told


def _skipped(backlog: Backlog, why: str) -> Skipped:
    return Skipped(backlog.cursor, backlog.last(), backlog.count(), "misfire", why)


def _without_overlap(run: list[datetime], *, live: bool) -> tuple[list[datetime], list[Skipped]]:
    """At most one run of the job at a time: the first of these, or none while one is alive."""
    kept, left = ([], run) if live else (run[:1], run[1:])
    if not left:
        return kept, []
    return kept, [Skipped(left[0], left[-1], len(left), "overlap", "overlap=skip, and a run of this job is alive")]


def _sorted(skipped: list[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(skipped, key=lambda s: s.first))
