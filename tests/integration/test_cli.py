"""The command line on a real store."""

import json
import subprocess

import pytest
from rota.cli.main import app
from rota.sched.store import open_store
from rota.sched.store.values import HandlerRow
from typer.testing import CliRunner

from tests.integration.conftest import ROTA

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


def test_the_status_has_its_stable_keys(rota):
    status = json.loads(rota("status", "--json").output)
    keys = {"members", "partitions", "jobs", "runs", "ended", "dead", "queues", "lag", "degraded"}
    assert keys <= set(status)
    assert rota("status").exit_code == 0


def test_a_redrive_without_a_choice_is_a_usage_error_and_of_nothing_does_nothing(rota):
    assert rota("redrive").exit_code == 2
    assert "no dead run fits" in rota("redrive", "--queue", "mail").output


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
