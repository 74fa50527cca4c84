"""All zones with their clock changes from 1990 to 2060: ticks around each are those of a slow reading, minute by minute.

`make test` looks at some; ROTA_TIMING_CHANGES=all, or a number, at all or so many of them.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from rota.sched.errors import UsageError
from rota.sched.timing import next_tick
from rota.sched.timing.cron import parse
from rota.sched.timing.zones import offset, transitions, zone, zone_names, zone_source
from rota.sched.when import Schedule

from tests.unit.slow_cron import DAY, SlowCron, Window

FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1990, 2061))
WANTED = os.environ.get("ROTA_TIMING_CHANGES", "32")
PARTS = 4
EXPRESSIONS = 2 if WANTED == "all" else 6
"""Of each change."""
SEED = 1


def changes(part, rng):
    """Each change of this part's zones once, though zones share them, or as many as are wanted: (zone, epoch second)."""
    names = sorted(zone_names())[part::PARTS]
    if WANTED != "all":
        drawn = [(name, change.at) for name in rng.sample(names, 12) for change in transitions(name, FIRST, LAST)]
        return rng.sample(drawn, int(WANTED) // PARTS)
    found = {}
    for name in names:
        for change in transitions(name, FIRST, LAST):
            found.setdefault(change, name)
    return [(name, change.at) for change, name in found.items()]


def a_field(rng, low, high, *, extra=()):
    """A field of a cron expression, often one that a change of an hour at night meets."""

    def number():
        return rng.randint(low, high)

    def one():
        first, last = sorted((number(), number()))
        return rng.choice([str(number()), str(number()), f"{first}-{last}", f"{first}-{last}/{rng.randint(1, 9)}"])

    return rng.choice(["*", f"*/{rng.randint(1, high)}", one(), f"{one()},{one()}", *extra])


def an_expression(rng):
    hour = rng.choice([a_field(rng, 0, 23), f"{rng.randint(0, 3)}", "0-3", "0,1,2,3", "22-2"])
    minute = a_field(rng, 0, 59)
    day = rng.choice(["*", "*", "*", a_field(rng, 1, 28, extra=["L", "LW", "1W", "29W"])])
    weekday = rng.choice(["*", "*", "*", a_field(rng, 0, 6, extra=["0#1", "0L", "6#5,1"])])
    expression = f"{minute} {hour} {day} * {weekday}"
    try:
        parse(expression)
    except UsageError:  # */17 and 0L both hold on no day
        return an_expression(rng)
    return expression


@pytest.mark.parametrize("part", range(PARTS))
def test_ticks_around_clock_changes_are_those_of_a_slow_reading(part):
    """From each instant the first tick after it: the slow reading's, and no other in between."""
    rng = random.Random(f"{SEED} {part}")
    for tz, change in changes(part, rng):
        window = Window(tz, change)
        for _ in range(EXPRESSIONS):
            compare(rng, tz, change, window, an_expression(rng))


HARD = [
    ("Pacific/Apia", 2011),  # a whole day is left out
    ("Pacific/Kwajalein", 1993),
    ("Australia/Lord_Howe", 2027),  # half an hour
    ("Antarctica/Troll", 2027),  # two hours
    ("America/Havana", 2025),  # midnight comes twice
    ("America/Santiago", 2022),  # or not at all
    ("America/St_Johns", 2010),  # at a minute past midnight
    ("Africa/Casablanca", 2022),  # backwards for Ramadan
    ("America/Boa_Vista", 2000),  # there and back within a week
    ("Asia/Pyongyang", 2018),
]


@pytest.mark.parametrize(("tz", "year"), HARD)
def test_so_are_those_around_odd_ones(tz, year):
    rng = random.Random(f"{SEED} {tz}")
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    for change in transitions(tz, start, start + 366 * 86_400):
        window = Window(tz, change.at)
        for expression in ["30 2 * * *", "0,30 0-3 * * *", "*/20 */2 * * *", an_expression(rng), an_expression(rng)]:
            compare(rng, tz, change.at, window, expression)


def compare(rng, tz, change, window, expression):
    gap, overlap = rng.choice(["run_after", "shift", "skip"]), rng.choice(["first", "last", "both", "skip"])
    schedule = Schedule(cron=expression, tz=tz, dst_gap=gap, dst_overlap=overlap)
    middle = datetime.fromtimestamp(change, UTC)
    at = middle - timedelta(seconds=rng.randint(0, 2 * 86_400))
    expected = [tick for tick in window.ticks(SlowCron(expression), gap, overlap) if at < tick < middle + DAY]
    found = []
    while (tick := next_tick(schedule, at, at)) is not None and tick < middle + DAY:
        assert tick > at
        found.append(tick)
        at = tick + rng.choice([timedelta(0), timedelta(microseconds=1)])
    assert found == expected, (schedule, at)


YEARS = [("America/Boa_Vista", 2000), ("Africa/Cairo", 2010), ("Africa/Casablanca", 2087), ("Europe/Dublin", 2037)]


@pytest.mark.parametrize(
    ("tz", "year"), YEARS + [(tz, 2043) for tz in sorted(zone_names())[:: 1 if WANTED == "all" else 40]]
)
def test_changes_are_those_that_a_look_at_each_day_finds(tz, year):
    """Without the list in a zone's file two changes within a week, as in Boa Vista, are none."""
    start = int(datetime(year - 1, 12, 31, tzinfo=UTC).timestamp())
    offsets = [offset(tz, start + day * 86_400) for day in range(370)]
    seen = [(a, b) for a, b in pairwise(offsets) if a != b]
    assert [(c.before, c.after) for c in transitions(tz, start, start + 369 * 86_400)] == seen


def test_the_database_of_zones_is_told():
    assert zone_source().package == "tzdata"
    assert zone_source().iana[:4].isdigit()


def instants_of(wall, tz, *, fixed):
    """Those of a wall time under the default policies; a gap's end is found minute by minute."""
    rules = zone(tz)
    both = [wall.replace(tzinfo=rules, fold=fold).astimezone(UTC) for fold in (0, 1)]
    real = sorted({at for at in both if at.astimezone(rules).replace(tzinfo=None) == wall})
    if not fixed:
        return real
    if real:
        return real[:1]
    at = both[1]  # before the gap
    while at.astimezone(rules).utcoffset() == both[1].astimezone(rules).utcoffset():
        at += timedelta(minutes=1)
    return [at]


def slow_next(expression, tz, after):
    """The first tick after an instant, day by day."""
    cron, found = SlowCron(expression), []
    day = after.astimezone(zone(tz)).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0, fold=0) - 2 * DAY
    end = None
    while end is None or day <= end:
        if cron.has_date(day):
            walls = (day.replace(hour=h, minute=m) for h in sorted(cron.hours) for m in sorted(cron.minutes))
            found += [at for wall in walls for at in instants_of(wall, tz, fixed=cron.fixed) if at > after]
        if found and end is None:
            end = day + 2 * DAY
        day += DAY
    return min(found)


@pytest.mark.parametrize("part", range(PARTS))
def test_ticks_that_lie_months_ahead_are_those_of_a_slow_reading(part):
    """From any instant, over any changes in between."""
    rng = random.Random(f"{SEED} ahead {part}")
    names = sorted(zone_names())
    for _ in range(5_000 if WANTED == "all" else 250):
        tz, after = rng.choice(names), datetime.fromtimestamp(rng.randint(FIRST, LAST), UTC)
        minute, hour = rng.choice(["0", "30", "0,45", "*/20"]), rng.choice(["0", "2", "1-3", "23", "*/6"])
        day, month = rng.choice(["1", "15", "L", "29", "1W"]), rng.choice(["*", "*/3", "3,10", str(rng.randint(1, 12))])
        expression = f"{minute} {hour} {day} {month} *"
        assert next_tick(Schedule(cron=expression, tz=tz), after, after) == slow_next(expression, tz, after)
