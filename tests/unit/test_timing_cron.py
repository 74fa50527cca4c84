"""Cron expressions against a second, slow reading of them, minute by minute; and what is refused, with what remedy."""

# ruff: noqa: DTZ001 - wall times have no zone

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.timing import check_cron, next_tick
from rota.sched.timing.cron import next_match, parse
from rota.sched.timing.zones import zone
from rota.sched.when import Schedule

CASES = Path(__file__).parent.parent / "cases"
BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
DAY = timedelta(days=1)


def values(field, low, high):
    """The values of a field, read in the plainest way."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        else:
            a, _, b = span.partition("-")
            first = int(a)
            last = int(b) if b else (high if step else first)
        numbers = range(first, last + 1) if first <= last else [*range(first, high + 1), *range(low, last + 1)]
        found |= {n for i, n in enumerate(numbers) if i % int(step or 1) == 0}
    return found


def matches(expression, local):
    fields = expression.split()
    minutes, hours, days, months, weekdays = (values(f, *b) for f, b in zip(fields, BOUNDS, strict=True))
    if local.minute not in minutes or local.hour not in hours or local.month not in months:
        return False
    in_days, in_weekdays = local.day in days, (local.weekday() + 1) % 7 in weekdays
    if fields[2].startswith("*") or fields[4].startswith("*"):
        return in_days and in_weekdays
    return in_days or in_weekdays


@st.composite
def field(draw, low, high):
    def part():
        number = st.integers(low, high)
        step = draw(st.sampled_from(["", "", f"/{draw(st.integers(1, high))}"]))
        kind = draw(st.sampled_from(["*", "one", "range"]))
        if kind == "*":
            return f"*{step}"
        if kind == "one":
            return f"{draw(number)}{step}"
        first, last = sorted([draw(number), draw(number)])
        return f"{first}-{last}{step}"

    return ",".join(part() for _ in range(draw(st.sampled_from([1, 1, 2]))))


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)


def slow_matches(expression, start, end):
    at = start
    while at < end:
        if not matches(expression.replace(expression.split()[0], "*", 1), at):
            at = at.replace(minute=0) + timedelta(hours=1)
            continue
        for minute in range(60):
            if matches(expression, at.replace(minute=minute)):
                yield at.replace(minute=minute)
        at += timedelta(hours=1)


@given(EXPRESSIONS, st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1)))
@settings(max_examples=100, deadline=None)
def test_the_matches_are_those_of_a_slow_reading(expression, start):
    start = start.replace(minute=0, second=0, microsecond=0)
    expected = list(islice(slow_matches(expression, start, start + 70 * DAY), 20))
    cron, at, found = parse(expression), start - timedelta(seconds=1), []
    while len(found) < len(expected):
        at = next_match(cron, at)
        found.append(at)
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "hours"),
    [
        ("0 22-2 * * *", [0, 1, 2, 22, 23]),
        ("0 5-5 * * *", [5]),
        ("0 20-4/3 * * *", [2, 20, 23]),
        ("0 7 * * fri-sun", [7]),
    ],
)
def test_a_range_that_descends_goes_round_and_one_of_one_value_is_that_value(expression, hours):
    cron, at, found = parse(expression), datetime(2027, 1, 1) - timedelta(seconds=1), []
    while (at := next_match(cron, at)) < datetime(2027, 1, 2):
        found.append(at.hour)
    assert found == hours


def nearest(year, month, day):
    length = calendar.monthrange(year, month)[1]
    if day > length:
        return None
    working = [d for d in range(1, length + 1) if datetime(year, month, d).weekday() < 5]
    # of two that are equally near (there are none: a weekend has two days) the earlier
    return min(working, key=lambda d: (abs(d - day), d))


@pytest.mark.parametrize("day", [1, 2, 15, 28, 29, 30, 31])
def test_w_is_the_nearest_working_day_of_the_month(day):
    cron, at, found = parse(f"0 9 {day}W * *"), datetime(2026, 1, 1), []
    while (at := next_match(cron, at)).year < 2028:
        found.append((at.year, at.month, at.day))
    expected = [(y, m, nearest(y, m, day)) for y in (2026, 2027) for m in range(1, 13)]
    assert found == [e for e in expected if e[2] is not None]


def resolved(local, rules):
    """The instants of a local minute under the default rule for times of day."""
    at = local.replace(tzinfo=rules, fold=0).astimezone(UTC)
    while at.astimezone(rules).replace(tzinfo=None) != local:  # a gap: its end is the first local time past it
        if at.astimezone(rules).replace(tzinfo=None) < local:
            at += timedelta(minutes=1)
        else:
            before = at - timedelta(minutes=1)
            if before.astimezone(rules).replace(tzinfo=None) < local:
                return at
            at = before
    return at


CHANGES = [
    ("Europe/Paris", datetime(2027, 3, 28, 1)),
    ("Europe/Paris", datetime(2027, 10, 31, 1)),
    ("America/New_York", datetime(2027, 3, 14, 7)),
    ("America/New_York", datetime(2027, 11, 7, 6)),
    ("Australia/Lord_Howe", datetime(2027, 10, 2, 15, 30)),
    ("Australia/Lord_Howe", datetime(2027, 4, 3, 15)),
    ("America/Havana", datetime(2025, 11, 2, 5)),
    ("America/Santiago", datetime(2022, 9, 11, 4)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10)),
    ("Africa/Casablanca", datetime(2022, 3, 27, 2)),
    ("Asia/Tokyo", datetime(2027, 6, 1)),
]


@given(
    st.sampled_from(CHANGES),
    st.lists(st.integers(0, 59), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 23), min_size=1, max_size=8, unique=True),
    st.integers(0, 48 * 60),
)
@settings(max_examples=150, deadline=None)
def test_times_of_day_around_a_clock_change_are_those_of_a_slow_reading(change, minutes, hours, before):
    tz, instant = change
    start = instant.replace(tzinfo=UTC) - timedelta(minutes=before)
    rules, first = zone(tz), (instant - 4 * DAY).replace(hour=0, minute=0)
    locals_ = [first + d * DAY + timedelta(hours=h, minutes=m) for d in range(9) for h in hours for m in minutes]
    expected = sorted({at for at in (resolved(local, rules) for local in locals_) if at > start})[:6]
    schedule = Schedule(cron=f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *", tz=tz)
    found, at = [], start
    for _ in expected:
        at = next_tick(schedule, at, start)
        found.append(at)
    assert found == expected


@given(
    st.sampled_from(CHANGES), st.sampled_from(["*/7 * * * *", "*/20 */2 * * *", "5,35 * * * *"]), st.integers(0, 2880)
)
@settings(max_examples=60, deadline=None)
def test_wildcards_follow_elapsed_time(change, expression, before):
    tz, instant = change
    start = instant.replace(tzinfo=UTC) - timedelta(minutes=before)
    minutes = (start + timedelta(minutes=i) for i in range(1, 3 * 1440))
    expected = list(islice((m for m in minutes if matches(expression, m.astimezone(zone(tz)))), 40))
    found, at = [], start
    for _ in expected:
        at = next_tick(Schedule(cron=expression, tz=tz), at, start)
        found.append(at)
    assert found == expected


GAP = datetime(2027, 3, 27, 12, tzinfo=UTC)
OVERLAP = datetime(2027, 10, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("policy", "after", "expected"),
    [
        ({"dst_gap": "run_after"}, GAP, ["28 01:00", "29 00:30"]),
        ({"dst_gap": "shift"}, GAP, ["28 01:30", "29 00:30"]),
        ({"dst_gap": "skip"}, GAP, ["29 00:30", "30 00:30"]),
        ({"dst_overlap": "first"}, OVERLAP, ["31 00:30", "01 01:30"]),
        ({"dst_overlap": "last"}, OVERLAP, ["31 01:30", "01 01:30"]),
        ({"dst_overlap": "both"}, OVERLAP, ["31 00:30", "31 01:30"]),
        ({"dst_overlap": "skip"}, OVERLAP, ["01 01:30", "02 01:30"]),
    ],
)
def test_policies_of_clock_changes(policy, after, expected):
    schedule = Schedule(cron="30 2 * * *", tz="Europe/Paris", **policy)
    first = next_tick(schedule, after, after)
    assert [t.strftime("%d %H:%M") for t in (first, next_tick(schedule, first, after))] == expected


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("0 0 31 2 *", r"'0 0 31 2 \*' never fires: day 31 does not come in month 2"),
        ("0 0 30W 2 *", "never fires"),
        ("*/0 * * * *", "the step of '\\*/0' in the minute is 0"),
        ("60 * * * *", "60 is no minute: write 0 to 59"),
        ("0 22, 10 * * *", "beside the comma of '22,'"),
        ("@reboot", "@reboot is not supported: schedulers start and stop"),
        ("@every 5m", "give an interval"),
        ("@fortnightly", "use one of @yearly"),
        ("CRON_TZ=Asia/Tokyo 0 0 * * *", "time zone"),
        ("0 0 12 1 1 ? 2030", "a year field is not supported"),
        ("H * * * *", "jitter"),
        ("0 0 * * monday", "write 'mon'"),
        ("0 0 1 january *", "write 'jan'"),
        ("cron(0 3 ? * SUN *)", "AWS"),
        ("0 0 LW * */2", "W in the day of month"),
        ("", "0 fields"),
    ],
)
def test_what_is_refused_says_why(expression, told):
    with pytest.raises(UsageError, match=told):
        check_cron(expression, "UTC")


@pytest.mark.parametrize("tz", ["Europe/Chicago", "../../etc/passwd", "", "utc", "US/Pacific-New"])
def test_a_zone_that_does_not_exist_is_refused(tz):
    with pytest.raises(UsageError, match="time zone"):
        check_cron("0 0 * * *", tz)


@given(st.text(st.sampled_from("0123456789*/,-#LW?@ abcdhmnosuy"), max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_schedule_or_a_usage_error(text):
    try:
        check_cron(text, "UTC")
    except UsageError as error:
        assert text.strip() in str(error) or repr(text)[1:-1] in str(error)  # noqa: PT017


def test_public_expressions_parse_or_are_of_another_dialect():
    refused = []
    for line in (CASES / "cron_expressions.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        expression, dialect, *_ = line.split("\t")
        if dialect.startswith(("vixie", "github", "k8s")) and len(expression.split()) == 5:
            try:
                parse(expression)
            except UsageError as error:
                refused.append((expression, "never fires" in str(error) or "the step of '*/0'" in str(error)))
    assert [expression for expression, rightly in refused if not rightly] == []


def test_zones_are_those_of_the_package_and_not_of_the_system():
    assert zone("Europe/Paris") is not ZoneInfo("Europe/Paris")
