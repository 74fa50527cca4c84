"""Time zones, from one source on purpose.

`zoneinfo` prefers the system's files, and those can be years behind: an old rule puts every fire of a zone an hour off.
Rota reads the `tzdata` package only, so that all members with one version of it agree, and `zone_source` says which it is.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.resources
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from rota.sched.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_LAST_YEAR = 9_998


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
    with importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def _described() -> str:
    source = zone_source()
    return f"{source.package} {source.version}"


def _suggestion(name: str) -> str:
    by_fold = {known.casefold(): known for known in sorted(zone_names())}
    wanted = name.casefold().strip().replace(" ", "_")
    near = difflib.get_close_matches(wanted, by_fold, n=1, cutoff=0.6)
    if not near:
        near = [known for known in by_fold if wanted and known.rpartition("/")[2] == wanted.rpartition("/")[2]]
    return f": did you mean {by_fold[near[0]]!r}?" if near else ": use an IANA name such as 'Europe/Paris' or 'UTC'"


def offset(name: str, at: int) -> int:
    """The zone's UTC offset in seconds at that epoch second."""
    delta = (_EPOCH + timedelta(seconds=at)).astimezone(zone(name)).utcoffset()
    assert delta is not None
    return delta.days * _DAY + delta.seconds


@lru_cache(maxsize=8_192)
def transitions_of_year(name: str, year: int) -> tuple[Transition, ...]:
    """The changes of offset in that UTC year, in order.

    Found by looking at each day: `zoneinfo` has no list of them, and no zone changes twice within a day.
    """
    start = int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    end = int((datetime(year + 1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    found = []
    before = offset(name, start)
    for day in range(start, end, _DAY):
        after = offset(name, day + _DAY)
        if after != before:
            found.append(Transition(_instant_of_change(name, day, day + _DAY), before, after))
        before = after
    return tuple(found)


def _instant_of_change(name: str, low: int, high: int) -> int:
    before = offset(name, low)
    while high - low > 1:
        middle = (low + high) // 2
        if offset(name, middle) == before:
            low = middle
        else:
            high = middle
    return high


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
