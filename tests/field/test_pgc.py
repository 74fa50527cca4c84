"""Postgres connections: poolers, failover, commits whose answer was lost."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest
import sqlalchemy as sa
from app import effect, flaky_effect, plain
from rota import Client
from rota.sched.store import open_store
from rota.sched.store.values import End

from tests.field.relay import LostCommits, Relay
from tests.integration.conftest import party_on


def test_pgc_01_a_pooler_in_transaction_mode_breaks_nothing(empty_store_url, broker_url, make_pgbouncer, tmp_path):
    """All through five sessions, each lent for one transaction; a scheduler is killed on the way.

    Without `connection.prepare_threshold = None` in `pooled` (sched/store/postgres/session.py) statements are unknown.
    """
    pooler = make_pgbouncer(store=empty_store_url)
    open_store(pooler.url).migrate()
    with party_on(empty_store_url, broker_url, tmp_path) as party:
        party.env["ROTA_STORE"] = pooler.url
        for kind in ("scheduler", "scheduler", "worker", "worker"):
            party.start(kind)
        party.until_working()
        with Client.open(pooler.url) as client:
            for n in range(0, 500, 50):
                client.submit_many([effect.call(key=f"k{n + m}") for m in range(50)])
            party.members[0].kill()
            for n in range(20):
                client.submit(flaky_effect.call(key=f"f{n}", times=1))
        party.until_connected()
        party.until("nothing to be missing", lambda: party.status()["degraded"] == [])
        party.until("all to end", lambda: party.value("select count(*) from rota.history") == 520)
        assert party.value("select count(*) from demo_effect") == 520
        assert party.value("select count(distinct key) from demo_effect") == 520
        assert party.value("select max(attempt) from demo_effect where key like 'k%%'") == 1
        assert "no LISTEN" in party.log_of(party.members[1])


COMMITS = {
    "transaction of a handler": "insert into demo_effect",
    "submit": "insert into rota.key as k",
    "submit of a plain job": "i(id, queue, handler, tenant, args, policy, tick)",
    "claim": "delete from rota.job j using due",
    "dispatch": "set state = 'waiting', dispatch = nextval",
    "begin": "set state = 'running', owner",
    "finish": "from gone where outcome <> 'dead'",
    "retry": "when x.from_store then",
}
"""What marks the transactions of each kind, in the text of their statements."""


def test_pgc_06_a_commit_whose_answer_was_lost_has_one_effect(store_url, broker_url, tmp_path):
    """Without UNDO_REPEATED (sched/store/postgres/submission.py) a job runs twice. Without ADOPT (sched/store/postgres/duties.py),
    `disown` in `_compare` (workers/service.py), or `self._outbox = batch + self._outbox` or
    `self.explain(attempt.job, standing)` (workers/settle.py) some run never ends.
    """
    with LostCommits(store_url, COMMITS, 2) as relay, party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_STORE"] = relay.url
        party.start("scheduler")
        party.start("worker")
        party.until_working()
        with Client.open(relay.url) as client:
            for n in range(20):
                client.submit(effect.call(key=f"e{n}"))
                client.submit(plain.call(key=f"p{n}"))
                client.submit(flaky_effect.call(key=f"f{n}", times=1), key=f"f{n}")
        party.until("all to end", lambda: party.value("select count(*) from rota.history") >= 60)
        assert not +relay.left
        assert party.value("select count(*) from rota.history") == 60
        assert party.value("select count(*) from rota.run") + party.value("select count(*) from rota.job") == 0
        for table, prefixes in (("demo_effect", "ef"), ("demo_plain", "p")):
            rows = party.db.execute(f"select key, count(*) from {table} group by key").fetchall()
            assert dict(rows) == {f"{prefix}{n}": 1 for prefix in prefixes for n in range(20)}


# One in each process, but for the pools of handlers.
MORE_THAN_TWO = """
select application_name, count(*) from pg_stat_activity
where datname = current_database() and application_name like 'rota %' and application_name <> 'rota handlers'
group by 1 having count(*) > 2
"""


def test_a_store_that_comes_and_goes_all_the_time_costs_no_job_and_ends_no_process(store_url, broker_url, tmp_path):
    """It is silent for a while, again and again, and each second time connections are lost with that: commits are in doubt,
    memberships end and begin anew. Without `except RotaError` in `run` (sched/scheduler/service.py) a scheduler ends with its own.
    """
    with Relay(store_url) as relay, party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_STORE"] = relay.url
        party.start("scheduler")
        party.start("worker")
        party.until_working()
        with Client.open(store_url) as client:
            for n in range(10):
                client.submit_many([each.call(key=f"{n}-{m}") for m in range(10) for each in (effect, plain)])
                relay.hold()
                time.sleep(0.5)
                if n % 2:
                    relay.cut()
                relay.release()
                time.sleep(0.1)
        party.until("all to end", lambda: party.value("select count(*) from rota.history") >= 200)
        party.until("nothing to be left", lambda: party.value("select count(*) from rota.run") == 0)
        rows = party.db.execute("select key, count(*) from demo_effect group by key").fetchall()
        assert dict(rows) == {f"{n}-{m}": 1 for n in range(10) for m in range(10)}
        assert party.value("select count(*) from rota.history where outcome <> 'succeeded'") == 0
        assert [member.poll() for member in party.members] == [None, None]
        assert not any("Traceback" in party.log_of(member) for member in party.members)
        party.until("the sessions that were cut off to end", lambda: not party.db.execute(MORE_THAN_TWO).fetchall())


def test_pgc_03_connections_to_a_store_that_became_read_only_are_not_kept(party):
    """What a failover does to those who still talk to the old primary: every write is refused, the connection lives.

    Without `errors.ReadOnlySqlTransaction` in `_LOST` (sched/store/postgres/link.py) they are used for ever.
    """
    database = party.value("select current_database()")
    party.db.execute(f"alter database {database} set default_transaction_read_only = on")
    party.db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and application_name like 'rota %'"
    )
    assert "read-only" in party.rota("submit", "effect", "--args", '{"key": "k"}', code=3)
    party.until("both to be refused", lambda: all("read-only" in party.log_of(m) for m in party.members))
    party.db.execute(f"alter database {database} reset default_transaction_read_only")
    party.rota("submit", "effect", "--args", '{"key": "k"}')
    party.until("the effect", lambda: party.effects("k") == 1)
    assert [member.poll() for member in party.members] == [None, None]


@pytest.mark.parametrize("who", ["the handler", "the completion"])
def test_pgc_03_nor_are_those_of_handlers(house, who):
    """Whoever of the two is refused first.

    Without `context.is_disconnect = True` (sched/store/postgres/store.py) the pool gives out the same one again.
    """
    *_, begun = house.started()
    finish = house.store.finish([End(begun.key, begun.fence, "succeeded")])
    (database,) = house.sql("select current_database()")[0]
    house.sql("create table mine (n int)")
    engine = house.store.engine("handlers", 1)

    def work():
        with engine.connect() as connection:
            if who == "the handler":
                connection.execute(sa.text("insert into mine values (1)"))
            house.store.drive(connection, finish)
            connection.commit()

    house.sql(f"alter database {database} set default_transaction_read_only = on")
    with pytest.raises((sa.exc.DBAPIError, psycopg.Error), match="read-only"):
        work()
    with psycopg.connect(house.bed.url, options="-c default_transaction_read_only=off") as admin:
        admin.execute(f"alter database {database} reset default_transaction_read_only")
    work()
    engine.dispose()
    assert house.outcomes(begun.key.job_id) == ["succeeded"]


FORGETFUL = ("rota.job", "rota.run", "rota.history", "rota.key", "demo_effect")


def keep(party):
    """What the standby has got."""
    with party.db.transaction():
        for table in FORGETFUL:
            party.db.execute(f"create table kept_{table.replace('.', '_')} as table {table}")


def go_back(party):
    """The standby takes over."""
    with party.db.transaction():
        for table in FORGETFUL:
            party.db.execute(f"truncate {table}")
            party.db.execute(f"insert into {table} select * from kept_{table.replace('.', '_')}")


def test_pgc_04_a_run_that_waits_again_for_a_message_that_is_gone_is_found(store_url, broker_url, tmp_path):
    """Without the branch `when 'waiting'` of LOST (sched/store/postgres/duties.py) it waits for ever."""
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_RECONCILE_AFTER"] = "2"
        party.start("scheduler")
        party.start("worker", "--queue", "other")
        party.until_working()
        with Client.open(party.store) as client:
            client.submit_many([effect.call(key=f"e{n}") for n in range(5)])
        party.until("all to wait", lambda: party.value("select count(*) from rota.run where state = 'waiting'") == 5)
        keep(party)
        party.start("worker")
        party.until("all to end", lambda: party.value("select count(*) from rota.history") == 5)
        go_back(party)
        party.until("all to end again", lambda: party.value("select count(*) from rota.history") == 5)
        assert [party.effects(f"e{n}") for n in range(5)] == [1] * 5


def test_pgc_04_a_store_that_forgot_its_last_seconds_runs_again_what_it_forgot(party):
    """As after a failover to a standby that was behind. The broker remembers what the store does not. For what is a job again no
    line of ours is needed but CLAIM (sched/store/postgres/scheduling.py): it asks the store alone, and no member remembers
    anything that keeps a job from running again.
    """
    scheduler, _ = party.members
    scheduler.send_signal(signal.SIGSTOP)
    with Client.open(party.store) as client:
        for n in range(20):
            client.submit(effect.call(key=f"e{n}"))
            client.submit(plain.call(key=f"p{n}"))
        keep(party)
        assert party.value("select count(*) from kept_rota_job") == 40
        client.submit(effect.call(key="lost"))
    scheduler.send_signal(signal.SIGCONT)
    party.until("all to end", lambda: party.value("select count(*) from rota.history") == 41)
    go_back(party)
    party.until("all to end again", lambda: party.value("select count(*) from rota.history") == 40)
    effects = party.db.execute("select key, count(*) from demo_effect group by key").fetchall()
    assert dict(effects) == {f"e{n}": 1 for n in range(20)}
    again = "select count(*), count(distinct (key, job, tick)) from demo_plain"
    assert party.db.execute(again).fetchone() == (40, 20)
    assert [member.poll() for member in party.members] == [None, None]
