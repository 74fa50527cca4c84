"""`ctx.transaction()` in all its forms: what a handler writes there and the run's completion are one, or neither is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest
import sqlalchemy as sa
from rota import App
from rota.sched.errors import Refused, Superseded
from rota.sched.heartbeat import Trust, now
from rota.workers.attempt import RESULT_LIMIT, Attempt, Job
from rota.workers.context import RunContext
from rota.workers.pools import Pools
from sqlalchemy.ext.asyncio import AsyncConnection

app = App("mail")


@app.handler
def send(n: int) -> None: ...


INSERT = "insert into effect values ('written')"


@asynccontextmanager
async def context(house):
    """(ctx, attempt) of a run that has begun."""
    house.sql("create table effect (key text)")
    *_, begun = house.started()
    job = Job(None, None, begun.key, "mail", 0.0, b"")
    attempt = Attempt(job, begun.fence, begun.attempt, 0, send, {"n": 1}, 0.0)
    trust = Trust(15)
    trust.renewed(now())
    pools = Pools(house.store, 2)
    try:
        yield RunContext(attempt, pools, trust), attempt
    finally:
        await pools.close()


async def write(ctx, form, after=None):
    """One effect through one form of the transaction; `after(connection)` follows it inside."""
    raw, statement = form.endswith("raw"), INSERT if form.endswith("raw") else sa.text(INSERT)
    if form.startswith("async"):
        async with ctx.transaction(raw=raw) as connection:
            await connection.execute(statement)
            if after:
                done = after(connection)
                if asyncio.iscoroutine(done):
                    await done
        return

    def sync():
        with ctx.transaction(raw=raw) as connection:
            connection.execute(statement)
            if after:
                after(connection)

    await asyncio.to_thread(sync)


FORMS = pytest.mark.parametrize("form", ["sync", "sync raw", "async", "async raw"])


def effects(house):
    return house.sql("select count(*)::int from effect")[0][0]


@FORMS
async def test_the_writes_and_the_completion_are_committed_together(house, form):
    async with context(house) as (ctx, attempt):
        kinds = {
            "sync": sa.Connection,
            "sync raw": psycopg.Connection,
            "async": AsyncConnection,
            "async raw": psycopg.AsyncConnection,
        }

        def inside(connection):
            assert isinstance(connection, kinds[form])
            assert effects(house) == 0
            ctx.result({"n": 1})

        await write(ctx, form, inside)
        assert attempt.completed
        assert effects(house) == 1
        (past,) = house.shown(ctx.job_id).history
        assert (past["outcome"], past["result"]) == ("succeeded", {"n": 1})


@FORMS
async def test_a_result_that_is_too_large_is_left_out_inside_a_transaction_too(house, form):
    async with context(house) as (ctx, _):
        await write(ctx, form, lambda _: ctx.result("x" * RESULT_LIMIT))
        assert effects(house) == 1
        (past,) = house.shown(ctx.job_id).history
        assert (past["outcome"], past["result"]) == ("succeeded", None)
        assert past["reason"] == f"the result is not kept, it has {RESULT_LIMIT + 2} bytes of {RESULT_LIMIT}"


@FORMS
async def test_what_was_submitted_inside_is_committed_with_it_or_not_at_all(house, form):
    async with context(house) as (ctx, _):

        def fail(_):
            raise RuntimeError

        def submit(_):
            return ctx.asubmit(send.call(n=2)) if form.startswith("async") else ctx.submit(send.call(n=2))

        async def submit_and_fail(connection):
            await submit(connection)
            fail(connection)

        with pytest.raises(RuntimeError):
            await write(ctx, form, submit_and_fail if form.startswith("async") else lambda c: (submit(c), fail(c)))
        assert (effects(house), house.stored(), house.shown(ctx.job_id).state) == (0, 0, "running")
        await write(ctx, form, submit)
        assert (effects(house), house.stored(), house.shown(ctx.job_id).state) == (1, 1, "succeeded")


@FORMS
async def test_a_run_that_was_taken_away_takes_the_writes_with_it_and_the_connection_can_be_used_again(house, form):
    async with context(house) as (ctx, attempt):
        fence, attempt.fence = attempt.fence, attempt.fence + 1
        for _ in range(3):  # more than there are connections in the pool
            with pytest.raises(Superseded, match="was taken from attempt 1"):
                await write(ctx, form)
        assert (effects(house), attempt.completed) == (0, False)
        attempt.fence = fence
        await write(ctx, form)
        assert effects(house) == 1


@FORMS
async def test_a_handler_cannot_commit_apart_from_its_completion(house, form):
    async with context(house) as (ctx, attempt):
        with pytest.raises((Refused, psycopg.ProgrammingError), match=r"by itself|forbidden"):
            await write(ctx, form, lambda connection: connection.commit())
        assert not attempt.completed
        assert house.shown(ctx.job_id).state == "running"


@FORMS
async def test_a_commit_whose_answer_is_lost_is_told_from_one_that_was_not_sent(house, form, monkeypatch):
    kind = AsyncConnection if form.startswith("async") else sa.Connection
    commit = kind.commit

    def lose(self):
        done = commit(self)
        if not asyncio.iscoroutine(done):
            raise psycopg.OperationalError("the answer is lost")
        return lose_later(done)

    async def lose_later(done):
        await done
        raise psycopg.OperationalError("the answer is lost")

    async with context(house) as (ctx, attempt):
        monkeypatch.setattr(kind, "commit", lose)
        with pytest.raises(psycopg.OperationalError):
            await write(ctx, form)
        assert (attempt.committing, attempt.completed, effects(house)) == (True, False, 1)
        attempt.fence += 1
        with pytest.raises(Superseded):
            await write(ctx, form)
        assert not attempt.committing


async def test_there_is_room_for_one_transaction(house):
    async with context(house) as (ctx, _):
        await write(ctx, "sync")
        with pytest.raises(Refused, match="completed by an earlier transaction"):
            await write(ctx, "sync")


async def test_the_idempotency_key_is_the_runs(house):
    async with context(house) as (ctx, attempt):
        key = ctx.idempotency_key
        attempt.number, attempt.fence = 2, attempt.fence + 1
        assert ctx.idempotency_key == key == str(attempt.job.key)
