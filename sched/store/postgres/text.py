"""Fragments that several statements share."""

from __future__ import annotations


def tick(column: str) -> str:
    """A timestamptz as the canonical text of a tick: RFC 3339, UTC, microseconds."""
    return f"""to_char({column} at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


LIVE_MEMBER = """me as materialized (
  select id from rota.member where id = %(member)s and state = 'live' for key share
)"""
"""The caller's own row, locked against recovery's verdict: the dead claim and begin nothing (docs/protocol.md).

KEY SHARE lets heartbeats pass and conflicts with the FOR UPDATE that recovery takes before it marks a member dead.
"""

PAST = """job_id, scheduled_for, queue, handler, tenant, args, attempt, losses, fence, owner, due_at, claimed_at, begun_at,
  lineage"""
"""What a run takes along into `history` and `dead`; `errors` is apart because finish adds to it."""

DEAD = f"{PAST}, part, policy"
"""What it takes along into `dead`, to come back from there."""
