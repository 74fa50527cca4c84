"""What people and scripts look at: lists, one job, the status. Cold statements; none counts a large table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rota.sched.errors import NotFound, Refused
from rota.sched.ids import id_range, short
from rota.sched.model import STATES
from rota.sched.stats import LAGS, percentiles
from rota.sched.store.postgres.text import tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.views import Filter, JobView, Row, StatusView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COUNTED = 10_000
"""Rows of job and dead are counted up to here; beyond, the planner's estimate is told, and said to be one."""

_JOB = {
    "id": "id::text",
    "name": "name",
    "handler": "handler",
    "queue": "queue",
    "tenant": "tenant",
    "args": "args",
    "schedule": "schedule",
    "scheduled_for": tick("scheduled_for"),
    "next_run_at": tick("next_run_at"),
    "paused": "paused",
    "paused_reason": "paused_reason",
    "created_at": tick("created_at"),
}
_RUN = {
    "job_id": "job_id::text",
    "scheduled_for": tick("scheduled_for"),
    "state": "state",
    "handler": "handler",
    "queue": "queue",
    "tenant": "tenant",
    "args": "args",
    "attempt": "attempt",
    "losses": "losses",
    "dispatch": "dispatch",
    "fence": "fence",
    "scheduler": "scheduler",
    "owner": "owner",
    "due_at": tick("due_at"),
    "claimed_at": tick("claimed_at"),
    "begun_at": tick("begun_at"),
    "retry_at": tick("retry_at"),
    "ready_at": tick("ready_at"),
    "cancel_requested": "cancel_requested",
    "errors": "errors",
}
_PAST = {
    **{name: _RUN[name] for name in ("job_id", "scheduled_for", "handler", "queue", "tenant", "args", "attempt")},
    **{name: _RUN[name] for name in ("losses", "fence", "owner", "due_at", "claimed_at", "begun_at", "errors")},
    "reason": "reason",
}
_HISTORY = {**_PAST, "outcome": "outcome", "ended_at": tick("ended_at"), "result": "result"}
_DEAD = {**_PAST, "died_at": tick("died_at")}

_FIND = """
select distinct id::text, name from (
  select id, name from rota.job where id between %(low)s and %(high)s
  union all select job_id, null from rota.run where job_id between %(low)s and %(high)s
  union all select job_id, null from rota.dead where job_id between %(low)s and %(high)s
  union all (select job_id, null from rota.history where job_id between %(low)s and %(high)s limit 50)
) x order by 1 limit 5
"""

_WHERE = """(%(queue)s::text is null or queue = %(queue)s)
  and (%(handler)s::text is null or handler = %(handler)s)
  and (%(tenant)s::text is null or tenant = %(tenant)s)"""

STATUS_MEMBERS = f"""
select m.id, m.kind, m.host, m.pid, m.version, m.state, {tick("m.started_at")},
  extract(epoch from clock_timestamp() - m.beat_at)::float8,
  (select count(*)::int from rota.partition p where p.owner = m.id), m.stats
from rota.member m
where m.state = 'live' or m.ended_at >= date_trunc('day', clock_timestamp() at time zone 'utc') at time zone 'utc'
order by m.id
"""

STATUS_DUE = """
select min(d.at), coalesce(sum(d.n), 0)::int from (select generate_series(0, 63)) lane(part)
cross join rota.queue q
cross join lateral (
  select min(x.next_run_at) as at, count(*) as n from (
    select j.next_run_at from rota.job j
    where j.part = lane.part and j.queue = q.name and not j.paused and j.next_run_at <= clock_timestamp()
    order by j.next_run_at limit %(per_lane)s) x) d
"""


class ReadingStatements:
    """Reads only."""

    @transaction()
    def resolve(self, text: str) -> Steps[str]:
        """The full id of the job that `text` names: an id, a unique prefix, or the name of a named schedule.

        Raises NotFound, or Refused where several jobs fit.
        """
        rows = yield Query("select id::text from rota.job where name = %s", [text])
        span = id_range(text)
        if not rows and span:
            rows = yield Query(_FIND, {"low": span.low, "high": span.high})
        ids = sorted({row[0] for row in rows})
        if not ids:
            raise NotFound(f"there is no job {text!r}: give an id, a unique beginning of one, or a schedule's name")
        if len(ids) > 1:
            raise Refused(f"{text!r} fits several jobs: {', '.join(map(short, ids))}; give more digits")
        return str(ids[0])

    @transaction()
    def show(self, job_id: str, past: int = 20) -> Steps[JobView | None]:
        """All that is known of a job, None if nothing is. `past` rows of history at most."""
        jobs = yield from _rows(_JOB, "rota.job where id = %(id)s", {"id": job_id})
        runs = yield from _rows(_RUN, "rota.run where job_id = %(id)s order by scheduled_for desc", {"id": job_id})
        dead = yield from _rows(_DEAD, "rota.dead where job_id = %(id)s order by died_at desc", {"id": job_id})
        history = yield from _rows(
            _HISTORY,
            "rota.history where job_id = %(id)s order by history.ended_at desc limit %(past)s",
            {"id": job_id, "past": past},
        )
        if not (jobs or runs or dead or history):
            return None
        return JobView(job_id, jobs[0] if jobs else None, runs, dead, history)

    @transaction()
    def list_jobs(self, which: Filter) -> Steps[list[Row]]:
        """Jobs that have a future, by when they are due. `state`: scheduled or paused."""
        where = f"""rota.job where {_WHERE}
          and (%(state)s::text is null or paused = (%(state)s = 'paused'))
          and (%(since)s::timestamptz is null or job.created_at >= %(since)s)
          order by job.next_run_at limit %(limit)s"""
        return (yield from _rows(_JOB, where, _params(which)))

    @transaction()
    def list_runs(self, which: Filter) -> Steps[list[Row]]:
        """Live runs, the latest claimed first. `state` is one of a run's states."""
        where = f"""rota.run where {_WHERE}
          and (%(state)s::text is null or state = %(state)s)
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(since)s::timestamptz is null or run.claimed_at >= %(since)s)
          order by run.claimed_at desc limit %(limit)s"""
        return (yield from _rows(_RUN, where, _params(which)))

    @transaction()
    def list_history(self, which: Filter) -> Steps[list[Row]]:
        """Ended runs, the latest first. `state` is an outcome."""
        where = f"""rota.history where {_WHERE}
          and (%(state)s::text is null or outcome = %(state)s)
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(since)s::timestamptz is null or history.ended_at >= %(since)s)
          order by history.ended_at desc limit %(limit)s"""
        return (yield from _rows(_HISTORY, where, _params(which)))

    @transaction()
    def list_dead(self, which: Filter) -> Steps[list[Row]]:
        """Dead runs, the latest first."""
        where = f"""rota.dead where {_WHERE}
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(error)s::text is null or strpos(lower(concat(reason, ' ', errors::text)), lower(%(error)s)) > 0)
          and (%(since)s::timestamptz is null or dead.died_at >= %(since)s)
          order by dead.died_at desc limit %(limit)s"""
        return (yield from _rows(_DEAD, where, _params(which)))

    @transaction()
    def status(self) -> Steps[StatusView]:
        """One picture. Ended runs and lags come from the members' own figures."""
        ((now, today),) = yield Query(
            f"select {tick('clock_timestamp()')}, to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD')"
        )
        members = yield Query(STATUS_MEMBERS)
        live = [m for m in members if m[5] == "live"]
        ((owned, unowned),) = yield Query(
            "select count(owner)::int, count(*) filter (where owner is null)::int from rota.partition"
        )
        states = dict((yield Query("select state, count(*)::int from rota.run group by state")))
        ((oldest, due),) = yield Query(STATUS_DUE, {"per_lane": COUNTED})
        ((oldest_s,),) = yield Query("select extract(epoch from clock_timestamp() - %s::timestamptz)::float8", [oldest])
        jobs = yield from _count("job", "true")
        paused = yield from _count("job", "paused")
        dead = yield from _count("dead", "true")
        queues = yield Query("select name, paused, cap from rota.queue order by name")
        return StatusView(
            now=now,
            members=[_member(m) for m in live],
            partitions={"owned": owned, "unowned": unowned},
            jobs={"scheduled": jobs["n"], "paused": paused["n"], "due": due, "estimated": jobs["estimated"]},
            runs={state: states.get(state, 0) for state in STATES},
            ended=_ended(members, today),
            dead=dead["n"],
            queues=_queues(queues, live),
            lag={
                "oldest_due_s": round(max(0.0, oldest_s or 0.0), 3),
                **{n: percentiles((m[9] for m in live), n) for n in LAGS},
            },
            degraded=_degraded(live, unowned),
        )


def _rows(columns: dict[str, str], rest: str, params: dict[str, Any]) -> Steps[list[Row]]:
    rows = yield Query(f"select {', '.join(columns.values())} from {rest}", params)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _params(which: Filter) -> dict[str, Any]:
    return {name: getattr(which, name) for name in Filter.__slots__}


def _count(table: str, where: str) -> Steps[Row]:
    ((n,),) = yield Query(f"select count(*)::int from (select from rota.{table} where {where} limit {COUNTED + 1}) x")
    if n <= COUNTED:
        return {"n": n, "estimated": False}
    ((estimate,),) = yield Query(
        "select greatest(reltuples, 0)::bigint from pg_class where oid = %s::regclass", [f"rota.{table}"]
    )
    return {"n": max(n, int(estimate)), "estimated": True}


def _member(m: Sequence[Any]) -> Row:
    stats = m[9]
    return {
        "id": m[0],
        "kind": m[1],
        "host": m[2],
        "pid": m[3],
        "version": m[4],
        "state": m[5],
        "started_at": m[6],
        "beat_s": round(m[7], 3),
        "partitions": m[8],
        "running": stats.get("running", 0),
        "ended": stats.get("ended", {}),
    }


def _ended(members: Iterable[Sequence[Any]], today: str) -> dict[str, int]:
    total = Counter({"succeeded": 0, "dead": 0, "cancelled": 0, "retry": 0})
    for m in members:
        if m[9].get("day") == today:
            total.update(m[9].get("ended", {}))
    return dict(total)


def _queues(queues: Iterable[Sequence[Any]], live: Iterable[Sequence[Any]]) -> list[Row]:
    depths: dict[str, Row] = {}
    for m in live:
        depths.update(m[9].get("queues", {}))
    nothing = {"ready": None, "consumers": None, "capped": False}
    return [{"name": name, "paused": paused, "cap": cap, **depths.get(name, nothing)} for name, paused, cap in queues]


def _degraded(live: Sequence[Sequence[Any]], unowned: int) -> list[str]:
    words = {word for m in live for word in m[9].get("degraded", [])}
    kinds = {m[1] for m in live}
    words |= {f"no_{kind}" for kind in ("scheduler", "worker") if kind not in kinds}
    if unowned:
        words.add("unowned_partitions")
    return sorted(words)
