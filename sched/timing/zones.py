"""Time zones, from one source on purpose.

`zoneinfo` prefers the system's files, and those can be years behind: an old rule puts every fire of a zone an hour off.
Rota reads the `tzdata` package only, so that all members with one version of it agree, and `zone_source` says which it is.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import io
import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from rota.sched.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = 86_400
_WEEK = 7 * _DAY
_LAST_YEAR = 9_998
_NEVER = 2**40
"""Epoch seconds far beyond the year 9999."""


@dataclass(frozen=True, slots=True)
class ZoneSource:
    """Where zone rules come from: the package, its version, and the release of the IANA database that it holds."""

    package: str
    version: str
    iana: str


class Transition(NamedTuple):
    """A change of a zone's UTC offset: epoch second of the change, offsets in seconds before and after."""

    at: int
    before: int
    after: int


@lru_cache(maxsize=1)
def zone_source() -> ZoneSource:
    """The source of zone rules in this process."""
    iana = importlib.resources.files("tzdata").joinpath("zoneinfo", "tzdata.zi").read_text().split("\n", 1)[0]
    return ZoneSource("tzdata", importlib.metadata.version("tzdata"), iana.removeprefix("# version ").strip())


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every zone name that is accepted, links included."""
    listing = importlib.resources.files("tzdata").joinpath("zones").read_text()
    return frozenset(listing.split())


@lru_cache(maxsize=1_024)
def zone(name: str) -> ZoneInfo:
    """The zone of that exact IANA name. Raises UsageError, with the nearest name, for one that does not exist."""
    if name not in zone_names():
        raise UsageError(f"time zone {name!r} does not exist in {_described()}{_suggestion(name)}")
    return ZoneInfo.from_file(io.BytesIO(_file(name)), key=name)


def _file(name: str) -> bytes:
    return importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def _described() -> str:
    source = zone_source()
    return f"{source.package} {source.version}"


def _suggestion(name: str) -> str:
    by_fold = {known.casefold(): known for known in sorted(zone_names())}
    wanted = name.casefold().strip().replace(" ", "_")
    city = [known for known in by_fold if wanted and known.rpartition("/")[2] == wanted.rpartition("/")[2]]
    from difflib import get_close_matches  # noqa: PLC0415 - rarely asked for

    near = [wanted] if wanted in by_fold else city or get_close_matches(wanted, by_fold, n=1, cutoff=0.6)
    return f": did you mean {by_fold[near[0]]!r}?" if near else ": use an IANA name such as 'Europe/Paris' or 'UTC'"


def offset(name: str, at: int) -> int:
    """The zone's UTC offset in seconds at that epoch second."""
    delta = (_EPOCH + timedelta(seconds=at)).astimezone(zone(name)).utcoffset()
    assert delta is not None
    return delta.days * _DAY + delta.seconds


@lru_cache(maxsize=1_024)
def _listed(name: str) -> tuple[tuple[int, ...], bool]:
    """Epoch seconds at which the zone's file says that something changes, and whether a rule goes on after the last.

    Format: RFC 8536. Behind a block with times of 32 bits there is one of 64, then a line with the rule.
    """
    data = _file(name)
    isut, isstd, leaps, times, types, letters = struct.unpack_from(">6l", data, 20)
    block = 44 + 5 * times + 6 * types + letters + 8 * leaps + isstd + isut
    (count,) = struct.unpack_from(">l", data, block + 32)
    return struct.unpack_from(f">{count}q", data, block + 44), b"," in data.rsplit(b"\n", 2)[1]


@lru_cache(maxsize=8_192)
def transitions_of_year(name: str, year: int) -> tuple[Transition, ...]:
    """The changes of offset in that UTC year, in order. `zoneinfo` has no list of them.

    Up to the last one in the zone's file they are read there. The rule that goes on from there has two a year, months
    apart: it is enough to look at each week.
    """
    start, end = _new_year(year), _new_year(year + 1)
    listed, goes_on = _listed(name)
    if goes_on and (not listed or listed[-1] < end):
        weeks = [*range(start, end, _WEEK), end]
        offsets = [offset(name, at) for at in weeks]
        steps = zip(pairwise(weeks), pairwise(offsets), strict=True)
        changes = [_instant_of_change(name, *week) for week, (before, after) in steps if before != after]
    else:
        changes = list(listed[bisect_left(listed, start) : bisect_left(listed, end)])
    found = (Transition(at, offset(name, at - 1), offset(name, at)) for at in changes)
    return tuple(each for each in found if each.before != each.after)


def _new_year(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // _SECOND


def _instant_of_change(name: str, low: int, high: int) -> int:
    before = offset(name, low)
    while high - low > 1:
        middle = (low + high) // 2
        if offset(name, middle) == before:
            low = middle
        else:
            high = middle
    return high


class Period(NamedTuple):
    """A time of one UTC offset: epoch seconds `start` (included) to `end`, the offset in seconds."""

    start: int
    end: int
    offset: int


_start = attrgetter("start")


@lru_cache(maxsize=8_192)
def _periods(name: str, year: int) -> tuple[Period, ...]:
    """The periods that touch a UTC year, cut where the years beside it begin and end."""
    first, last = max(year - 1, 2), min(year + 1, _LAST_YEAR)
    start, end = _new_year(first), _new_year(last + 1)
    changes = transitions(name, start, end)
    until = end if year < _LAST_YEAR else _NEVER
    starts = [start, *(change.at for change in changes)]
    offsets = [offset(name, start), *(change.after for change in changes)]
    return tuple(Period(*each) for each in zip(starts, [*starts[1:], until], offsets, strict=True))


def period(name: str, at: datetime) -> Period:
    """The period around an instant in UTC; where the offset is older or lasts longer than some years, a part of it."""
    second = (at - _EPOCH) // _SECOND
    periods = _periods(name, min(max(at.year, 2), _LAST_YEAR))
    return periods[bisect_right(periods, second, key=_start) - 1]


def transitions(name: str, low: int, high: int) -> tuple[Transition, ...]:
    """The changes of offset at epoch seconds in (low, high], in order."""
    if name == "UTC":
        return ()
    first, last = ((_EPOCH + timedelta(seconds=at)).year for at in (low, high))
    return tuple(
        change
        for year in range(max(first, 2), min(last, _LAST_YEAR) + 1)
        for change in transitions_of_year(name, year)
        if low < change.at <= high
    )


def instant_of(local: datetime, name: str) -> datetime:
    """The instant in UTC of a naive wall time in a zone: the end of a gap that swallows it; of two the one of its fold.

    Raises UsageError for an aware datetime and an unknown zone.
    """
    if not isinstance(local, datetime) or local.tzinfo is not None:
        raise UsageError(f"{local!r} is given with the time zone {name!r}: give a naive datetime, or no zone beside it")
    rules = zone(name)
    try:
        found, other = (local.replace(tzinfo=rules, fold=fold).astimezone(UTC) for fold in (local.fold, 0))
        if found.astimezone(rules).replace(tzinfo=None) == local.replace(fold=0):
            return found
        before = local.replace(tzinfo=rules, fold=1).astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{local.isoformat()} in {name} is outside the years 1 to 9999 in UTC") from None
    (change,) = transitions(name, int(before.timestamp()) - 1, int(other.timestamp()))
    return datetime.fromtimestamp(change.at, UTC)
