"""`rota doctor` on a healthy stack, and after a restore of an older store."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.integration.conftest import ROTA


def doctor(party, *options):
    done = subprocess.run(
        [ROTA, "doctor", "--json", *options], env=party.env, capture_output=True, text=True, check=False
    )
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {check["name"]: check for check in checks}


@pytest.mark.rabbitmq4
def test_a_healthy_stack_has_nothing_that_failed(party):
    party.rota("submit", "noop")
    party.until("the job", lambda: party.value("select count(*) from rota.history") == 1)
    code, checks = doctor(party)
    assert code == 0, checks
    assert {"store", "clock", "history", "members", "broker", "topology", "numbers"} <= checks.keys()
    assert all(check["remedy"] for check in checks.values() if check["state"] != "ok")


def test_after_a_restore_of_an_older_store_the_numbers_are_seen_to_have_gone_back_and_are_moved_on(party):
    scheduler, worker = party.members
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    party.value("select setval('rota.number', 1000)")
    party.rota("submit", "noop")
    party.until("the message", lambda: doctor(party)[1].get("consumers"))
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(30) == 0
    for statement in ("delete from rota.run", "delete from rota.member", "select setval('rota.number', 10)"):
        party.db.execute(statement)  # as it was before

    code, checks = doctor(party)
    assert code == 1
    assert checks["numbers"]["state"] == "failed"
    assert "--fix-fence" in checks["numbers"]["remedy"]
    assert doctor(party, "--fix-fence")[1]["numbers"]["state"] == "ok"
    assert doctor(party)[1]["numbers"]["state"] == "ok"
    assert party.value("select last_value from rota.number") > 1001
