"""Work that one scheduler does for all: recovery of what the dead left, and the search for lost messages.

A duty's row is its lease: who updates it holds its lock until the end of the transaction, everybody else passes by.
Should the holder die, the lock goes with its connection and the next one takes the duty. A row that got lost is made
again, for the next round. What keeps history is a duty too, see `retention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rota.sched.ids import RunKey
from rota.sched.model import LOSSES_LIMIT
from rota.sched.store.postgres.session import IDLE_SECONDS
from rota.sched.store.postgres.text import ALIVE, DEAD, DEATH, DIED_AGAIN, PAST, SAME_RUN, array, tick
from rota.sched.store.postgres.turns import ENDED, release, release_stranded
from rota.sched.store.transaction import Query, Rows, Steps, transaction
from rota.sched.store.values import Death, Recovered

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

FULL_SECONDS = 600
"""From one full look of recovery to the next. A look in between asks what members there are, and reads runs only of those that ended."""

FULL_SECONDS_A_DEAD_ROW = 0.005
"""How much later a full look comes for each dead row that vacuum has left in `run`, all of which it reads: an old snapshot may keep
millions. So it costs some ten buffers a second, however many there are.
"""

SOON_SECONDS = 1
"""From a round that has found something to the next one, at most."""

HANGING_SECONDS = 300
"""A transaction that is open for longer is none of ours: every statement is bounded, and so is every pause between two."""

PORTION = 5000
"""Runs that a round of recovery sends back at a time."""

EXPIRED_PORTION = 1000

TAKE = """
with lost as (
  insert into rota.duty (name) select %(name)s where not exists (select from rota.duty where name = %(name)s)
  on conflict do nothing
),
due as materialized (
  select name, ran_at from rota.duty
  where name = %(name)s and (ran_at > clock_timestamp()
    or least(due_at, ran_at + make_interval(secs => %(every)s)) <= clock_timestamp())
  for update skip locked
)
update rota.duty d set due_at = clock_timestamp() + make_interval(secs => %(every)s), ran_at = clock_timestamp(),
  holder = %(member)s
from due where d.name = due.name returning extract(epoch from clock_timestamp() - due.ran_at)::float8
"""

GLANCE = f"""
with lost as (
  insert into rota.duty (name) select 'recovery' where not exists (select from rota.duty where name = 'recovery')
  on conflict do nothing
),
due as materialized (
  select d.*, clock_timestamp() as at from rota.duty d
  where name = 'recovery' and (due_at <= clock_timestamp() or ran_at > clock_timestamp()) for update skip locked
),
passed as materialized (
  select due.*, coalesce(due.horizon <= pg_snapshot_xmin(pg_current_snapshot()), true)
      or due.looked_at < due.at - interval '{HANGING_SECONDS} s' as passed
  from due
),
plan as materialized (
  select p.*, p.ran_at > p.at as set_back, p.ran_at > p.at or p.full_at + make_interval(
    secs => {FULL_SECONDS_A_DEAD_ROW} * pg_stat_get_dead_tuples('rota.run'::regclass)) <= p.at as whole
  from passed p
),
seen as materialized (
  select p.name, p.at, p.full_at, p.whole, p.looked_at, p.horizon, p.set_back or p.passed as passed, coalesce(p.low, '-infinity') as low,
    coalesce(case when p.set_back then null when p.passed then p.looked_at else p.low end, '-infinity') as high,
    extract(epoch from p.at - p.ran_at)::float8 as pause,
    (select min(m.beat_at) from rota.member m where m.state = 'live') + make_interval(secs => %(lease)s) as late_at,
    (select r.expires_at from rota.run r
     where r.expires_at > case when p.whole then '-infinity' else p.ran_at - interval '1 min' end
       and r.expires_at <= p.at + make_interval(secs => %(every)s) and r.state <> 'running' order by r.expires_at limit 1) as expires_at
  from plan p
),
took as (
  update rota.duty d set ran_at = seen.at, holder = %(member)s,
    due_at = seen.at + make_interval(secs => least(%(every)s, case
      when seen.pause >= %(lease)s then %(lease)s / 3
      else greatest({SOON_SECONDS}, extract(epoch from least(seen.late_at, seen.expires_at) - seen.at)) end)),
    full_at = case when seen.whole then seen.at + interval '{FULL_SECONDS} s' else seen.full_at end,
    low = least(seen.high, (
      select r.claimed_at from rota.run r
      where r.claimed_at >= case when seen.whole then '-infinity' else seen.low end
        and r.claimed_at < seen.high
      order by r.claimed_at limit 1)),
    looked_at = case when seen.passed then now() - interval '{IDLE_SECONDS} s' else seen.looked_at end,
    horizon = case when seen.passed then pg_current_xact_id() else seen.horizon end
  from seen where d.name = seen.name
  returning seen.pause, seen.whole, seen.late_at < seen.at as late,
    case when seen.expires_at <= seen.at then seen.expires_at::text end as expired, d.due_at
)
select took.pause, whole, coalesce(late, false), expired,
  exists (select from rota.member m where m.state <> 'live' and not m.settled),
  exists (select from rota.partition p where p.owner is not null and not exists (
    select from rota.member m where m.id = p.owner and m.state = 'live')),
  extract(epoch from coalesce(took.due_at, d.due_at) - clock_timestamp())::float8
from (select 1) one left join rota.duty d on d.name = 'recovery' left join took on true
"""
"""What there is to do for recovery, if its round is due and nobody else has it; else only when the next one is.

Nothing in it reads what is dead: members and partitions are few, expiries are looked at from the round before on (what a worker gives
back when its time is over ends with its message, or by the full look), and runs from
`low` on, which is also where all others begin (ALIVE). It moves up to the first run that is alive, and no further than where the
round before was (`looked_at`), when all transactions that came before that round's own (`horizon`) are over: a claim that commits late is not passed by.
One that hangs for longer than any of ours may is not waited for. What entered below in spite of it is found by the next full look,
which begins at the start. Where the store's clock is seen to have been set back there is one at once, and `low` begins anew.
"""

AGAIN = """
update rota.duty set due_at = least(due_at, clock_timestamp() + make_interval(secs => %(seconds)s)),
  full_at = case when %(whole)s then to_timestamp(0) else full_at end
where name = 'recovery'
"""

# FOR UPDATE conflicts with the lock of a claim or begin of that member which is under way: such a member is passed by, and
# judged in the next round. To wait for it would hold up the recovery of all others if it stands still inside.
MARK_DEAD = """
with late as materialized (
  select id from rota.member
  where state = 'live' and beat_at < clock_timestamp() - make_interval(secs => %(lease)s) order by id for update skip locked
)
update rota.member m set state = 'dead', ended_at = clock_timestamp(), wakes_at = null
from late where m.id = late.id and m.beat_at < clock_timestamp() - make_interval(secs => %(lease)s) returning m.id
"""

# Read first, then locked and changed under the fence that was read: a statement that judges an owner while it looks at a
# newer version of the row can see an old snapshot of the members and steal a run that has a new owner since.
ORPHANS = f"""
with orphan as materialized (
  select job_id, scheduled_for, fence, owner from rota.run r
  where r.{ALIVE} and r.state = 'running' and not exists (
    select from rota.member m where m.id = r.owner and m.state = 'live')
)
select job_id::text, scheduled_for, fence, owner from orphan order by orphan.job_id, scheduled_for limit {PORTION}
"""

_MINE = f"""unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[]) x(id, tick, xfence)
  where {SAME_RUN} and r.fence = x.xfence and r.state = 'running'"""

# What a worker that stands still has locked, about to end it, is passed by: it ends, or the next round finds it. To wait
# would hold up all others, and the scheduler's claims with them.
HOLD = f"""
select r.job_id::text, r.scheduled_for, r.fence, r.cancel_requested, r.losses + 1 >= %(limit)s, {ENDED}
from rota.run r, {_MINE} order by x.id, x.tick for update of r skip locked
"""

REQUEUE = f"""
update rota.run r set state = 'waiting', owner = null, fence = null, losses = losses + 1, attempt = attempt - 1,
  ready_at = clock_timestamp() from {_MINE} returning 1
"""

CANCEL = f"""
with gone as (delete from rota.run r using {_MINE} returning r.*),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors)
  select {PAST}, clock_timestamp(), 'cancelled', coalesce(cancel_reason, 'cancelled') || %(how)s, errors from gone
)
select {ENDED} from gone
"""

POISON = f"""
with gone as (delete from rota.run r using {_MINE} returning r.*),
died as (
  insert into rota.dead ({DEAD}, died_at, reason, errors)
  select {DEAD.replace("attempt, losses", "attempt - 1, losses + 1")}, clock_timestamp(),
    'poison: ' || losses + 1 || ' workers were lost while they ran it', errors from gone
  {DIED_AGAIN} returning *
)
select {DEATH} from died
"""

_TOO_LATE = "expires_at <= (select clock_timestamp()) and state <> 'running'"


def _expire(found: str) -> str:
    return f"""
with x as materialized ({found}),
gone as (delete from rota.run r using x where {SAME_RUN} returning r.*),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors)
  select {PAST}, clock_timestamp(), 'expired', 'expired: it could not begin within ' || round(extract(epoch from
    expires_at - due_at), 3)::float8 || ' s of its due time', errors
  from gone
)
select {ENDED} from gone
"""


# By index run_expires. What is being begun or ended at this moment is passed by.
EXPIRE = _expire(f"""
  select job_id as id, scheduled_for as tick from rota.run where expires_at >= %(since)s::timestamptz and {_TOO_LATE}
  order by expires_at limit {EXPIRED_PORTION} for update skip locked""")
EXPIRE_OF = _expire(f"""
  select job_id as id, scheduled_for as tick from rota.run r, unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
  where {SAME_RUN} and {_TOO_LATE} order by x.id, x.tick for update of r skip locked""")

FREE = """
update rota.partition p set owner = null, epoch = epoch + 1
from (
  select part from rota.partition o
  where owner is not null and not exists (select from rota.member m where m.id = o.owner and m.state = 'live')
  order by part for update skip locked) free
where p.part = free.part returning 1
"""

# Waiting runs whose scheduler is gone and whose number it never confirmed: their message may not exist. Read first, as ORPHANS.
STRAYS = f"""
with stray as materialized (
  select job_id, scheduled_for, dispatch, scheduler from rota.run o
  where o.{ALIVE} and o.state = 'waiting' and o.ready_at is null and not exists (
    select from rota.member m where m.id = o.scheduler and (m.state = 'live' or o.dispatch <= m.watermark))
)
select job_id::text, scheduled_for, dispatch, scheduler from stray order by stray.job_id, scheduled_for limit {PORTION}
"""

ADOPT = f"""
with held as materialized (
  select r.job_id as id, r.scheduled_for as tick
  from rota.run r, unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(dispatches)s::bigint[]) x(id, tick, xdispatch)
  where {SAME_RUN} and r.dispatch = x.xdispatch and r.state = 'waiting' and r.ready_at is null
  order by x.id, x.tick for update of r skip locked
)
update rota.run r set ready_at = clock_timestamp() from held x where {SAME_RUN} returning 1
"""

UNSETTLED = "select id from rota.member where state <> 'live' and not settled"
# To be asked for ended members of whom a look that began after their end has found nothing: nothing of them can come after it.
SETTLE = """
update rota.member set settled = true where id = any(array(
  select id from rota.member where id = any(%(ids)s) and state <> 'live' order by id for update skip locked))
"""

# A retry keeps its time. A run under another number has another message; a running one is recovery's business.
READY_AGAIN = f"""
update rota.run r set ready_at = least(r.ready_at, greatest(clock_timestamp(), r.retry_at))
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(dispatches)s::bigint[]) x(id, tick, xdispatch)
where {SAME_RUN} and r.dispatch = x.xdispatch and r.state in ('waiting', 'retrying')
returning r.job_id::text, {tick("r.scheduled_for")}
"""

# A message is taken for lost when it should have been begun long ago: its queue is empty, or a message that was published
# `after` seconds later was begun, or a retry's time has passed. What a live scheduler may still be publishing is left
# alone, and the wait doubles each time: a run that is only slow must not overtake its own message for ever (rule 7).
LOST = f"""
with newest as materialized (
  select queue, max(coalesce(dispatched_at, claimed_at)) as at from rota.run where state = 'running' and {ALIVE} group by queue
),
suspect as materialized (
  select r.job_id as id, r.scheduled_for as tick, r.dispatch, r.state from rota.run r
  cross join lateral (
    select make_interval(secs => %(after)s * (1 << least(r.audits, 10))) as wait,
      coalesce(r.dispatched_at, r.claimed_at) as at) told
  where r.ready_at is null and r.{ALIVE}
    and not exists (
      select from rota.member m where m.id = r.scheduler and m.state = 'live' and r.dispatch > m.watermark)
    and case r.state
      when 'waiting' then told.at < clock_timestamp() - told.wait and (
        r.queue = any(%(empty)s::text[])
        or exists (select from newest n where n.queue = r.queue and n.at > told.at + make_interval(secs => %(after)s)))
      when 'retrying' then r.retry_at < clock_timestamp() - told.wait
      else false end
),
x as materialized (select * from suspect order by id, tick limit {PORTION}),
held as materialized (
  select r.job_id as id, r.scheduled_for as tick from x join rota.run r on {SAME_RUN}
    and r.dispatch = x.dispatch and r.state = x.state and r.ready_at is null
  order by x.id, x.tick for update of r skip locked
)
update rota.run r set ready_at = clock_timestamp(), audits = least(r.audits + 1, 10)
from held x where {SAME_RUN}
returning r.job_id::text, {tick("r.scheduled_for")}
"""


class DutyStatements:
    """Standing sweeps, not events: what a late commit leaves behind is found by the next round."""

    @transaction(pinned=True)
    def recover(self, member: int, lease: float, every: float) -> Steps[Recovered]:
        """One round of recovery, if it is due and nobody else has it: the only place where a member is judged dead.

        After a pause of all schedulers (the store was away), the first round judges nobody: the living must have had
        a chance to beat.
        """
        ((pause, whole, late, since, ended, unowned, again_s),) = yield Query(
            GLANCE, {"member": member, "lease": lease, "every": every}
        )
        if pause is None:
            return Recovered(ran=False, again_s=max(0.0, again_s or 0.0))
        dead: Rows = []
        if late and pause < lease:
            dead = yield Query(MARK_DEAD, {"lease": lease})
        left = _Left()
        if whole or ended or dead:
            left = yield from _settle_ended()
        stranded = (yield from release_stranded()) if whole else 0
        freed = (yield Query(FREE)) if whole or unowned or dead else []
        expired = (yield Query(EXPIRE, {"since": since})) if since else []
        yield from release([*left.cancelled, *left.poisoned, *expired])
        rest = len(expired) == EXPIRED_PORTION
        if left.found or rest or stranded:
            again_s = min(again_s, SOON_SECONDS)
            yield Query(AGAIN, {"seconds": min(every, SOON_SECONDS), "whole": whole or rest})
        return Recovered(
            ran=True,
            again_s=max(0.0, again_s),
            dead_members=[row[0] for row in dead],
            requeued=left.requeued,
            deaths=left.deaths,
            cancelled=len(left.cancelled),
            adopted=left.adopted,
            freed=len(freed),
            expired=len(expired),
            stranded=stranded,
        )

    @transaction(pinned=True)
    def expire(self, keys: Collection[RunKey] | None = None) -> Steps[int]:
        """Ends up to 1000 runs that did not begin in time; of `keys` only, if they are given. Returns how many."""
        if keys is None:
            rows = yield Query(EXPIRE, {"since": "-infinity"})
        else:
            params = {"ids": array(k.job_id for k in keys), "ticks": array(k.scheduled_for for k in keys)}
            rows = yield Query(EXPIRE_OF, params)
        yield from release(rows)
        return len(rows)

    @transaction(pinned=True)
    def reconcile(self, member: int, empty: Sequence[str], after: float, every: float) -> Steps[list[RunKey]]:
        """Has runs dispatched anew whose message seems to be gone, if the duty is due and nobody else has it.

        `empty` are the queues in which the broker holds no message that is ready. `after` seconds is what a message may
        take to be begun, or a retry to come back.
        """
        if not (yield Query(TAKE, {"name": "reconciler", "every": every, "member": member})):
            return []
        rows = yield Query(LOST, {"empty": list(empty), "after": after})
        return [RunKey(*row) for row in rows]

    @transaction(pinned=True)
    def ready_again(self, refs: Sequence[tuple[RunKey, int]]) -> Steps[set[RunKey]]:
        """Has waiting and retrying runs dispatched anew whose message is gone; `refs` are (key, dispatch number).

        Returns those that were set ready. The others need no message: ended, under another number, or running.
        """
        refs = sorted(refs)
        params = {
            "ids": [key.job_id for key, _ in refs],
            "ticks": [key.scheduled_for for key, _ in refs],
            "dispatches": [dispatch for _, dispatch in refs],
        }
        rows = yield Query(READY_AGAIN, params)
        return {RunKey(*row) for row in rows}


@dataclass
class _Left:
    """What members that ended have left, and what became of it."""

    found: bool = False
    requeued: int = 0
    adopted: int = 0
    deaths: list[Death] = field(default_factory=list)
    cancelled: Rows = field(default_factory=list)
    """As ENDED tells them; so the poisoned."""
    poisoned: Rows = field(default_factory=list)


def _settle_ended() -> Steps[_Left]:
    """Sends back what runs under no live worker, and has dispatched anew what a scheduler that is gone may not have published.

    Ended members of whom nothing is left are settled. Their ends came before this look: recovery's verdict and a member's own
    leave wait for the claims and begins that are under way, by the lock of the member's row, and later ones are refused. So what
    is not seen now will never be, unless somebody writes into the store by hand: that is what full looks are for. What a worker
    gives back later has a message, which was delivered to it.
    """
    ended = [row[0] for row in (yield Query(UNSETTLED))]
    found = yield Query(ORPHANS)
    orphans = (yield Query(HOLD, {**_orphans(found), "limit": LOSSES_LIMIT})) if found else []
    cancelled, poisoned, requeued = yield from _send_back(orphans)
    strays = yield Query(STRAYS)
    adopted = (yield Query(ADOPT, _strays(strays))) if strays else []
    if max(len(found), len(strays)) < PORTION:
        busy = {row[3] for row in (*found, *strays)}
        if ids := [member for member in ended if member not in busy]:
            yield Query(SETTLE, {"ids": ids})
    return _Left(
        found=bool(found or strays),
        requeued=len(requeued),
        adopted=len(adopted),
        deaths=[Death(RunKey(*row[:2]), *row[2:]) for row in poisoned],
        cancelled=cancelled,
        poisoned=[o[5:] for o in orphans if o[4] and not o[3]],
    )


def _send_back(orphans: Rows) -> Steps[tuple[Rows, Rows, Rows]]:
    """What becomes of runs whose workers are gone: those that are cancelled, poisoned, and requeued."""
    if not orphans:
        return [], [], []
    ended = _orphans([o for o in orphans if o[3]])
    cancelled = yield Query(CANCEL, {**ended, "how": " (its worker was lost meanwhile)"})
    poisoned = yield Query(POISON, _orphans([o for o in orphans if o[4] and not o[3]]))
    requeued = yield Query(REQUEUE, _orphans([o for o in orphans if not o[4] and not o[3]]))
    return cancelled, poisoned, requeued


def _orphans(rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    return {"ids": [r[0] for r in rows], "ticks": [r[1] for r in rows], "fences": [r[2] for r in rows]}


def _strays(rows: Rows) -> dict[str, list[object]]:
    return {"ids": [r[0] for r in rows], "ticks": [r[1] for r in rows], "dispatches": [r[2] for r in rows]}
