"""The scheduler's statements: claim, dispatch of ready runs, and when the next thing is due."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.sched.durations import rfc3339
from rota.sched.errors import RotaError, Superseded
from rota.sched.message import ARGS_INLINE
from rota.sched.model import Dispatch
from rota.sched.store.postgres.submission import CANCEL_RUNS
from rota.sched.store.postgres.text import LIVE_MEMBER, SAME_JOB, SAME_RUN, array, quoted, tick
from rota.sched.store.postgres.turns import abreast, release
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Claimed, Lanes, Look, Readied, Served
from rota.sched.timing import Advance, advance
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.store.postgres.turns import Abreast

MOMENT = 1
"""Seconds by which a promise of when to look goes beyond now at least."""
A_MOMENT = timedelta(milliseconds=50)
"""How much later a tick is looked at whose job has a run that somebody else is about to change."""

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
    select j.id, j.schedule, j.scheduled_for, j.next_run_at, j.runs_left, j.missed from rota.job j
    where j.part = lane.part and j.queue = lane.queue and not j.paused
      and j.next_run_at >= lane.low and j.next_run_at <= now()
    order by j.next_run_at limit %(per_lane)s for update skip locked
  ) d
  limit %(limit)s
),
gone as (
  delete from rota.job j using due x where {SAME_JOB} and x.schedule is null
  returning x.n, j.*
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
  select 0 as kind, {_DISPATCH}, null::jsonb, null, null::int, null::int from live
  union all
  select 1, 0, d.id::text, {tick("d.scheduled_for")}, null, null, null, null, d.schedule,
    d.schedule ->> 'overlap', d.runs_left, d.missed
  from due d where d.schedule is not null
  union all
  select 2, count(*), null, to_char(max(next_run_at) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    null, null, null, n::text, null, null, null, null from due group by n
)
select now(), told.* from me left join told on true
"""

# The plan of the recurring rows of a claim, applied: cursors move on, ticks become runs, what is skipped is told. What is
# alive of a job that does not have its runs beside each other was locked before (`abreast`).
ADVANCE = f"""
with fired as (
  insert into rota.run (job_id, scheduled_for, part, state, dispatch, scheduler, queue, handler, tenant, args, policy,
    due_at, claimed_at, expires_at, catchup, missed, followed)
  select j.id, x.at, j.part, case when x.waits then 'buffered' else 'waiting' end,
    case when x.waits then 0 else nextval('rota.number') end, case when not x.waits then %(member)s::bigint end,
    j.queue, j.handler, j.tenant, j.args, j.policy, due.at, now(), {_expires("due.at")}, x.catchup, x.missed,
    j.id = any(%(followed)s::uuid[])
  from unnest(%(fire_ids)s::uuid[], %(fire_at)s::timestamptz[], %(fire_catchup)s::boolean[], %(fire_missed)s::int[],
    %(fire_waits)s::boolean[]) with ordinality x(id, at, catchup, missed, waits, n)
  join rota.job j on {SAME_JOB}
  cross join lateral (select case when x.at = j.scheduled_for then j.next_run_at else x.at end as at) due
  order by x.n
  on conflict do nothing
  returning *
),
marked as (
  update rota.run set followed = true
  where job_id = any(%(followed)s::uuid[]) and state <> 'buffered' and not followed
),
skipped as (
  insert into rota.history (ended_at, job_id, scheduled_for, outcome, reason, queue, handler, tenant, args, attempt,
    losses, due_at)
  select clock_timestamp(), j.id, x.at, 'skipped', x.reason, j.queue, j.handler, j.tenant, j.args, 0, 0, x.at
  from unnest(%(skip_ids)s::uuid[], %(skip_at)s::timestamptz[], %(skip_reasons)s::text[]) x(id, at, reason)
  join rota.job j on {SAME_JOB}
),
moved as (
  update rota.job j set scheduled_for = x.next, next_run_at = x.due, runs_left = j.runs_left - x.runs, missed = x.missed
  from unnest(%(move_ids)s::uuid[], %(move_next)s::timestamptz[], %(move_due)s::timestamptz[], %(move_runs)s::int[],
    %(move_missed)s::int[]) x(id, next, due, runs, missed)
  where {SAME_JOB}
),
over as (
  delete from rota.job where id = any(%(over_ids)s::uuid[])
),
broken as (
  update rota.job j set paused = true, paused_reason = x.reason
  from unnest(%(broken_ids)s::uuid[], %(broken_reasons)s::text[]) x(id, reason)
  where {SAME_JOB}
)
select {_DISPATCH} from fired where state = 'waiting'
"""

READY = f"""
with {LIVE_MEMBER},
ready as materialized (
  select lane.n, r.* from me
  cross join unnest(%(parts)s::smallint[], %(queues)s::text[], %(lows)s::timestamptz[])
    with ordinality as lane(part, queue, low, n)
  cross join lateral (
    select job_id as id, scheduled_for as tick, ready_at from rota.run r
    where r.part = lane.part and r.queue = lane.queue and r.ready_at >= lane.low and r.ready_at <= now()
      and r.state in ('waiting', 'retrying')
    order by r.ready_at limit %(per_lane)s for update skip locked
  ) r
  limit %(limit)s
),
given as (
  update rota.run r set state = 'waiting', dispatch = nextval('rota.number'), scheduler = %(member)s, fence = null,
    owner = null, retry_at = null, ready_at = null, dispatched_at = clock_timestamp()
  from ready x where {SAME_RUN}
  returning x.n, x.ready_at as was_ready, {_DISPATCH.replace("job_id", "r.job_id").replace("scheduled_for", "r.scheduled_for")}
)
select now(), given.* from me left join given on true
"""

# Nothing is locked, so what others have locked is seen, too: claims pass it by. What is due already is told and not slept
# for, but the promise goes a moment beyond it: who cannot claim it just now sleeps, too.
SLEEP = f"""
with mine as materialized (
  select id, wakes_at > clock_timestamp() + interval '{MOMENT} s' as kept from rota.member
  where id = %(member)s and state = 'live'
),
head as materialized (
  select lane.part, lane.queue, least(j.at, r.at) as at
  from unnest(%(parts)s::smallint[], %(queues)s::text[], %(lows)s::timestamptz[]) lane(part, queue, low)
  left join lateral (
    select j.next_run_at as at from rota.job j
    where j.part = lane.part and j.queue = lane.queue and not j.paused and j.next_run_at >= lane.low
    order by j.next_run_at limit 1) j on true
  left join lateral (
    select r.ready_at as at from rota.run r
    where r.part = lane.part and r.queue = lane.queue and r.ready_at >= lane.low
    order by r.ready_at limit 1) r on true
)
update rota.member m set wakes_at = greatest(
  clock_timestamp() + make_interval(secs => least({MOMENT}, %(longest)s)),
  least(clock_timestamp() + make_interval(secs => %(longest)s), (select min(at) from head)))
from mine where m.id = mine.id and m.state = 'live'
returning now(), extract(epoch from (select min(at) from head) - clock_timestamp())::float8, coalesce(mine.kept, false),
  pg_current_xact_id()::text, pg_snapshot_xmin(pg_current_snapshot())::text,
  (select json_agg(json_build_array(part, queue, at)) from head where at <= now()),
  (select json_agg(json_build_array(name, cap) order by name) from rota.queue where not paused),
  array(select s.id from rota.member s where s.kind = 'scheduler' and s.state = 'live' order by s.id),
  (select json_agg(json_build_array(part, owner) order by part) from rota.partition)
"""

WAKE = "update rota.member set wakes_at = null where id = %s and wakes_at is not null"


class SchedulingStatements:
    """Claim and dispatch (DESIGN 3.2 and 3.3). All due times are judged by the store's clock."""

    @transaction(pinned=True)
    def claim(self, member: int, lanes: Lanes, limit: int, per_lane: int) -> Steps[Claimed]:
        """Moves due ticks of the lanes into runs under new dispatch numbers, `limit` jobs at most.

        Raises Superseded if the member is not live. Safe to repeat under a new member id after a lost answer: what
        the lost one claimed is adopted from the dead id.
        """
        found = yield from _claim(member, lanes, limit, per_lane)
        recurring, dispatches, now = found.recurring, found.dispatches, found.now
        plan = Plan(now)
        cancelled = 0
        if recurring:
            turns = yield from abreast([row[3] for row in recurring if row[10] not in {None, "allow"}])
            for row in recurring:
                plan.add(Due(row[3], row[4], *row[9:]), turns.get(row[3]))
            cancelled = yield from plan.cancel_others()
            fired = yield Query(ADVANCE, {"member": member, **plan.params()})
            dispatches += [Dispatch(*row) for row in fired]
            yield from release((job_id, each.waiting and not each.live) for job_id, each in turns.items())
        dispatches.sort(key=lambda d: d.dispatch)
        return Claimed(
            dispatches,
            found.served,
            now,
            plan.broken,
            len(plan.skipped),
            plan.buffered,
            cancelled,
            recurring=bool(recurring),
        )

    @transaction(pinned=True, single=True)
    def claim_once(self, member: int, lanes: Lanes, limit: int, per_lane: int) -> Steps[Claimed]:
        """As `claim`, of jobs that run once: one statement without a transaction around it.

        Recurring jobs that it met are as they were, and `recurring` says that there are some: they take part in the limits.
        """
        found = yield from _claim(member, lanes, limit, per_lane)
        return Claimed(found.dispatches, found.served, found.now, [], 0, recurring=bool(found.recurring))

    @transaction(pinned=True, single=True)
    def ready(self, member: int, lanes: Lanes, limit: int, per_lane: int | None = None) -> Steps[Readied]:
        """Gives runs whose ready_at has come a new dispatch number under this scheduler; they are waiting then.

        Lanes are walked in the caller's order, `per_lane` runs of each at most: a redrive of very many in the first ones
        must not keep what recovery has set ready in the others. A dead member gets nothing, as with claim (but no error:
        claim will tell it).
        """
        params = {
            "member": member,
            **_lanes(lanes),
            "limit": limit,
            "per_lane": per_lane or limit,
        }
        rows = yield Query(READY, params)
        found = [row[1:] for row in rows if row[1] is not None]
        served: dict[int, list[datetime]] = {}
        for lane, at, *_ in found:
            served.setdefault(lane - 1, []).append(at)
        return Readied(
            [Dispatch(*row[2:]) for row in found],
            [Served(lane, len(ats), max(ats)) for lane, ats in served.items()],
            rows[0][0] if rows else None,
        )

    @transaction(pinned=True, single=True, again=True)
    def sleep(self, member: int, lanes: Lanes, longest: float) -> Steps[Look]:
        """What is due in the lanes, from their low watermarks on, or when the next thing is, and the promise to look then.

        Publishes the wake-up time, `longest` seconds from now at most, so that a submit of something earlier knows that it
        must NOTIFY; with 0 that is over at once. Raises Superseded if the member is not live.
        """
        rows = yield Query(SLEEP, {"member": member, "longest": longest, **_lanes(lanes)})
        if not rows:
            raise Superseded(f"scheduler {member} was taken for dead: it sleeps no more")
        ((now, seconds, kept, number, oldest, due, queues, schedulers, parts),) = rows
        return Look(
            now,
            longest if seconds is None else max(0.0, min(longest, seconds)),
            [(part, queue, datetime.fromisoformat(at)) for part, queue, at in due or ()],
            kept,
            int(number),
            int(oldest),
            [(name, cap) for name, cap in queues or ()],
            schedulers,
            dict(parts or ()),
        )

    @transaction(pinned=True, single=True, again=True)
    def wake(self, member: int) -> Steps[None]:
        """Takes back the wake-up time: submits need not NOTIFY while the scheduler is awake."""
        yield Query(WAKE, [member])


class _Found(NamedTuple):
    """What CLAIM has moved, and the rows of recurring jobs, which it has locked."""

    now: datetime
    dispatches: list[Dispatch]
    recurring: list[tuple[Any, ...]]
    served: list[Served]


def _claim(member: int, lanes: Lanes, limit: int, per_lane: int) -> Steps[_Found]:
    rows = yield Query(CLAIM, {"member": member, **_lanes(lanes), "limit": limit, "per_lane": per_lane})
    if not rows:
        raise Superseded(f"scheduler {member} was taken for dead: it claims nothing")
    dispatches = [Dispatch(*row[2:9]) for row in rows if row[1] == 0]
    served = [Served(int(row[8]) - 1, row[2], datetime.fromisoformat(row[4])) for row in rows if row[1] == 2]
    return _Found(rows[0][0], dispatches, [row for row in rows if row[1] == 1], served)


def _lanes(lanes: Lanes) -> dict[str, str]:
    parts, queues = _order(tuple(lanes.parts), tuple(lanes.queues))
    # Nearly all are the same object.
    texts = {key: low.isoformat() for key, low in {id(low): low for low in lanes.lows}.items()}
    return {"parts": parts, "queues": queues, "lows": array([texts[id(low)] for low in lanes.lows])}


@lru_cache(maxsize=8)  # a scheduler comes with the same few at a trickle, and with thousands of long ones under load
def _order(parts: tuple[int, ...], queues: tuple[str, ...]) -> tuple[str, str]:
    return array(parts), quoted(queues)


class Due(NamedTuple):
    """A recurring job whose tick is due, as CLAIM tells it."""

    job_id: str
    cursor: str
    schedule: dict[str, Any]
    overlap: str | None
    left: int | None
    missed: int | None


class Plan:
    """What recurring rows become: a pure function of rows and time, collected in the arrays of ADVANCE."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._fired: list[tuple[str, datetime, bool, int | None, bool]] = []
        self._moved: list[tuple[str, datetime, datetime, int, int | None]] = []
        self._over: list[str] = []
        self._cancel: list[tuple[str, datetime]] = []
        self.skipped: list[tuple[str, datetime, str]] = []
        self.broken: list[tuple[str, str]] = []

    def add(self, due: Due, turns: Abreast | None) -> None:
        """Plans one job; one whose schedule cannot be computed is set aside and stops no other (P8).

        `turns`: how its runs stand, of one that does not have them run beside each other.
        """
        cursor = datetime.fromisoformat(due.cursor)
        if turns is not None and not turns.steady:
            self._moved.append((due.job_id, cursor, self._now + A_MOMENT, 0, due.missed))
            return
        try:
            step = advance(
                Schedule.from_json(due.schedule),
                due.job_id,
                cursor,
                self._now,
                live=turns is not None and bool(turns.live or turns.waiting),
                waiting=0 if turns is None else turns.waiting,
                left=due.left,
                missed=due.missed,
            )
        except (RotaError, ValueError, ArithmeticError, TypeError, KeyError) as error:
            self.broken.append((due.job_id, f"schedule {json.dumps(due.schedule)} cannot be computed: {error}"))
            return
        self.take(due.job_id, step)

    def take(self, job_id: str, step: Advance) -> None:
        """Adds what was planned for a job."""
        self._fired += [(job_id, *run) for run in step.runs]
        self.skipped += [(job_id, s.first, s.text()) for s in step.skipped]
        if step.cancel:
            self._cancel.append((job_id, step.runs[0].at))
        if step.next is None or step.due is None:
            self._over.append(job_id)
        else:
            self._moved.append((job_id, step.next, step.due, len(step.runs), step.missed))

    def cancel_others(self) -> Steps[int]:
        """Cancels as a user does what is alive of the jobs whose policy asks for it; what runs is asked to stop.

        Where nothing runs, the new tick need not wait. Returns how many runs have ended.
        """
        ended = 0
        for job_id, at in sorted(self._cancel):
            reason = f"cancelled by overlap=cancel_other: the tick {rfc3339(at)} of this job was due"
            params = {"id": job_id, "tick": None, "running": True, "reason": reason}
            ((runs, _, _, running),) = yield Query(CANCEL_RUNS, params)
            ended += runs
            if not running:
                self._fired = [(*each[:4], each[4] and each[0] != job_id) for each in self._fired]
        return ended

    @property
    def buffered(self) -> int:
        """How many ticks wait for their turn."""
        return sum(each[4] for each in self._fired)

    def params(self) -> dict[str, list[Any]]:
        """The arrays of ADVANCE, each sorted by key so that two claims lock in one order."""
        fired, skipped = _columns(self._fired, 5), _columns(self.skipped, 3)
        moved, broken = _columns(self._moved, 5), _columns(self.broken, 2)
        return {
            "fire_ids": fired[0],
            "fire_at": fired[1],
            "fire_catchup": fired[2],
            "fire_missed": fired[3],
            "fire_waits": fired[4],
            "followed": sorted({each[0] for each in self._fired if each[4]}),
            "skip_ids": skipped[0],
            "skip_at": skipped[1],
            "skip_reasons": skipped[2],
            "move_ids": moved[0],
            "move_next": moved[1],
            "move_due": moved[2],
            "move_runs": moved[3],
            "move_missed": moved[4],
            "over_ids": self._over,
            "broken_ids": broken[0],
            "broken_reasons": broken[1],
        }


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*sorted(rows, key=itemgetter(0, 1)), strict=True)] or [
        [] for _ in range(width)
    ]
