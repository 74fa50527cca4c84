"""Submit and cancel: the client's transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb
from rota.sched.control import CANCEL_CALL
from rota.sched.ids import PARTITIONS
from rota.sched.store.postgres.text import PAST, WAKE_CHANNEL, array, late_call, quoted, sparse
from rota.sched.store.postgres.turns import IN_ORDER, release
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Cancelled, NewJob, Submitted
from rota.sched.timing import first_tick, jitter_of, next_tick
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

# Keys first: a key that lives keeps the job out. The wake-up is sent only where a scheduler sleeps beyond the job's
# time, because NOTIFY takes a lock on the whole database at commit.
SUBMIT = f"""
with input as materialized (
  select * from unnest(%(ids)s::uuid[], %(queues)s::text[], %(handlers)s::text[], %(tenants)s::text[], %(args)s::jsonb[],
    %(schedules)s::jsonb[], %(policies)s::jsonb[], %(ticks)s::timestamptz[], %(dues)s::timestamptz[], %(delays)s::float8[], %(names)s::text[],
    %(requests)s::text[], %(scopes)s::text[], %(keys)s::text[], %(key_seconds)s::float8[])
    with ordinality x(id, queue, handler, tenant, args, schedule, policy, tick, due, delay, name, request, scope, key,
      key_seconds, n)
),
keyed as (
  insert into rota.key as k (scope, key, job_id, request, until)
  select scope, key, id, request, clock_timestamp() + make_interval(secs => key_seconds)
  from input where key is not null order by scope, key
  on conflict (scope, key) do update
    set job_id = excluded.job_id, request = excluded.request, until = excluded.until
    where k.until < clock_timestamp()
  returning scope, key, job_id
),
known as (
  insert into rota.queue (name)
  select distinct queue from input i where not exists (select from rota.queue q where q.name = i.queue) order by queue
  on conflict do nothing
),
stored as (
  insert into rota.job (id, part, queue, next_run_at, scheduled_for, handler, tenant, args, schedule, policy, name, request,
    created_at, runs_left)
  select i.id, get_byte(uuid_send(i.id), 15) %% {PARTITIONS}, i.queue,
    greatest(coalesce(i.due, i.tick, clock_timestamp() + make_interval(secs => i.delay)), clock_timestamp()),
    coalesce(i.tick, clock_timestamp() + make_interval(secs => i.delay)),
    i.handler, i.tenant, i.args, i.schedule, i.policy, i.name, case when i.name is not null then i.request end, clock_timestamp(),
    (i.schedule ->> 'max_runs')::int
  from input i
  where i.key is null or exists (select from keyed k where k.job_id = i.id)
  order by i.name, i.id
  on conflict do nothing
  returning id, part, queue, next_run_at
),
woken as (
  select count(pg_notify('{WAKE_CHANNEL}', {late_call("w.queue", "w.at", "%(always_wake)s")})) from (
    select s.queue, min(s.next_run_at) as at from stored s
    join rota.partition p on p.part = s.part
    left join rota.member m on m.id = p.owner
    where %(always_wake)s or s.next_run_at < m.wakes_at group by s.queue) w
)
select id::text, (select * from woken) from stored
"""

# The same of one job that has no key and no name and runs once, into a queue that is known; else it stores nothing. A third
# of what a submit of one job costs is to set up the statement that can do everything.
SUBMIT_ONE = f"""
with stored as (
  insert into rota.job (id, part, queue, next_run_at, scheduled_for, handler, tenant, args, policy, created_at)
  select i.id, get_byte(uuid_send(i.id), 15) %% {PARTITIONS}, i.queue,
    greatest(i.tick, clock_timestamp()), i.tick, i.handler, i.tenant, i.args, i.policy, clock_timestamp()
  from (select %(id)s::uuid, %(queue)s::text, %(handler)s::text, %(tenant)s::text, %(args)s::jsonb, %(policy)s::jsonb,
    coalesce(%(due)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s)))
    i(id, queue, handler, tenant, args, policy, tick)
  where exists (select from rota.queue q where q.name = i.queue)
  on conflict do nothing
  returning id, part, queue, next_run_at
)
select case when %(always_wake)s or s.next_run_at < m.wakes_at
  then pg_notify('{WAKE_CHANNEL}', {late_call("s.queue", "s.next_run_at", "%(always_wake)s")}) end
from stored s left join rota.partition p on p.part = s.part left join rota.member m on m.id = p.owner
"""

# Where a submit stored nothing: by key, by name, or the same id once more.
KNOWN = """
select i.n, coalesce(k.job_id, j.id, i.id)::text,
  case when i.key is not null and k.job_id is not null then k.request else j.request end
from unnest(%(ns)s::int[], %(ids)s::uuid[], %(scopes)s::text[], %(keys)s::text[], %(names)s::text[])
  i(n, id, scope, key, name)
left join rota.key k on k.scope = i.scope and k.key = i.key
left join rota.job j on j.name = i.name
"""

# A repeated submit whose first try was stored may find its job gone from `job`: it has been claimed meanwhile.
UNDO_REPEATED = """
delete from rota.job j using unnest(%(ids)s::uuid[]) x(id)
where j.id = x.id and j.schedule is null and (
  exists (select from rota.run r where r.job_id = x.id) or exists (select from rota.dead d where d.job_id = x.id)
  or exists (select from rota.history h where h.job_id = x.id))
"""

# Locked in the order in which an end locks that lets the next one go: what is alive, and then what waits behind it.
CANCEL_RUNS = f"""
with idle as materialized (
  select job_id, scheduled_for from rota.run
  where job_id = %(id)s and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s) and state <> 'running'
  order by {IN_ORDER} for update
),
gone as (
  delete from rota.run r using idle
  where r.job_id = idle.job_id and r.scheduled_for = idle.scheduled_for and r.state <> 'running' returning r.*
),
past as (
  insert into rota.history ({PAST}, ended_at, outcome, reason, errors)
  select {PAST}, clock_timestamp(), 'cancelled', %(reason)s, errors from gone returning 1
),
asked as (
  update rota.run set cancel_requested = true, cancel_reason = coalesce(cancel_reason, %(reason)s)
  where %(running)s and job_id = %(id)s and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)
    and state = 'running' returning 1
),
told as (select pg_notify('{WAKE_CHANNEL}', '{CANCEL_CALL}' || %(id)s) where exists (select from asked))
select (select count(*) from past), (select count(*) from asked) + 0 * (select count(*) from told),
  coalesce((select bool_or(followed and state <> 'buffered') from gone), false),
  (select count(*) from rota.run where job_id = %(id)s and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)
    and state = 'running')
"""

CANCEL_JOB = """
with gone as (delete from rota.job where id = %(id)s returning *)
insert into rota.history (ended_at, job_id, scheduled_for, outcome, reason, queue, handler, tenant, args, attempt, losses,
  due_at)
select clock_timestamp(), id, scheduled_for, 'cancelled', %(reason)s, queue, handler, tenant, args, 0, 0, next_run_at
from gone returning 1
"""


class SubmissionStatements:
    """The future's way in, and what ends a life by a user's will."""

    @transaction(pinned=True)
    def submit(
        self, jobs: Sequence[NewJob], *, repeated: bool = False, own_transaction: bool = True
    ) -> Steps[list[Submitted]]:
        """Stores jobs, all or none, and answers each in order.

        Instants without an offset from the caller are the store's: "now" is its clock. `repeated` says that the answer
        of an earlier try with the same ids was lost: a job that has been claimed since is not stored again.
        `own_transaction` False: the commit comes later, so a scheduler is always woken by it, and told from when on to look.
        """
        one = len(jobs) == 1 and not repeated and jobs[0].plain
        if one and (yield Query(SUBMIT_ONE, _one_params(jobs[0], always_wake=not own_transaction))):
            return [Submitted(jobs[0].id, duplicate=False)]
        now = None
        if any(isinstance(job.when, Schedule) for job in jobs):
            ((now,),) = yield Query("select clock_timestamp()")
        rows = yield Query(SUBMIT, _submit_params(jobs, now, always_wake=not own_transaction))
        stored = {row[0] for row in rows}
        missed = [n for n, job in enumerate(jobs) if job.id not in stored]
        if repeated:
            yield Query(UNDO_REPEATED, {"ids": [job.id for job in jobs]})
        known = {}
        if missed:
            params = {
                "ns": missed,
                "ids": [jobs[n].id for n in missed],
                "scopes": [jobs[n].scope for n in missed],
                "keys": [jobs[n].key for n in missed],
                "names": [jobs[n].name for n in missed],
            }
            known = {row[0]: row for row in (yield Query(KNOWN, params))}
        return [_answer(job, known.get(n)) for n, job in enumerate(jobs)]

    @transaction()
    def cancel(self, job_id: str, scheduled_for: str | None, *, running: bool, reason: str) -> Steps[Cancelled]:
        """Ends a job, or one run of it where `scheduled_for` is given.

        What has not begun ends at once and gets a history row; what runs is asked to stop if `running`, else left.
        """
        params = {"id": job_id, "tick": scheduled_for, "running": running, "reason": reason}
        jobs = [] if scheduled_for else (yield Query(CANCEL_JOB, params))
        ((runs, asked, followed, left),) = yield Query(CANCEL_RUNS, params)
        yield from release([(job_id, followed)])
        return Cancelled(bool(jobs), runs, asked, left)


def _one_params(job: NewJob, *, always_wake: bool) -> dict[str, Any]:
    tick, _, delay = _times(job, None)
    return {
        "id": job.id,
        "queue": job.queue,
        "handler": job.handler,
        "tenant": job.tenant,
        "args": job.args,
        "policy": Jsonb(job.policy.to_json()) if job.policy else None,
        "due": tick,
        "delay": delay,
        "always_wake": always_wake,
    }


def _submit_params(jobs: Sequence[NewJob], now: datetime | None, *, always_wake: bool) -> dict[str, Any]:
    times = [_times(job, now) for job in jobs]
    return {
        "ids": array(job.id for job in jobs),
        "queues": quoted(job.queue for job in jobs),
        "handlers": quoted(job.handler for job in jobs),
        "tenants": sparse([job.tenant for job in jobs]),
        "args": quoted(job.args for job in jobs),
        "schedules": sparse([Jsonb(job.when.to_json()) if isinstance(job.when, Schedule) else None for job in jobs]),
        "policies": sparse([Jsonb(job.policy.to_json()) if job.policy else None for job in jobs]),
        "ticks": sparse([t[0] for t in times]),
        "dues": sparse([t[1] for t in times]),
        "delays": array(t[2] for t in times),
        "names": sparse([job.name for job in jobs]),
        "requests": quoted(job.request for job in jobs),
        "scopes": quoted(job.scope for job in jobs),
        "keys": sparse([job.key for job in jobs]),
        "key_seconds": array(job.key_seconds for job in jobs),
        "always_wake": always_wake,
    }


def _times(job: NewJob, now: datetime | None) -> tuple[datetime | None, datetime | None, float]:
    """(nominal tick, due, delay) of a new job; the tick is None where the store's own clock sets it."""
    when = job.when
    if isinstance(when, Schedule):
        assert now is not None
        first = first_tick(when, now)
        return first, first + jitter_of(when, job.id, first, next_tick(when, first, first)), 0.0
    return when.at, when.at, when.after or 0.0


def _answer(job: NewJob, known: tuple[Any, ...] | None) -> Submitted:
    if known is None:
        return Submitted(job.id, duplicate=False)
    _, job_id, request = known
    if request is not None and request != job.request and job_id != job.id:  # ours may have been changed since
        what = f"name {job.name!r}" if job.key is None else f"key {job.key!r}"
        return Submitted(job_id, duplicate=False, conflict=what)
    return Submitted(job_id, duplicate=True)
