"""What each policy for clock changes would make of a schedule, around the next changes of its zone. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, get_args

from rota.sched.timing.policies import DstGap, DstOverlap
from rota.sched.timing.ticks import Fire, fires
from rota.sched.timing.zones import transitions

if TYPE_CHECKING:
    from rota.sched.when import Schedule

_YEARS = timedelta(days=3 * 366)
"""How far ahead changes are looked for."""
_SECOND = timedelta(seconds=1)


class Around(NamedTuple):
    """A clock change at an instant (UTC), which policy decides there, and the fires near it under each of its words.

    `policy` is `dst_gap` or `dst_overlap`; near means within the length of the change, before and after.
    """

    at: datetime
    moved: timedelta
    policy: str
    fires: dict[str, list[Fire]]


def around_changes(schedule: Schedule, after: datetime, changes: int = 2, most: int = 100) -> list[Around]:
    """The next clock changes of the schedule's zone after an instant; of each word's fires `most` at most."""
    until = int((after + _YEARS).timestamp())
    found = transitions(schedule.tz, int(after.timestamp()), until)[:changes]
    return [
        _around(schedule, datetime.fromtimestamp(change.at, UTC), timedelta(seconds=change.after - change.before), most)
        for change in found
    ]


def _around(schedule: Schedule, at: datetime, moved: timedelta, most: int) -> Around:
    policy, words = ("dst_gap", get_args(DstGap)) if moved > timedelta(0) else ("dst_overlap", get_args(DstOverlap))
    end = at + abs(moved)
    told = {}
    for word in words:
        near = fires(replace(schedule, **{policy: word}), at - abs(moved) - _SECOND, most)
        told[word] = list(takewhile(lambda fire: fire.utc < end, near))
    return Around(at, moved, policy, told)
