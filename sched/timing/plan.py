"""What a claim does with a recurring job whose tick is due: which ticks run, wait or are skipped, and why. Pure.

A tick is missed if nothing claimed it in time: a later one is due as well, or it is later than `grace`. The cursor only
moves forward, and every tick up to it either runs or is told in history; a long outage is told in few rows, and is never
walked tick by tick. A tick is due at its nominal time plus its jitter, and lateness is counted from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from rota.sched.durations import duration_text, rfc3339
from rota.sched.timing.backlog import Backlog
from rota.sched.timing.ticks import jitter_of, next_tick

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rota.sched.timing.policies import Overlap
    from rota.sched.when import Schedule

PER_CLAIM = 100
"""Most ticks of one job that one claim runs; the rest of them stays ahead for the next claim."""
MOST_CAUGHT_UP = 1000
"""What a larger `catchup_limit` counts as: the latest ticks of a long outage have to be found one by one."""
RULES_MOVE = timedelta(hours=3)
"""How far new rules of a zone may have moved a tick that is stored."""
_JUST_BEFORE = timedelta(microseconds=1)
GRACE = 60.0
"""Seconds: the grace, where none is given, of a schedule whose policy may leave a late tick out; and from when on a tick
counts as caught up."""
BUFFER = 1000
"""Most ticks of one job that wait under `overlap="buffer_all"`."""
MOST_MISSED = 2**31 - 1
"""More missed ticks than that are too many to be counted."""
_TAKE_TURNS = ("buffer_one", "buffer_all", "cancel_other")
"""Overlap policies under which a tick waits for its turn."""


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


class NewRun(NamedTuple):
    """A tick that becomes a run, and what the run is told of its being late.

    `catchup`: a later tick is due as well, or it is later than its grace. `missed`: the ticks that were skipped between the
    last one that became a run and this one; None where they are too many to be counted. `waits`: its turn comes when what
    is alive of its job has ended.
    """

    at: datetime
    catchup: bool
    missed: int | None
    waits: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """The plan: ticks that become runs, ticks skipped, and the new cursor with its due time (None: there are no more).

    `missed` is the job's count from then on. `cancel`: what is alive of the job is to be cancelled first.
    """

    runs: tuple[NewRun, ...]
    skipped: tuple[Skipped, ...]
    next: datetime | None
    due: datetime | None
    missed: int | None
    cancel: bool = False

    @property
    def fire(self) -> tuple[datetime, ...]:
        """The ticks that become runs."""
        return tuple(run.at for run in self.runs)


def advance(  # noqa: PLR0913 - how the job stands
    schedule: Schedule,
    job_id: str,
    cursor: datetime,
    now: datetime,
    *,
    live: bool,
    waiting: int = 0,
    left: int | None = None,
    missed: int | None = 0,
) -> Advance:
    """Plans the job whose tick `cursor` is due at `now`.

    `live`: a run of it has not ended; `waiting`: so many of those are buffered. `left`: so many more ticks may become runs,
    None for any number. `missed`: ticks skipped since the last that became a run, None: too many to be counted.

    The new cursor is due after now, except where more than `PER_CLAIM` ticks are to become runs: then it is the first of
    those left, due now.
    """
    moved = _moved_by_new_rules(schedule, cursor)
    if moved is not None:
        return Advance((), (), moved, due_time(schedule, job_id, moved, cursor), missed)
    backlog, following = _due(schedule, job_id, cursor, now)
    last = backlog.last()
    lateness = now - due_time(schedule, job_id, last, cursor)
    chosen = _choose(schedule, backlog, now, lateness)
    skipped = _left(backlog, chosen, _policy(schedule))
    run, told = _in_turn(schedule.overlap, chosen, live=live, waiting=waiting)
    due = None if following is None else due_time(schedule, job_id, following, cursor)
    if len(run) > PER_CLAIM:
        # What the overlap leaves out lies behind them: the next claim tells it. Nothing after the last of `chosen` is
        # skipped under run_all, so the rest of what is told lies before the new cursor.
        told, following, due = [], run[PER_CLAIM], now
    run, skipped = run[:PER_CLAIM], sorted(skipped + told, key=lambda s: s.first)
    if left is not None and len(run) >= left:
        run, following, due = run[:left], None, None
        skipped = [s for s in skipped if run and s.last < run[-1]]  # with its last run the job is over
    numbers, carried = _missed(run, skipped, missed)
    late = lateness > timedelta(seconds=GRACE if schedule.grace is None else schedule.grace)
    turns = schedule.overlap in _TAKE_TURNS
    runs = tuple(NewRun(at, at < last or late, numbers[n], turns and (live or n > 0)) for n, at in enumerate(run))
    cancel = bool(runs) and live and schedule.overlap == "cancel_other"
    return Advance(runs, tuple(skipped), following, due, carried, cancel)


def _missed(
    run: Sequence[datetime], skipped: Sequence[Skipped], carried: int | None
) -> tuple[list[int | None], int | None]:
    """How many ticks were skipped before each that becomes a run since the one before it, and after the last of them."""
    numbers, count, told = [], carried, list(skipped)
    for at in run:
        while told and told[0].first < at:
            count = sum_missed(count, told.pop(0).count)
        numbers.append(count)
        count = 0
    for each in told:
        count = sum_missed(count, each.count)
    return numbers, count


def sum_missed(one: int | None, other: int | None) -> int | None:
    """Two numbers of missed ticks in one; None where they are too many to be counted."""
    return None if one is None or other is None or one + other > MOST_MISSED else one + other


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


def _choose(schedule: Schedule, backlog: Backlog, now: datetime, lateness: timedelta) -> list[datetime]:
    """The ticks that run by the misfire policy, in order. `lateness` is that of the last."""
    cursor, last = backlog.cursor, backlog.last()
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


def _in_turn(
    overlap: Overlap, run: list[datetime], *, live: bool, waiting: int
) -> tuple[list[datetime], list[Skipped]]:
    """Which of these become runs by the overlap policy, at once or in their turn, and what it leaves out."""
    if overlap == "allow":
        return run, []
    if overlap == "cancel_other":
        kept, left, why = run[-1:], run[:-1], "a later tick is due"
    elif overlap == "skip":
        room = 0 if live else 1
        kept, left, why = run[:room], run[room:], "a run of this job is alive"
    else:
        most = 1 if overlap == "buffer_one" else BUFFER
        room = max(0, most - waiting + (not live))
        told = "a tick of this job waits" if most == 1 else f"{BUFFER} ticks of this job wait"
        kept, left, why = run[:room], run[room:], told
    if not left:
        return kept, []
    return kept, [Skipped(left[0], left[-1], len(left), "overlap", f"overlap={overlap}, and {why}")]
