"""The worker's statements: begin, look, finish, and giving an attempt back. One statement over a batch each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.sched.errors import Superseded
from rota.sched.ids import RunKey
from rota.sched.store.postgres.text import DEAD, LIVE_MEMBER, PAST, tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Begun, End, Owned, Return, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = f"r.job_id::text, {tick('r.scheduled_for')}"

BEGIN = f"""
with {LIVE_MEMBER},
took as (
  update rota.run r set state = 'running', owner = me.id, fence = nextval('rota.number'), attempt = r.attempt + 1,
    begun_at = clock_timestamp(), retry_at = null, ready_at = null
  from me cross join unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(dispatches)s::bigint[], %(wants)s::boolean[])
    x(id, tick, dispatch, wants_args)
  where r.job_id = x.id and r.scheduled_for = x.tick and r.dispatch = x.dispatch
    and (r.state = 'waiting' or (r.state = 'retrying' and r.retry_at <= clock_timestamp()))
    and (r.losses < 2 or %(alone)s)
  returning {_KEY}, r.fence, r.attempt, r.losses, coalesce(jsonb_array_length(r.errors), 0),
    case when x.wants_args then r.args::text end,
    extract(epoch from r.claimed_at - r.due_at)::float8, extract(epoch from r.begun_at - r.claimed_at)::float8
)
select me.id, took.* from me left join took on true
"""

LOOK = f"""
select {_KEY}, r.state, r.dispatch, r.fence, r.owner, r.cancel_requested, r.losses,
  case r.state
    when 'retrying' then extract(epoch from r.retry_at - clock_timestamp())
    when 'running' then extract(epoch from m.beat_at - clock_timestamp()) + %(lease)s
    else 0 end::float8
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
join rota.run r on r.job_id = x.id and r.scheduled_for = x.tick
left join rota.member m on m.id = r.owner
"""

# Fenced: only a running row under this very fence ends. What is not returned was superseded.
FINISH = f"""
with gone as (
  delete from rota.run r
  using unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[], %(outcomes)s::text[],
    %(reasons)s::text[], %(results)s::jsonb[], %(errors)s::jsonb[])
    x(id, tick, xfence, outcome, reason, result, error)
  where r.job_id = x.id and r.scheduled_for = x.tick and r.fence = x.xfence and r.state = 'running'
  returning r.*, x.outcome, x.reason, x.result, x.error
),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors, result)
  select {PAST}, clock_timestamp(), outcome, reason,
    case when error is null then errors else coalesce(errors, '[]') || error end, result
  from gone where outcome <> 'dead'
),
died as (
  insert into rota.dead ({DEAD}, died_at, reason, errors)
  select {DEAD}, clock_timestamp(), coalesce(reason, 'failed'),
    case when error is null then errors else coalesce(errors, '[]') || error end
  from gone where outcome = 'dead'
  on conflict do nothing
)
select {_KEY.replace("r.", "gone.")} from gone
"""

RETURN = f"""
update rota.run r set
  state = x.state, owner = null, fence = null,
  attempt = r.attempt - x.refund,
  errors = case when x.error is null then r.errors else coalesce(r.errors, '[]') || x.error end,
  retry_at = case when x.state = 'retrying' then clock_timestamp() + make_interval(secs => x.seconds) end,
  ready_at = case when x.from_store then clock_timestamp() + make_interval(secs => x.seconds) end
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[], %(states)s::text[], %(refunds)s::int[],
  %(seconds)s::float8[], %(errors)s::jsonb[], %(from_store)s::boolean[])
  x(id, tick, xfence, state, refund, seconds, error, from_store)
where r.job_id = x.id and r.scheduled_for = x.tick and r.fence = x.xfence and r.state = 'running'
  and not (r.cancel_requested and x.state = 'retrying')
returning {_KEY}
"""

OWNED = f"select {_KEY}, r.fence, r.cancel_requested from rota.run r where r.owner = %s and r.state = 'running'"


class WorkingStatements:
    """An attempt's life in the ledger (DESIGN 3.4 to 3.6). Whatever a call does not return was not written."""

    @transaction(pinned=True)
    def begin(
        self, member: int, refs: Sequence[tuple[RunKey, int, bool]], *, alone: bool = False
    ) -> Steps[list[Begun]]:
        """Takes runs that are waiting, or retrying and due, under the given dispatch numbers.

        `refs` are (key, dispatch number, whether the arguments are wanted). A run that has lost its worker twice is
        taken only with `alone` (P9). Raises Superseded if the worker is not a live member: it shall stop consuming.
        """
        refs = sorted(refs)
        params = {
            "member": member,
            "ids": [key.job_id for key, _, _ in refs],
            "ticks": [key.scheduled_for for key, _, _ in refs],
            "dispatches": [dispatch for _, dispatch, _ in refs],
            "wants": [wants for _, _, wants in refs],
            "alone": alone,
        }
        rows = yield Query(BEGIN, params)
        if not rows:
            raise Superseded(f"worker {member} was taken for dead: it begins nothing")
        return [Begun(RunKey(row[1], row[2]), *row[3:]) for row in rows if row[1] is not None]

    @transaction(pinned=True)
    def look(self, keys: Sequence[RunKey], lease: float) -> Steps[dict[RunKey, Standing]]:
        """Where runs stand, for deliveries that were not taken: zero rows is never "ack" by itself."""
        params = {"ids": [k.job_id for k in keys], "ticks": [k.scheduled_for for k in keys], "lease": lease}
        rows = yield Query(LOOK, params)
        found = {RunKey(row[0], row[1]): _standing(row) for row in rows}
        return {key: found.get(key, Standing(key, None)) for key in keys}

    @transaction(pinned=True)
    def finish(self, ends: Sequence[End]) -> Steps[set[RunKey]]:
        """Ends attempts for good: run to history, or to dead. Returns the keys that were written."""
        ends = sorted(ends, key=lambda end: end.key)
        params = {
            "ids": [e.key.job_id for e in ends],
            "ticks": [e.key.scheduled_for for e in ends],
            "fences": [e.fence for e in ends],
            "outcomes": [e.outcome for e in ends],
            "reasons": [e.reason for e in ends],
            "results": [e.result for e in ends],
            "errors": [e.error for e in ends],
        }
        rows = yield Query(FINISH, params)
        return {RunKey(*row) for row in rows}

    @transaction(pinned=True)
    def give_back(self, returns: Sequence[Return]) -> Steps[set[RunKey]]:
        """Ends attempts for now: retry, snooze or release. Returns the keys that were written.

        A run whose cancel was asked for is not set to retrying: it is not returned, and `look` tells why.
        """
        returns = sorted(returns, key=lambda r: r.key)
        params = {
            "ids": [r.key.job_id for r in returns],
            "ticks": [r.key.scheduled_for for r in returns],
            "fences": [r.fence for r in returns],
            "states": ["waiting" if r.kind == "release" else "retrying" for r in returns],
            "refunds": [0 if r.kind == "retry" else 1 for r in returns],
            "seconds": [r.seconds for r in returns],
            "errors": [r.error for r in returns],
            "from_store": [r.from_store for r in returns],
        }
        rows = yield Query(RETURN, params)
        return {RunKey(*row) for row in rows}

    @transaction()
    def owned(self, member: int) -> Steps[list[Owned]]:
        """The runs that the store says this worker runs, to be compared with those it holds."""
        rows = yield Query(OWNED, [member])
        return [Owned(RunKey(row[0], row[1]), row[2], row[3]) for row in rows]

    @transaction()
    def disown(self, owned: Sequence[Owned]) -> Steps[int]:
        """Sends runs back to waiting that the store says we run and we do not: the answer of their begin was lost.

        The attempt never ran, so none is spent; a scheduler dispatches them anew. Returns how many.
        """
        params = {
            "ids": [o.key.job_id for o in owned],
            "ticks": [o.key.scheduled_for for o in owned],
            "fences": [o.fence for o in owned],
        }
        rows = yield Query(
            "update rota.run r set state = 'waiting', owner = null, fence = null, attempt = r.attempt - 1, "
            "ready_at = clock_timestamp() "
            "from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[]) x(id, tick, xfence) "
            "where r.job_id = x.id and r.scheduled_for = x.tick and r.fence = x.xfence and r.state = 'running' "
            "returning r.part",
            params,
        )
        return len(rows)


def _standing(row: tuple[Any, ...]) -> Standing:
    job_id, at, state, dispatch, fence, owner, cancel_requested, losses, seconds = row
    return Standing(
        RunKey(job_id, at), state, dispatch, fence, owner, cancel_requested, losses, 0.0 if seconds is None else seconds
    )
