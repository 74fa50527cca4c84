"""`rota export` on a real store, and what `rota status` and `rota doctor` tell of history's days and of what holds them."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from datetime import UTC, datetime

import pytest
from rota.cli.main import app
from rota.sched.store.values import End
from typer.testing import CliRunner

from tests.integration.conftest import ROTA

DAY = "2026-11-02"
TABLE = "rota.history_20261102"
ROWS = f"""
insert into rota.history (ended_at, job_id, scheduled_for, outcome, reason, queue, handler, args, attempt, losses, due_at, result)
select '{DAY}T00:00:00Z'::timestamptz + make_interval(secs => n), gen_random_uuid(), now(), 'succeeded', 'why "é"', 'mail', 'send',
  jsonb_build_object('n', n, 'text', repeat('x', 300)), 1, 0, now(), to_jsonb(n)
from generate_series(0, 4999) n
"""


@pytest.fixture
def rota(store_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, args, env={"ROTA_STORE": store_url, "ROTA_DEBUG": ""})


@pytest.fixture
def day(house):
    """A day that is over, with 5,000 runs."""
    house.sql(f"create table {TABLE} partition of rota.history for values from ('{DAY}') to ('2026-11-03')")
    house.sql(ROWS)
    return DAY


def lines(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_a_day_is_exported_whole_and_each_line_is_as_the_list_of_runs_has_it(rota, day, tmp_path):
    done = rota("export", "--day", day, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    path = tmp_path / told["file"]
    assert (told["day"], told["rows"], told["complete"], told["bytes"]) == (day, 5000, True, path.stat().st_size)
    assert told["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    rows = lines(path)
    assert [row["result"] for row in rows] == list(range(5000))
    listed = map(json.loads, rota("runs", "--history", "--limit", "5000", "--json").stdout.splitlines())
    assert sorted(rows, key=str) == sorted(listed, key=str)
    assert [each.name for each in tmp_path.iterdir() if "part" in each.name] == []

    again = rota("export", "--day", day, "--out", "again.gz")
    assert again.stdout.startswith(f"{day}: 5000 runs, ")
    assert (tmp_path / "again.gz").read_bytes() == path.read_bytes()


def test_a_file_that_is_there_is_replaced_only_by_force(rota, day, tmp_path):
    (tmp_path / "mine").write_text("mine")
    refused = rota("export", "--day", day, "--out", "mine")
    assert (refused.exit_code, "--force" in refused.output) == (1, True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert rota("export", "--day", day, "--out", "mine", "--force").exit_code == 0
    assert len(lines(tmp_path / "mine")) == 5000


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ([], 2, "--list"),
        (["--list", "--day", DAY], 2, "--list"),
        (["--day", "soon"], 2, "yesterday"),
        (["--day", "2020-01-01"], 1, "no history of 2020-01-01"),
        (["--day", "today", "--out", "nowhere/x"], 1, "nowhere/x"),
    ],
)
def test_an_export_that_cannot_be_is_told_why(rota, args, code, told):
    done = rota("export", *args)
    assert (done.exit_code, told in done.output) == (code, True)


def test_a_day_that_goes_while_it_is_exported_leaves_no_file(rota, house, day, tmp_path, monkeypatch):
    read = type(house.store).read_day

    def gone(self, day, first, last):
        if first:
            house.sql(f"drop table if exists {TABLE}")
        return read(self, day, first, last)

    monkeypatch.setattr(type(house.store), "read_day", gone)
    done = rota("export", "--day", day)
    assert (done.exit_code, "was dropped while it was exported" in done.output) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_today_is_exported_with_the_note_that_it_is_not_over(rota, house, tmp_path):
    *_, begun = house.started()
    house.run(house.store.finish([End(begun.key, begun.fence, "succeeded")]))
    done = rota("export", "--day", "today", "--out", "today.gz", "--json")
    assert "is not over" in done.stderr
    assert (json.loads(done.stdout)["complete"], json.loads(done.stdout)["rows"]) == (False, 1)


def test_through_a_pipe_only_the_file_is_on_stdout(store_url, day):
    done = subprocess.run(
        [ROTA, "export", "--store", store_url, "--day", day, "--out", "-", "--json"], capture_output=True, check=True
    )
    assert len(gzip.decompress(done.stdout).splitlines()) == 5000
    assert json.loads(done.stderr)["sha256"] == hashlib.sha256(done.stdout).hexdigest()


def test_the_days_are_listed_with_when_each_goes(rota, house, day):
    house.run(house.store.note_retention(86_400.0 * 14, {}))
    first, *_, last = map(json.loads, rota("export", "--list", "--json").stdout.splitlines())
    assert first["day"] == day
    assert first["goes_at"] == "2026-11-17T00:00:00.000000Z"
    assert first["bytes"] > 1_000_000
    assert last == {**last, "day": f"{datetime.now(UTC):%Y-%m-%d}", "open": True}
    assert "2026-11-17 00:00:00" in rota("export", "--list").stdout


def doctor(rota):
    checks = [json.loads(line) for line in rota("doctor", "--json").stdout.splitlines()]
    return {check["name"]: check for check in checks}


def test_a_day_that_should_have_gone_is_told_with_what_holds_it(rota, house):
    house.sql(
        "create table rota.history_20200101 partition of rota.history for values from ('20200101') to ('20200102')"
    )
    assert "history late" not in doctor(rota)  # no scheduler has told how long it keeps
    house.run(house.store.note_retention(86_400.0, {"20200101": "session 4711 (pg_dump)"}))
    late = {"day": "2020-01-01", "since": "2020-01-03T00:00:00.000000Z", "why": "session 4711 (pg_dump)"}
    view = json.loads(rota("status", "--json").stdout)
    assert view["history"] == {"keep_s": 86_400.0, "oldest": "2020-01-01", "late": [late]}
    assert "history_late" in view["degraded"]
    assert "2020-01-01 since 2020-01-03T00:00: session 4711 (pg_dump)" in rota("status").stdout
    check = doctor(rota)["history late"]
    assert "should have gone at 2020-01-03T00:00:00.000000Z: session 4711 (pg_dump)" in check["told"]
    assert check["figures"] == [late]
