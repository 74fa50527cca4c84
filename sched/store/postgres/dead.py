"""Dead runs, chosen, redriven and discarded: portions of a walk along the dead, the oldest first.

A statement looks at `DeadFilter.portion` rows at most and locks only those it takes, so that 100,000 dead runs hold up nobody: it says
how far it got, and the next one goes on from there. What somebody else has locked is passed by, so two commands at once
take each run once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.sched.ids import RunKey
from rota.sched.store.postgres.text import PAST, WAKE_CHANNEL, tick
from rota.sched.store.postgres.turns import line_up
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import DeadBatch, DeadFilter, DeadPlace, DeadSurvey, Redrive

if TYPE_CHECKING:
    from collections.abc import Sequence

_ORDER = "died_at, job_id, scheduled_for"

# What costs little is asked of every row; the text of errors only of the portion.
_CHEAP = """(%(handler)s::text is null or handler = %(handler)s)
      and (%(tenant)s::text is null or tenant = %(tenant)s)
      and died_at >= coalesce(%(since)s::timestamptz, '-infinity')
      and died_at <= coalesce(%(until)s::timestamptz, 'infinity')"""

_QUEUES = """(
    select name from rota.queue where %(queue)s::text is null
    union all select %(queue)s::text where %(queue)s::text is not null) q(name)"""

# Queue by queue along the index dead_queue; what several queues give is merged.
_PORTION = f"""looked as materialized (
  select d.* from {_QUEUES} cross join lateral (
    select {_ORDER} from rota.dead
    where queue = q.name and {_CHEAP}
      and (%(after_id)s::uuid is null or (
        died_at >= %(after_at)s and ({_ORDER}) > (%(after_at)s, %(after_id)s::uuid, %(after_tick)s::timestamptz)))
    order by {_ORDER} limit %(portion)s) d
  order by {_ORDER} limit %(portion)s
)"""

_NAMED = f"""looked as materialized (
  select d.{_ORDER.replace(", ", ", d.")} from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
  join rota.dead d on d.job_id = x.id and d.scheduled_for = x.tick
)"""

_FITTING = f"""fitting as materialized (
  select l.*, case
    when jsonb_array_length(d.lineage) >= %(max_redrives)s::int then 'spared'
    when d.handler <> all (%(handlers)s::text[]) then 'unfit'
    else 'dead' end as fate
  from looked l join rota.dead d using (job_id, scheduled_for)
  where %(error)s::text is null or strpos(lower(concat(d.reason, ' ', d.errors::text)), lower(%(error)s)) > 0
),
chosen as materialized (
  select * from fitting where fate = 'dead' order by {_ORDER} limit %(limit)s
)"""

_LOCKED = """locked as materialized (
  select d.* from chosen c join rota.dead d using (job_id, scheduled_for)
  order by d.job_id, d.scheduled_for for update of d skip locked
)"""


# `in` is looked up in a hash table; joins of these results, whose sizes the planner does not know, are loops in loops.
def _told(taken: str, *, alive: str = "alive", ready_until: str = "null::timestamptz") -> str:
    """One row for each run that fits, with what became of it, and one for the last that was looked at."""
    return f"""
select f.job_id::text, {tick("f.scheduled_for")}, case
    when (f.job_id, f.scheduled_for) in (select job_id, scheduled_for from {taken}) then 'taken'
    when f.fate <> 'dead' then f.fate
    when (f.job_id, f.scheduled_for) in (select job_id, scheduled_for from locked) then '{alive}'
    when (f.job_id, f.scheduled_for) in (select job_id, scheduled_for from chosen) then 'elsewhere'
    else 'more' end,
  f.died_at, null::timestamptz, null::float8, 0
from fitting f
union all
(select job_id::text, {tick("scheduled_for")}, 'end', died_at, until, extract(epoch from until - clock_timestamp())::float8,
   (select count(*) from looked)
 from looked cross join (select {ready_until} as until) ready order by died_at desc, job_id desc, scheduled_for desc limit 1)
"""


_IDLE = """idle as materialized (
  select k.* from locked k
  where not exists (select from rota.run r where r.job_id = k.job_id and r.scheduled_for = k.scheduled_for)
)"""


def _choose(looked: str) -> str:
    # Nothing is locked, so nothing is elsewhere.
    return f"""
with {looked}, {_FITTING},
locked as (select job_id, scheduled_for from chosen),
{_IDLE.replace("where not", "where %(alive)s or not")}{_told("idle")}"""


# A schedule that lets no two of its runs go at once is asked by redrives, too, as long as it lives: nothing is skipped then, it
# waits for its turn.
_IN_TURN = """exists (
    select from rota.job j where j.id = i.job_id and coalesce(j.schedule ->> 'overlap', 'allow') <> 'allow')"""


# A run that is alive again keeps its dead row: only what became a run is taken from the dead. The numbers of the old life
# are void: dispatch 0 matches no message, a scheduler gives the new one. All times count from the redrive.
def _redrive(looked: str) -> str:
    return f"""
with {looked}, {_FITTING}, {_LOCKED}, {_IDLE},
start as materialized (select greatest(clock_timestamp(), %(ready_from)s::timestamptz) as at),
again as (
  insert into rota.run (job_id, scheduled_for, part, state, dispatch, queue, handler, tenant, args, errors, policy, lineage,
    due_at, claimed_at, ready_at, expires_at, followed, catchup, missed)
  select i.job_id, i.scheduled_for, i.part, case when {_IN_TURN} then 'buffered' else 'waiting' end, 0, i.queue, i.handler, i.tenant, coalesce(%(args)s::jsonb, i.args),
    i.errors, i.policy,
    coalesce(i.lineage, '[]') || (
      jsonb_build_object('at', {tick("clock_timestamp()")}, 'by', %(by)s::text, 'died_at', {tick("i.died_at")},
        'reason', i.reason, 'attempts', i.attempt)
      || case when %(args)s::jsonb is null then '{{}}' else jsonb_build_object('args', i.args) end),
    at, at, case when not {_IN_TURN} then at end, at + make_interval(secs => (i.policy ->> 'expires')::float8),
    {_IN_TURN}, i.catchup, i.missed
  from (select *, row_number() over (order by {_ORDER}) - 1 as n from idle) i
  cross join lateral (select start.at + make_interval(secs => %(spacing)s * i.n) as at from start) ready
  on conflict do nothing
  returning job_id, scheduled_for, queue, ready_at
),
gone as (
  delete from rota.dead d using again a where d.job_id = a.job_id and d.scheduled_for = a.scheduled_for
),
woken as materialized (
  select count(pg_notify('{WAKE_CHANNEL}', queue)) as n from (select distinct queue from again where ready_at is not null) w
){_told("again", ready_until="(select max(ready_at) from again, woken)")}"""


# The row of a run that is alive again may be settled: what lives is not touched.
def _discard(looked: str) -> str:
    return f"""
with {looked}, {_FITTING}, {_LOCKED},
gone as (
  delete from rota.dead d using locked k where d.job_id = k.job_id and d.scheduled_for = k.scheduled_for returning d.*
),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors)
  select {PAST}, clock_timestamp(), 'discarded', concat(%(told)s::text, '; it died of: ', reason), errors from gone
  returning job_id, scheduled_for
){_told("past", alive="elsewhere")}"""


CHOOSE, CHOOSE_NAMED = _choose(_PORTION), _choose(_NAMED)
REDRIVE, REDRIVE_NAMED = _redrive(_PORTION), _redrive(_NAMED)
DISCARD, DISCARD_NAMED = _discard(_PORTION), _discard(_NAMED)

SURVEY = f"""
select clock_timestamp(), found.* from (values (1)) one left join (
  select handler, count(*)::int from rota.dead
  where (%(queue)s::text is null or queue = %(queue)s) and {_CHEAP} group by handler) found on true
"""
SURVEY_NAMED = """
select clock_timestamp(), found.* from (values (1)) one left join (
  select handler, count(*)::int from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
  join rota.dead d on d.job_id = x.id and d.scheduled_for = x.tick group by handler) found on true
"""

WHEREABOUTS = f"""
select x.id::text, {tick("x.tick")}, coalesce(
  (select r.state from rota.run r where r.job_id = x.id and r.scheduled_for = x.tick),
  (select h.outcome from rota.history h where h.job_id = x.id and h.scheduled_for = x.tick
   order by h.ended_at desc limit 1))
from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
"""


class DeadStatements:
    """What failed for good: looked at, run again, settled. Each method is one portion of a walk."""

    @transaction()
    def survey_dead(self, which: DeadFilter) -> Steps[DeadSurvey]:
        """The store's time, and how many dead runs each handler has among those that a walk would look at.

        That is all filters but `error`, which needs a look at each run, and `max_redrives`.
        """
        rows = yield Query(SURVEY_NAMED if which.keys else SURVEY, _params(which))
        return DeadSurvey(rows[0][0], {handler: n for _, handler, n in rows if handler is not None})

    @transaction(pinned=True)
    def choose_dead(self, which: DeadFilter, *, alive: bool = False) -> Steps[DeadBatch]:
        """The portion that a redrive would take, or with `alive` (what is alive again, too) a discard; it is only looked at."""
        params = {**_params(which), "alive": alive}
        return _batch(which, (yield Query(CHOOSE_NAMED if which.keys else CHOOSE, params)))

    @transaction(pinned=True)
    def redrive(self, which: DeadFilter, how: Redrive) -> Steps[DeadBatch]:
        """Makes runs of dead ones, to be dispatched by schedulers: attempts and losses start anew, errors stay."""
        params = {
            **_params(which),
            "by": how.by,
            "args": how.args,
            "spacing": 1 / how.per_second if how.per_second else 0.0,
            "ready_from": how.ready_from,
        }
        batch = _batch(which, (yield Query(REDRIVE_NAMED if which.keys else REDRIVE, params)))
        yield from line_up(key.job_id for key in batch.taken)
        return batch

    @transaction(pinned=True)
    def discard(self, which: DeadFilter, told: str) -> Steps[DeadBatch]:
        """Moves dead runs to history as discarded; `told` says by whom and why, and stands before what they died of."""
        params = {**_params(which), "told": told}
        return _batch(which, (yield Query(DISCARD_NAMED if which.keys else DISCARD, params)))

    @transaction()
    def whereabouts(self, keys: Sequence[RunKey]) -> Steps[dict[RunKey, str | None]]:
        """The state of each live run, the outcome of each ended one, None for one that never was or was forgotten."""
        rows = yield Query(WHEREABOUTS, {"ids": [k.job_id for k in keys], "ticks": [k.scheduled_for for k in keys]})
        return {RunKey(job_id, at): found for job_id, at, found in rows}


def _params(which: DeadFilter) -> dict[str, Any]:
    keys = sorted(which.keys)
    after = which.after
    return {
        "ids": [k.job_id for k in keys] or None,
        "ticks": [k.scheduled_for for k in keys],
        "queue": which.queue,
        "handler": which.handler,
        "tenant": which.tenant,
        "error": which.error,
        "since": which.since,
        "until": which.until,
        "max_redrives": which.max_redrives,
        "handlers": None if which.handlers is None else list(which.handlers),
        "after_at": after and after.died_at,
        "after_id": after and after.key.job_id,
        "after_tick": after and after.key.scheduled_for,
        "portion": which.portion,
        "limit": which.limit,
    }


def _batch(which: DeadFilter, rows: Sequence[tuple[Any, ...]]) -> DeadBatch:
    found: dict[str, list[RunKey]] = {}
    for job_id, at, fate, *_ in rows:
        found.setdefault(fate, []).append(RunKey(job_id, at))
    last, ready_until, ahead, looked = next(
        ((DeadPlace(row[3], RunKey(row[0], row[1])), *row[4:]) for row in rows if row[2] == "end"),
        (None, None, None, 0),
    )
    return DeadBatch(
        taken=found.get("taken", []),
        alive=found.get("alive", []),
        spared=found.get("spared", []),
        unfit=found.get("unfit", []),
        elsewhere=found.get("elsewhere", []),
        more=bool(found.get("more")),
        looked=looked,
        last=last if looked >= which.portion and not which.keys else None,
        ready_until=ready_until,
        ahead=ahead or 0.0,
    )
