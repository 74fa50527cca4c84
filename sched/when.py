"""When a job runs: once (`Once`), or again and again (`Schedule`). Values only: no clock is read here.

Everything is checked when it is made, so that what reaches the store can be computed. `rota.sched.timing` computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, get_args

from rota.sched.durations import instant, rfc3339, seconds, utc
from rota.sched.errors import UsageError
from rota.sched.timing.cron import parse
from rota.sched.timing.zones import zone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

Misfire = Literal["skip", "run_latest", "run_earliest", "run_all"]
Overlap = Literal["allow", "skip"]
DstGap = Literal["run_after", "shift", "skip"]
DstOverlap = Literal["first", "last", "both", "skip"]

SHORTEST_INTERVAL = 0.1
"""Seconds; the shortest `every`."""
CATCHUP_LIMIT = 100
"""How many missed ticks of one outage are run at most, unless a schedule says otherwise."""
_OVERLAP_LATER = ("buffer_one", "buffer_all", "cancel_other")


@dataclass(frozen=True, slots=True)
class Once:
    """One tick: at an instant, or a number of seconds after the store accepted the job. Neither is now."""

    at: datetime | None = None
    after: float | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a naive datetime, a negative delay, or both at once."""
        if self.at is not None and self.after is not None:
            raise UsageError(f"a job has both at {self.at} and after {self.after}: give one of them")
        if self.at is not None:
            object.__setattr__(self, "at", utc(self.at, "at"))
        if self.after is not None:
            object.__setattr__(self, "after", seconds(self.after, "after"))

    def to_json(self) -> dict[str, Any]:
        """The `when` of AMQP: `{}` is now."""
        if self.at is not None:
            return {"at": rfc3339(self.at)}
        return {} if self.after is None else {"after": self.after}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rhythm: a cron expression in a zone, or an interval; and what happens when it cannot be kept.

    `every`, `catchup_window`, `grace` and `jitter` are seconds. An interval counts from the job's first tick.
    """

    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "first"
    misfire: Misfire = "run_latest"
    catchup_window: float | None = None
    catchup_limit: int = CATCHUP_LIMIT
    grace: float | None = None
    overlap: Overlap = "allow"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be computed: expression, zone, interval or policy."""
        if (self.cron is None) == (self.every is None):
            raise UsageError(f"a schedule has cron {self.cron!r} and every {self.every!r}: give exactly one of them")
        if self.cron is not None:
            parse(self.cron)
        if self.every is not None:
            object.__setattr__(self, "every", _interval(self.every))
        if not isinstance(self.tz, str):
            raise UsageError(f"tz is {self.tz!r}: give the IANA name of a zone, such as 'Europe/Paris'")
        zone(self.tz)
        self._check_policies()

    def _check_policies(self) -> None:
        if self.overlap in _OVERLAP_LATER:
            raise UsageError(f"overlap {self.overlap!r} is not supported yet: use 'allow' or 'skip'")
        for name, words in (("dst_gap", DstGap), ("dst_overlap", DstOverlap), ("misfire", Misfire), ("overlap", Overlap)):
            _one_of(name, getattr(self, name), get_args(words))
        for name in ("catchup_window", "grace", "jitter"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None and name != "jitter" else seconds(value, name))
        if type(self.catchup_limit) is not int or not 1 <= self.catchup_limit <= 10_000:
            raise UsageError(f"catchup_limit is {self.catchup_limit!r}: give a whole number from 1 to 10000")

    def to_json(self) -> dict[str, Any]:
        """The canonical JSON: only what differs from the defaults, so equal schedules have equal JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote, or that AMQP carries. Raises UsageError for unknown fields and bad values."""
        if not isinstance(value, dict):
            raise UsageError(f"a schedule is {value!r}: give an object with cron or every")
        known = [field.name for field in fields(cls)]
        for name in value:
            if name not in known:
                raise UsageError(f"a schedule has the unknown field {name!r}: the fields are {', '.join(known)}")
        return cls(**value)


When = Once | Schedule


def _interval(value: float | str | timedelta) -> float:
    every = seconds(value, "every")
    if every < SHORTEST_INTERVAL:
        raise UsageError(f"every is {value!r}: the shortest interval is {SHORTEST_INTERVAL} seconds")
    return math.floor(every * 1e6 + 0.5) / 1e6


def _one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise UsageError(f"{name} is {value!r}: it is one of {', '.join(words)}")


class Policies(TypedDict, total=False):
    """What `cron` and `every` take by name. Durations are seconds or text such as `5m`."""

    misfire: Misfire
    overlap: Overlap
    jitter: float | str | timedelta
    catchup_window: float | str | timedelta | None
    catchup_limit: int
    grace: float | str | timedelta | None


def at(when: datetime) -> Once:
    """Once, at that instant; an instant that has passed is now. Raises UsageError for a naive datetime."""
    return Once(at=utc(when, "at"))


def after(delay: float | str | timedelta) -> Once:
    """Once, that long after the store has accepted the job, by the store's clock."""
    return Once(after=seconds(delay, "after"))


def cron(
    expr: str,
    *,
    tz: str = "UTC",
    dst_gap: DstGap = "run_after",
    dst_overlap: DstOverlap = "first",
    **policies: Unpack[Policies],
) -> Schedule:
    """Whenever the wall clock of a zone matches a cron expression: five fields, or six with seconds first.

    Raises UsageError for an expression that cannot be read or never fires, an unknown zone and bad policies.
    """
    return Schedule(cron=expr, tz=tz, dst_gap=dst_gap, dst_overlap=dst_overlap, **_plain(policies))


def every(interval: float | str | timedelta, **policies: Unpack[Policies]) -> Schedule:
    """Every so many seconds of elapsed time, the first time one interval after the store has accepted the job."""
    return Schedule(every=seconds(interval, "every"), **_plain(policies))


def _plain(policies: Policies) -> dict[str, Any]:
    return cast("dict[str, Any]", policies)


def when_from_json(value: Mapping[str, Any] | None) -> When:
    """The `when` of a command: absent or empty is now, else one of at, after, cron or every.

    Raises UsageError for anything else.
    """
    if not value:
        return Once()
    if not isinstance(value, dict):
        raise UsageError(f"when is {value!r}: give an object with one of at, after, cron, every")
    kinds = [name for name in ("at", "after", "cron", "every") if name in value]
    if len(kinds) != 1:
        raise UsageError(f"when has {', '.join(kinds) or 'none'} of at, after, cron, every: give exactly one")
    if kinds[0] in ("cron", "every"):
        return Schedule.from_json(value)
    if len(value) > 1:
        raise UsageError(f"when has {', '.join(value)}: nothing else goes with {kinds[0]}")
    return Once(at=instant(value["at"], "when.at")) if "at" in value else Once(after=seconds(value["after"], "when.after"))
