"""What people and scripts look at: lists, one job, the status. Cold statements; none counts a large table."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.sched.errors import NotFound, Refused
from rota.sched.ids import PARTITIONS, id_range, short
from rota.sched.model import OUTCOMES, STATES
from rota.sched.stats import COUNTERS, LAGS, REFUSALS, REPUBLISHED, percentiles
from rota.sched.store.postgres.days import DAY, TABLES
from rota.sched.store.postgres.text import ALIVE, array, quoted, tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.views import STALLED_SECONDS, DayView, Filter, HistoryView, JobView, Row, StatusView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COUNTED = 10_000
"""Rows of job and dead are counted up to here; beyond, the planner's estimate is told, and said to be one."""

COUNTED_DEAD = 1_000
"""Dead runs of one queue are counted up to here: what needs somebody to look does not need all digits."""

RETURNS = ("retry", "snooze", "release")
"""Ends of an attempt that are not the run's."""

_JOB = {
    "id": "id::text",
    "name": "name",
    "handler": "handler",
    "queue": "queue",
    "tenant": "tenant",
    "args": "args",
    "schedule": "schedule",
    "policy": "policy",
    "scheduled_for": tick("scheduled_for"),
    "next_run_at": tick("next_run_at"),
    "runs_left": "runs_left",
    "paused": "paused",
    "paused_reason": "paused_reason",
    "paused_by": "paused_by",
    "paused_at": tick("paused_at"),
    "queue_paused": "coalesce((select q.paused from rota.queue q where q.name = job.queue), false)",
    "version": "version",
    "created_at": tick("created_at"),
}
_SCHEDULE = {name: _JOB[name] for name in ("id", "schedule", "scheduled_for", "runs_left")}
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
    "expires_at": tick("expires_at"),
    "unknown_since": tick("unknown_since"),
    "policy": "policy",
    "progress": "progress",
    "checkpoint": "checkpoint",
    "cancel_requested": "cancel_requested",
    "cancel_reason": "cancel_reason",
    "errors": "errors",
    "lineage": "lineage",
    "redrives": "coalesce(jsonb_array_length(lineage), 0)",
    "catchup": "catchup",
    "missed": "missed",
}
_PAST = {
    **{name: _RUN[name] for name in ("job_id", "scheduled_for", "handler", "queue", "tenant", "args", "attempt")},
    **{name: _RUN[name] for name in ("losses", "fence", "owner", "due_at", "claimed_at", "begun_at", "errors")},
    **{name: _RUN[name] for name in ("lineage", "redrives")},
    "reason": "reason",
}
_HISTORY = {**_PAST, "outcome": "outcome", "ended_at": tick("ended_at"), "result": "result"}
_DEAD = {**_PAST, "died_at": tick("died_at")}

_PLACES = (("job", "id"), ("run", "job_id"), ("dead", "job_id"), ("history", "job_id"))


def _ends(table: str, column: str) -> str:
    """The first few ids of a range and its last one: enough to tell one from many, however large the range is."""
    within = f"select {column} as id from rota.{table} where {column} between %(low)s and %(high)s order by {column}"
    return f"({within} limit 3) union all ({within} desc limit 1)"


FIND = f"select distinct id::text from ({' union all '.join(_ends(*place) for place in _PLACES)}) x order by 1 limit 5"

_WHERE = """(%(queue)s::text is null or queue = %(queue)s)
  and (%(handler)s::text is null or handler = %(handler)s)
  and (%(tenant)s::text is null or tenant = %(tenant)s)"""

STATUS_MEMBERS = f"""
select m.id, m.kind, m.host, m.pid, m.version, m.state, {tick("m.started_at")} as started_at,
  round(extract(epoch from clock_timestamp() - m.beat_at)::numeric, 3)::float8 as beat_s,
  (select count(*)::int from rota.partition p where p.owner = m.id) as partitions, m.stats
from rota.member m
where m.state = 'live' or m.ended_at >= date_trunc('day', clock_timestamp() at time zone 'utc') at time zone 'utc'
order by m.id
"""

_LANES = """unnest(%(parts)s::smallint[], %(queues)s::text[], %(lows)s::timestamptz[]) lane(part, queue, low) cross join lateral (
  select j.next_run_at from rota.job j
  where j.part = lane.part and j.queue = lane.queue and not j.paused and j.next_run_at >= lane.low"""

STATUS_OLDEST = f"""
select lane.queue, round(extract(epoch from clock_timestamp() - min(due.next_run_at))::numeric, 3)::float8
from {_LANES} and j.next_run_at <= (select clock_timestamp()) order by j.next_run_at limit 1) due group by lane.queue
"""
STATUS_DUE = f"""
select count(*)::int from (select from {_LANES} and j.next_run_at <= (select clock_timestamp())
  order by j.next_run_at limit %(each)s) due limit %(each)s) x
"""
STATUS_SCHEDULED = f"select count(*)::int from (select from {_LANES} limit %(each)s) due limit %(each)s) x"
STATUS_PARTITIONS = "select part, owner from rota.partition"
STATUS_RUNS = f"""
select state, count(*)::int, round(extract(epoch from clock_timestamp() - min(begun_at))::numeric, 3)::float8
from rota.run where {ALIVE} group by state
"""
# Along the index dead_queue: a bounded number of entries for each queue, and the newest one.
STATUS_DEAD = f"""
select q.name, (select count(*)::int from (select from rota.dead d where d.queue = q.name limit %(counted)s) x),
  newest.job_id::text, {tick("newest.scheduled_for")}, newest.handler, newest.reason, {tick("newest.died_at")},
  round(extract(epoch from clock_timestamp() - newest.died_at)::numeric, 3)::float8
from rota.queue q left join lateral (
  select * from rota.dead d where d.queue = q.name order by d.died_at desc limit 1) newest on true
"""
STATUS_QUEUES = f"select name, paused, cap, paused_by, paused_reason, {tick('paused_at')} from rota.queue order by name"
# The planner's figure where the server has counted nothing, as after a crash. A size takes a lock for a moment.
DAYS = f"""
select to_char(to_date({DAY}, 'YYYYMMDD'), 'YYYY-MM-DD'),
  coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), greatest(c.reltuples, 0))::bigint,
  case when %(sizes)s then pg_total_relation_size(c.oid) else 0 end,
  {DAY} >= to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')
from {TABLES} order by 1
"""
TOLD = f"""
select {tick("clock_timestamp()")}, (told->>'keep_s')::float8, coalesce(told->'why', '{{}}')
from (select 'retention') x(name) left join rota.duty using (name)
"""
EXTENT = """
select to_regclass(%(table)s) is not null,
  coalesce(pg_relation_size(to_regclass(%(table)s)) / current_setting('block_size')::int, 0)
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
            rows = yield Query(FIND, {"low": span.low, "high": span.high})
        ids = [row[0] for row in rows]
        if not ids:
            raise NotFound(f"there is no job {text!r}: give an id, a unique beginning of one, or a schedule's name")
        if len(ids) > 1:
            raise Refused(f"{text!r} fits several jobs: {', '.join(map(short, ids))}; give more digits")
        return str(ids[0])

    @transaction()
    def show(self, job_id: str, past: int = 20) -> Steps[JobView | None]:
        """All that is known of a job, None if nothing is. `past` rows of history at most."""
        columns = {**_JOB, "changes": "coalesce(changes, '[]')"}
        jobs = yield from _rows(columns, "rota.job where id = %(id)s", {"id": job_id})
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
    def known_handlers(self, limit: int = 1000) -> Steps[list[str]]:
        """The names of announced handlers, in order."""
        rows = yield Query("select name from rota.handler order by name limit %s", [limit])
        return [row[0] for row in rows]

    @transaction()
    def list_jobs(self, which: Filter) -> Steps[list[Row]]:
        """Jobs that have a future, by when they are due. `state`: scheduled or paused."""
        where = f"""rota.job where {_WHERE}
          and (%(state)s::text is null or paused = (%(state)s = 'paused'))
          and (%(since)s::timestamptz is null or job.created_at >= %(since)s)
          order by job.next_run_at limit %(limit)s"""
        return (yield from _rows(_JOB, where, _params(which)))

    @transaction()
    def list_schedules(self, which: Filter) -> Steps[list[Row]]:
        """All schedules that are not paused: what they are and their next tick. `limit`, `state` and `since` do not count."""
        where = f"rota.job where {_WHERE} and schedule is not null and not paused"
        return (yield from _rows(_SCHEDULE, where, _params(which)))

    @transaction()
    def list_runs(self, which: Filter) -> Steps[list[Row]]:
        """Live runs, the latest claimed first. `state` is one of a run's states."""
        where = f"""rota.run where {_WHERE}
          and (%(state)s::text is null or state = %(state)s)
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)
          and (%(since)s::timestamptz is null or run.claimed_at >= %(since)s)
          order by run.claimed_at desc limit %(limit)s"""
        return (yield from _rows(_RUN, where, _params(which)))

    @transaction()
    def list_history(self, which: Filter) -> Steps[list[Row]]:
        """Ended runs, the latest first. `state` is an outcome."""
        where = f"""rota.history where {_WHERE}
          and (%(state)s::text is null or outcome = %(state)s)
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)
          and (%(since)s::timestamptz is null or history.ended_at >= %(since)s)
          order by history.ended_at desc limit %(limit)s"""
        return (yield from _rows(_HISTORY, where, _params(which)))

    @transaction()
    def days(self) -> Steps[HistoryView]:
        """The days of history, with their sizes."""
        return (yield from _history(sizes=True))

    @transaction()
    def extent(self, day: str) -> Steps[int | None]:
        """How many blocks a day (YYYY-MM-DD) has just now, None if there is no such day. Not all need have rows."""
        ((there, blocks),) = yield Query(EXTENT, {"table": _day_table(day)})
        return int(blocks) if there else None

    @transaction(pinned=True)
    def read_day(self, day: str, first: int, last: int) -> Steps[list[Row]]:
        """The rows of a day within blocks, `last` not included, in the order in which they are stored; as `list_history`.

        Rows of history never change or move, so that the portions of a day that is over are all of it.
        """
        where = f"{_day_table(day)} where ctid >= %(first)s::tid and ctid < %(last)s::tid"
        return (yield from _rows(_HISTORY, where, {"first": f"({first},0)", "last": f"({last},0)"}))

    @transaction()
    def list_dead(self, which: Filter) -> Steps[list[Row]]:
        """Dead runs, the latest first."""
        where = f"""rota.dead where {_WHERE}
          and (%(job)s::uuid is null or job_id = %(job)s)
          and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)
          and (%(error)s::text is null or strpos(lower(concat(reason, ' ', errors::text)), lower(%(error)s)) > 0)
          and (%(since)s::timestamptz is null or dead.died_at >= %(since)s)
          and (%(until)s::timestamptz is null or dead.died_at <= %(until)s)
          order by dead.died_at desc limit %(limit)s"""
        return (yield from _rows(_DEAD, where, _params(which)))

    @transaction(pinned=True)
    def status(self) -> Steps[StatusView]:
        """One picture. Ended runs, lags and the broker's queues come from the members' own figures.

        What is alive is counted from low watermarks on, which recovery and the schedulers keep: what went through before is not
        read, also if an old snapshot keeps it from being removed.
        """
        ((now, today),) = yield Query(
            f"select {tick('clock_timestamp()')}, to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD')"
        )
        members = [_member(row, today) for row in (yield Query(STATUS_MEMBERS))]
        live = [m for m in members if m.row["state"] == "live"]
        owners: dict[int, int | None] = dict((yield Query(STATUS_PARTITIONS)))
        owned = sum(owner is not None for owner in owners.values())
        unowned = len(owners) - owned
        runs = {state: (n, oldest) for state, n, oldest in (yield Query(STATUS_RUNS))}
        told = yield Query(STATUS_QUEUES)
        walk = _Walk(owners, {m.row["id"]: m.stats.get("seen", {}) for m in live})
        names = [row[0] for row in told]
        going = [name for name, stopped, *_ in told if not stopped]
        overdue: dict[str, float] = dict((yield Query(STATUS_OLDEST, walk.lanes(going))))
        paused = yield from _count("job", "paused")
        counted = {
            "scheduled": (yield from _count_scheduled(walk.lanes(names), paused)),
            "paused": paused,
            "due": (yield from _count_due(walk, names)),
        }
        dead = yield from _count("dead", "true")
        history = yield from _history(sizes=False)
        deaths = yield Query(STATUS_DEAD, {"counted": COUNTED_DEAD + 1})
        queues = _queues(told, live, deaths)
        estimated = [f"jobs.{name}" for name, total in counted.items() if total.estimated]
        estimated += [f"queues.{name}.dead" for name, n, *_ in deaths if n > COUNTED_DEAD]
        return StatusView(
            now=now,
            members=[m.row for m in live],
            partitions={"owned": owned, "unowned": unowned},
            jobs={**{name: total.n for name, total in counted.items()}, "estimated": bool(estimated)},
            runs={state: runs.get(state, (0, None))[0] for state in STATES},
            ended=_sum(members, OUTCOMES),
            dead=dead.n,
            queues=queues,
            lag={
                "oldest_due_s": max([0.0, *overdue.values()]),
                "oldest_running_s": runs.get("running", (0, None))[1] or 0.0,
                **{n: percentiles((m.stats for m in live), n) for n in LAGS},
            },
            degraded=sorted(
                _degraded(live, unowned, queues, overdue) | ({"history_late"} if history.late() else set())
            ),
            returned=_sum(members, RETURNS),
            superseded=_sum(members, REFUSALS, "superseded"),
            republished=_sum(members, REPUBLISHED, "republished"),
            parked=_parked(live),
            estimated=estimated + ["dead"] * dead.estimated,
            last_death=_last_death(deaths),
            history={
                "keep_s": history.keep_s,
                "oldest": history.days[0].day if history.days else None,
                "late": history.late(),
            },
        )


def _rows(columns: dict[str, str], rest: str, params: dict[str, Any]) -> Steps[list[Row]]:
    rows = yield Query(f"select {', '.join(columns.values())} from {rest}", params)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _history(*, sizes: bool) -> Steps[HistoryView]:
    ((now, keep, why),) = yield Query(TOLD)
    return HistoryView(now, keep, why, [DayView(*row) for row in (yield Query(DAYS, {"sizes": sizes}))])


def _day_table(day: str) -> str:
    return f"rota.history_{date.fromisoformat(day):%Y%m%d}"


def _params(which: Filter) -> dict[str, Any]:
    return {name: getattr(which, name) for name in Filter.__slots__}


class _Total(NamedTuple):
    n: int
    estimated: bool


def _count(table: str, where: str) -> Steps[_Total]:
    """Rows up to COUNTED exactly; beyond that what the statistics say of the table."""
    ((n,),) = yield Query(f"select count(*)::int from (select from rota.{table} where {where} limit {COUNTED + 1}) x")
    return (yield from _total(table, n))


def _total(table: str, n: int) -> Steps[_Total]:
    if n <= COUNTED:
        return _Total(n, estimated=False)
    ((estimate,),) = yield Query("select reltuples::bigint from pg_class where oid = %s::regclass", [f"rota.{table}"])
    return _Total(max(n, int(estimate)), estimated=True)


def _count_scheduled(lanes: Mapping[str, str], paused: _Total) -> Steps[_Total]:
    """Jobs with a future, those that are paused included."""
    ((n,),) = yield Query(STATUS_SCHEDULED, {**lanes, "each": COUNTED + 1})
    return (yield from _total("job", n + paused.n))


def _count_due(walk: _Walk, queues: Sequence[str]) -> Steps[_Total]:
    """Due jobs up to COUNTED exactly; beyond that 64 times those of one partition: ids spread evenly."""
    ((n,),) = yield Query(STATUS_DUE, {**walk.lanes(queues), "each": COUNTED + 1})
    if n <= COUNTED:
        return _Total(n, estimated=False)
    ((sample,),) = yield Query(STATUS_DUE, {**walk.lanes(queues, parts=1), "each": 10 * COUNTED})
    return _Total(max(n, PARTITIONS * sample), estimated=True)


class _Walk(NamedTuple):
    """Lanes with the low watermarks of the schedulers that own them: below them no job is left (`seen`, by queue).

    Where there is none, from the start.
    """

    owners: Mapping[int, int | None]
    seen: Mapping[int, Mapping[str, str]]

    def lanes(self, queues: Sequence[str], parts: int = PARTITIONS) -> dict[str, str]:
        """The arrays of a walk over the first `parts` partitions."""
        pairs = [(part, queue) for part in range(parts) for queue in queues]
        lows = [self.seen.get(self.owners.get(part) or 0, {}).get(queue, "-infinity") for part, queue in pairs]
        return {"parts": array(p for p, _ in pairs), "queues": quoted(q for _, q in pairs), "lows": array(lows)}


class _Member(NamedTuple):
    row: Row
    stats: Mapping[str, Any]


def _member(columns: Sequence[Any], today: str) -> _Member:
    """A member for people, and its own figures; counters of another day are not today's."""
    stats = columns[-1]
    names = ("id", "kind", "host", "pid", "version", "state", "started_at", "beat_s", "partitions")
    row = dict(zip(names, columns[:-1], strict=True))
    row["running"] = stats.get("running", 0)
    for counters in COUNTERS:
        row[counters] = stats.get(counters, {}) if stats.get("day") == today else {}
    return _Member(row, stats)


def _sum(members: Sequence[_Member], kinds: Iterable[str], counters: str = "ended") -> dict[str, int]:
    return {kind: sum(m.row[counters].get(kind, 0) for m in members) for kind in kinds}


def _queues(queues: Iterable[Sequence[Any]], live: Iterable[_Member], deaths: Iterable[Sequence[Any]]) -> list[Row]:
    depths: dict[str, Row] = {}
    for member in live:
        depths.update(member.stats.get("queues", {}))
    unknown = {"ready": None, "consumers": None, "capped": False}
    dead = {name: min(n, COUNTED_DEAD) for name, n, *_ in deaths}
    return [
        {
            "name": name,
            "paused": paused,
            "cap": cap,
            "dead": dead.get(name, 0),
            **depths.get(name, unknown),
            "paused_by": by,
            "paused_reason": reason,
            "paused_at": at,
        }
        for name, paused, cap, by, reason, at in queues
    ]


def _last_death(deaths: Iterable[Sequence[Any]]) -> Row | None:
    """Of the newest death of each queue the newest."""
    names = ("queue", "job_id", "scheduled_for", "handler", "reason", "died_at", "age_s")
    rows = [dict(zip(names, (queue, *rest), strict=True)) for queue, _, *rest in deaths if rest[0] is not None]
    return max(rows, key=lambda row: str(row["died_at"]), default=None)


def _parked(live: Iterable[_Member]) -> int:
    return max((int(m.stats.get("parked", 0)) for m in live), default=0)


def _degraded(live: Sequence[_Member], unowned: int, queues: Sequence[Row], overdue: Mapping[str, float]) -> set[str]:
    words = {word for member in live for word in member.stats.get("degraded", [])}
    kinds = {member.row["kind"] for member in live}
    words |= {f"no_{kind}" for kind in ("scheduler", "worker") if kind not in kinds}
    if unowned:
        words.add("unowned_partitions")
    if _parked(live):
        words.add("parked")
    if any(q["ready"] and not q["consumers"] for q in queues):
        words.add("no_consumers")
    if any(overdue.get(q["name"], 0.0) > STALLED_SECONDS for q in queues if not q["capped"]):
        words.add("stalled")
    return words
