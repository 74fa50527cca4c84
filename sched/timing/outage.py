"""What each misfire policy would make of a time in which nobody claimed. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, get_args

from rota.sched.timing.backlog import Backlog
from rota.sched.timing.plan import Advance, NewRun, Skipped, advance
from rota.sched.timing.policies import Misfire
from rota.sched.timing.ticks import next_tick

if TYPE_CHECKING:
    from datetime import datetime

    from rota.sched.when import Schedule


class Outage(NamedTuple):
    """The ticks of a time in which nobody claimed: how many (None: too many to be counted), and the plan of each policy."""

    due: int | None
    plans: dict[str, Advance]


def outage(schedule: Schedule, since: datetime, until: datetime, job_id: str = "") -> Outage:
    """What becomes of the ticks after `since` that are due at `until`, under each misfire policy in place of the schedule's."""
    first = next_tick(schedule, since, since)
    if first is None or first > until:
        return Outage(0, {word: Advance((), (), first, first, 0) for word in get_args(Misfire)})
    plans = {word: _whole(replace(schedule, misfire=word), job_id, first, until) for word in get_args(Misfire)}
    return Outage(Backlog(schedule, first, until).count(), plans)


def _whole(schedule: Schedule, job_id: str, cursor: datetime, now: datetime) -> Advance:
    """The plans of as many claims as it takes, in one."""
    runs: list[NewRun] = []
    skipped: list[Skipped] = []
    left = schedule.max_runs
    missed: int | None = 0
    while True:
        waiting = sum(run.waits for run in runs)
        step = advance(schedule, job_id, cursor, now, live=bool(runs), waiting=waiting, left=left, missed=missed)
        runs += step.runs
        skipped += step.skipped
        if step.next is None or step.due is None or step.due > now:
            return replace(step, runs=tuple(runs), skipped=tuple(skipped))
        cursor, missed = step.next, step.missed
        left = None if left is None else left - len(step.runs)
