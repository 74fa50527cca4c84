"""Cron expressions against a second, slow reading of them, minute by minute; and what is refused, with what remedy."""

# ruff: noqa: DTZ001 - wall times have no zone

from __future__ import annotations

import re
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

from tests.unit.slow_cron import DAY, SlowCron, nearest

CASES = Path(__file__).parent.parent / "cases"


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
    cron, at = SlowCron(expression), start
    while at < end:
        if at.hour in cron.hours and cron.has_date(at):
            yield from (at.replace(minute=minute) for minute in sorted(cron.minutes))
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


@pytest.mark.parametrize("day", [1, 2, 15, 28, 29, 30, 31])
def test_w_is_the_nearest_working_day_of_the_month(day):
    cron, at, found = parse(f"0 9 {day}W * *"), datetime(2026, 1, 1), []
    while (at := next_match(cron, at)).year < 2028:
        found.append((at.year, at.month, at.day))
    expected = [(y, m, nearest(y, m, day)) for y in (2026, 2027) for m in range(1, 13)]
    assert found == [e for e in expected if e[2] is not None]


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
        ("0 0 31 2 *", r"'0 0 31 2 \*' never fires: day of month 31 does not come in month 2"),
        ("0 0 30W 2 *", "never fires"),
        ("*/0 * * * *", "the step of '\\*/0' in the minute is 0"),
        ("60 * * * *", "60 is no minute: write 0 to 59"),
        ("0 22, 10 * * *", "beside the comma of '22,'"),
        ("@reboot", "@reboot, which is not supported: schedulers start and stop"),
        ("@every 5m", "give an interval"),
        ("@fortnightly", "use one of @yearly"),
        ("CRON_TZ=Asia/Tokyo 0 0 * * *", "write '0 0 [*] [*] [*]', and the zone"),
        ("0 0 12 1 1 ? 2030", "write '0 0 12 1 1 [*]' with the years 2030 as the schedule's start and end"),
        ("H * * * *", "jitter"),
        ("0 0 * * monday", "write 'mon'"),
        ("0 0 1 january *", "write 'jan'"),
        ("cron(0 3 ? * 2-6 *)", "AWS's form: write '0 3 [*] [*] mon-fri'"),
        ("rate(5 minutes)", "an interval"),
        ("0 0 12 ? * 2-6", "write '0 0 12 [*] [*] mon-fri'"),
        ("0 0 12 ? * 6#3", "write '0 0 12 [*] [*] fri#3'"),
        ("0 18 * * ? *", "AWS's order, with a year at the end: write '0 18 [*] [*] [*]'"),
        ("0 0 * * 1-5#2", "'1#2' for the second Monday"),
        ("*/99999 * * * *", r"'\*/99999' is no minute"),
        ("0 0 L-3 * *", "days before the last"),
        ("", "0 fields"),
    ],
)
def test_what_is_refused_says_why(expression, told):
    with pytest.raises(UsageError, match=told):
        check_cron(expression, "UTC")


def test_an_expression_of_a_million_characters_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match="1000 are the most") as refused:
        check_cron("1," * 500_000 + "1 * * * *", "UTC")
    assert len(str(refused.value)) < 200


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


PUBLIC = [
    line.split("\t")[:2] for line in (CASES / "cron_expressions.tsv").read_text(encoding="utf-8").splitlines()[1:]
]
REFUSED = {
    "@reboot": "not supported",
    "*/0 * * * *": "the step of '*/0' in the minute is 0",
    "* * 31 4 *": "never fires",
    "0 0 31 2 *": "never fires",
    "0 0 30 2 *": "never fires",
    "0 0 31 4 *": "never fires",
    "0 22, 10 * * *": "beside the comma",
}


def test_public_expressions_parse_but_for_those_that_nobody_can_mean():
    refused = {}
    for expression, dialect in PUBLIC:
        if dialect.startswith(("vixie", "github", "k8s", "celery", "6-field")):
            try:
                parse(expression)
            except UsageError as error:
                refused[expression] = str(error)
    zoned = refused.pop("CRON_TZ=America/New_York 0 9 18 * * 1")
    assert "the zone as the schedule's" in zoned
    assert refused.keys() == REFUSED.keys()
    assert [e for e, told in REFUSED.items() if told not in refused[e]] == []


def test_of_another_dialect_either_the_meaning_is_the_same_or_the_form_that_works_is_named():
    for expression, dialect in PUBLIC:
        if dialect.startswith(("quartz", "aws")):
            try:
                parse(expression)
            except UsageError as error:
                for form in re.findall(r"write '(.+?)'", str(error)):
                    if "L-3" not in expression:
                        parse(form)


def test_zones_are_those_of_the_package_and_not_of_the_system():
    assert zone("Europe/Paris") is not ZoneInfo("Europe/Paris")
