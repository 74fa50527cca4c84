"""Fragments that several statements share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.control import FROM_CALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def tick(column: str) -> str:
    """A timestamptz as the canonical text of a tick: RFC 3339, UTC, microseconds."""
    return f"""to_char({column} at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


def array(values: Iterable[object]) -> str:
    """An array parameter, written as Postgres reads it: of ids, ticks and numbers, which need no quotes.

    The driver's own way looks at every element, which takes longer than the statement's work on it.
    """
    return f"{{{','.join(map(str, values))}}}"


def quoted(values: Iterable[str]) -> str:
    """The same of any texts."""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return array(f'"{value}"' for value in escaped)


def sparse(values: Sequence[object]) -> list[object] | None:
    """An array parameter of which mostly all elements are None: `unnest` pads what is shorter with nulls."""
    return None if all(value is None for value in values) else list(values)


LIVE_MEMBER = """me as materialized (
  select id from rota.member where id = %(member)s and state = 'live' for key share
)"""
"""The caller's own row, locked against recovery's verdict: the dead claim and begin nothing (docs/protocol.md).

KEY SHARE lets heartbeats pass and conflicts with the FOR UPDATE that recovery takes before it marks a member dead.
"""

PAST = """job_id, scheduled_for, queue, handler, tenant, args, attempt, losses, fence, owner, due_at, claimed_at, begun_at,
  lineage"""
"""What a run takes along into `history` and `dead`; `errors` is apart because finish adds to it."""


def with_error(errors: str, entry: str) -> str:
    """A run's errors with another entry, which gets the time: the first one and the latest are kept, KEPT in all."""
    stamped = f"{entry} || jsonb_build_object('at', {tick('clock_timestamp()')})"
    return f"""case when {entry} is null then {errors}
    when jsonb_array_length({errors}) >= {KEPT} then ({errors} - 1) || jsonb_build_array({stamped})
    else coalesce({errors}, '[]') || jsonb_build_array({stamped}) end"""


KEPT = 20
"""Errors that a run keeps; an attempt more, and its second one goes."""

DEAD = f"{PAST}, part, policy, catchup, missed"
"""What it takes along into `dead`, to come back from there."""

_BURIED = f"{DEAD}, died_at, reason, errors"
DIED_AGAIN = f"""on conflict (job_id, scheduled_for) do update
  set ({_BURIED}) = ({", ".join(f"excluded.{column}" for column in _BURIED.replace(",", " ").split())})"""
"""For a tick that is dead already and was claimed once more, after a restore of the store, say: its latest death counts."""

WAKE_CHANNEL = "rota_wake"
"""NOTIFY channel: something is due earlier than a sleeping scheduler expects. The payload is the queue's name.

Of what may have been passed by it has the due time, too (`late_call`).
"""


def late_call(queue: str, at: str, late: str) -> str:
    """The payload for something due `at`: where `late` is true, schedulers shall look from there on.

    In whole seconds, so that a transaction sends one and not one for each job.
    """
    return f"""case when {late} then '{FROM_CALL}' || floor(extract(epoch from {at}))::bigint || ' ' || {queue}
    else {queue} end"""


DEATH = f"job_id::text, {tick('scheduled_for')}, queue, handler, tenant, reason, attempt, coalesce(fence, 0)"
"""The columns of a `Death`, from a row of `dead`."""

ALIVE = "claimed_at >= (select coalesce(min(low), '-infinity') from rota.duty where name = 'recovery')"
"""Of a run: it was claimed no earlier than any that is alive (sched/store/postgres/duties.py).

A scan from there on along the index run_claimed does not read what is long dead, which an old snapshot keeps from being vacuumed.
"""

SAME_RUN = "(r.job_id, r.scheduled_for) >= (x.id, x.tick) and (r.job_id, r.scheduled_for) <= (x.id, x.tick)"
"""That run `r` is the one that `x` names, written so that the planner can only look it up by its key.

Written with `=`, after an ANALYZE of a nearly empty table that then grew, it read the whole index once and compared every row
with every name: 2 s instead of 2 ms for 128 of 20,000 runs.
"""

SAME_JOB = "j.id >= x.id and j.id <= x.id"
"""That job `j` is the one that `x` names, for the same reason: 20,000 jobs into a new store were claimed at 350/s."""
