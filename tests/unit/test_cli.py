"""The command line without servers: exit codes, preview, config, logs, rates."""

import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rota.cli.logs import JsonFormatter, LineFormatter
from rota.cli.main import app
from rota.cli.picture import Rates
from rota.cli.preview import answer
from typer.testing import CliRunner

ENV = {f"ROTA_{name}": "" for name in ("STORE", "BROKER", "APP", "DEBUG", "QUEUES")}


def rota(*args, **options):
    return CliRunner().invoke(app, args, env={**ENV, **options.pop("env", {})}, **options)


def test_help_loads_no_driver_and_no_table():
    code = "import sys; from rota.cli.main import app; print([m for m in ('sqlalchemy','psycopg','pika','rich.table') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", sorted(c.name or c.callback.__name__ for c in app.registered_commands))
def test_every_command_has_help(command):
    assert rota(command, "--help").exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["jobs"], "ROTA_STORE"),
        (["jobs", "--store", "oracle://x"], "scheme"),
        (["jobs", "--limit", "0"], "limit"),
        (["worker", "--store", "postgresql://h/d", "--broker", "amqp://h"], "ROTA_APP"),
        (["scheduler", "--beat", "9s", "--store", "postgresql://h/d"], "ROTA_BEAT"),
        (["preview", "x"], "cron expression"),
        (["preview", "0 2 * * *", "--tz", "Mars/Base"], "Mars/Base"),
        (["preview"], "give an expression"),
        (["preview", "--batch", "/nowhere/file"], "/nowhere/file"),
        (["schema", "nope"], "job.submit"),
        (["top", "--store", "postgresql://h/d"], "rota status --json"),
    ],
)
def test_what_cannot_be_understood_exits_2_and_says_why(args, told):
    done = rota(*args)
    assert done.exit_code == 2
    assert told in done.output


def test_a_store_that_is_away_exits_3_without_its_password():
    done = rota("status", "--store", "postgresql://u:hush@127.0.0.1:1/x")
    assert done.exit_code == 3
    assert "hush" not in done.output


def test_config_masks_passwords():
    done = rota("config", "--json", env={"ROTA_STORE": "postgresql://u:hush@h/d"})
    assert json.loads(done.output)["store"] == "postgresql://u:***@h/d"


def test_a_batch_is_answered_line_by_line_in_order():
    lines = [
        '{"expr": "0 2 * * *", "after": "2026-11-30T00:00:00Z", "count": 1, "more": 1}',
        "nonsense",
        '{"expr": "x"}',
    ]
    done = rota("preview", "--batch", "-", input="\n".join(lines))
    one, two, three = map(json.loads, done.output.splitlines())
    assert one == {"fires": ["2026-11-30T02:00:00Z"]}
    assert "error" in two
    assert "error" in three


def test_a_preview_of_an_outage_tells_what_each_policy_would_make_of_it():
    words = ("preview", "*/10 * * * *", "--after", "2027-06-08T00:05:00Z", "--outage", "1d", "--catchup-limit", "20")
    told = json.loads(rota(*words, "--json").output)
    assert (told["due"], told["since"]) == (144, "2027-06-07T00:05:00Z")
    runs = {word: len(plan["runs"]) for word, plan in told["policies"].items()}
    assert runs == {"run_latest": 1, "run_earliest": 1, "run_all": 20, "skip": 0}
    for plan in told["policies"].values():
        assert len(plan["runs"]) + sum(each["count"] for each in plan["skipped"]) == 144
    assert "143 ticks" in rota(*words).output
    window = json.loads(rota(*words, "--catchup-window", "35m", "--json").output)
    assert len(window["policies"]["run_all"]["runs"]) == 4
    none = json.loads(
        rota("preview", "0 2 * * *", "--after", "2027-06-08T00:05:00Z", "--outage", "1h", "--json").output
    )
    assert none["due"] == 0
    assert {len(plan["runs"]) for plan in none["policies"].values()} == {0}


@pytest.mark.parametrize("wrong", [{"tz": 1}, {"after": []}, {"count": [1]}, {"count": 10**9}, {"count": True}])
def test_a_line_of_a_batch_with_wrong_types_is_an_error(wrong):
    assert set(answer(json.dumps({"expr": "0 2 * * *", **wrong}), 5)) == {"error"}


def record(message):
    return logging.LogRecord("rota.sched.x", logging.INFO, "f", 1, message, None, None)


def test_a_log_line_is_one_line_and_masks_passwords():
    line = LineFormatter().format(record("two\nlines amqp://u:hush@h/"))
    assert "\n" not in line
    assert "hush" not in line
    assert 'logger=sched.x message="two\\nlines amqp://u:***@h/"' in line


def test_a_log_line_masks_what_is_said_to_be_a_secret_and_is_bounded():
    noted = record("login with password=hushhush failed" + "x" * 100_000)
    error = ValueError("x" * 100_000 + "\ntoken: hushhush")
    noted.exc_info = (ValueError, error, None)
    line = LineFormatter().format(noted)
    assert "hush" not in line
    assert "token: ***" in line
    assert len(line) < 20_000


def test_json_logs_have_the_same_fields():
    assert set(json.loads(JsonFormatter().format(record("m")))) == {"at", "level", "logger", "message"}


def view(second, beat_s, **ended):
    return SimpleNamespace(
        now=f"2026-11-30T00:00:{second:02}.000000Z", members=[{"id": 1, "beat_s": beat_s, "ended": ended}]
    )


def test_rates_are_taken_between_heartbeats_not_between_looks():
    rates = Rates()
    for second, beat_s, n in ((1, 0.0, 10), (2, 1.0, 10), (6, 0.0, 60)):
        rates.add(view(second, beat_s, succeeded=n))
    assert rates.total() == {"succeeded": pytest.approx(10.0)}


def test_a_new_day_starts_rates_anew():
    rates = Rates()
    rates.add(view(1, 0.0, succeeded=1000))
    rates.add(view(6, 0.0, succeeded=1))
    assert rates.total() == {}


def test_the_version_is_one_word():
    done = rota("--version")
    assert (done.exit_code, len(done.output.split())) == (0, 1)


def test_a_preview_says_what_each_policy_makes_of_the_next_clock_changes():
    args = ["30 2 * * *", "--tz", "Europe/Paris", "--after", "2027-01-01T00:00:00Z", "--around-dst"]
    gap, overlap = json.loads(rota("preview", *args, "--json").output)["changes"]
    assert (gap["at"], gap["moved_s"]) == ("2027-03-28T01:00:00Z", 3600)
    assert gap["fires"] == {"run_after": ["2027-03-28T01:00:00Z"], "shift": ["2027-03-28T01:30:00Z"], "skip": []}
    first, last = "2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"
    assert overlap["fires"] == {"first": [first], "last": [last], "both": [first, last], "skip": []}
    assert "at 02:00 the clock goes forward to 03:00" in rota("preview", *args).output
    assert "does not change" in rota("preview", "30 2 * * *", "--around-dst").output


def test_a_preview_tells_wall_times_the_database_of_zones_and_what_may_not_be_meant():
    args = ["30 2 1-7 * sun", "--tz", "Europe/Paris", "--after", "2027-03-27T12:00:00Z", "--count", "1"]
    told = json.loads(rota("preview", *args, "--json").output)
    assert (told["nominal"], told["local"]) == (["2027-03-28T02:30:00"], ["2027-03-28T03:00:00+02:00"])
    assert told["tz_database"]["package"] == "tzdata"
    assert told["advice"][0].endswith("if you mean both, write '30 2 * * sun#1'")
    assert told["advice"][0] in rota("preview", *args).output


def test_a_preview_stops_where_a_schedule_ends_after_so_many_runs():
    args = ["0 2 * * *", "--after", "2027-01-01T00:00:00Z", "--json", "--max-runs"]
    assert len(json.loads(rota("preview", *args, "2").output)["fires"]) == 2
    assert len(json.loads(rota("preview", *args, "9").output)["fires"]) == 5
    assert "max_runs is 0" in rota("preview", *args, "0").stderr


def test_a_preview_shows_when_ticks_are_due_with_the_jitter_of_a_job():
    args = ["0 * * * *", "--jitter", "30m", "--after", "2027-01-01T00:00:00Z", "--json"]
    job = "01a22b2f-67dd-798b-aad5-ddfa2588df71"
    told = json.loads(rota("preview", *args, "--job", job).output)
    assert len(told["due"]) == len(told["fires"])
    assert all(
        fire[:13] == due[:13] and due[14:16] < "30" for fire, due in zip(told["fires"], told["due"], strict=True)
    )
    assert "full id" in rota("preview", *args, "--job", "nightly").stderr
    assert "belong together" in rota("preview", *args).stderr
