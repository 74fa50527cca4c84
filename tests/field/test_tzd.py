"""Zone rules: whose they are, what becomes of ticks when they change, and names that do not exist."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timedelta

import pytest
from rota import Client, cron
from rota.cli.main import app
from rota.sched.app import Call
from rota.sched.durations import instant
from rota.sched.errors import UsageError
from rota.sched.timing import advance, next_tick
from rota.sched.timing.zones import zone_source
from rota.sched.when import Schedule
from typer.testing import CliRunner

from tests.field.instants import ticks
from tests.integration.conftest import ROTA

MOVED = [
    ("America/Vancouver", "2026-11-01T16:00"),
    ("America/Edmonton", "2026-11-01T15:00"),
]


@pytest.mark.parametrize(("tz", "expected"), MOVED)
def test_tzd_01_rules_of_this_year_are_known_and_their_release_is_told(tz, expected):
    """With the system's files (`ZoneInfo(name)` in `zone`, sched/timing/zones.py) it is an hour off on this machine."""
    assert ticks("0 9 * * *", tz, "2026-10-31T18:00:00Z", 1) == [expected]
    told = json.loads(CliRunner().invoke(app, ["preview", "0 9 * * *", "--tz", tz, "--json"]).output)
    assert told["tz_database"] == {"package": "tzdata", "version": zone_source().version, "iana": zone_source().iana}


HOUR = timedelta(hours=1)
STORED = instant("2027-06-10T06:00:00Z", "stored")
"""9:00 in Cairo with summer time. Tripoli is Cairo without it, as if it had been withdrawn."""


def nine(tz):
    return Schedule(cron="0 9 * * *", tz=tz)


def test_tzd_03_a_rule_that_is_withdrawn_and_comes_back_loses_and_doubles_no_tick():
    """Without `_moved_by_new_rules` (sched/timing/plan.py) the job runs at 6:00 UTC and, by the other rules, at 7:00."""
    withdrawn = advance(nine("Africa/Tripoli"), "job", STORED, STORED, live=False)
    assert (withdrawn.fire, withdrawn.skipped, withdrawn.next) == ((), (), STORED + HOUR)
    again = advance(nine("Africa/Cairo"), "job", withdrawn.next, STORED + HOUR, live=False)
    assert again.fire == (STORED + HOUR,)
    assert again.next == STORED + 24 * HOUR


def test_tzd_03_a_tick_that_new_rules_put_earlier_is_late_and_not_lost():
    """Without `before == tick` in `_moved_by_new_rules` (sched/timing/plan.py) it is taken for that of 11:00."""
    nine_and_eleven = Schedule(cron="0 9,11 * * *", tz="Africa/Cairo")
    step = advance(nine_and_eleven, "job", STORED + HOUR, STORED + HOUR, live=False)
    assert (step.fire, step.next) == ((STORED + HOUR,), STORED + 2 * HOUR)


def test_tzd_04_one_expression_in_two_zones_is_two_schedules(store_url):
    """Without the zone in a schedule's JSON (`to_json` in sched/when.py) both are in UTC."""
    call = Call("send", {}, "mail")
    with Client.open(store_url) as client:
        refs = [client.submit(call, cron("0 15 * * *", tz=tz)) for tz in ("Europe/Madrid", "America/Chicago")]
        jobs = [client.get(ref.id).job for ref in refs]
    assert jobs[0]["id"] != jobs[1]["id"]
    hours = [datetime.fromisoformat(job["scheduled_for"]).hour for job in jobs]
    assert (hours[0] in {13, 14}, hours[1] in {20, 21}) == (True, True)


def test_tzd_06_without_a_zone_a_schedule_is_in_utc_wherever_it_is_computed():
    """Without the default of `tz` in `Schedule` (sched/when.py) a zone would have to be guessed."""
    command = [ROTA, "preview", "30 9 * * *", "--after", "2026-12-01T00:00:00Z", "--count", "1", "--json"]
    unset = {name: value for name, value in os.environ.items() if name != "TZ"}
    told = [
        json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        for env in (unset, {**unset, "TZ": "Asia/Tokyo"})
    ]
    assert told[0] == told[1]
    assert (told[0]["fires"], told[0]["tz"]) == (["2026-12-01T09:30:00Z"], "UTC")
    assert Schedule(cron="30 9 * * *").tz == "UTC"


@pytest.mark.parametrize(
    ("tz", "told"),
    [
        ("Europe/Chicago", "did you mean 'America/Chicago'"),
        ("../../etc/passwd", "use an IANA name"),
        ("", "use an IANA name"),
        ("utc", "did you mean 'UTC'"),
        ("US/Pacific-New", "did you mean 'US/Pacific'"),
    ],
)
def test_tzd_07_a_zone_that_does_not_exist_is_refused_with_one_that_does(tz, told):
    """Without `_suggestion` (sched/timing/zones.py) nothing is suggested."""
    with pytest.raises(UsageError, match=told):
        cron("0 9 * * *", tz=tz)
    assert next_tick(Schedule(cron="0 9 * * *", tz="EST5EDT"), STORED, STORED) == STORED + 7 * HOUR


def test_tzd_07_a_zone_that_has_stopped_existing_sets_its_schedule_aside_and_no_other(house):
    """Without the `except` around `advance` (`add` in sched/store/postgres/scheduling.py) the claim of all fails."""
    scheduler = house.join()
    gone, good = house.job(when=cron("0 9 * * *")), house.job()
    house.submit(gone, good)
    unknown = """update rota.job set schedule = '{"cron": "0 9 * * *", "tz": "Asia/Atlantis"}',
      next_run_at = now() - interval '1 minute' where id = %s"""
    house.sql(unknown, gone.id)
    claimed = house.claim(scheduler)
    assert [d.job_id for d in claimed.dispatches] == [good.id]
    told = house.sql("select paused, paused_reason from rota.job where id = %s", gone.id)[0]
    assert told[0]
    assert "'Asia/Atlantis' does not exist" in told[1]
