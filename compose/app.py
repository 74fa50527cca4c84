"""The demo app: handlers for the demo, the stack and trying things out. `rota worker app:app` with this folder on the path.

The handlers that write effects insert a row into `demo_effect`, which has no unique key on purpose: a second effect of
one run would be seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psycopg
from rota import App, Context, Retry, Snooze

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection

app = App("demo")
quick = Retry(attempts=5, base=0.5, cap="5s")

TABLES = """
create table if not exists demo_effect (
  key text not null, job uuid not null, tick timestamptz not null, attempt integer not null, fence bigint not null,
  time timestamptz not null default clock_timestamp());
create table if not exists demo_plain (
  key text not null, job uuid not null, tick timestamptz not null, attempt integer not null, fence bigint not null,
  time timestamptz not null default clock_timestamp());
create table if not exists demo_seen (job uuid not null, tick timestamptz not null, fence bigint not null);
"""
INSERT = (
    "insert into demo_effect (key, job, tick, attempt, fence) "
    "values (%(key)s, %(job)s, %(tick)s, %(attempt)s, %(fence)s)"
)


def prepare(store_url: str) -> None:
    """Makes the tables of the effects; a second time changes nothing."""
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(1919251553)")  # create table if not exists races with itself
        connection.execute(TABLES)


def row(ctx: Context, key: str) -> dict[str, Any]:
    """The columns of an effect."""
    return {"key": key, "job": ctx.job_id, "tick": ctx.scheduled_for, "attempt": ctx.attempt, "fence": ctx.fence}


def insert(connection: sa.Connection, ctx: Context, key: str) -> None:
    """One effect, in the transaction that completes the run."""
    connection.exec_driver_sql(INSERT, row(ctx, key))


@app.handler
def noop() -> None:
    """Nothing."""


@app.handler
def echo(value: Any) -> Any:
    """Gives its argument back."""
    return value


@app.handler
def sleep(seconds: float) -> None:
    """Takes its time."""
    time.sleep(seconds)


@app.handler(retry=quick)
def fail(ctx: Context, times: int, seconds: float = 0.0) -> int:
    """Fails the first `times` attempts, each after `seconds`."""
    time.sleep(seconds)
    if ctx.attempt <= times:
        raise RuntimeError(f"attempt {ctx.attempt} of {times} that fail")
    return ctx.attempt


@app.handler
def effect(ctx: Context, key: str) -> None:
    """One row, once in effect."""
    with ctx.transaction() as connection:
        insert(connection, ctx, key)


@app.handler
async def aeffect(ctx: Context, key: str) -> None:
    """The same in an async handler."""
    async with ctx.transaction() as connection:
        await ainsert(connection, ctx, key)


async def ainsert(connection: AsyncConnection, ctx: Context, key: str) -> None:
    """The asyncio twin of `insert`."""
    await connection.exec_driver_sql(INSERT, row(ctx, key))


@app.handler(retry=quick)
def flaky_effect(ctx: Context, key: str, times: int) -> None:
    """Fails the first `times` attempts, then has its effect."""
    if ctx.attempt <= times:
        raise RuntimeError(f"attempt {ctx.attempt} of {times} that fail")
    effect(ctx, key)


@app.handler(retry=Retry(attempts=2, base=0.5))
def broken(ctx: Context, key: str, *, fixed: bool = False) -> None:
    """Always fails, until it is redriven with `fixed`."""
    if not fixed:
        raise ValueError('this never works: redrive it with "fixed": true')
    effect(ctx, key)


@app.handler
def snoozing_effect(ctx: Context, key: str, seconds: float) -> None:
    """Not now, says the first execution; the next one has the effect, in the same attempt."""
    if ctx.last_checkpoint is None:
        ctx.checkpoint({"asked": 1})
        raise Snooze(seconds)
    effect(ctx, key)


@app.handler(retry=quick, timeout=1)
def hanging_effect(ctx: Context, key: str) -> None:
    """The first attempt is still busy when its timeout comes, and stops then."""
    while ctx.attempt == 1:
        if ctx.cancelled:
            raise TimeoutError("stopped by its timeout")
        time.sleep(0.05)
    effect(ctx, key)


@app.handler(retry=quick, timeout=1)
async def ahanging_effect(ctx: Context, key: str) -> None:
    """The same, waiting in the loop."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    await aeffect(ctx, key)


@app.handler
def paged_effect(ctx: Context, key: str, pages: int, hold: float) -> None:
    """Long work: `pages` times `hold` seconds, and one effect in the end. Goes on behind the last page that was done."""
    for page in range((ctx.last_checkpoint or 0) + 1, pages + 1):
        time.sleep(hold)
        ctx.checkpoint(page)
        ctx.progress(page / pages, f"page {page} of {pages}")
    effect(ctx, key)


@app.handler(retry=quick, isolate="process", timeout="30s")
def isolated_effect(ctx: Context, key: str, *, dies: bool = False) -> None:
    """In a process of its own, which the first attempt may kill; no worker dies of it."""
    if dies and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    effect(ctx, key)


@app.handler
def poison(ctx: Context, key: str, *, fixed: bool = False) -> None:
    """Kills its worker, until it is redriven with `fixed`."""
    if not fixed:
        os.kill(os.getpid(), signal.SIGKILL)
    effect(ctx, key)


@app.handler
def plain(ctx: Context, key: str, hold: float = 0.0) -> None:
    """One row in a transaction of its own, then `hold` seconds more: a run that is executed again has the row twice."""
    with psycopg.connect(os.environ["ROTA_STORE"], autocommit=True) as connection:
        connection.execute(
            "insert into demo_plain (key, job, tick, attempt, fence) values (%(key)s, %(job)s, %(tick)s, %(attempt)s, %(fence)s)",
            row(ctx, key),
        )
    time.sleep(hold)


@app.handler
def slow_effect(ctx: Context, key: str, hold: float, pause: float) -> None:
    """Holds a transaction open for `hold` seconds, then writes.

    If this process stood still for more than `pause` seconds meanwhile, it takes what it knows for stale and completes
    without writing. The run has long been given to another attempt then, and only the fence keeps this completion from
    being taken for that one's.
    """
    with ctx.transaction() as connection:
        end = before = time.monotonic()
        end += hold
        longest = 0.0
        while before < end:
            time.sleep(0.05)
            now = time.monotonic()
            longest, before = max(longest, now - before), now
        if longest < pause:
            insert(connection, ctx, key)


@app.handler
def careful_effect(ctx: Context, key: str, hold: float) -> None:
    """Holds its transaction open for `hold` seconds, then writes, unless a later attempt has shown a higher fence.

    An attempt that finds itself stale completes without writing: the other one does the work. Only the fence keeps its
    completion from ending the other attempt's run, whose effect would then be refused and lost.
    """
    with psycopg.connect(os.environ["ROTA_STORE"], autocommit=True) as resource:
        resource.execute("insert into demo_seen values (%(job)s, %(tick)s, %(fence)s)", row(ctx, key))
        with ctx.transaction() as connection:
            time.sleep(hold)
            newest = resource.execute(
                "select max(fence) from demo_seen where job = %(job)s and tick = %(tick)s", row(ctx, key)
            ).fetchone()
            if newest is None or newest[0] <= ctx.fence:
                insert(connection, ctx, key)
