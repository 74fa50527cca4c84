"""Work that one scheduler does for all: recovery of what the dead left, and the search for lost messages.

A duty's row is its lease: who updates it holds its lock until the end of the transaction, everybody else passes by.
Should the holder die, the lock goes with its connection and the next one takes the duty. A row that got lost is made
again, for the next round. What keeps history is a duty too, see `retention.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.ids import RunKey
from rota.sched.model import LOSSES_LIMIT
from rota.sched.store.postgres.text import DEAD, DEATH, DIED_AGAIN, PAST, SAME_RUN, tick
from rota.sched.store.postgres.turns import ENDED, release, release_stranded
from rota.sched.store.transaction import Query, Rows, Steps, transaction
from rota.sched.store.values import Death, Recovered

if TYPE_CHECKING:
    from collections.abc import Sequence

TAKE = """
with lost as (
  insert into rota.duty (name) select %(name)s where not exists (select from rota.duty where name = %(name)s)
  on conflict do nothing
),
due as materialized (
  select name, ran_at from rota.duty where name = %(name)s and due_at <= clock_timestamp() for update skip locked
)
update rota.duty d set due_at = clock_timestamp() + make_interval(secs => %(every)s), ran_at = clock_timestamp(),
  holder = %(member)s
from due where d.name = due.name returning extract(epoch from clock_timestamp() - due.ran_at)::float8
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
ORPHANS = """
select job_id::text, scheduled_for, fence
from rota.run r where state = 'running' and not exists (
  select from rota.member m where m.id = r.owner and m.state = 'live')
order by job_id, scheduled_for limit 5000
"""

_MINE = f"""unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[]) x(id, tick, xfence)
  where {SAME_RUN} and r.fence = x.xfence and r.state = 'running'"""

# What a worker that stands still has locked, about to end it, is passed by: it ends, or the next round finds it. To wait
# would hold up all others, and the scheduler's claims with them.
HOLD = f"""
select r.job_id::text, r.scheduled_for, r.fence, r.cancel_requested, r.losses + 1 >= %(limit)s, {ENDED}
from rota.run r, {_MINE} order by r.job_id, r.scheduled_for for update of r skip locked
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

# By index run_expires. What is being begun or ended at this moment is passed by.
EXPIRE = f"""
with x as materialized (
  select job_id as id, scheduled_for as tick from rota.run
  where expires_at <= clock_timestamp() and state <> 'running'
  order by expires_at limit 1000 for update skip locked
),
gone as (delete from rota.run r using x where {SAME_RUN} returning r.*),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors)
  select {PAST}, clock_timestamp(), 'expired', 'expired: it could not begin within ' || round(extract(epoch from
    expires_at - due_at), 3)::float8 || ' s of its due time', errors
  from gone
)
select {ENDED} from gone
"""

FREE = """
update rota.partition p set owner = null, epoch = epoch + 1
from (
  select part from rota.partition o
  where owner is not null and not exists (select from rota.member m where m.id = o.owner and m.state = 'live')
  order by part for update skip locked) free
where p.part = free.part returning 1
"""

# Waiting runs whose scheduler is gone and whose number it never confirmed: their message may not exist.
ADOPT = f"""
with x as materialized (
  select job_id as id, scheduled_for as tick from rota.run o
  where o.state = 'waiting' and o.ready_at is null and not exists (
    select from rota.member m where m.id = o.scheduler and (m.state = 'live' or o.dispatch <= m.watermark))
  order by job_id, scheduled_for for update skip locked
)
update rota.run r set ready_at = clock_timestamp() from x where {SAME_RUN} returning 1
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
  select queue, max(coalesce(dispatched_at, claimed_at)) as at from rota.run where state = 'running' group by queue
),
x as materialized (
  select r.job_id as id, r.scheduled_for as tick from rota.run r
  cross join lateral (
    select make_interval(secs => %(after)s * (1 << least(r.audits, 10))) as wait,
      coalesce(r.dispatched_at, r.claimed_at) as at) told
  where r.ready_at is null
    and not exists (
      select from rota.member m where m.id = r.scheduler and m.state = 'live' and r.dispatch > m.watermark)
    and case r.state
      when 'waiting' then told.at < clock_timestamp() - told.wait and (
        r.queue = any(%(empty)s::text[])
        or exists (select from newest n where n.queue = r.queue and n.at > told.at + make_interval(secs => %(after)s)))
      when 'retrying' then r.retry_at < clock_timestamp() - told.wait
      else false end
  order by r.job_id, r.scheduled_for limit 5000 for update of r skip locked
)
update rota.run r set ready_at = clock_timestamp(), audits = least(r.audits + 1, 10)
from x where {SAME_RUN}
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
        pause = yield Query(TAKE, {"name": "recovery", "every": every, "member": member})
        if not pause:
            return Recovered(ran=False)
        dead: Rows = []
        if pause[0][0] < lease:
            dead = yield Query(MARK_DEAD, {"lease": lease})
        stranded = yield from release_stranded()
        found = yield Query(ORPHANS)
        orphans = (yield Query(HOLD, {**_orphans(found), "limit": LOSSES_LIMIT})) if found else []
        cancelled, poisoned, requeued = yield from _settle(orphans)
        freed = yield Query(FREE)
        adopted = yield Query(ADOPT)
        expired = yield Query(EXPIRE)
        yield from release([*cancelled, *(o[5:] for o in orphans if o[4] and not o[3]), *expired])
        return Recovered(
            ran=True,
            dead_members=[row[0] for row in dead],
            requeued=len(requeued),
            deaths=[Death(RunKey(*row[:2]), *row[2:]) for row in poisoned],
            cancelled=len(cancelled),
            adopted=len(adopted),
            freed=len(freed),
            expired=len(expired),
            stranded=stranded,
        )

    @transaction(pinned=True)
    def expire(self) -> Steps[int]:
        """Ends up to 1000 runs that did not begin in time. Returns how many."""
        rows = yield Query(EXPIRE)
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


def _settle(orphans: Rows) -> Steps[tuple[Rows, Rows, Rows]]:
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
