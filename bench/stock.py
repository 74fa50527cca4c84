"""Very many jobs or ended runs, stored at once in SQL as the product would have stored them.

Ids are version 7 as the clients make them, so that they go into the key's index in order and spread over the partitions;
jobs are of several queues in turn and due at random times. Indexes are kept up row by row, as by submits. What is due later
goes in by pieces that are in the order of the index of due times: in any other one, ten million take that index from disk
and back again and again. What is due now is in no order.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

QUEUES = 4
"""Queues that jobs are stored in, beside 64 partitions."""
_PIECE = 1_000_000

# Version 7: milliseconds, then random bits. The piece's place in the whole moves its clock.
_ID = """encode(overlay(uuid_send(gen_random_uuid())
  placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 'hex')::uuid"""
_QUEUE = f"'q' || n %% {QUEUES}"
_PART = "get_byte(uuid_send(id), 15) & 63"

_JOBS = f"""
insert into rota.job (id, part, queue, next_run_at, scheduled_for, handler, args, created_at)
select id, {_PART}, {_QUEUE}, due, due, 'noop', '{{"a": 1, "b": "hello"}}', now()
from (select {_ID} as id, n, clock_timestamp() + make_interval(secs => %(soonest)s + %(spread)s * random()) as due
  from generate_series(1, %(rows)s) n) x
"""
_IN_ORDER = " order by 2, 3, 4"
_ENDED = f"""
insert into rota.history (ended_at, job_id, scheduled_for, outcome, queue, handler, args, attempt, losses, fence, owner,
  due_at, claimed_at, begun_at)
select at, id, at, 'succeeded', {_QUEUE}, 'noop', '{{"a": 1, "b": "hello"}}', 1, 0, n, 1, at, at, at
from (select {_ID} as id, n, %(day)s::date::timestamp at time zone 'utc' + interval '1 day' * n / (%(rows)s + 1) as at
  from generate_series(%(first)s, %(last)s) n) x
"""
_APPENDED = f"""
insert into rota.history (ended_at, job_id, scheduled_for, outcome, queue, handler, args, attempt, losses, fence, owner,
  due_at, claimed_at, begun_at)
select clock_timestamp(), gen_random_uuid(), now(), 'succeeded', {_QUEUE}, 'noop', '{{"a": 1, "b": "hello"}}', 1, 0, n, 1,
  now(), now(), now()
from generate_series(1, %(rows)s) n
"""


def queue_names() -> list[str]:
    """The queues of what is stored here."""
    return [f"q{n}" for n in range(QUEUES)]


def store(db: psycopg.Connection, jobs: int, *, due: bool, told: Callable[[str], object] = lambda _: None) -> None:
    """One-offs: overdue by five seconds to a minute, or due from an hour to a month from now. `told` gets the progress."""
    soonest, spread = (-65.0, 60.0) if due else (3600.0, 30 * 86400.0)
    for first, last in _pieces(jobs):
        rows = last - first + 1
        db.execute(_JOBS + ("" if due else _IN_ORDER), {"rows": rows, "soonest": soonest, "spread": spread})
        told(f"{last:,} of {jobs:,} jobs stored")
    db.execute("insert into rota.queue (name) select unnest(%s::text[]) on conflict do nothing", [queue_names()])
    db.execute("vacuum analyze rota.job")


def feed(db: psycopg.Connection, jobs: int) -> None:
    """One-offs that are due now, beside those that go through."""
    db.execute(_JOBS, {"rows": jobs, "soonest": 0.0, "spread": 0.0})


def end(db: psycopg.Connection, runs: int, day: date, told: Callable[[str], object] = lambda _: None) -> None:
    """Ended runs of a day (UTC) whose table is made here, evenly over the day. `told` gets the progress."""
    db.execute(
        f"create table if not exists {day_table(day)} partition of rota.history "
        f"for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
    )
    for first, last in _pieces(runs):
        db.execute(_ENDED, {"day": day, "rows": runs, "first": first, "last": last})
        told(f"{last:,} of {runs:,} ended runs stored")


def day_table(day: date) -> str:
    """The table of history for what ended that day."""
    return f"rota.history_{day:%Y%m%d}"


def append(db: psycopg.Connection, runs: int) -> None:
    """Runs that end now, in one statement; their ids are in no order, as with jobs that were stored at any time."""
    db.execute(_APPENDED, {"rows": runs})


def _pieces(rows: int) -> list[tuple[int, int]]:
    return [(first, min(rows, first + _PIECE - 1)) for first in range(1, rows + 1, _PIECE)]
