"""What cron expressions mean: day rules, steps, dates that never come, and what other programs write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from rota.cli.main import app
from rota.sched.errors import UsageError
from rota.sched.timing import advice
from rota.sched.timing.backlog import Backlog
from rota.sched.when import Schedule, cron
from typer.testing import CliRunner

from tests.field.instants import ticks

NEW_YEAR = "2027-01-01T00:00:00Z"


def refused(expression):
    with pytest.raises(UsageError) as error:
        cron(expression)
    return str(error.value)


def test_crn_01_a_day_field_that_begins_with_a_star_must_hold_with_the_other():
    """Without the two `star` in `_days_of_fields` (sched/timing/cron.py) it runs on the 30th."""
    expression = "*/25 */10 4-28 * */3"
    assert ticks(expression, "UTC", "2024-11-29T00:00:00Z", 5) == [
        "2024-12-04T00:00",
        "2024-12-04T00:25",
        "2024-12-04T00:50",
        "2024-12-04T10:00",
        "2024-12-04T10:25",
    ]
    assert "must both hold" in advice(cron(expression))[0]


def test_crn_02_of_two_restricted_day_fields_one_is_enough_and_that_is_said():
    """Without `if rule.either` in `_days` (sched/timing/cron.py) it waits for a 1 May; without `_day_rule` nothing is said."""
    assert ticks("* * 1 5 1-4", "UTC", "2024-05-20T09:57:48Z", 3) == [
        "2024-05-20T09:58",
        "2024-05-20T09:59",
        "2024-05-20T10:00",
    ]
    assert advice(cron("* * 1 5 1-4")) == ["day of month 1 or day of week 1-4: one of them is enough, as in cron"]


def test_crn_04_the_first_sunday_has_a_form_of_its_own_and_it_is_named():
    """Without `both` in `_day_rule` (sched/timing/advice.py) nobody learns of it."""
    assert ticks("0 2 1-7 * 0", "UTC", NEW_YEAR, 5) == [f"2027-01-0{day}T02:00" for day in (1, 2, 3, 4, 5)]
    assert ticks("0 2 * * 0#1", "UTC", NEW_YEAR, 3) == ["2027-01-03T02:00", "2027-02-07T02:00", "2027-03-07T02:00"]
    assert "write '0 2 * * 0#1'" in advice(cron("0 2 1-7 * 0"))[0]


def test_crn_05_the_fourth_saturday_is_not_the_fifth():
    """Without the end of the slice `each[number - 1 : number]` (sched/timing/cron.py) the fifth is one, too."""
    assert ticks("0 0 * * 6#4", "UTC", "2024-08-02T00:00:00Z", 5) == [
        f"2024-{day}T00:00" for day in ("08-24", "09-28", "10-26", "11-23", "12-28")
    ]


def test_crn_07_on_a_leap_day_the_next_one_is_found():
    """With a horizon (`YEARS` in sched/timing/cron.py) below four years there is none."""
    assert ticks("0 9 29 2 *", "UTC", "2016-02-29T09:00:00Z", 5) == [
        f"{year}-02-29T09:00" for year in (2020, 2024, 2028, 2032, 2036)
    ]


def test_crn_08_a_century_has_no_leap_day_and_the_next_is_eight_years_away():
    """With less than eight YEARS (sched/timing/cron.py) to look ahead there is none."""
    assert ticks("0 9 29 2 *", "UTC", "2096-02-29T09:00:00Z", 2) == ["2104-02-29T09:00", "2108-02-29T09:00"]


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4 *", "0 0 31 4,6,9,11 *", "0 0 29W 2 6#5"])
def test_crn_10_a_date_that_never_comes_is_refused_where_it_is_written(expression):
    """Without `_check_that_it_fires` in `parse` (sched/timing/cron.py) it is accepted."""
    if expression != "0 0 29W 2 6#5":  # one of the two is enough: the fifth Saturday of a leap February comes
        assert f"never fires: day of month {expression.split()[2]} does not come in month" in refused(expression)
    assert ticks("0 0 31 2,4 1", "UTC", NEW_YEAR, 2) == ["2027-02-01T00:00", "2027-02-08T00:00"]


def test_crn_11_a_schedule_that_never_fires_is_set_aside_with_a_reason_whatever_its_row_says(house):
    """Without the `except` around `advance` (`add` in sched/store/postgres/scheduling.py) the claim of all fails."""
    scheduler = house.join()
    bad, good = house.job(when=cron("0 0 1 1 *")), house.job()
    house.submit(bad, good)
    never = """update rota.job set schedule = '{"cron": "0 0 31 4 *"}', next_run_at = '0001-01-01Z' where id = %s"""
    house.sql(never, bad.id)
    claimed = house.claim(scheduler)
    assert [d.job_id for d in claimed.dispatches] == [good.id]
    assert [job for job, _ in claimed.broken] == [bad.id]
    assert "never fires" in house.sql("select paused_reason from rota.job where id = %s", bad.id)[0][0]
    assert house.claim(scheduler).dispatches == []


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "* * 31 2 *", "* * * 30 2 *"])
def test_crn_13_the_search_for_a_date_that_never_comes_ends(expression):
    """Without `last_year` in `next_match` (sched/timing/cron.py) it goes on for ever."""
    assert "never fires" in refused(expression)


def test_crn_14_a_range_that_descends_goes_round_in_every_field():
    """Without `_range` (sched/timing/fields.py) croniter's reading of steps through it counts, and 5-5 is everything."""
    assert ticks("0 8 * * FRI-MON", "UTC", NEW_YEAR, 5) == [f"2027-01-0{day}T08:00" for day in (1, 2, 3, 4, 8)]
    assert ticks("0 8 * * 5-1", "UTC", NEW_YEAR, 5) == ticks("0 8 * * fri-mon", "UTC", NEW_YEAR, 5)
    assert ticks("0 22-2/3 * * *", "UTC", NEW_YEAR, 3) == ["2027-01-01T01:00", "2027-01-01T22:00", "2027-01-02T01:00"]
    assert ticks("0 0 1 11-2 *", "UTC", NEW_YEAR, 3) == ["2027-02-01T00:00", "2027-11-01T00:00", "2027-12-01T00:00"]
    assert ticks("50-10/20 3 * * *", "UTC", NEW_YEAR, 2) == ["2027-01-01T03:10", "2027-01-01T03:50"]


def test_crn_16_steps_from_tuesday_never_come_to_sunday():
    """Without `croniter.expand` (sched/timing/fields.py), whose steps end at Saturday, a range up to 7 adds Sundays."""
    assert ticks("0 9 * * 2/2", "UTC", NEW_YEAR, 5) == [
        f"2027-01-{day}T09:00" for day in ("02", "05", "07", "09", "12")
    ]


def test_crn_17_seven_is_sunday_once():
    """Without 7 in the bounds of the day of week (`_BOUNDS` in sched/timing/fields.py) it is refused."""
    sundays = ["2027-01-03T00:00", "2027-01-10T00:00", "2027-01-17T00:00"]
    assert ticks("0 0 * * 7", "UTC", NEW_YEAR, 3) == ticks("0 0 * * 0,7", "UTC", NEW_YEAR, 3) == sundays
    assert ticks("0 0 * * 5-7", "UTC", NEW_YEAR, 3) == ["2027-01-02T00:00", "2027-01-03T00:00", "2027-01-08T00:00"]
    assert ticks("0 0 * * 1-7", "UTC", NEW_YEAR, 3) == [f"2027-01-0{day}T00:00" for day in (2, 3, 4)]


def test_crn_19_a_list_with_a_blank_in_it_is_not_taken_for_six_fields():
    """Without the look for an empty part in `read_field` (sched/timing/fields.py) it is another schedule."""
    assert refused("0 22, 10 * * *") == (
        "cron expression '0 22, 10 * * *': a blank or nothing beside the comma of '22,' in the minute"
    )


def test_crn_20_of_six_fields_the_seconds_come_first():
    """Without `FIELDS[-len(written) :]` (sched/timing/cron.py) it is another minute of another day."""
    assert ticks("0 0 12 * * 1", "UTC", NEW_YEAR, 1) == ["2027-01-04T12:00"]
    assert ticks("*/20 * * * * *", "UTC", NEW_YEAR, 3) == [
        "2027-01-01T00:00:20",
        "2027-01-01T00:00:40",
        "2027-01-01T00:01",
    ]


def test_crn_22_macros_are_what_they_say_and_reboot_has_a_message_of_its_own():
    """Without `_WORDS` (sched/timing/dialects.py) they are unknown words like any other."""
    for macro, fields in {"@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@yearly": "0 0 1 1 *"}.items():
        assert ticks(macro, "UTC", NEW_YEAR, 3) == ticks(fields, "UTC", NEW_YEAR, 3)
    assert ticks("@midnight", "UTC", NEW_YEAR, 3) == ticks("@daily", "UTC", NEW_YEAR, 3)
    assert "schedulers start and stop, and none of that is a boot" in refused("@reboot")
    assert "give an interval" in refused("@every 5m")


def test_crn_25_looking_back_ends_and_finds_the_last_ticks():
    """It looks forward over a growing span; without `short * 2` in `latest` (sched/timing/backlog.py) it never ends."""

    def last(expression, cursor, until, count):
        backlog = Backlog(Schedule(cron=expression), cursor, until - timedelta(microseconds=1))
        return [tick.strftime("%m-%d %H:%M") for tick in backlog.latest(count)]

    start, end = datetime(2018, 12, 5, tzinfo=UTC), datetime(2019, 1, 27, tzinfo=UTC)
    assert last("0 0 29-31 * 3-4", start, end, 4) == ["01-16 00:00", "01-17 00:00", "01-23 00:00", "01-24 00:00"]
    leap, end = datetime(2016, 2, 29, tzinfo=UTC), datetime(2024, 2, 28, tzinfo=UTC)
    assert last("* * 29 2 *", leap, end, 1) == ["02-29 23:59"]


CRONTAB = (
    "CRON_TZ=America/New_York\r\n"
    "MAILTO=root\n"
    "50 6 * * 1-5\troot\t/opt/x --health\n"
    '0 5 * * 0 root [ "$(date +\\%d)" -le 7 ] && run\n'
    "@reboot root /opt/start\n"
    "17 *\t* * *\troot\tcd / && run-parts"
)


def test_crn_23_each_line_of_a_real_crontab_is_imported_or_refused_by_its_number():
    """Without `user, _, rest` (`_entry` in sched/crontab.py) the user is taken for the first word of the command."""
    done = CliRunner().invoke(app, ["import", "crontab", "-", "--system", "--dry-run", "--json"], input=CRONTAB)
    told = {row["line"]: row for row in map(json.loads, done.output.splitlines())}
    assert done.exit_code == 1
    assert sorted(told) == [2, 3, 4, 5, 6]
    assert "MAILTO is not used" in told[2]["note"]
    assert (told[3]["tz"], told[3]["user"], told[3]["command"]) == ("America/New_York", "root", "/opt/x --health")
    assert told[4]["command"] == '[ "$(date +%d)" -le 7 ] && run'
    assert "none of that is a boot" in told[5]["error"]
    assert (told[6]["cron"], told[6]["command"]) == ("17 * * * *", "cd / && run-parts")
