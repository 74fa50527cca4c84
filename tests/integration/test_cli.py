"""The command line on a real store."""

import json
import os
import signal
import subprocess
import time
from contextlib import closing

import psycopg
import pytest
from rota import Client
from rota.cli.main import app
from rota.sched.dead import ALIVE
from rota.sched.store import open_store
from rota.sched.store.values import HandlerRow
from typer.testing import CliRunner

from tests.conftest import BOUND
from tests.integration.conftest import ROTA
from tests.integration.terminal import Terminal

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture
def rota(store_url):
    store = open_store(store_url)
    link = store.link("test")
    link.run(store.announce([HandlerRow("send", "app", "mail", SCHEMA)], ["mail"]))
    link.close()
    return lambda *args: CliRunner().invoke(app, args, env={"ROTA_STORE": store_url, "ROTA_DEBUG": ""})


def test_a_key_used_again_prints_the_same_id_and_with_another_request_is_refused(rota):
    one, two = (rota("submit", "send", "--args", '{"n": 1}', "--key", "k") for _ in range(2))
    assert one.exit_code == 0
    assert one.output == two.output
    other = rota("submit", "send", "--args", '{"n": 2}', "--key", "k")
    assert (other.exit_code, one.output.strip() in other.output) == (1, True)


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["sned"], 1, "known are send"),
        (["send", "--args", "{n"], 2, "not JSON"),
        (["send", "--args", "[1]"], 2, "JSON object"),
        (["send", "--args", '{"m": 1}'], 2, "send"),
        (["send", "--args", '{"n": 1}', "--cron", "x"], 2, "cron"),
        (["send", "--args", '{"n": 1}', "--at", "2026-12-01T09:00:00"], 2, "offset"),
        (["send", "--args", '{"n": 1}', "--in", "5m", "--every", "5m"], 2, "exclude"),
        (["send", "--args", '{"n": 1}', "--jitter", "5s"], 2, "--jitter"),
    ],
)
def test_a_submit_that_cannot_be_is_told_why(rota, args, code, told):
    done = rota("submit", *args)
    assert done.exit_code == code
    assert told in done.output
    assert rota("jobs", "--json").output == ""


def test_cancel_says_for_each_what_it_did_and_fails_if_one_was_not_there(rota):
    rota("submit", "send", "--args", '{"n": 1}', "--every", "1h", "--name", "hourly")
    done = rota("cancel", "hourly", "nothere", "--json")
    first, second = map(json.loads, done.output.splitlines())
    assert (done.exit_code, first["job"], "error" in second) == (1, True, True)


def test_a_schedule_is_changed_paused_resumed_and_triggered_and_all_that_is_shown(rota):
    submit = ("submit", "send", "--args", '{"n": 1}', "--name", "nightly")
    rota(*submit, "--cron", "0 2 * * *", "--tz", "Europe/Paris", "--exclude", "2026-12-25", "--grace", "5m")
    done = rota(
        "update", "nightly", "--tz", "Europe/Rome", "--grace", "none", "--args", '{"n": 2}', "--reason", "moved"
    )
    assert (done.exit_code, done.output[:20]) == (0, "nightly: version 2, ")
    assert rota("update", "--name", "nightly", "--tz", "Europe/Rome", "--version", "1").output.startswith(
        "nightly: nothing to change, version 2"
    )
    stale = rota("update", "nightly", "--misfire", "skip", "--version", "1")
    assert (stale.exit_code, "is at version 2, not 1" in stale.output, "Europe/Paris" in stale.output) == (
        1,
        True,
        True,
    )
    assert rota("update", "nightly", "--args", '{"m": 1}').exit_code == 2
    assert rota("update", "nightly").exit_code == 2
    refused = rota(*submit, "--cron", "0 3 * * *")
    assert (refused.exit_code, "rota update nightly" in refused.output) == (1, True)

    assert rota("pause", "nightly", "--reason", "too late").output == "nightly: paused\n"
    again = rota("pause", "nightly", "nothere")
    assert (again.exit_code, "was paused by" in again.output) == (1, True)
    row = json.loads(rota("jobs", "--state", "paused", "--json").output)
    assert (row["paused_reason"], row["version"], "@" in row["paused_by"]) == ("too late", 2, True)
    assert "too late" in rota("jobs").output
    assert rota("trigger", "nightly").output.startswith("nightly: runs now, though it is paused, as ")
    assert rota("resume", "nightly").output == "nightly: resumed\n"
    assert rota("resume", "nightly").output == "nightly: was not paused\n"
    shown = rota("show", "nightly").output
    assert "0 2 * * * Europe/Rome, exclude 2026-12-25\n" in shown
    told = [line.split(" by ")[0].strip() for line in shown.splitlines() if " by " in line]
    assert told == ["changed", "paused", "triggered", "resumed"]
    assert 'tz from "Europe/Paris" to "Europe/Rome": moved' in shown


def test_a_retry_policy_is_changed_and_given_up_number_by_number(rota):
    rota(
        "submit",
        "send",
        "--args",
        '{"n": 1}',
        "--name",
        "daily",
        "--every",
        "1d",
        "--attempts",
        "3",
        "--retry-for",
        "1h",
    )

    def retry(*options):
        assert rota("update", "daily", *options).exit_code == 0
        return json.loads(rota("show", "daily", "--json").output)["job"]["policy"]

    assert retry("--attempts", "5") == {"retry": {"attempts": 5, "retry_for": 3600.0}}
    assert retry("--retry-for", "none") == {"retry": {"attempts": 5}}
    assert retry("--attempts", "none") is None
    refused = rota("update", "daily", "--attempts", "many")
    assert (refused.exit_code, "--attempts is 'many'" in refused.stderr) == (2, True)


def test_queues_and_the_jobs_of_a_handler_are_paused_and_resumed(rota):
    ids = [rota("submit", "send", "--args", '{"n": 1}', "--in", "1h").output.strip() for _ in range(3)]
    done = rota("pause", "--handler", "send", "--json")
    assert {json.loads(line)["id"] for line in done.output.splitlines()} == set(ids)
    assert rota("resume", "--handler", "send").output.count(": resumed\n") == 3
    assert rota("resume", "--handler", "send").output == "handler send has no job to resume\n"
    assert rota("pause", "--queue", "mail", "--reason", "SMTP is down").output == "queue mail: paused\n"
    assert "paused by" in rota("status").output
    assert "its queue is paused" in rota("jobs").output
    assert "its queue is paused" in rota("show", ids[0]).output
    assert rota("resume", "--queue", "mail").exit_code == 0
    assert rota("pause", "--queue", "nothere").exit_code == 1
    assert rota("pause").exit_code == rota("pause", "x", "--queue", "mail").exit_code == 2


def test_a_named_schedule_is_listed_and_shown(rota):
    submit = [
        "submit",
        "send",
        "--args",
        '{"n": 1}',
        "--cron",
        "0 2 * * *",
        "--tz",
        "Europe/Paris",
        "--name",
        "nightly",
    ]
    job_id = rota(*submit).output.strip()
    shown = json.loads(rota("show", "nightly", "--json").output)
    assert (shown["id"], shown["state"]) == (job_id, "scheduled")
    assert job_id[:18] in rota("jobs").output
    assert rota("show", f"{job_id}@2020-01-01T00:00:00Z").exit_code == 1


def test_a_schedule_that_ends_after_so_many_runs_says_how_many_are_left(rota):
    submit = ["submit", "send", "--args", '{"n": 1}', "--every", "1h", "--overlap", "buffer_one"]
    job_id = rota(*submit, "--max-runs", "2").output.strip()
    job = json.loads(rota("show", job_id, "--json").output)["job"]
    assert (job["runs_left"], job["schedule"]) == (2, {"every": 3600.0, "overlap": "buffer_one", "max_runs": 2})
    assert "ends after 2 more runs" in rota("show", job_id).output
    assert "max_runs is 0" in rota(*submit, "--max-runs", "0").stderr
    assert json.loads(rota("load", "--json").output)["fires"] == 2
    assert rota("runs", "--state", "buffered").exit_code == 0


def test_the_status_has_its_stable_keys(rota):
    status = json.loads(rota("status", "--json").output)
    keys = {"members", "partitions", "jobs", "runs", "ended", "dead", "queues", "lag", "degraded"}
    assert keys <= set(status)
    assert rota("status").exit_code == 0


DEAD = """
insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses, due_at, claimed_at)
select gen_random_uuid(), '2026-01-01T00:00:00Z', now() - make_interval(secs => %s - n), 'timed out', 1, 'mail',
  case when n %% 2 = 0 then 'send' else 'gone' end, '{"n": 1}', 3, 0, now(), now()
from generate_series(1, %s) n returning job_id::text || '@2026-01-01T00:00:00.000000Z'
"""

DIED_BEFORE = """
insert into rota.dead (job_id, scheduled_for, died_at, reason, part, queue, handler, args, attempt, losses, due_at, claimed_at)
select job_id, scheduled_for, now(), 'timed out', part, queue, handler, args, 3, 0, due_at, claimed_at from rota.run
"""


@pytest.fixture
def dead(rota, store_url):
    """Makes so many dead runs, a second apart, of two handlers in turn; gives them, the oldest first."""

    def make(number):
        with psycopg.connect(store_url, autocommit=True) as connection:
            return [row[0] for row in connection.execute(DEAD, [number, number]).fetchall()]

    return make


def counts(done):
    """The last line, for scripts."""
    return json.loads(done.stdout.splitlines()[-1])


def test_a_redrive_without_a_choice_is_a_usage_error_and_of_nothing_does_nothing(rota):
    assert rota("redrive").exit_code == 2
    assert "no dead run fits" in rota("redrive", "--queue", "mail").output


def test_a_redrive_takes_everything_that_fits_in_portions_and_says_how_many(rota, dead, store_url):
    dead(1201)
    assert "1201 runs would be redriven" in rota("redrive", "--all", "--dry-run").output
    done = rota("redrive", "--queue", "mail", "--rate", "100/s")
    assert (done.exit_code, done.output) == (0, "1201 runs redriven, the last one in 12.0 s\n")
    with psycopg.connect(store_url) as connection:
        ((span, who),) = connection.execute(
            "select round(extract(epoch from max(ready_at) - min(ready_at)), 2)::float8, min(lineage -> 0 ->> 'by') from rota.run"
        ).fetchall()
    assert span == 12.0  # portions do not begin anew
    assert "@" in who


def test_a_redrive_on_a_terminal_shows_how_far_it_is_and_leaves_the_counts(rota, dead, store_url):
    dead(600)
    with closing(Terminal(dict(os.environ), "redrive", "--all", "--store", store_url)) as terminal:
        assert terminal.process.wait(BOUND) == 0
        end = time.monotonic() + BOUND
        while b"600 runs redriven" not in terminal.drawn:
            assert time.monotonic() < end, terminal.drawn
            time.sleep(0.01)
    assert b"dead runs" in terminal.drawn
    assert b"600/600" in terminal.drawn


def test_what_is_alive_again_is_not_redriven_and_its_old_death_can_be_settled(rota, dead, store_url):
    (run,) = dead(1)
    assert rota("redrive", run).exit_code == 0
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(DIED_BEFORE)
    assert f"1 not: {ALIVE}" in rota("redrive", "--all").output
    refused = rota("redrive", run)
    assert (refused.exit_code, ALIVE in refused.stderr) == (1, True)
    assert "1 run discarded" in rota("discard", "--all").output
    assert json.loads(rota("show", run, "--json").output)["state"] == "waiting"


def test_a_limit_takes_the_oldest_and_says_that_more_are_left(rota, dead):
    first, *_ = dead(3)
    done = rota("redrive", "--error", "TIMED", "--limit", "1", "--json")
    taken = json.loads(done.output.splitlines()[0])
    assert f"{taken['job_id']}@{taken['scheduled_for']}" == first
    assert (counts(done)["redriven"], counts(done)["more"]) == (1, True)
    assert "more fit and are still dead" in rota("redrive", "--all", "--limit", "1").output
    assert "more" not in rota("redrive", "--all", "--limit", "1").output


def test_runs_that_are_named_are_refused_one_by_one_with_what_to_do(rota, dead):
    one, other = dead(2)
    nowhere = one.replace(one[:8], "00000000")
    assert rota("redrive", one).exit_code == 0
    done = rota("redrive", one, other, nowhere)
    assert done.exit_code == 1
    assert f"{other[:18]}@" in done.stdout
    assert "not dead but waiting" in done.stderr
    assert "there is no job" in done.stderr
    assert rota("cancel", one).exit_code == 0
    assert "it has ended as cancelled" in rota("redrive", one).output


def test_what_was_redriven_often_enough_is_left_alone_and_who_did_it_is_told(rota, dead, store_url):
    one, _ = dead(2)
    with psycopg.connect(store_url, autocommit=True) as connection:
        lineage = '[{"at": "2026-01-01T00:00:00.000000Z", "by": "bob@there", "reason": "x", "attempts": 3}]'
        connection.execute("update rota.dead set lineage = %s where job_id = %s", [lineage, one.partition("@")[0]])
    assert "1, by bob@there" in rota("dead").output
    assert "redriven at 2026-01-01 00:00:00 by bob@there, after 3 attempts: x" in rota("show", one).output
    (told,) = [row for row in map(json.loads, rota("dead", "--json").output.splitlines()) if row["redrives"]]
    assert told["lineage"][0]["by"] == "bob@there"
    done = rota("redrive", "--all", "--max-redrives", "1", "--json")
    assert (counts(done)["redriven"], counts(done)["left_alone"]) == (1, 1)


def test_new_arguments_are_checked_against_what_the_handler_announced(rota, dead):
    dead(4)
    refused = rota("redrive", "--handler", "send", "--args", '{"n": "x"}')
    assert (refused.exit_code, "n is 'x'" in refused.output) == (2, True)
    # One handler cannot take them, nobody knows the other: that one may.
    done = rota("redrive", "--all", "--args", '{"n": "x"}', "--json")
    assert (counts(done)["redriven"], counts(done)["refused"]) == (2, 2)


def test_a_discard_says_who_and_why_in_history(rota, dead):
    dead(3)
    assert "2 runs would be discarded" in rota("discard", "--all", "--limit", "2", "--dry-run").output
    assert "3 runs discarded" in rota("discard", "--queue", "mail", "--reason", "too late").output
    past = [json.loads(line) for line in rota("runs", "--history", "--json").output.splitlines()]
    assert {row["outcome"] for row in past} == {"discarded"}
    (reason,) = {row["reason"] for row in past}
    assert "discarded by " in reason
    assert reason.endswith(": too late; it died of: timed out")
    assert rota("dead", "--json").output == ""


def test_a_redrive_that_is_interrupted_says_how_many_were_done_and_the_same_command_goes_on(rota, dead, store_url):
    dead(3000)
    command = [ROTA, "redrive", "--all", "--json", "--store", store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as redrive:
        redrive.stdout.readline()
        redrive.send_signal(signal.SIGINT)
        out, told = redrive.communicate(timeout=BOUND)
    assert redrive.returncode == 130
    done = json.loads(out.splitlines()[-1])
    assert done["interrupted"]
    assert 0 < done["redriven"] < 3000
    assert f"interrupted: {done['redriven']} redriven" in told
    assert counts(rota("redrive", "--all", "--json"))["redriven"] == 3000 - done["redriven"]


def test_what_dies_while_a_redrive_is_under_way_is_not_taken_by_it(rota, dead, store_url):
    """Else a run that fails at once would go round as long as the command does."""
    dead(600)
    with Client.open(store_url) as client:
        done = client.redrive(everything=True, progress=lambda *_: dead(1))
        assert (len(done), done.more) == (600, False)
    assert "2 runs redriven" in rota("redrive", "--all").output


def test_what_progress_raises_ends_a_redrive_between_two_portions(rota, dead, store_url):
    def stop(batch, total):
        raise LookupError(f"{len(batch.taken)} of {total}")

    dead(600)
    with Client.open(store_url) as client, pytest.raises(LookupError, match="500 of 600"):
        client.redrive(queue="mail", progress=stop)
    assert "100 runs redriven" in rota("redrive", "--all").output


def test_a_store_without_schema_exits_3_and_migrate_mends_it(empty_store_url):
    def run(*args):
        return CliRunner().invoke(app, [*args, "--store", empty_store_url], env={"ROTA_DEBUG": ""})

    before = run("status")
    assert (before.exit_code, "rota migrate" in before.output) == (3, True)
    assert [run("migrate").exit_code for _ in range(2)] == [0, 0]
    assert run("status").exit_code == 0


def test_top_for_scripts_is_the_status_again_and_again(rota, store_url):
    command = [ROTA, "top", "--json", "--interval", "0.1", "--store", store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        lines = [json.loads(top.stdout.readline()) for _ in range(2)]
        top.kill()
    assert all({"members", "queues", "degraded"} <= line.keys() for line in lines)
    assert lines[0]["now"] < lines[1]["now"]


def test_a_crontab_is_imported_once_where_the_handler_is_known(rota, store_url, tmp_path):
    file = tmp_path / "crontab"
    file.write_text("CRON_TZ=Asia/Tokyo\n0 9 * * 1-5 /opt/report\n0 22, 10 * * * x\n", encoding="utf-8")
    without = rota("import", "crontab", str(file))
    assert (without.exit_code, "app.handler(rota_command)" in without.output) == (1, True)
    store = open_store(store_url)
    link = store.link("test")
    link.run(store.announce([HandlerRow("rota_command", "app", "cron", {})], ["cron"]))
    link.close()
    first, again = (rota("import", "crontab", str(file), "--json") for _ in range(2))
    (done, refused), (same, _) = ([json.loads(line) for line in each.output.splitlines()] for each in (first, again))
    assert (first.exit_code, done["line"], done["done"], refused["line"]) == (1, 2, "imported", 3)
    assert (same["done"], same["job_id"]) == ("there already", done["job_id"])
    (job,) = map(json.loads, rota("jobs", "--json").output.splitlines())
    assert job["schedule"] == {"cron": "0 9 * * 1-5", "tz": "Asia/Tokyo"}
    assert (job["queue"], job["args"]) == ("cron", {"command": "/opt/report"})


def test_the_load_of_stored_schedules_names_its_spikes(rota):
    for name in ("one", "two"):
        rota("submit", "send", "--args", '{"n": 1}', "--cron", "30 * * * *", "--name", name)
    rota("submit", "send", "--args", '{"n": 1}', "--in", "5m")
    told = json.loads(rota("load", "--json").output)
    assert (told["schedules"], told["fires"], told["peak"]) == (2, 48, 2)
    assert told["spikes"][0]["schedules"] == [{"schedule": "30 * * * * UTC", "fires": 2}]
    assert "the busiest minute has 2" in rota("load").output


def test_a_schedule_that_cannot_be_read_is_left_out_of_the_load_and_told(rota, store_url):
    for name in ("good", "bad"):
        rota("submit", "send", "--args", '{"n": 1}', "--cron", "30 * * * *", "--name", name)
    with psycopg.connect(store_url) as connection:
        connection.execute("""update rota.job set schedule = '{"cron": "0 0 31 4 *"}' where name = 'bad'""")
    done = rota("load", "--json")
    assert json.loads(done.stdout)["schedules"] == 1
    assert "never fires" in done.stderr


def test_a_submit_takes_a_wall_time_bounds_and_dates(rota):
    rota("submit", "send", "--args", '{"n": 1}', "--at", "2099-12-01T09:00", "--tz", "Europe/Paris")
    (job,) = map(json.loads, rota("jobs", "--json").output.splitlines())
    assert job["next_run_at"] == "2099-12-01T08:00:00.000000Z"
    rota("cancel", job["id"])
    bounds = ["--start", "2099-01-01T00:00:00Z", "--exclude", "2099-01-01", "--exclude", "2099-01-03"]
    done = rota("submit", "send", "--args", '{"n": 1}', "--cron", "0 2 1-7 * 0", *bounds)
    assert "one of them is enough" in done.stderr
    (job,) = map(json.loads, rota("jobs", "--json").output.splitlines())
    assert job["next_run_at"] == "2099-01-02T02:00:00.000000Z"
