"""The scheduler's statements: claim, dispatch of ready runs, and when the next thing is due."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError, Superseded
from rota.sched.message import ARGS_INLINE
from rota.sched.model import Dispatch
from rota.sched.store.postgres.text import LIVE_MEMBER, SAME_RUN, tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Claimed, Lanes, Served
from rota.sched.timing import Advance, advance
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISPATCH = f"""dispatch, job_id::text, {tick("scheduled_for")}, queue, handler, tenant,
    case when octet_length(args::text) <= {ARGS_INLINE} then args::text end"""


def _expires(due: str) -> str:
    """From when on a run may not begin, by its job's policy."""
    return f"{due} + make_interval(secs => (policy ->> 'expires')::float8)"


# Lanes are walked in the caller's order, each by the index job_due and no further than its limit. One-offs leave the
# table here; the rows of recurring jobs stay locked for the plan that follows in the same transaction.
CLAIM = f"""
with {LIVE_MEMBER},
due as materialized (
  select lane.n, d.* from me
  cross join unnest(%(parts)s::smallint[], %(queues)s::text[], %(lows)s::timestamptz[])
    with ordinality as lane(part, queue, low, n)
  cross join lateral (
    select j.id, j.schedule, j.scheduled_for, j.next_run_at from rota.job j
    where j.part = lane.part and j.queue = lane.queue and not j.paused
      and j.next_run_at >= lane.low and j.next_run_at <= now()
    order by j.next_run_at limit %(per_lane)s for update skip locked
  ) d
  limit %(limit)s
),
gone as (
  delete from rota.job j using due where j.id = due.id and due.schedule is null
  returning due.n, j.*
),
live as (
  insert into rota.run (job_id, scheduled_for, part, state, dispatch, scheduler, queue, handler, tenant, args, policy,
    due_at, claimed_at, expires_at)
  select id, scheduled_for, part, 'waiting', nextval('rota.number'), %(member)s, queue, handler, tenant, args, policy,
    next_run_at, now(), {_expires("next_run_at")}
  from gone
  on conflict do nothing
  returning *
),
told as (
  select 0 as kind, {_DISPATCH}, null::jsonb, false from live
  union all
  select 1, 0, d.id::text, {tick("d.scheduled_for")}, null, null, null, null, d.schedule,
    exists (select from rota.run r where r.job_id = d.id)
  from due d where d.schedule is not null
  union all
  select 2, count(*), null, to_char(max(next_run_at) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    null, null, null, n::text, null, false from due group by n
)
select now(), told.* from me left join told on true
"""

# The plan of the recurring rows of a claim, applied: cursors move on, ticks become runs, what is skipped is told.
ADVANCE = f"""
with fired as (
  insert into rota.run (job_id, scheduled_for, part, state, dispatch, scheduler, queue, handler, tenant, args, policy,
    due_at, claimed_at, expires_at)
  select j.id, f.at, j.part, 'waiting', nextval('rota.number'), %(member)s, j.queue, j.handler, j.tenant, j.args, j.policy,
    due.at, now(), {_expires("due.at")}
  from unnest(%(fire_ids)s::uuid[], %(fire_at)s::timestamptz[]) with ordinality f(id, at, n)
  join rota.job j on j.id = f.id
  cross join lateral (select case when f.at = j.scheduled_for then j.next_run_at else f.at end as at) due
  order by f.n
  on conflict do nothing
  returning *
),
skipped as (
  insert into rota.history (ended_at, job_id, scheduled_for, outcome, reason, queue, handler, tenant, args, attempt,
    losses, due_at)
  select clock_timestamp(), j.id, s.at, 'skipped', s.reason, j.queue, j.handler, j.tenant, j.args, 0, 0, s.at
  from unnest(%(skip_ids)s::uuid[], %(skip_at)s::timestamptz[], %(skip_reasons)s::text[]) s(id, at, reason)
  join rota.job j on j.id = s.id
),
moved as (
  update rota.job j set scheduled_for = m.next, next_run_at = m.due
  from unnest(%(move_ids)s::uuid[], %(move_next)s::timestamptz[], %(move_due)s::timestamptz[]) m(id, next, due)
  where j.id = m.id
),
over as (
  delete from rota.job where id = any(%(over_ids)s::uuid[])
),
broken as (
  update rota.job j set paused = true, paused_reason = b.reason
  from unnest(%(broken_ids)s::uuid[], %(broken_reasons)s::text[]) b(id, reason)
  where j.id = b.id
)
select {_DISPATCH} from fired
"""

READY = f"""
with {LIVE_MEMBER},
ready as materialized (
  select r.* from me cross join unnest(%(parts)s::smallint[], %(queues)s::text[]) lane(part, queue)
  cross join lateral (
    select job_id as id, scheduled_for as tick from rota.run r
    where r.part = lane.part and r.queue = lane.queue and r.ready_at <= now() and r.state in ('waiting', 'retrying')
    order by r.ready_at limit %(per_lane)s for update skip locked
  ) r
  limit %(limit)s
)
update rota.run r set state = 'waiting', dispatch = nextval('rota.number'), scheduler = %(member)s, fence = null,
  owner = null, retry_at = null, ready_at = null, dispatched_at = clock_timestamp()
from ready x where {SAME_RUN}
returning {_DISPATCH.replace("job_id", "r.job_id").replace("scheduled_for", "r.scheduled_for")}
"""

NEXT_DUE = """
select least(
  (select min(d.at) from unnest(%(parts)s::smallint[], %(queues)s::text[]) lane(part, queue)
   cross join lateral (
     select j.next_run_at as at from rota.job j
     where j.part = lane.part and j.queue = lane.queue and not j.paused order by j.next_run_at limit 1) d),
  (select min(d.at) from unnest(%(parts)s::smallint[], %(queues)s::text[]) lane(part, queue)
   cross join lateral (
     select r.ready_at as at from rota.run r
     where r.part = lane.part and r.queue = lane.queue and r.ready_at is not null order by r.ready_at limit 1) d)
)"""


class SchedulingStatements:
    """Claim and dispatch (DESIGN 3.2 and 3.3). All due times are judged by the store's clock."""

    @transaction(pinned=True)
    def claim(self, member: int, lanes: Lanes, limit: int, per_lane: int) -> Steps[Claimed]:
        """Moves due ticks of the lanes into runs under new dispatch numbers, `limit` jobs at most.

        Raises Superseded if the member is not live. Safe to repeat under a new member id after a lost answer: what
        the lost one claimed is adopted from the dead id.
        """
        params = {
            "member": member,
            "parts": lanes.parts,
            "queues": lanes.queues,
            "lows": lanes.lows,
            "limit": limit,
            "per_lane": per_lane,
        }
        rows = yield Query(CLAIM, params)
        if not rows:
            raise Superseded(f"scheduler {member} was taken for dead: it claims nothing")
        now = rows[0][0]
        dispatches = [Dispatch(*row[2:9]) for row in rows if row[1] == 0]
        recurring = [row for row in rows if row[1] == 1]
        served = [Served(int(row[8]) - 1, row[2], datetime.fromisoformat(row[4])) for row in rows if row[1] == 2]
        plan = Plan()
        for row in recurring:
            plan.add(job_id=row[3], cursor=row[4], schedule=row[9], live=row[10], now=now)
        if recurring:
            fired = yield Query(ADVANCE, {"member": member, **plan.params()})
            dispatches += [Dispatch(*row) for row in fired]
        dispatches.sort(key=lambda d: d.dispatch)
        return Claimed(dispatches, served, now, plan.broken, len(plan.skipped))

    @transaction(pinned=True)
    def ready(self, member: int, lanes: Lanes, limit: int, per_lane: int | None = None) -> Steps[list[Dispatch]]:
        """Gives runs whose ready_at has come a new dispatch number under this scheduler; they are waiting then.

        Lanes are walked in the caller's order, `per_lane` runs of each at most: a redrive of very many in the first ones
        must not keep what recovery has set ready in the others. A dead member gets nothing, as with claim (but no error:
        claim will tell it).
        """
        params = {
            "member": member,
            "parts": lanes.parts,
            "queues": lanes.queues,
            "limit": limit,
            "per_lane": per_lane or limit,
        }
        rows = yield Query(READY, params)
        return [Dispatch(*row) for row in rows]

    @transaction(pinned=True)
    def sleep(self, member: int, lanes: Lanes, longest: float) -> Steps[float]:
        """How long the scheduler may sleep, `longest` at most, and the promise that it will look again then.

        Publishes the wake-up time, so that a submit of something earlier knows that it must NOTIFY.
        """
        params = {"parts": lanes.parts, "queues": lanes.queues}
        ((at,),) = yield Query(NEXT_DUE, params)
        rows = yield Query(
            "update rota.member set wakes_at = least(%(at)s, clock_timestamp() + make_interval(secs => %(longest)s)) "
            "where id = %(member)s returning extract(epoch from wakes_at - clock_timestamp())::float8",
            {"member": member, "at": at, "longest": longest},
        )
        return max(0.0, rows[0][0]) if rows else 0.0

    @transaction()
    def wake(self, member: int) -> Steps[None]:
        """Takes back the wake-up time: submits need not NOTIFY while the scheduler is awake."""
        yield Query("update rota.member set wakes_at = null where id = %s and wakes_at is not null", [member])


class Plan:
    """What recurring rows become: a pure function of rows and time, collected in the arrays of ADVANCE."""

    def __init__(self) -> None:
        self.fired: list[tuple[str, datetime]] = []
        self.skipped: list[tuple[str, datetime, str]] = []
        self.moved: list[tuple[str, datetime, datetime]] = []
        self.over: list[str] = []
        self.broken: list[tuple[str, str]] = []

    def add(self, *, job_id: str, cursor: str, schedule: dict[str, Any], live: bool, now: datetime) -> None:
        """Plans one job; one whose schedule cannot be computed is set aside and stops no other (P8)."""
        try:
            step = advance(Schedule.from_json(schedule), job_id, datetime.fromisoformat(cursor), now, live=live)
        except (RotaError, ValueError, ArithmeticError, TypeError, KeyError) as error:
            self.broken.append((job_id, f"schedule {json.dumps(schedule)} cannot be computed: {error}"))
            return
        self.take(job_id, step)

    def take(self, job_id: str, step: Advance) -> None:
        """Adds what was planned for a job."""
        self.fired += [(job_id, at) for at in step.fire]
        self.skipped += [(job_id, s.first, s.text()) for s in step.skipped]
        if step.next is None or step.due is None:
            self.over.append(job_id)
        else:
            self.moved.append((job_id, step.next, step.due))

    def params(self) -> dict[str, list[Any]]:
        """The arrays of ADVANCE, each sorted by key so that two claims lock in one order."""
        fired, skipped = _columns(self.fired, 2), _columns(self.skipped, 3)
        moved, broken = _columns(self.moved, 3), _columns(self.broken, 2)
        return {
            "fire_ids": fired[0],
            "fire_at": fired[1],
            "skip_ids": skipped[0],
            "skip_at": skipped[1],
            "skip_reasons": skipped[2],
            "move_ids": moved[0],
            "move_next": moved[1],
            "move_due": moved[2],
            "over_ids": self.over,
            "broken_ids": broken[0],
            "broken_reasons": broken[1],
        }


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*sorted(rows), strict=True)] or [[] for _ in range(width)]
