"""`rota doctor` on a healthy stack, and after a restore of an older store."""

from __future__ import annotations

import signal

import pika
from rota.sched.broker.probe import PROBE
from rota.sched.broker.topology import delay_route

from tests.conftest import BOUND
from tests.field.broker import channel


def test_a_healthy_stack_has_nothing_that_failed(party):
    party.rota("submit", "noop")
    party.until("the job", lambda: party.value("select count(*) from rota.history") == 1)
    # What a member said in its first heartbeat, before it had reached the broker, stands until the next one.
    party.until("a healthy doctor", lambda: party.doctor()[0] == 0)
    code, checks = party.doctor()
    assert code == 0, [check for check in checks.values() if check["state"] != "ok"]
    assert {"store", "clock", "history", "members", "broker", "topology", "numbers"} <= checks.keys()
    assert all(check["remedy"] for check in checks.values() if check["state"] != "ok")


def test_what_is_parked_is_told_with_its_reasons_and_what_to_do(party):
    party.until_connected()
    with channel(party.env["ROTA_BROKER"]) as publishing:
        publishing.basic_publish("rota.submit", "job.submit", b"no JSON", pika.BasicProperties(type="job.submit"))
        publishing.basic_publish("rota.submit", "job.sumbit", b"{}")
        publishing.basic_publish(*delay_route(1, "gone"), b"{}")
        publishing.basic_publish("rota.dead", "", b"{}", pika.BasicProperties(type=PROBE))
    party.until("three to be parked", lambda: party.status()["parked"] == 3)
    assert "parked" in party.status()["degraded"]
    code, checks = party.doctor()
    assert code == 0
    told = checks["rota.parked"]["told"]
    assert told.startswith("3 messages are parked: 1 because ")
    assert "it came out of the delay ladder for queue gone, which was not there" in told
    assert "it was published to rota.submit as 'job.sumbit'" in told
    assert "Expecting value" in told
    assert "purge_queue rota.parked" in checks["rota.parked"]["remedy"]
    assert "rota.dead" not in checks


def test_after_a_restore_of_an_older_store_the_numbers_are_seen_to_have_gone_back_and_are_moved_on(party):
    scheduler, worker = party.members
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(BOUND) == 0
    party.value("select setval('rota.number', 1000)")
    party.rota("submit", "noop")
    party.until("the message", lambda: party.doctor()[1].get("consumers"))
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(BOUND) == 0
    for statement in ("delete from rota.run", "delete from rota.member", "select setval('rota.number', 10)"):
        party.db.execute(statement)  # as it was before

    code, checks = party.doctor()
    assert code == 1
    assert checks["numbers"]["state"] == "failed"
    assert "--fix-fence" in checks["numbers"]["remedy"]
    assert party.doctor("--fix-fence")[1]["numbers"]["state"] == "ok"
    assert party.doctor()[1]["numbers"]["state"] == "ok"
    assert party.value("select last_value from rota.number") > 1001
