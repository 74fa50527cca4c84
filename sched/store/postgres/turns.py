"""Runs of one job that follow one another: what keeps a tick buffered, and what lets the next one go.

A buffered run is a row of `run` that no scheduler dispatches. It waits behind the runs of its job that are alive, which are
marked as `followed`; so is itself, for those that come after it. Whatever ends a followed run looks then, in the same
transaction, for the first buffered run of its job, and makes it waiting if nothing of the job is alive any more (`release`).

That look is a statement of its own, so its snapshot is taken after the row of the run that ends was locked. Who adds a run to
a job that has not all of them beside each other (a claim, a redrive) holds the lock of the job's row, and locks and marks what is
alive. So one of the two sees what the other did, whichever comes first: the end finds the buffered run, or who adds it finds that
nothing is alive. Where two runs of a job end at the same time, both wait for the lock of the same buffered run, and the second one
finds that the first has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rota.sched.store.postgres.text import ALIVE, SAME_RUN, WAKE_CHANNEL, tick
from rota.sched.store.transaction import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENDED = "job_id::text, followed and state <> 'buffered'"
"""Of a run that has ended: its job, and whether another run of that job may have waited for that."""

IN_ORDER = "claimed_at, scheduled_for"
"""The order in which runs of a job have their turn: that of their ticks, and redriven ones by when they were redriven."""

# What is locked by somebody else is being begun, given back or ended at this moment.
ABREAST = """
with held as materialized (
  select job_id from rota.run where job_id = any(%(ids)s::uuid[]) and state <> 'buffered'
  order by job_id, scheduled_for for update skip locked
)
select x.id::text, counted.live, counted.waiting, (select count(*) from held h where h.job_id = x.id)::int
from unnest(%(ids)s::uuid[]) x(id) cross join lateral (
  select (count(*) filter (where r.state <> 'buffered'))::int as live,
    (count(*) filter (where r.state = 'buffered'))::int as waiting
  from rota.run r where r.job_id = x.id) counted
"""

FIRST = f"""
select b.job_id::text, {tick("b.scheduled_for")} from unnest(%(ids)s::uuid[]) x(id) cross join lateral (
  select r.job_id, r.scheduled_for from rota.run r where r.job_id = x.id and r.state = 'buffered'
  order by {IN_ORDER} limit 1 for update) b
"""

# NOTIFY only where a scheduler sleeps: it takes a lock on the whole database at commit.
NEXT = f"""
with next as (
  update rota.run r set state = 'waiting', ready_at = greatest(clock_timestamp(), r.claimed_at)
  from unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[]) x(id, tick)
  where {SAME_RUN} and r.state = 'buffered'
    and not exists (select from rota.run o where o.job_id = r.job_id and o.state <> 'buffered')
  returning r.part, r.queue, r.ready_at
),
woken as (
  select count(pg_notify('{WAKE_CHANNEL}', w.queue)) from (
    select distinct n.queue from next n join rota.partition p on p.part = n.part join rota.member m on m.id = p.owner
    where n.ready_at < m.wakes_at) w
)
select (select count(*)::int from next) + 0 * (select * from woken)
"""

BUFFERED = (
    "select distinct job_id::text from rota.run where job_id = any(%(ids)s::uuid[]) and state = 'buffered' order by 1"
)
CURSORS = "select from rota.job where id = any(%(ids)s::uuid[]) order by id for update"
FOLLOWED = f"""
with x as materialized (
  select job_id as id, scheduled_for as tick from rota.run where job_id = any(%(ids)s::uuid[]) and state <> 'buffered'
  order by job_id, scheduled_for for update
)
update rota.run r set followed = true from x where {SAME_RUN}
"""

STRANDED = f"""
with b as materialized (select distinct r.job_id from rota.run r where r.{ALIVE} and r.state = 'buffered')
select b.job_id::text from b
where not exists (select from rota.run o where o.job_id = b.job_id and o.state <> 'buffered') order by 1 limit 1000
"""


class Abreast(NamedTuple):
    """The runs of a job: so many are alive, so many wait behind them. `steady`: the living stay so until our commit."""

    live: int
    waiting: int
    steady: bool


def abreast(job_ids: Sequence[str]) -> Steps[dict[str, Abreast]]:
    """How jobs stand whose rows this transaction has locked; what is alive and can be locked is locked, too."""
    if not job_ids:
        return {}
    rows = yield Query(ABREAST, {"ids": sorted(job_ids)})
    return {job_id: Abreast(live, waiting, live == held) for job_id, live, waiting, held in rows}


def release(ended: Iterable[Sequence[object]]) -> Steps[int]:
    """Lets the next run go of each job, of which rows of ENDED tell that one may wait. Returns how many went.

    To be called after the statement that ended them, in the same transaction.
    """
    return (yield from _let_go({str(job_id) for job_id, followed in ended if followed}))


def line_up(job_ids: Iterable[str]) -> Steps[None]:
    """Sees to it that runs which this transaction has added as buffered are released: now, or by what is alive."""
    rows = yield Query(BUFFERED, {"ids": sorted(set(job_ids))})
    ids = [row[0] for row in rows]
    if ids:
        yield Query(CURSORS, {"ids": ids})
        yield Query(FOLLOWED, {"ids": ids})
        yield from _let_go(ids)


def release_stranded() -> Steps[int]:
    """Lets go what waits behind nothing. Returns how many.

    Whatever Rota of this version does leaves none: this is for runs that somebody else ended, such as a worker of an older
    version during a rolling deploy, or a `delete` by hand.
    """
    rows = yield Query(STRANDED)
    return (yield from _let_go([row[0] for row in rows]))


def _let_go(job_ids: Iterable[str]) -> Steps[int]:
    ids = sorted(job_ids)
    first = (yield Query(FIRST, {"ids": ids})) if ids else []
    if not first:
        return 0
    ((went,),) = yield Query(NEXT, {"ids": [row[0] for row in first], "ticks": [row[1] for row in first]})
    return int(went)
