"""The handlers of the field cases. An execution enters itself in `field_seen`, and waits and dies as the test says.

A gate is a file in the folder FIELD_GATES: a handler that waits before it goes on when the test has made the file.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg
from rota import App, Cancel, Context, NoRetry, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

app = App("field")

TABLES = """
create table field_seen (key text not null, fence bigint not null, attempt integer not null, idempotency_key text not null,
  time timestamptz not null default clock_timestamp());
create table field_effect (key text not null, fence bigint not null);
create table field_balance (n integer not null);
insert into field_balance values (0);
create table field_span (key text not null, tick timestamptz not null, began timestamptz not null default clock_timestamp(),
  ended timestamptz);
create table field_missed (key text not null, missed integer, catchup boolean not null);
"""


def see(ctx: Context, key: str) -> int:
    """Enters this execution, in a transaction of its own. The how manyth it is of `key`, from 1.

    One statement: who is frozen after it has entered is still told what it was then.
    """
    row: Mapping[str, object] = {
        "key": key,
        "fence": ctx.fence,
        "attempt": ctx.attempt,
        "idempotency_key": ctx.idempotency_key,
    }
    with psycopg.connect(os.environ["ROTA_STORE"], autocommit=True) as connection:
        found = connection.execute(
            "with entered as (insert into field_seen values (%(key)s, %(fence)s, %(attempt)s, %(idempotency_key)s)) "
            "select count(*) + 1 from field_seen where key = %(key)s",
            row,
        ).fetchone()
    assert found is not None
    return int(found[0])


def wait(gate: str) -> None:
    """Until the test has opened the gate."""
    while not (Path(os.environ["FIELD_GATES"]) / gate).exists():
        time.sleep(0.02)


def insert(connection: sa.Connection, ctx: Context, key: str) -> None:
    """One effect."""
    connection.exec_driver_sql("insert into field_effect values (%s, %s)", (key, ctx.fence))


def die() -> NoReturn:
    """What `kill -9` and the kernel out of memory do."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@app.handler(retry=Retry(attempts=2, base=0.5))
def held(ctx: Context, key: str, way: str) -> None:
    """Waits at the gate KEY-N, N being the how manyth execution it is; then ends the way it is told."""
    gate = f"{key}-{see(ctx, key)}"
    if way == "transaction":
        with ctx.transaction() as connection:
            insert(connection, ctx, key)
            wait(gate)
    else:
        wait(gate)
        if way == "raise":
            raise RuntimeError("as told")


@app.handler
def dies(ctx: Context, key: str, when: str) -> None:
    """One effect. The first execution kills its process at the point that `when` names."""
    first = see(ctx, key) == 1
    if first and when == "before the effect":
        die()
    with ctx.transaction() as connection:
        insert(connection, ctx, key)
        if first and when == "before the commit":
            die()
    if first and when == "before the ack":
        die()


@app.handler(retry=Retry(attempts=3, base=0.1))
def kills(ctx: Context, key: str) -> None:
    """Each execution kills its process: the worker."""
    see(ctx, key)
    die()


@app.handler(isolate="process", retry=Retry(attempts=3, base=0.1))
def kills_itself(ctx: Context, key: str) -> None:
    """Each execution kills its process, which is not the worker."""
    see(ctx, key)
    die()


@app.handler
def credit(ctx: Context) -> None:
    """Adds one, in the transaction that completes the run."""
    with ctx.transaction() as connection:
        connection.exec_driver_sql("update field_balance set n = n + 1")


@app.handler(retry=Retry(attempts=2, base=0.1))
def fails(ctx: Context, key: str) -> None:
    """Is executed and fails."""
    see(ctx, key)
    raise RuntimeError("as always")


impatient = Retry(attempts=50, base=0.1, cap=1)
"""For timeouts of half a second: on a busy machine an attempt that does not hang may be too late as well."""


@app.handler(timeout=0.5, retry=impatient)
async def hangs(ctx: Context, key: str) -> None:
    """The first execution waits for what never comes, in a coroutine."""
    if await asyncio.to_thread(see, ctx, key) == 1:
        await asyncio.Event().wait()


@app.handler(retry=impatient)
async def swallows(ctx: Context, key: str) -> None:
    """The first execution waits at its gate, in a coroutine that swallows whatever it is told, from its first moment on."""
    gate = Path(os.environ["FIELD_GATES"]) / f"{key}-1"
    number = asyncio.ensure_future(asyncio.to_thread(see, ctx, key))
    while not number.done() or (number.result() == 1 and not gate.exists()):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue


@app.handler(timeout=0.5)
async def blocks(ctx: Context, key: str) -> None:
    """The first execution waits for what never comes, and lets nothing else run in its loop meanwhile."""
    if see(ctx, key) == 1:
        wait(f"{key}-1")


@app.handler(timeout=0.5, retry=impatient)
def hangs_in_a_thread(ctx: Context, key: str) -> None:
    """The first execution waits for what never comes, in a thread, and never looks at `ctx.cancelled`."""
    if see(ctx, key) == 1:
        wait(f"{key}-1")


@app.handler(isolate="process", timeout=0.5, retry=impatient)
def hangs_in_c(ctx: Context, key: str) -> None:
    """The first execution is busy in C code that never lets another thread of its process run."""
    if see(ctx, key) == 1:
        re.match(r"(a*)*b", "a" * 64)


@app.handler
def mends(ctx: Context, key: str) -> None:
    """Fails for good until the test has opened the gate "mended"; then one effect."""
    if not (Path(os.environ["FIELD_GATES"]) / "mended").exists():
        raise NoRetry("not mended")
    with ctx.transaction() as connection:
        insert(connection, ctx, key)


@app.handler
def spans(ctx: Context, key: str, seconds: float) -> None:
    """Enters when it begins and when it ends, and takes so long in between, or until it shall stop."""
    with psycopg.connect(os.environ["ROTA_STORE"], autocommit=True) as connection:
        mine = (key, ctx.scheduled_for)
        connection.execute("insert into field_span values (%s, %s)", mine)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not ctx.cancelled:
            time.sleep(0.01)
        connection.execute("update field_span set ended = clock_timestamp() where key = %s and tick = %s", mine)
    if ctx.cancelled:
        raise Cancel("told to stop")


def tell(ctx: Context, key: str) -> None:
    """Enters what it knows of ticks that were missed."""
    with psycopg.connect(os.environ["ROTA_STORE"], autocommit=True) as connection:
        connection.execute("insert into field_missed values (%s, %s, %s)", (key, ctx.missed, ctx.is_catchup))


@app.handler
def tells(ctx: Context, key: str) -> None:
    """In a thread."""
    tell(ctx, key)


@app.handler(isolate="process")
def tells_itself(ctx: Context, key: str) -> None:
    """In a process of its own."""
    tell(ctx, key)


@app.handler
def ends_and_dies(ctx: Context, key: str) -> None:
    """One effect, and then its process is killed: after the end is written and before anything else."""
    with ctx.transaction() as connection:
        insert(connection, ctx, key)
    die()
