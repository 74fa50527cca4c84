"""How many fires fall into each minute of a day, and which schedules make its spikes. Pure.

Schedules that share their ticks are looked at once, however many jobs have them. Jitter is another for each job: where that
would be too many to look at, every so-manieth job stands for the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from rota.sched.timing.ticks import jitter_of, next_tick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rota.sched.when import Schedule

MINUTES = 1_440
MOST_JITTERS = 300_000
"""So many fires' jitter is computed; of more, a sample."""
_MINUTE = timedelta(minutes=1)


class Planned(NamedTuple):
    """A stored schedule: the id of its job, and its cursor, which is one of its ticks. `max_runs` is what is left of it."""

    job_id: str
    schedule: Schedule
    cursor: datetime


@dataclass(frozen=True, slots=True)
class Load:
    """Fires in each minute of the day from `start` on: as they are due, and as they would be if all had one jitter.

    `causes` has the schedules of each minute by their text, with how many fires they bring. `sampled`: the figures are
    estimates where jitter plays a part.
    """

    start: datetime
    due: list[int]
    spread: list[int]
    causes: list[Counter[str]]
    sampled: bool


def load(planned: Iterable[Planned], start: datetime, jitter: float) -> Load:
    """The load of the day that begins at `start` (UTC), and what it would be with `jitter` seconds for all."""
    shared: dict[tuple[Schedule, datetime | None], list[str]] = defaultdict(list)
    for each in planned:
        anchor = each.cursor if each.schedule.every is not None else None
        shared[each.schedule, anchor].append(each.job_id)
    groups = [(schedule, jobs, _ticks(schedule, anchor or start, start)) for (schedule, anchor), jobs in shared.items()]
    every = 1 + sum(len(jobs) * len(ticks) for _, jobs, ticks in groups) // MOST_JITTERS
    day = Load(start, [0] * MINUTES, [0] * MINUTES, [Counter() for _ in range(MINUTES)], sampled=every > 1)
    for schedule, jobs, ticks in groups:
        for minute, fires in _minutes(schedule, jobs, ticks, start, every):
            day.due[minute] += fires
            day.causes[minute][schedule_text(schedule)] += fires
        for minute, fires in _minutes(replace(schedule, jitter=jitter), jobs, ticks, start, every):
            day.spread[minute] += fires
    return day


def schedule_text(schedule: Schedule) -> str:
    """A schedule as people call it."""
    return f"{schedule.cron} {schedule.tz}" if schedule.cron is not None else f"every {schedule.every:g} s"


def _ticks(schedule: Schedule, anchor: datetime, start: datetime) -> list[datetime]:
    found: list[datetime] = []
    end = start + MINUTES * _MINUTE
    tick = next_tick(schedule, start - timedelta(microseconds=1), anchor)
    while tick is not None and tick < end and (schedule.max_runs is None or len(found) < schedule.max_runs):
        found.append(tick)
        tick = next_tick(schedule, tick, anchor)
    return found


def _minutes(
    schedule: Schedule, jobs: list[str], ticks: list[datetime], start: datetime, every: int
) -> Iterator[tuple[int, int]]:
    """Minutes of the day with the number of fires that are due in them, in no order and some of them repeatedly."""
    if not schedule.jitter:
        yield from (((tick - start) // _MINUTE, len(jobs)) for tick in ticks)
        return
    chosen = jobs[::every]
    weights = [min(every, len(jobs) - n * every) for n in range(len(chosen))]
    for tick, following in zip(ticks, [*ticks[1:], None], strict=True):
        for job_id, weight in zip(chosen, weights, strict=True):
            minute = (tick + jitter_of(schedule, job_id, tick, following) - start) // _MINUTE
            if minute < MINUTES:
                yield minute, weight
