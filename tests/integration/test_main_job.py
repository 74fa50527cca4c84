"""A job's whole way through real processes, with those processes killed on the way: one effect, whatever happens."""

from __future__ import annotations

import itertools
import json
import signal
from contextlib import closing

import pika
import pytest
from app import echo, effect, flaky_effect
from rota import Client, after, every

from tests.conftest import BOUND
from tests.integration.conftest import party_on, ready_party


def test_a_submitted_job_has_its_effect_once(party):
    job = party.rota("submit", "effect", "--args", '{"key": "k"}', "--key", "k").strip()
    again = party.rota("submit", "effect", "--args", '{"key": "k"}', "--key", "k").strip()
    assert again == job
    party.until("the effect", lambda: party.effects("k") == 1)
    party.until("the run to end", lambda: party.value("select count(*) from rota.history") == 1)
    shown = json.loads(party.rota("show", job, "--json"))
    assert (shown["state"], shown["history"][0]["attempt"]) == ("succeeded", 1)


def test_a_handler_that_fails_twice_succeeds_at_the_third_attempt(party):
    with Client.open(party.store) as client:
        ref = client.submit(flaky_effect.call(key="k", times=2))
    party.until("the effect", lambda: party.effects("k") == 1)
    party.until("the run to end", lambda: party.value("select count(*) from rota.history") == 1)
    errors = party.value("select errors from rota.history where job_id = %s", ref.id)
    assert [e["attempt"] for e in errors] == [1, 2]


def test_what_always_fails_ends_dead_and_is_redriven_with_other_arguments(party):
    party.rota("submit", "broken", "--args", '{"key": "k"}')
    party.until("the run to die", lambda: party.value("select count(*) from rota.dead") == 1)
    run = json.loads(party.rota("dead", "--json"))
    assert run["attempt"] == 2
    party.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}", "--args", '{"key": "k", "fixed": true}')
    party.until("the effect", lambda: party.effects("k") == 1)
    party.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}", code=1)


def test_a_scheduler_that_is_killed_loses_nothing_that_it_claimed(party):
    with Client.open(party.store) as client:
        keys = [f"k{n}" for n in range(3000)]
        for n in range(0, 3000, 500):
            client.submit_many([effect.call(key=k) for k in keys[n : n + 500]])
    party.until("a claim", lambda: party.value("select count(*) from rota.run") > 0)
    party.members[0].kill()
    party.start("scheduler")
    party.until("all effects", lambda: party.value("select count(*) from demo_effect") >= 3000)
    party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
    assert party.value("select count(distinct key) from demo_effect") == 3000
    assert party.value("select count(*) from demo_effect") == 3000


def test_a_broker_that_crashes_and_comes_back_costs_no_effect(store_url, node, node_url, tmp_path):
    with party_on(store_url, node_url, tmp_path) as party:
        party.env["ROTA_CONFIRM_WINDOW"] = "40"  # so that all of it is unconfirmed when the broker goes
        party.start("scheduler")
        party.start("worker")
        party.until_working()
        with Client.open(party.store) as client:
            client.submit_many([effect.call(key=f"a{n}") for n in range(300)])
            party.until("the first effects", lambda: party.value("select count(*) from demo_effect") > 0)
            # 3.10 never finds the leader of a quorum queue that was declared moments before a kill -9.
            client.submit(effect.call(key="older"), after(8))
            party.until("the queues to be older", lambda: party.effects("older"))
            client.submit_many([effect.call(key=f"c{n}") for n in range(300)])
            node.crash()
            client.submit_many([effect.call(key=f"b{n}") for n in range(299)])
        node.start()
        party.until("all effects", lambda: party.value("select count(*) from demo_effect") >= 900)
        party.until("all runs to end", lambda: party.value("select count(*) from rota.run") == 0)
        assert party.value("select count(distinct key) from demo_effect") == 900
        assert party.value("select count(*) from demo_effect") == 900


def test_several_processes_are_members_and_none_outlives_its_parent(party):
    parent = party.start("worker", "--processes", "2")
    workers = "select count(*) from rota.member where kind = 'worker' and state = 'live'"
    party.until("three workers", lambda: party.value(workers) == 3)
    parent.kill()
    party.until("its children to be gone", lambda: party.value(workers) == 1)


def test_a_schedule_ticks_without_gaps(party):
    with Client.open(party.store) as client:
        client.submit(effect.call(key="tick"), every(1, misfire="run_all"), name="beat")
    party.until("five ticks", lambda: party.effects("tick") >= 5)
    party.rota("cancel", "beat")
    party.until("what was claimed to end", lambda: not party.value("select count(*) from rota.run"))
    ticks = [row[0] for row in party.db.execute("select tick from demo_effect order by tick").fetchall()]
    assert [round((b - a).total_seconds(), 3) for a, b in itertools.pairwise(ticks)] == [1.0] * (len(ticks) - 1)


def test_the_first_job_of_a_new_queue_does_not_wait_for_a_sweep(party):
    """One after the other, so that waiting for a sweep (5 s) would show five times over; once or twice the machine may be slow."""
    with Client.open(party.store) as client:
        for n in range(5):
            ref = client.submit(effect.call(key=f"k{n}"), queue=f"new-{n}")
            party.until(
                "its claim", lambda job=ref.id: party.value("select count(*) from rota.run where job_id = %s", job)
            )
    claims = "select claimed_at, due_at from rota.run union all select claimed_at, due_at from rota.history"
    rows = party.db.execute(f"select extract(epoch from claimed_at - due_at)::float8 from ({claims}) x").fetchall()
    waited = sorted(seconds for (seconds,) in rows)
    assert len(waited) == 5
    assert waited[2] < 2.5, f"five new queues took {waited} s"


def commands_are_taken(connection):
    channel = connection.channel()
    try:
        return channel.queue_declare("rota.submit", passive=True).method.consumer_count
    except pika.exceptions.ChannelClosedByBroker:
        return 0  # not declared yet


def test_plain_amqp_without_any_code_of_rota(party):
    connection = pika.BlockingConnection(pika.URLParameters(party.env["ROTA_BROKER"]))
    party.until("a scheduler to take commands", lambda: commands_are_taken(connection))
    channel = connection.channel()
    answers = channel.queue_declare("", exclusive=True).method.queue

    def ask(body: bytes) -> dict:
        properties = pika.BasicProperties(
            type="job.submit", message_id="order-7", app_id="shop", reply_to=answers, correlation_id="c"
        )
        channel.basic_publish("rota.submit", "job.submit", body, properties)
        for _, got, answer in channel.consume(answers, auto_ack=True, inactivity_timeout=BOUND):
            assert got is not None, f"no answer within {BOUND} s"
            assert got.correlation_id == "c"
            return dict(json.loads(answer))
        raise AssertionError

    first = ask(b'{"handler": "effect", "args": {"key": "amqp"}}')
    assert first["ok"]
    assert not first["duplicate"]
    assert ask(b'{"handler": "effect", "args": {"key": "amqp"}}') == {**first, "duplicate": True}
    party.until("the effect", lambda: party.effects("amqp") == 1)
    assert ask(b"{nonsense")["ok"] is False
    channel.cancel()
    _method, properties, body = channel.basic_get("rota.parked", auto_ack=True)
    assert body == b"{nonsense"
    assert properties.headers["x-rota-error"]
    connection.close()


def test_status_has_its_keys_and_adds_up(party):
    with Client.open(party.store) as client:
        client.submit_many([effect.call(key=f"k{n}") for n in range(50)])
    party.until("all to end", lambda: party.value("select count(*) from rota.history") == 50)
    party.until("the counters", lambda: party.status()["ended"]["succeeded"] == 50)
    status = party.status()
    assert set(status) >= {"members", "partitions", "jobs", "runs", "ended", "dead", "queues", "lag", "degraded"}
    assert status["partitions"] == {"owned": 64, "unowned": 0}
    assert {m["kind"] for m in status["members"]} == {"scheduler", "worker"}
    assert status["lag"]["queue"]["p99"] > 0


@pytest.fixture(scope="module")
def unchanged(module_store_url, module_broker_url, tmp_path_factory):
    """A party whose members begin nothing, because nothing is accepted."""
    with ready_party(module_store_url, module_broker_url, tmp_path_factory.mktemp("unchanged")) as found:
        yield found


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["submit", "nobody"], 1, "nobody"),
        (["submit", "effect", "--args", '{"key": 7}'], 2, "key"),
        (["submit", "effect", "--args", "{"], 2, "{"),
        (["submit", "effect", "--args", '{"key": "k"}', "--cron", "0 0 31 2 *"], 2, "never fires"),
        (
            ["submit", "effect", "--args", '{"key": "k"}', "--cron", "0 0 * * *", "--tz", "Mars/Olympus"],
            2,
            "Mars/Olympus",
        ),
        (["submit", "effect", "--args", '{"key": "k"}', "--at", "2026-12-01T09:00:00"], 2, "offset"),
        (["cancel", "00000000"], 1, "00000000"),
        (["redrive"], 2, "which"),
        (["status", "--store", "mysql://x/y"], 2, "mysql"),
        (["status", "--store", "postgresql://rota:secret@127.0.0.1:1/x"], 3, "127.0.0.1"),
    ],
)
def test_bad_input_is_refused_with_its_value_and_changes_nothing(unchanged, args, code, says):
    told = unchanged.rota(*args, code=code)
    assert says in told
    assert "secret" not in told
    for table in ("job", "run", "history", "dead", "key"):
        assert unchanged.value(f"select count(*) from rota.{table}") == 0


def test_a_store_that_is_not_migrated_is_told(empty_store_url, broker_url, tmp_path):
    from tests.integration.conftest import Party  # noqa: PLC0415

    party = Party(empty_store_url, broker_url, tmp_path)
    try:
        for command in (["status"], ["scheduler"], ["worker"], ["submit", "effect"]):
            assert "rota migrate" in party.rota(*command, code=3)
    finally:
        party.close()


def test_a_run_whose_message_is_gone_is_found_and_executed(store_url, broker_url, tmp_path):
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_RECONCILE_AFTER"] = "2"
        party.start("scheduler")
        worker = party.start("worker")
        party.until_working()
        party.rota("submit", "effect", "--args", json.dumps({"key": "first"}))
        party.until("the queue to be there", lambda: party.effects("first") == 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(BOUND) == 0
        party.rota("submit", "effect", "--args", json.dumps({"key": "gone"}))
        with closing(pika.BlockingConnection(pika.URLParameters(broker_url))) as connection:
            channel = connection.channel()
            party.until("the message, to lose it", lambda: channel.basic_get("rota.q.demo", auto_ack=True)[0])
        party.start("worker")
        party.until("the effect", lambda: party.effects("gone") == 1)


def test_an_end_that_the_store_does_not_take_harms_nothing_beside_it(party):
    """For a reason that nobody foresaw: the run ends all the same, without what could not be stored."""
    party.db.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'no results of % here', new.handler; end $$;"
        "create trigger refuse before insert on rota.history for each row"
        " when (new.result is not null and new.handler = 'echo') execute function refuse()"
    )
    with Client.open(party.store) as client:
        client.submit_many([effect.call(key=f"n{n}") for n in range(20)] + [echo.call(value=1)])
    party.until("all ends", lambda: party.value("select count(*) from rota.history") == 21)
    assert party.value("select count(*) from demo_effect") == 20
    (reason,) = party.db.execute("select reason from rota.history where handler = 'echo'").fetchone()
    assert "cannot be stored" in reason
    assert "no results of echo here" in reason


def test_a_duty_that_the_store_refuses_stops_no_job(party):
    party.db.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no duties'; end $$;"
        "create trigger refuse before update on rota.duty for each row execute function refuse()"
    )
    scheduler = party.members[0]
    party.until("a refusal", lambda: "no duties" in party.log_of(scheduler))
    with Client.open(party.store) as client:
        client.submit_many([effect.call(key=f"n{n}") for n in range(20)])
    party.until("all effects", lambda: party.value("select count(*) from demo_effect") == 20)
    assert party.value("select count(*) from rota.member") == 2
