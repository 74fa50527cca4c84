"""The worker's statements: begin, look, finish, and giving an attempt back. One statement over a batch each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.sched.errors import Superseded
from rota.sched.ids import RunKey
from rota.sched.store.postgres.duties import CANCEL
from rota.sched.store.postgres.text import (
    ALIVE,
    DEAD,
    DEATH,
    DIED_AGAIN,
    LIVE_MEMBER,
    PAST,
    SAME_RUN,
    array,
    sparse,
    tick,
    with_error,
)
from rota.sched.store.postgres.turns import ENDED, release
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Begun, Death, End, Owned, Return, Standing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_KEY = f"r.job_id::text, {tick('r.scheduled_for')}"

BEGIN = f"""
with {LIVE_MEMBER},
took as (
  update rota.run r set state = 'running', owner = me.id, fence = nextval('rota.number'), attempt = r.attempt + 1,
    begun_at = clock_timestamp(), retry_at = null, ready_at = null, progress = null, unknown_since = null
  from me cross join unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(dispatches)s::bigint[], %(wants)s::boolean[])
    with ordinality x(id, tick, dispatch, wants_args, n)
  where {SAME_RUN} and r.dispatch = x.dispatch
    and (r.state = 'waiting' or (r.state = 'retrying' and r.retry_at <= clock_timestamp()))
    and (r.losses < 2 or %(alone)s) and (r.expires_at is null or r.expires_at > clock_timestamp())
  returning x.n, r.fence, r.attempt, r.losses, coalesce(jsonb_array_length(r.errors), 0),
    case when x.wants_args then r.args::text end,
    extract(epoch from r.claimed_at - r.due_at)::float8, extract(epoch from r.begun_at - r.claimed_at)::float8,
    r.policy, r.checkpoint::text, r.catchup, r.missed
)
select me.id, took.* from me left join took on true
"""

LOOK = f"""
select {_KEY}, r.state, r.dispatch, r.fence, r.owner, r.cancel_requested, r.losses,
  coalesce(r.expires_at <= clock_timestamp(), false), extract(epoch from clock_timestamp() - r.due_at)::float8,
  case r.state
    when 'retrying' then extract(epoch from r.retry_at - clock_timestamp())
    when 'running' then extract(epoch from m.beat_at - clock_timestamp()) + %(lease)s
    else 0 end::float8
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
join rota.run r on {SAME_RUN}
left join rota.member m on m.id = r.owner
"""

# Fenced: only a running row under this very fence ends. What is not returned was superseded.
FINISH = f"""
with gone as (
  delete from rota.run r
  using unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[], %(outcomes)s::text[],
    %(reasons)s::text[], %(results)s::jsonb[], %(errors)s::jsonb[])
    with ordinality x(id, tick, xfence, outcome, reason, result, error, n)
  where {SAME_RUN} and r.fence = x.xfence and r.state = 'running'
  returning r.*, x.outcome, x.reason, x.result, x.error, x.n
),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors, result)
  select {PAST}, clock_timestamp(), outcome,
    case when outcome = 'cancelled' then coalesce(cancel_reason, reason) else reason end, {with_error("errors", "error")}, result
  from gone where outcome <> 'dead'
),
died as (
  insert into rota.dead ({DEAD}, died_at, reason, errors)
  select {DEAD}, clock_timestamp(), coalesce(reason, 'failed'),
    {with_error("errors", "error")}
  from gone where outcome = 'dead'
  {DIED_AGAIN}
)
select n, followed from gone
"""
FINISH_UNFOLLOWED = FINISH.replace("\n  returning r.*", " and not r.followed\n  returning r.*")

RETURN = f"""
update rota.run r set
  state = x.state, owner = null, fence = null,
  attempt = r.attempt - x.refund,
  errors = {with_error("r.errors", "x.error")},
  retry_at = case when x.state = 'retrying' then clock_timestamp() + make_interval(secs => x.seconds) end,
  ready_at = case when x.from_store then clock_timestamp() + make_interval(secs => x.seconds) end
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[], %(states)s::text[], %(refunds)s::int[],
  %(seconds)s::float8[], %(errors)s::jsonb[], %(from_store)s::boolean[])
  x(id, tick, xfence, state, refund, seconds, error, from_store)
where {SAME_RUN} and r.fence = x.xfence and r.state = 'running'
  and not r.cancel_requested
returning {_KEY}
"""

# What we run by the ledger alone, as the answer of its begin was lost. The attempt never ran, so none is spent.
DISOWN = f"""
update rota.run r set state = 'waiting', owner = null, fence = null, attempt = r.attempt - 1, ready_at = clock_timestamp()
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[]) x(id, tick, xfence)
where {SAME_RUN} and r.fence = x.xfence and r.state = 'running' and not r.cancel_requested
returning 1
"""

# Ends what no worker of its queue knew for `after` seconds, and notes since when it is so. Whoever announces the handler,
# or has it and lives on, keeps it from dying.
UNKNOWN = f"""
with x as materialized (
  select r.job_id as id, r.scheduled_for as tick, r.unknown_since as since, h.seen_at
  from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(dispatches)s::bigint[]) m(id, tick, dispatch)
  join rota.run r on {SAME_RUN.replace("x.", "m.")} and r.dispatch = m.dispatch
  left join rota.handler h on h.name = r.handler
  where r.state in ('waiting', 'retrying')
  order by r.job_id, r.scheduled_for for update of r
),
marked as (
  update rota.run r set unknown_since = clock_timestamp() from x
  where {SAME_RUN} and x.since is null
),
gone as (
  delete from rota.run r using x where {SAME_RUN}
    and greatest(x.since, x.seen_at) < clock_timestamp() - make_interval(secs => %(after)s) and x.since is not null
  returning r.*, 'unknown handler: no worker of queue ' || r.queue || ' has had handler ' || r.handler || ' for '
    || %(after)s::float8 || ' s' as reason
),
died as (
  insert into rota.dead ({DEAD}, died_at, reason, errors) select {DEAD}, clock_timestamp(), reason, errors from gone
  {DIED_AGAIN}
)
select {DEATH}, {ENDED} from gone
"""

CHECKPOINT = """
update rota.run set checkpoint = %s::jsonb where job_id = %s and scheduled_for = %s and fence = %s and state = 'running'
returning 1
"""

PROGRESS = f"""
update rota.run r set progress = x.progress || jsonb_build_object('at', {tick("clock_timestamp()")})
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s::bigint[], %(progress)s::jsonb[]) x(id, tick, xfence, progress)
where {SAME_RUN} and r.fence = x.xfence and r.state = 'running' returning 1
"""

_OWNED = f"select {_KEY}, r.fence, r.cancel_requested from rota.run r"
OWNED = f"""
{_OWNED}, unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
where {SAME_RUN} and r.owner = %(member)s and r.state = 'running'
"""
OWNED_OF_ALL = f"{_OWNED} where r.{ALIVE} and r.owner = %s and r.state = 'running'"


class WorkingStatements:
    """An attempt's life in the ledger (DESIGN 3.4 to 3.6). Whatever a call does not return was not written."""

    @transaction(pinned=True, single=True)
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
            "ids": array(key.job_id for key, _, _ in refs),
            "ticks": array(key.scheduled_for for key, _, _ in refs),
            "dispatches": array(dispatch for _, dispatch, _ in refs),
            "wants": array(wants for _, _, wants in refs),
            "alone": alone,
        }
        rows = yield Query(BEGIN, params)
        if not rows:
            raise Superseded(f"worker {member} was taken for dead: it begins nothing")
        return [Begun(refs[row[1] - 1][0], *row[2:]) for row in rows if row[1] is not None]

    @transaction(pinned=True, single=True, again=True)
    def look(self, keys: Sequence[RunKey], lease: float) -> Steps[dict[RunKey, Standing]]:
        """Where runs stand, for deliveries that were not taken: zero rows is never "ack" by itself."""
        params = {"ids": [k.job_id for k in keys], "ticks": [k.scheduled_for for k in keys], "lease": lease}
        rows = yield Query(LOOK, params)
        found = {RunKey(row[0], row[1]): _standing(row) for row in rows}
        return {key: found.get(key, Standing(key, None)) for key in keys}

    @transaction(pinned=True)
    def finish(self, ends: Sequence[End]) -> Steps[set[RunKey]]:
        """Ends attempts for good: run to history, or to dead. Returns the keys that were written."""
        ends, params = _ends(ends)
        rows = yield Query(FINISH, params)
        written = [ends[n - 1].key for n, _ in rows]
        yield from release((key.job_id, followed) for key, (_, followed) in zip(written, rows, strict=True))
        return set(written)

    @transaction(pinned=True, single=True)
    def finish_unfollowed(self, ends: Sequence[End]) -> Steps[set[RunKey]]:
        """As `finish`, of runs that nothing waits for: one statement without a transaction around it. The others stay."""
        ends, params = _ends(ends)
        rows = yield Query(FINISH_UNFOLLOWED, params)
        return {ends[n - 1].key for n, _ in rows}

    @transaction(pinned=True)
    def give_back(self, returns: Sequence[Return]) -> Steps[set[RunKey]]:
        """Ends attempts for now: retry, snooze or release. Returns the keys that were written.

        A run whose cancel was asked for does not go on: it is not returned, and `look` tells why.
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

    @transaction(pinned=True, single=True, again=True)
    def owned(self, member: int, keys: Collection[RunKey] | None = None) -> Steps[list[Owned]]:
        """The runs that the store says this worker runs, to be compared with those it holds.

        Of `keys` only: that is what the worker holds, and what it asked for and got no answer. None: whatever they are.
        """
        if keys is None:
            rows = yield Query(OWNED_OF_ALL, [member])
        else:
            params = {"ids": array(k.job_id for k in keys), "ticks": array(k.scheduled_for for k in keys)}
            rows = yield Query(OWNED, {"member": member, **params})
        return [Owned(RunKey(row[0], row[1]), row[2], row[3]) for row in rows]

    @transaction(pinned=True)
    def disown(self, owned: Sequence[Owned]) -> Steps[int]:
        """Sends runs back to waiting that the store says we run and we do not: the answer of their begin was lost.

        The attempt never ran, so none is spent; a scheduler dispatches them anew. Those that were asked to cancel end.
        Returns how many.
        """
        cancelled = yield Query(CANCEL, {**_fenced([o for o in owned if o.cancel_requested]), "how": ""})
        yield from release(cancelled)
        rows = yield Query(DISOWN, _fenced([o for o in owned if not o.cancel_requested]))
        return len(cancelled) + len(rows)

    @transaction(pinned=True)
    def set_aside(self, refs: Sequence[tuple[RunKey, int]], after: float) -> Steps[list[Death]]:
        """Runs whose handler a worker of their queue does not know; `refs` are (key, dispatch number).

        Notes since when that is so. Those that nobody has known for `after` seconds die; returns which.
        """
        refs = sorted(refs)
        params = {
            "ids": [key.job_id for key, _ in refs],
            "ticks": [key.scheduled_for for key, _ in refs],
            "dispatches": [dispatch for _, dispatch in refs],
            "after": after,
        }
        rows = yield Query(UNKNOWN, params)
        yield from release(row[-2:] for row in rows)
        return [Death(RunKey(row[0], row[1]), *row[2:-2]) for row in rows]

    @transaction()
    def checkpoint(self, key: RunKey, fence: int, value: str) -> Steps[bool]:
        """Keeps a running attempt's checkpoint (JSON text). False: the attempt was superseded, nothing was written."""
        return bool((yield Query(CHECKPOINT, [value, key.job_id, key.scheduled_for, fence])))

    @transaction(pinned=True)
    def progress(self, told: Sequence[tuple[RunKey, int, str]]) -> Steps[int]:
        """Keeps what running attempts tell of themselves: (key, fence, JSON object). Returns how many are still running."""
        told = sorted(told)
        params = {
            "ids": [key.job_id for key, _, _ in told],
            "ticks": [key.scheduled_for for key, _, _ in told],
            "fences": [fence for _, fence, _ in told],
            "progress": [text for _, _, text in told],
        }
        return len((yield Query(PROGRESS, params)))


def _ends(ends: Sequence[End]) -> tuple[list[End], dict[str, Any]]:
    """In the order in which rows are locked, and as parameters."""
    ends = sorted(ends, key=lambda end: end.key)
    return ends, {
        "ids": array(e.key.job_id for e in ends),
        "ticks": array(e.key.scheduled_for for e in ends),
        "fences": array(e.fence for e in ends),
        "outcomes": array(e.outcome for e in ends),
        "reasons": sparse([e.reason for e in ends]),
        "results": sparse([e.result for e in ends]),
        "errors": sparse([e.error for e in ends]),
    }


def _fenced(owned: Sequence[Owned]) -> dict[str, list[Any]]:
    owned = sorted(owned, key=lambda o: o.key)
    return {
        "ids": [o.key.job_id for o in owned],
        "ticks": [o.key.scheduled_for for o in owned],
        "fences": [o.fence for o in owned],
    }


def _standing(row: tuple[Any, ...]) -> Standing:
    job_id, at, state, dispatch, fence, owner, cancel_requested, losses, expired, age, seconds = row
    key = RunKey(job_id, at)
    return Standing(key, state, dispatch, fence, owner, cancel_requested, losses, expired, age, seconds or 0.0)
