"""When a job runs: once, or on a schedule. Values that check themselves; pure.

`at`, `after`, `cron` and `every` are what users write. JSON of them is what AMQP commands carry and the store keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from rota.sched.durations import instant, rfc3339, seconds, utc, wall_time
from rota.sched.errors import UsageError
from rota.sched.timing import check_cron, instant_of, zone
from rota.sched.timing.policies import DstGap, DstOverlap, Misfire, Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST = 0.1
"""Shortest interval of a schedule, in seconds."""
MOST_DATES = 1_000
"""Dates that a schedule may exclude, at most."""
MOST_RUNS = 1_000_000_000
"""Largest `max_runs`."""


@dataclass(frozen=True, slots=True)
class Once:
    """One run: at an instant, some seconds after the submit, or (neither) now. The clock is the store's."""

    at: datetime | None = None
    after: float | None = None

    def __post_init__(self) -> None:
        if self.at is not None and self.after is not None:
            raise UsageError("a job runs either at an instant or after some seconds: give one of them")
        if self.at is not None:
            if not isinstance(self.at, datetime):
                raise UsageError(f"at is {self.at!r}: give a datetime with a time zone")
            if self.at.tzinfo is None or self.at.utcoffset() is None:
                raise UsageError(f"at is {self.at.isoformat()}: it has no time zone, and no host's zone is guessed")
            try:
                object.__setattr__(self, "at", self.at.astimezone(UTC))
            except OverflowError:
                raise UsageError(f"at is {self.at.isoformat()}: out of range") from None
        if self.after is not None:
            object.__setattr__(self, "after", seconds(self.after, "after"))

    def to_json(self) -> dict[str, Any]:
        """As AMQP commands have it; empty for now."""
        if self.at is not None:
            return {"at": rfc3339(self.at)}
        return {} if self.after is None else {"after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring job: a cron expression in a zone, or an interval in seconds, with its policies (docs/time.md).

    Between `start` and `end` (aware datetimes or RFC 3339, both included, kept in UTC); not on the dates `exclude`
    (ISO, of the zone's calendar), which only a cron expression has. With `max_runs` it ends when so many of its ticks have
    become runs.
    """

    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "first"
    misfire: Misfire = "run_latest"
    catchup_window: float | None = None
    catchup_limit: int = 100
    grace: float | None = None
    overlap: Overlap = "allow"
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    exclude: tuple[str, ...] = ()
    max_runs: int | None = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise UsageError("a schedule has either a cron expression or an interval: give one of them")
        for name in ("every", "catchup_window", "grace", "jitter"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, seconds(value, name))
        self._check_words()
        self._check_numbers()
        self._check_bounds()
        object.__setattr__(self, "exclude", _dates(self.exclude))
        if self.cron is not None:
            check_cron(self.cron, self.tz)
        elif self.exclude:
            raise UsageError("exclude belongs to cron expressions: an interval knows no dates")
        else:
            zone(self.tz)

    def _check_words(self) -> None:
        words = (("dst_gap", DstGap), ("dst_overlap", DstOverlap), ("misfire", Misfire), ("overlap", Overlap))
        for name, allowed in words:
            if getattr(self, name) not in get_args(allowed):
                raise UsageError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(get_args(allowed))}")

    def _check_numbers(self) -> None:
        if self.every is not None and self.every < SHORTEST:
            raise UsageError(f"every is {self.every!r}: the shortest interval is {SHORTEST} seconds")
        if not _is_count(self.catchup_limit):
            raise UsageError(f"catchup_limit is {self.catchup_limit!r}: give a number of ticks, 1 or more")
        if self.max_runs is not None and (not _is_count(self.max_runs) or self.max_runs > MOST_RUNS):
            raise UsageError(f"max_runs is {self.max_runs!r}: give a number of runs, from 1 to {MOST_RUNS}")

    def _check_bounds(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, instant(value, name) if isinstance(value, str) else utc(value, name))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise UsageError(f"end {rfc3339(self.end)} is before start {rfc3339(self.start)}: there would be no tick")

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults; the store keeps it and `from_json` reads it."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {name: _plain(value) for name, value in given.items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote. UsageError for unknown words."""
        unknown = set(value) - {f.name for f in fields(cls)}
        if unknown:
            raise UsageError(f"unknown word {min(unknown)!r} in schedule {value!r}")
        return cls(**value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    return list(value) if isinstance(value, tuple) else value


def _dates(values: Iterable[date | str]) -> tuple[str, ...]:
    if isinstance(values, str | date):
        raise UsageError(f"exclude is {values!r}: give a list of dates")
    found = {_date(value) for value in values}
    if len(found) > MOST_DATES:
        raise UsageError(f"exclude has {len(found)} dates: {MOST_DATES} are the most")
    return tuple(sorted(found))


def _date(value: date | str) -> str:
    try:
        return (value if type(value) is date else date.fromisoformat(str(value))).isoformat()
    except ValueError:
        raise UsageError(f"exclude has {value!r}: give dates such as '2026-12-25'") from None


When = Once | Schedule


def at(instant_: datetime, *, tz: str | None = None) -> Once:
    """Once, at an aware datetime, or at a naive one's wall time in the IANA zone `tz`; in the past it is due at once.

    A wall time that a gap swallows is the gap's end; of one that comes twice the first is meant, the second with fold=1.
    """
    return Once(at=instant_ if tz is None else instant_of(instant_, tz))


def after(delay: float | str | timedelta) -> Once:
    """Once, that long after the submit: seconds or text such as `5m`."""
    return Once(after=seconds(delay, "after"))


def cron(expression: str, *, tz: str = "UTC", **policies: Any) -> Schedule:
    """On a cron expression in an IANA zone. Policies: see `Schedule`; durations may be text."""
    return Schedule(cron=expression, tz=tz, **policies)


def every(interval: float | str | timedelta, **policies: Any) -> Schedule:
    """At a fixed interval from the submit on: seconds or text such as `30s`."""
    return Schedule(every=seconds(interval, "every"), **policies)


def when_from_json(value: dict[str, Any] | None) -> When:
    """`when` of an AMQP command: absent or null is now. UsageError for what is none."""
    if not value:
        return Once()
    if "at" in value:
        _only(value, {"at", "tz"})
        if "tz" in value:
            return at(wall_time(value["at"], "when.at"), tz=value["tz"])
        return Once(at=instant(value["at"], "when.at"))
    if "after" in value:
        _only(value, {"after"})
        return Once(after=value["after"])
    return Schedule.from_json(value)


def _only(value: dict[str, Any], allowed: set[str]) -> None:
    extra = sorted(set(value) - allowed)
    if extra:
        raise UsageError(f"when has {extra[0]!r} beside {min(allowed)!r}: it belongs to schedules")
