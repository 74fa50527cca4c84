"""The hot statements' plans on a full store and on an empty one: indexes are used, and a backlog costs nobody else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from rota.sched.ids import PARTITIONS, RunKey, new_job_id
from rota.sched.scheduler.lanes import TRAIL, Depth, LaneBook
from rota.sched.store.postgres import duties, reading, turns, working
from rota.sched.store.postgres.session import Session
from rota.sched.store.postgres.text import array
from rota.sched.store.transaction import Query, transaction
from rota.sched.store.values import End, Return

from tests.conftest import BOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.store.transaction import Transaction

JOBS = """
insert into rota.job (id, part, queue, next_run_at, scheduled_for, handler, args, created_at)
select id, get_byte(uuid_send(id), 15) & 63, %s, due, due, 'send', '{"n": 1}', now()
from (select gen_random_uuid() as id, now() - make_interval(secs => n - %s) as due from generate_series(1, %s) n) x
"""
RUNS = """
insert into rota.run (job_id, scheduled_for, part, state, dispatch, scheduler, fence, owner, queue, handler, args,
  due_at, claimed_at, ready_at)
select id, date_trunc('hour', now()), get_byte(uuid_send(id), 15) & 63,
  case when running then 'running' else 'waiting' end, n, 1, case when running then n end,
  case when running then 1 end, 'mail', 'send', '{"n": 1}', now(), now(),
  case when n %% 100 = 2 then now() - interval '1 s' end
from (select gen_random_uuid() as id, n, n %% 2 = 1 as running from generate_series(1, %s) n) x
"""
KEY = """job_id::text, to_char(scheduled_for at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


class Plan:
    """What EXPLAIN (ANALYZE, BUFFERS) says of the first statement of a transaction, which is then rolled back."""

    def __init__(self, house: Any, txn: Transaction[Any]) -> None:
        assert txn.pinned, f"{txn.name} is a hot statement"
        query = next(txn.steps())
        connection = house.link.connection()
        connection.execute(Session(connection, connection.info.backend_pid).begin(txn), prepare=False)
        explained = connection.execute(f"explain (analyze, buffers, format json) {query.sql}", query.params)
        (self.root,) = (each["Plan"] for each in explained.fetchone()[0])
        connection.execute("rollback", prepare=False)
        self.buffers = self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"]

    def nodes(self, node: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        node = node or self.root
        yield node
        for child in node.get("Plans", ()):
            yield from self.nodes(child)

    def indexes(self, table: str) -> set[str]:
        return {n["Index Name"] for n in self.nodes() if "Index Name" in n and n["Relation Name"] == table}

    def scanned_whole(self) -> set[str]:
        """Tables that are read from end to end."""
        return {n["Relation Name"] for n in self.nodes() if n["Node Type"] == "Seq Scan"}

    def rows_discarded(self, table: str) -> int:
        """Rows of a table that were read and did not fit."""
        mine = [n for n in self.nodes() if n.get("Relation Name") == table]
        return int(sum(n.get("Rows Removed by Filter", 0) * n["Actual Loops"] for n in mine))


@pytest.fixture
def keys(house) -> dict[str, list[tuple[RunKey, int]]]:
    """Runs of a store with 200,000 jobs, half of them due, and 20,000 runs: some of each state with a number."""
    house.sql(JOBS, "mail", 100_000, 200_000)
    house.sql(RUNS, 20_000)
    house.sql("analyze rota.job, rota.run")
    rows = house.sql(f"select state, {KEY}, dispatch from rota.run order by dispatch limit 400")
    return {
        state: [(RunKey(job, tick), number) for found, job, tick, number in rows if found == state]
        for state in ("waiting", "running")
    }


def test_hot_statements_walk_their_indexes_on_a_full_store(house, keys):
    member = house.join()
    store, lanes = house.store, house.lanes(["mail", "other"])
    claim = Plan(house, store.claim(member, lanes, 500, 100))
    assert "job_due" in claim.indexes("job")
    assert claim.rows_discarded("job") == 0
    assert claim.buffers < 20_000  # 500 rows leave one table and enter another; the whole backlog is far more
    idle = Plan(house, store.claim(member, house.lanes(["other"]), 500, 100))
    assert idle.buffers < 64 * 6  # an index descent for each lane

    begin = Plan(house, store.begin(member, [(key, n, True) for key, n in keys["waiting"]]))
    look = Plan(house, store.look([key for key, _ in keys["waiting"]], 15))
    ends = [End(key, n, "succeeded") for key, n in keys["running"]]
    finish, whole = Plan(house, store.finish_unfollowed(ends)), Plan(house, store.finish(ends))
    back = Plan(house, store.give_back([Return(key, n, "retry", 5.0) for key, n in keys["running"]]))
    for plan in (begin, look, finish, whole, back):
        assert plan.indexes("run") == {"run_pkey"}
        assert plan.rows_discarded("run") == 0

    ready = Plan(house, store.ready(member, house.lanes(), 50))
    assert "run_ready" in ready.indexes("run")
    sleep = Plan(house, store.sleep(member, lanes, 60))
    assert (sleep.indexes("job"), sleep.indexes("run")) == ({"job_due"}, {"run_ready"})

    for plan in (claim, idle, begin, look, finish, whole, back, ready, sleep):
        assert not plan.scanned_whole() & {"job", "run"}


def test_fresh_statistics_on_an_empty_store_tempt_no_plan_to_scan_everything(house):
    house.sql("analyze rota.job, rota.run")
    member, key = house.join(), RunKey(new_job_id(), "2026-01-01T00:00:00.000000Z")
    store = house.store
    plans = {
        "claim": Plan(house, store.claim(member, house.lanes(), 500, 100)),
        "begin": Plan(house, store.begin(member, [(key, 1, False)])),
        "look": Plan(house, store.look([key], 15)),
        "finish": Plan(house, store.finish([End(key, 1, "succeeded")])),
        "finish_unfollowed": Plan(house, store.finish_unfollowed([End(key, 1, "succeeded")])),
        "give_back": Plan(house, store.give_back([Return(key, 1, "release")])),
        "ready": Plan(house, store.ready(member, house.lanes(), 50)),
        "sleep": Plan(house, store.sleep(member, house.lanes(), 60)),
    }
    assert {name for name, plan in plans.items() if plan.scanned_whole() & {"job", "run"}} == set()


def test_a_table_that_grew_since_its_statistics_were_taken_costs_its_batches_no_more(house):
    """As after a redrive of very many: the planner thinks that there is one run."""
    member, store = house.join(), house.store
    house.sql(RUNS, 2_000)
    house.sql("delete from rota.run where dispatch > 1")
    house.sql("analyze rota.run")
    house.sql(RUNS, 20_000)
    rows = house.sql(f"select {KEY}, dispatch, state from rota.run where dispatch > 1 limit 200")
    waiting = [(RunKey(job, tick), number, True) for job, tick, number, state in rows if state == "waiting"]
    running = [(RunKey(job, tick), number) for job, tick, number, state in rows if state == "running"]
    for txn in (
        store.begin(member, waiting),
        store.look([key for key, _ in running], 15),
        store.finish([End(key, n, "succeeded") for key, n in running]),
        store.give_back([Return(key, n, "retry", 5.0) for key, n in running]),
    ):
        plan = Plan(house, txn)
        read = sum(n["Actual Rows"] * n["Actual Loops"] for n in plan.nodes() if n.get("Relation Name") == "run")
        assert read <= 3 * len(rows), txn.name


def test_a_new_store_claims_as_fast_as_an_old_one(house):
    """Statistics were made when next to nothing was stored, and then comes what the store is for. Without SAME_JOB, which
    the statement that applies the plan of recurring jobs has too, each claim compared each of its jobs with all that are stored.
    """
    member = house.join()
    house.sql(JOBS, "mail", 0, 300)
    house.sql("delete from rota.job")
    house.sql("analyze rota.job")
    house.sql(JOBS, "mail", 0, 20_000)
    plan = Plan(house, house.store.claim(member, house.lanes(["mail"]), 500, 100))
    read = sum(n["Actual Rows"] * n["Actual Loops"] for n in plan.nodes() if n.get("Relation Name") == "job")
    assert 500 <= read <= 3 * 500


def test_what_every_attempt_of_a_run_changes_is_in_no_index(house):
    """So begin, retry and marks of followers are heap-only updates. `ready_at` is null for all but a few."""
    rows = house.sql(
        """select a.attname, pg_get_expr(i.indpred, i.indrelid) from pg_index i
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) where i.indrelid = 'rota.run'::regclass"""
    )
    assert {name for name, _ in rows} == {
        "job_id",
        "scheduled_for",
        "part",
        "queue",
        "ready_at",
        "expires_at",
        "claimed_at",
    }
    assert {where for _, where in rows} == {None, "(ready_at IS NOT NULL)", "(expires_at IS NOT NULL)"}


def test_the_backlog_of_a_capped_queue_costs_the_claims_of_another_nothing(house):
    member = house.join()
    claim = house.store.claim(member, house.lanes(["mail"]), 500, 100)
    house.sql(JOBS, "mail", 0, 100)
    house.sql("analyze rota.job")
    alone = Plan(house, claim)
    house.sql(JOBS, "capped", 0, 200_000)
    house.sql("analyze rota.job")
    beside = Plan(house, claim)
    assert beside.indexes("job") == alone.indexes("job")
    assert beside.buffers < 3 * alone.buffers, f"{beside.buffers} buffers beside a backlog, {alone.buffers} without"


def test_a_table_that_grew_since_duties_were_planned_does_not_bring_them_to_a_stand(house):
    """They share a connection with claims, which stand still meanwhile; one of them looked at all runs for each of them, and took
    half a minute, because the planner thought that there was one. The bound is that of every statement; without SAME_RUN and a materialized `x` in ADOPT (sched/store/postgres/duties.py) it is exceeded.
    """
    member, store = house.join(), house.store
    house.sql(RUNS, 2_000)
    house.sql("delete from rota.run where dispatch > 1")
    house.sql("analyze rota.run")
    key = RunKey(new_job_id(), "2026-01-01T00:00:00.000000Z")

    def duties():
        house.run(store.recover(member, 60, 0))
        house.run(store.reconcile(member, ["mail"], 3600, 0))
        house.run(store.expire())
        house.run(store.set_aside([(key, 1)], 60))
        house.run(store.ready_again([(key, 1)]))
        return house.run(store.recover(member, 60, 0))

    for _ in range(12):
        duties()
    assert duties().ran
    house.sql("delete from rota.run")
    house.sql(RUNS, 20_000)
    house.sql("update rota.run set scheduler = %s, owner = owner - owner + %s, ready_at = null", member, member)
    assert duties().ran


def test_what_left_the_tables_under_an_old_snapshot_costs_looks_claims_and_what_is_ready_nothing(house, store_url):
    """None of it can be vacuumed. Without `lane.low` in SLEEP and READY (sched/store/postgres/scheduling.py), or with SEEN that
    stays behind, each reads all of it.
    """
    member, store, book = house.join(), house.store, LaneBook()
    book.set(range(64), ["mail"])

    def store_jobs(number, later="0"):
        due = "clock_timestamp() + %s::interval as due"
        house.sql(JOBS.replace("now() - make_interval(secs => n - %s) as due", due), "mail", later, number)

    def round_():
        lanes = book.walk()
        claimed = house.run(store.claim(member, lanes, 5000, 500))
        book.claimed(lanes, claimed, 5000, 500)
        lanes = book.walk_ready()
        ready = house.run(store.ready(member, lanes, 5000, 500))
        book.readied(lanes, ready, 5000, 500)
        return claimed.rows + len(ready.dispatches)

    def costs():
        house.bed.sql("select pg_sleep(2.5)")  # longer than TRAIL
        while round_():
            pass
        ((left,),) = house.sql("select clock_timestamp()")
        deadline = time.monotonic() + BOUND
        # Transactions of whatever else this server does hold SEEN while they are open.
        while min(book.walk_through(Depth.SEEN).lows) < left - TRAIL:
            assert time.monotonic() < deadline, "SEEN stays behind"
            lanes = book.walk_through(Depth.SEEN)
            book.looked(lanes, house.run(store.sleep(member, lanes, 60)))
            house.bed.sql("select pg_sleep(0.5)")
        return [
            Plan(house, txn).buffers
            for txn in (
                store.sleep(member, book.walk_through(Depth.SEEN), 60),
                store.claim(member, book.walk(), 500, 100),
                store.ready(member, book.walk_ready(), 500, 100),
            )
        ]

    with psycopg.connect(store_url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from rota.job")
        store_jobs(2_000, "1 day")
        store_jobs(200)
        before = costs()
        store_jobs(20_000)
        while round_():
            pass
        house.sql("update rota.run set ready_at = clock_timestamp() where state = 'waiting'")
        after = costs()
        assert house.sql("select count(*)::int from rota.job") == [(2_000,)]
        assert all(a <= 1.3 * b for a, b in zip(after, before, strict=True)), (before, after)


LIVING = """
insert into rota.run (job_id, scheduled_for, part, state, dispatch, scheduler, fence, owner, queue, handler, args, due_at,
  claimed_at, expires_at)
select gen_random_uuid(), now(), n %% 64, case when n %% 2 = 1 then 'running' else 'waiting' end, n, %(scheduler)s,
  case when n %% 2 = 1 then n end, case when n %% 2 = 1 then %(worker)s::bigint end, 'mail', 'send', '{}', now(), now() - %(ago)s::interval,
  now() + interval '1 hour' - %(ago)s::interval
from generate_series(1, %(n)s) n
"""

BEHIND = """
select coalesce(low, '-infinity') < (select min(claimed_at) from rota.run) from rota.duty where name = 'recovery'
"""


@transaction(pinned=True)
def _alone(sql: str, params: Any = None) -> Any:
    yield Query(sql, params)


def test_what_went_through_under_an_old_snapshot_costs_the_duties_and_status_nothing(house, store_url):
    """Nothing that has left a table can be vacuumed meanwhile. Without ALIVE (sched/store/postgres/text.py), or if GLANCE
    (duties.py) did not move its low watermark, they would read it all.
    """
    scheduler, worker = house.join(), house.join("worker")
    house.run(house.store.partitions(scheduler))
    house.sql("insert into rota.queue (name) values ('mail') on conflict do nothing")

    def lives(n: int, ago: str) -> None:
        params = {"scheduler": scheduler, "worker": worker, "n": n, "ago": ago}
        with psycopg.connect(store_url) as connection:
            connection.execute(LIVING, params)

    def rounds() -> None:
        deadline = time.monotonic() + BOUND
        # Transactions of whatever else this server does hold it while they are open.
        while house.sql(BEHIND) == [(True,)]:
            assert time.monotonic() < deadline, "the low watermark stays behind"
            assert house.recover(scheduler).ran
            house.sql("update rota.duty set looked_at = clock_timestamp()")  # as if a while went by until the next

    def costs() -> dict[str, int]:
        rows = house.sql(f"select {KEY} from rota.run where state = 'running' order by dispatch limit 50")
        held = {"ids": array(row[0] for row in rows), "ticks": array(row[1] for row in rows)}
        lanes = {"parts": array(range(PARTITIONS)), "queues": array(["mail"] * PARTITIONS)}
        seen = {**lanes, "lows": array([house.sql("select clock_timestamp()")[0][0].isoformat()] * PARTITIONS)}
        looks = {
            "glance": house.store.recover(scheduler, 60, 0),
            "orphans": _alone(duties.ORPHANS),
            "strays": _alone(duties.STRAYS),
            "stranded": _alone(turns.STRANDED),
            "expire": _alone(duties.EXPIRE, {"since": "now"}),
            "lost": _alone(duties.LOST, {"empty": [], "after": 60}),
            "owned": _alone(working.OWNED, {"member": worker, **held}),
            "owned of all": _alone(working.OWNED_OF_ALL, [worker]),
            "runs": _alone(reading.STATUS_RUNS),
            "oldest": _alone(reading.STATUS_OLDEST, seen),
            "due": _alone(reading.STATUS_DUE, {**seen, "each": 10_001}),
            "scheduled": _alone(reading.STATUS_SCHEDULED, {**seen, "each": 10_001}),
        }
        return {name: Plan(house, txn).buffers for name, txn in looks.items()}

    house.sql("analyze rota.run")
    lives(400, "2 min")
    rounds()
    before = costs()
    with psycopg.connect(store_url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from rota.run")
        lives(50_000, "1 min")
        house.sql(JOBS, "mail", 0, 50_000)
        house.sql("delete from rota.run")
        house.sql("delete from rota.job")
        lives(400, "0 s")
        rounds()
        after = costs()
    deeper = PARTITIONS  # an index that has one level more costs each lane one buffer more
    assert {name: (n, before[name]) for name, n in after.items() if n > 1.3 * before[name] + deeper} == {}
    assert house.run(house.store.status()).runs == {"waiting": 200, "running": 200, "retrying": 0, "buffered": 0}


def test_a_claim_that_commits_late_is_not_below_the_low_watermark(house, store_url):
    """Its runs are as old as its beginning. Without `horizon` in GLANCE (sched/store/postgres/duties.py) no duty and no status
    would see them before the next full look.
    """
    scheduler = house.join()
    with psycopg.connect(store_url) as late:
        params = {"scheduler": scheduler, "worker": None, "n": 2, "ago": "0 s"}
        late.execute(LIVING.replace("n %% 2 = 1", "false"), params)
        own = late.execute("select pg_current_xact_id()::text").fetchone()
        deadline = time.monotonic() + BOUND
        # A round that began before it may not be over yet: transactions of whatever else this server does hold it.
        while house.sql("select horizon > %s::xid8 from rota.duty where name = 'recovery'", *own) != [(True,)]:
            assert time.monotonic() < deadline, "no round of recovery begins anew"
            house.recover(scheduler)
        for _ in range(3):
            house.sql("update rota.duty set looked_at = looked_at + interval '15 s'")
            house.recover(scheduler)
        late.commit()
    assert house.run(house.store.status()).runs["waiting"] == 2
