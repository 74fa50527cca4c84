"""Clock changes: what is named in a gap, what comes twice, and that the next tick is always later than now."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from rota.cli.main import app
from rota.sched.durations import instant
from rota.sched.timing import fires, jitter_of, next_tick
from rota.sched.when import Schedule
from typer.testing import CliRunner

from tests.field.instants import ticks

ORACLE = Path(__file__).parent.parent / "cases" / "cron_oracle.jsonl"


def groups(*wanted):
    """The oracle's rows of these groups."""
    rows = [json.loads(line) for line in ORACLE.read_text(encoding="utf-8").splitlines()]
    found = [row for row in rows if row["group"] in wanted]
    assert {row["group"] for row in found} == set(wanted)
    return found


def agrees(row):
    found = ticks(row["expr"], row["tz"], row["after"], len(row["expected_utc"]))
    return [tick if len(tick) > 16 else f"{tick}:00" for tick in found] == [t[:-1] for t in row["expected_utc"]]


def test_dst_01_what_a_gap_swallowed_runs_once_right_after_it_with_the_time_that_was_named():
    """Without `_in_gap` (sched/timing/ticks.py) 2:30 is 3:30; without `_nominal` the time that was named is not told."""
    tz = "America/Los_Angeles"
    assert ticks("0 2 * * *", tz, "2025-03-08T20:00:00Z", 2) == ["2025-03-09T10:00", "2025-03-10T09:00"]
    assert ticks("30 2 * * *", tz, "2025-03-08T20:00:00Z", 2) == ["2025-03-09T10:00", "2025-03-10T09:30"]
    [fire] = fires(Schedule(cron="0 2 * * *", tz=tz), instant("2025-03-08T20:00:00Z", "after"), 1)
    assert (fire.nominal.isoformat(), fire.local.isoformat()) == ("2025-03-09T02:00:00", "2025-03-09T03:00:00-07:00")


def test_dst_03_a_time_of_day_that_comes_twice_runs_the_first_time_only():
    """Without `"first": [first]` in `_resolve` (sched/timing/ticks.py) it runs on both passes."""
    assert ticks("20 2 * * *", "Europe/Paris", "2020-10-24T12:00:00Z", 2) == ["2020-10-25T00:20", "2020-10-26T01:20"]
    assert ticks("0 2 * * 0", "Europe/Berlin", "2024-10-27T00:30:00Z", 1) == ["2024-11-03T01:00"]


def test_dst_04_asked_in_the_second_pass_the_next_tick_is_not_in_the_first():
    """Without `if instant > after` in `_next_of_all` (sched/timing/ticks.py) the job is due again at once."""
    assert ticks("30 1 * * *", "America/New_York", "2027-11-07T06:10:00Z", 1) == ["2027-11-08T06:30"]
    assert ticks("* * * * *", "America/New_York", "2026-11-01T06:30:15Z", 1) == ["2026-11-01T06:31"]
    assert all(agrees(row) for row in groups("overlap-start-inside"))


def test_dst_06_the_day_after_a_change_is_not_left_out_with_jitter_either():
    """Without `_epoch(tick) < end - _NEAR_SECONDS` in `_next_fixed` (sched/timing/ticks.py) it has the offset from before the change."""
    expected = ["2022-03-14T07:00", "2022-03-15T07:00"]
    assert ticks("0 0 * * *", "America/Los_Angeles", "2022-03-13T08:00:07Z", 2) == expected
    schedule = Schedule(cron="0 0 * * *", tz="America/Los_Angeles", jitter="1h")
    first, second = (instant(f"{tick}:00Z", "tick") for tick in expected)
    due = first + jitter_of(schedule, "job", first, second)
    assert first <= due < second
    assert next_tick(schedule, due, due) == second


def test_dst_07_a_time_far_from_the_change_is_not_moved():
    """Without `_epoch(tick) < end - _NEAR_SECONDS` in `_next_fixed` (sched/timing/ticks.py) it has the offset from before the change."""
    assert ticks("0 12 * * 1", "Europe/Amsterdam", "2013-10-26T12:00:00Z", 1) == ["2013-10-28T11:00"]
    assert ticks("4 16 * * *", "America/New_York", "2025-03-08T21:10:00Z", 1) == ["2025-03-09T20:04"]
    assert all(agrees(row) for row in groups("dst-day-daytime"))


def test_dst_09_a_hundred_ticks_over_a_change_are_each_later_than_the_last():
    """Without `if instant > after` in `_next_of_all` (sched/timing/ticks.py) two answers flip for ever."""
    for expression in ("0,15,30,45 6-22 * * *", "15 7,8,13,19 * * *"):
        found = ticks(expression, "Europe/Brussels", "2023-10-28T18:00:00Z", 100)
        assert found == sorted(set(found))
    assert all(agrees(row) for row in groups("multi-hour-list"))


def test_dst_10_a_list_of_hours_names_times_of_day():
    """Without `fixed` in `parse` (sched/timing/cron.py) what its hours mean is elapsed time."""
    tz = "America/Los_Angeles"
    for expression in ("0 7-8 * * *", "0 7,9 * * *"):
        assert ticks(expression, tz, "2020-03-08T12:00:00Z", 1) == ["2020-03-08T14:00"]
    assert ticks("0 2,4 * * *", tz, "2020-03-08T08:00:00Z", 2) == ["2020-03-08T10:00", "2020-03-08T11:00"]


def test_dst_12_every_two_hours_has_no_extra_run_in_the_gap_and_a_list_of_hours_has():
    """Without `fixed` in `parse` (sched/timing/cron.py) both are read in one way."""
    start = "2023-03-12T04:30:00Z"
    assert ticks("0 */2 * * *", "America/Toronto", start, 3) == [f"2023-03-12T{hour}:00" for hour in ("05", "08", "10")]
    assert ticks("0 0,2,4,6 * * *", "America/Toronto", start, 3) == [
        f"2023-03-12T{hour}:00" for hour in ("05", "07", "08")
    ]


def test_dst_13_a_midnight_that_does_not_exist_is_the_first_minute_that_does():
    """Without `_in_gap` (sched/timing/ticks.py) the next tick is another hour of that day."""
    assert ticks("0 0 * * 0", "America/Santiago", "2022-08-21T04:00:00Z", 4) == [
        "2022-08-28T04:00",
        "2022-09-04T04:00",
        "2022-09-11T04:00",
        "2022-09-18T03:00",
    ]
    assert ticks("0 6 * * *", "America/Santiago", "2018-08-11T12:00:00Z", 1) == ["2018-08-12T09:00"]
    assert all(agrees(row) for row in groups("midnight-gap"))


def test_dst_15_a_gap_of_half_an_hour_makes_no_tick_of_its_own():
    """Without `_in_gap` (sched/timing/ticks.py) 2:15 is 2:45."""
    tz = "Australia/Lord_Howe"
    assert ticks("0 * * * *", tz, "2026-10-03T14:10:00Z", 3) == [f"2026-10-03T{t}" for t in ("14:30", "16:00", "17:00")]
    assert ticks("15 2 * * *", tz, "2027-10-01T20:00:00Z", 1) == ["2027-10-02T15:30"]
    assert all(agrees(row) for row in groups("half-hour-dst"))


def test_dst_16_each_second_has_its_tick_while_the_hour_begins_again():
    """Without `- _SECOND` in `_next_elapsed` (sched/timing/ticks.py) the first second of the new offset is left out."""
    start = instant("2025-10-26T00:59:55Z", "start")
    expected = [(start + timedelta(seconds=n)).strftime("%H:%M:%S").removesuffix(":00") for n in range(1, 36)]
    found = ticks("* * * * * *", "Europe/Vienna", "2025-10-26T00:59:55Z", 35)
    assert [tick[11:] for tick in found] == expected
    every = Schedule(every=1.0, tz="Europe/Vienna")
    assert next_tick(every, start + timedelta(seconds=5), start) == start + timedelta(seconds=6)


def test_dst_18_of_two_ticks_in_the_repeated_hour_neither_comes_again():
    """Without `"first": [first]` in `_resolve` (sched/timing/ticks.py) there are four."""
    assert ticks("0,30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 3) == [
        "2026-10-25T00:00",
        "2026-10-25T00:30",
        "2026-10-26T01:00",
    ]


def test_dst_19_a_midnight_that_comes_twice_runs_once_with_its_own_date():
    """Without `"first": [first]` in `_resolve` (sched/timing/ticks.py) it runs on both."""
    assert ticks("0 0 * * *", "America/Havana", "2025-11-01T12:00:00Z", 2) == ["2025-11-02T04:00", "2025-11-03T05:00"]
    assert ticks("30 23 * * *", "America/Sao_Paulo", "2019-02-16T12:00:00Z", 1) == ["2019-02-17T01:30"]
    [fire] = fires(Schedule(cron="0 0 * * *", tz="America/Havana"), instant("2025-11-01T12:00:00Z", "after"), 1)
    assert (fire.nominal.isoformat(), fire.note) == ("2025-11-02T00:00:00", "first time of a repeated hour")
    assert all(agrees(row) for row in groups("midnight-overlap"))


def test_dst_21_what_happens_at_a_change_can_be_chosen_and_is_shown():
    """Without `_around` (sched/timing/around.py) nobody sees it before it happens."""

    def shown(expression):
        args = [expression, "--tz", "America/New_York", "--after", "2027-01-01T00:00:00Z", "--around-dst", "--json"]
        gap, overlap = json.loads(CliRunner().invoke(app, ["preview", *args]).output)["changes"]
        assert [gap["at"][:10], overlap["at"][:10]] == ["2027-03-14", "2027-11-07"]
        return gap["fires"], overlap["fires"]

    gap, overlap = shown("30 2 * * *")
    assert gap == {"run_after": ["2027-03-14T07:00:00Z"], "shift": ["2027-03-14T07:30:00Z"], "skip": []}
    gap, overlap = shown("30 1 * * *")
    assert {word: len(found) for word, found in overlap.items()} == {"first": 1, "last": 1, "both": 2, "skip": 0}
    assert overlap["first"] == ["2027-11-07T05:30:00Z"]
    _, overlap = shown("30 * * * *")
    assert {tuple(found) for found in overlap.values()} == {("2027-11-07T05:30:00Z", "2027-11-07T06:30:00Z")}


def test_dst_22_five_midnights_have_five_local_dates():
    """Without `_epoch(tick) < end - _NEAR_SECONDS` in `_next_fixed` (sched/timing/ticks.py) it has the offset from before the change."""
    schedule = Schedule(cron="0 0 * * *", tz="America/New_York", start="2026-03-07T00:00:00-05:00")
    found = fires(schedule, instant("2026-03-01T00:00:00Z", "after"), 5)
    assert [fire.utc.strftime("%d %H:%M") for fire in found] == [
        f"{day} 0{hour}:00" for day, hour in (("07", 5), ("08", 5), ("09", 4), ("10", 4), ("11", 4))
    ]
    assert [fire.local.strftime("%m-%d %H:%M") for fire in found] == [
        f"03-{day} 00:00" for day in ("07", "08", "09", "10", "11")
    ]
