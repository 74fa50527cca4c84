"""How a day of history goes by age, without a lock that the pipeline would wait for.

In three steps, each of which may be the last one of a process: the day is marked (from then on no new statement reads it
through `rota.history`), detached when the statements and transactions that may still read it are over, and dropped. The next
round goes on where the last one ended, and two rounds at once do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors
from rota.sched.store.postgres.days import DAY, TABLES, make_days, older_than
from rota.sched.store.postgres.duties import TAKE
from rota.sched.store.postgres.link import translate
from rota.sched.store.postgres.text import tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Retained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rota.sched.store.protocols import AsyncLink

AHEAD = 8
"""Days that are made ahead, today not counted."""

DETACH_SECONDS = 5.0
"""How long a round waits for those who may read a day. It holds no lock meanwhile."""

# A day that is over, and the right to change the set of days: no end of a run asks for either.
_BOUNDED = "set local lock_timeout = '1s'"
# In front of everything that ends a run.
_BRIEF = "set local lock_timeout = '100ms'"
_BRIEF_TRIES = 3

# Somebody is in the way, or another round was quicker: to be seen by what there is then.
_LATER = (
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.ObjectNotInPrerequisiteState,
    errors.UndefinedTable,
    TimeoutError,
)

KEYS_AT_ONCE = 5_000

STALE = f"select {DAY} from {TABLES} and {older_than('%(keep)s')} order by 1"
STEP = f"""
select c.relispartition, (select partdefid <> 0 from pg_partitioned_table where partrelid = 'rota.history'::regclass)
from {TABLES} and {DAY} = %s
"""
MARKED = (
    "select inhrelid::regclass::text from pg_inherits where inhparent = 'rota.history'::regclass and inhdetachpending"
)

# Whom a step waits for: who has locked history or that day, or else has a snapshot in which the day may be a part of it.
HOLDER = f"""
select a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'), a.usename::text, {tick("a.xact_start")}
from pg_stat_activity a cross join lateral (
  select exists (select from pg_locks l where l.pid = a.pid and l.granted and l.relation = any(
    array['rota.history'::regclass::oid, to_regclass('rota.history_' || %s)::oid])) as locked) held
where a.datname = current_database() and a.pid <> pg_backend_pid() and (
  locked or a.backend_xmin is not null and a.xact_start < clock_timestamp() - interval '1 s')
order by a.xact_start > clock_timestamp() - interval '1 s', locked desc, a.xact_start limit 1
"""

FORGET_MEMBERS = """
delete from rota.member m where m.state <> 'live' and m.settled and m.ended_at < clock_timestamp() - interval '2 days'
  and not exists (select from rota.run r where r.scheduler = m.id)
"""

FORGET_KEYS = """
delete from rota.key where ctid = any(array(
  select ctid from rota.key where until < clock_timestamp() order by until limit %s for update skip locked))
returning 1
"""

NOTE = "update rota.duty set told = jsonb_build_object('keep_s', %s::float8, 'why', %s::jsonb) where name = 'retention'"


class RetentionStatements:
    """The duty. Its lease is a time, not a lock: what it does with a day is no one transaction."""

    @transaction()
    def make_history(self) -> Steps[None]:
        """Makes history's days ahead."""
        yield from make_days(0, AHEAD)

    @transaction()
    def retain(self, member: int, keep: float, every: float) -> Steps[Retained]:
        """Takes the duty for `every` seconds, makes days ahead, forgets old members, and names the days that have to go."""
        if not (yield Query(TAKE, {"name": "retention", "every": every, "member": member})):
            return Retained(ran=False)
        yield from make_days(0, AHEAD)
        yield Query(FORGET_MEMBERS)
        return Retained(ran=True, stale=[day for (day,) in (yield Query(STALE, {"keep": keep}))])

    @transaction()
    def forget_keys(self) -> Steps[bool]:
        """Forgets a portion of the idempotency keys whose time is over. True: there may be more."""
        return len((yield Query(FORGET_KEYS, [KEYS_AT_ONCE]))) == KEYS_AT_ONCE

    @transaction()
    def note_retention(self, keep: float, why: Mapping[str, str]) -> Steps[None]:
        """Notes for people how long history is kept, and why which days are still there that have to go."""
        yield Query(NOTE, [keep, json.dumps(why)])

    async def drop_day(self, link: AsyncLink, day: str) -> str | None:
        """Lets a day go, however far an earlier round had come. None: it is gone; else why it is still there.

        Every wait is bounded, and none stands in front of what ends runs for more than a moment.
        """
        try:
            connection = await link.connection()
            with contextlib.suppress(*_LATER):
                await _finalize(connection)
                await _detach(connection, day)
            # A day that is a part of history would be dropped under an exclusive lock on all of it.
            if not await _is_part(connection, day):
                with contextlib.suppress(errors.LockNotAvailable):
                    await _locked(connection, _BOUNDED, f"drop table if exists rota.history_{day}")
                    return None
            return await _holder(connection, day)
        except (psycopg.Error, OSError) as error:
            raise translate(error) from error


async def _finalize(connection: psycopg.AsyncConnection[Any]) -> None:
    """Goes on with the day that is marked; there is one at most, and no other can be marked before it is detached."""
    for (marked,) in await (await connection.execute(MARKED, prepare=False)).fetchall():
        await _locked(connection, _BOUNDED, f"alter table rota.history detach partition {marked} finalize")


async def _detach(connection: psycopg.AsyncConnection[Any], day: str) -> None:
    row = await (await connection.execute(STEP, [day], prepare=False)).fetchone()
    if row is None or not row[0]:
        return
    detach = f"alter table rota.history detach partition rota.history_{day}"
    if row[1]:  # Postgres refuses it concurrently beside a default partition
        for _ in range(_BRIEF_TRIES - 1):
            with contextlib.suppress(errors.LockNotAvailable):
                await _locked(connection, _BRIEF, detach)
                return
            await asyncio.sleep(0.5)
        await _locked(connection, _BRIEF, detach)
        return
    # Allowed outside of a transaction only, where no setting holds behind a pooler: when the time is over, the driver cancels
    # the statement. The mark stays.
    async with asyncio.timeout(DETACH_SECONDS):
        await connection.execute(f"{detach} concurrently", prepare=False)


async def _locked(connection: psycopg.AsyncConnection[Any], bound: str, statement: str) -> None:
    async with connection.transaction():
        await connection.execute(bound, prepare=False)
        await connection.execute(statement, prepare=False)


async def _is_part(connection: psycopg.AsyncConnection[Any], day: str) -> bool:
    row = await (await connection.execute(STEP, [day], prepare=False)).fetchone()
    return row is not None and bool(row[0])


async def _holder(connection: psycopg.AsyncConnection[Any], day: str) -> str:
    found = await (await connection.execute(HOLDER, [day], prepare=False)).fetchone()
    if found is None:
        return "something was in the way, and is over"
    pid, program, user, since = found
    return f"session {pid} ({program}, user {user}) may still read it, in a transaction since {since}"
