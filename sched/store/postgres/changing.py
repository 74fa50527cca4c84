"""Changes of jobs that have a future: their definition, pauses, and runs beside their ticks; and pauses of queues.

Each takes the job's row as a claim does, so one comes after the other: a tick that is due is claimed before the change, or
settled by it. What was done is kept with the row, the latest CHANGES of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb
from rota.sched import edits
from rota.sched.durations import rfc3339
from rota.sched.edits import Definition, Edit, Note
from rota.sched.errors import NotFound, Refused, RotaError
from rota.sched.ids import RunKey, short
from rota.sched.policy import Policy
from rota.sched.requests import args_text
from rota.sched.store.postgres.scheduling import ADVANCE, Plan
from rota.sched.store.postgres.text import WAKE_CHANNEL, late_call, tick
from rota.sched.store.postgres.turns import line_up
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import Edited, Held, Triggered
from rota.sched.timing import Advance, Amended, Place, amend
from rota.sched.when import Once, Schedule

if TYPE_CHECKING:
    from rota.sched.when import When

CHANGES = 20
"""How many of the changes of a job are kept."""

# A claim that has the row is waited for; one that comes meanwhile passes it by.
LOCK = """
select handler, queue, tenant, args, schedule, policy, name, version, coalesce(changes, '[]'), created_at,
  scheduled_for, next_run_at, paused, paused_by, runs_left, missed
from rota.job where id = %(id)s for update
"""
# Afterwards: what the claim that was waited for has made is seen, and the time is that of the change.
STANDING = """
select clock_timestamp(), count(*)::int, (count(*) filter (where state = 'buffered'))::int from rota.run where job_id = %(id)s
"""

REDEFINE = """
update rota.job set args = %(args)s::jsonb, schedule = %(schedule)s, policy = %(policy)s, version = %(version)s,
  request = case when name is not null then %(request)s end, scheduled_for = %(next)s, next_run_at = %(due)s,
  runs_left = %(left)s, paused = paused and paused_by is not null,
  paused_reason = case when paused_by is not null then paused_reason end
where id = %(id)s
"""

NOTE = """
update rota.job set changes = case when jsonb_array_length(changes) >= %(kept)s then changes - 0
  else coalesce(changes, '[]') end || jsonb_build_array(%(note)s::jsonb)
where id = %(id)s
"""

# Only schedulers publish: they give the number, when its time has come. What waits for its turn has no time before that.
READY = """
update rota.run r set ready_at = case when r.state = 'waiting' then x.at end, scheduler = null,
  claimed_at = greatest(r.claimed_at, x.at)
from unnest(%(ticks)s::timestamptz[], %(ats)s::timestamptz[]) x(tick, at)
where r.job_id = %(id)s and r.scheduled_for = x.tick
"""

EXTRA = """
insert into rota.run (job_id, scheduled_for, part, state, dispatch, queue, handler, tenant, args, policy, due_at, claimed_at,
  ready_at, expires_at)
select id, %(at)s, part, 'waiting', 0, queue, handler, tenant, args, policy, %(at)s, %(at)s, %(at)s,
  %(at)s + make_interval(secs => (policy ->> 'expires')::float8)
from rota.job where id = %(id)s
"""

# As a submit does: only where a scheduler sleeps beyond what is due now. What is late was passed by while we had its row.
_LATE = "j.next_run_at < clock_timestamp() - interval '1 s'"
WAKE = f"""
select count(pg_notify('{WAKE_CHANNEL}', {late_call("j.queue", "j.next_run_at", _LATE)})) from rota.job j
join rota.partition p on p.part = j.part left join rota.member m on m.id = p.owner
where j.id = %(id)s and (%(at_once)s or j.next_run_at < m.wakes_at or (not j.paused and {_LATE}))
"""

PAUSE = f"""
update rota.job set paused = true, paused_by = %(by)s, paused_reason = %(reason)s, paused_at = clock_timestamp()
where id = %(id)s and not (paused and paused_by is not null)
returning {tick("paused_at")}
"""

# What its pause has made late is due now: claims look for nothing that was due long ago, and `expires` counts from here.
RESUME = """
update rota.job set paused = false, paused_by = null, paused_reason = null, paused_at = null,
  next_run_at = greatest(next_run_at, clock_timestamp())
where id = %(id)s and paused returning 1
"""

HELD = f"select paused, paused_by, {tick('paused_at')}, paused_reason from rota.job where id = %(id)s"

QUEUE = (
    f"select paused, paused_by, {tick('paused_at')}, paused_reason from rota.queue where name = %(queue)s for update"
)
PAUSE_QUEUE = f"""
update rota.queue set paused = true, paused_by = %(by)s, paused_reason = %(reason)s, paused_at = clock_timestamp()
where name = %(queue)s returning {tick("paused_at")}
"""
RESUME_QUEUE = """
update rota.queue set paused = false, paused_by = null, paused_reason = null, paused_at = null where name = %(queue)s
"""


@dataclass(frozen=True, slots=True)
class _Locked:
    """A job's row, which is ours until the end of the transaction, and the store's time."""

    id: str
    definition: Definition
    name: str | None
    version: int
    changes: list[dict[str, Any]]
    place: Place
    set_aside: bool
    now: datetime

    def done(self, note: Note, *did: str) -> dict[str, Any] | None:
        """What this request did, one of the words `did`, when it was sent before."""
        return next((c for c in self.changes if c["id"] == note.id and c["did"] in did), None)


class ChangingStatements:
    """What is done to jobs by people. All times are the store's."""

    @transaction()
    def update(self, job_id: str, edit: Edit) -> Steps[Edited]:
        """Changes a job's definition, settles what was due under the old one, and sets the cursor of the new one.

        The same edit sent again, and one that changes nothing, changes nothing. Raises NotFound, Conflict for another
        version, UsageError for what cannot be, Refused where `run_now` meets a live run that it must not overlap.
        """
        job = yield from _lock(job_id)
        done = job.done(edit.note, "changed", "triggered")
        if done is not None:
            return _as_it_is(job, done["version"], run=done.get("run"))
        old = job.definition
        new = edits.revised(job_id, old, replace(edit, when=_instant(edit.when, job.now)))
        if new == old and not edit.run_now:
            return _as_it_is(job, job.version, changed=False)
        if edit.version is not None and edit.version != job.version:
            raise edits.stale(job_id, job.version, edit.version, job.changes)
        if edit.run_now:
            _may_run_beside(job, new.when)
        plan = _amended(job, new)
        if plan.settled.fire or plan.settled.skipped:
            yield from _settle(job, plan)
        version = job.version + (new != old)
        yield Query(REDEFINE, _columns(job, new, version, plan))
        before, after = edits.differences(old, new)
        run = rfc3339(job.now) if edit.run_now else None
        if run is not None:
            yield Query(EXTRA, {"id": job_id, "at": job.now})
        told = {"from": before, "to": after, "version": version, **({"run": run} if run else {})}
        yield from _note(job, edit.note, "triggered" if new == old else "changed", told)
        yield Query(WAKE, {"id": job_id, "at_once": bool(plan.ready or run)})
        return Edited(
            job_id,
            version,
            changed=True,
            next=_text(plan.settled.next),
            due=_text(plan.settled.due),
            runs=len(plan.settled.fire),
            skipped=len(plan.settled.skipped),
            run=run,
        )

    @transaction()
    def pause(self, job_id: str, note: Note) -> Steps[Held]:
        """Pauses a job. One that somebody has paused stays as it is; one that was set aside is theirs from now on.

        Raises NotFound for a job without a future: what was claimed already runs.
        """
        job = yield from _lock(job_id)
        rows = yield Query(PAUSE, {"id": job_id, "by": note.by, "reason": note.reason})
        if rows:
            yield from _note(job, note, "paused", {"version": job.version})
        return (yield from _held(job_id, changed=bool(rows)))

    @transaction()
    def resume(self, job_id: str, note: Note) -> Steps[Held]:
        """Ends a job's pause, whoever made it. What is late is due now, and the misfire policy decides what runs.

        Raises NotFound for a job without a future.
        """
        job = yield from _lock(job_id)
        rows = yield Query(RESUME, {"id": job_id})
        if rows:
            yield from _note(job, note, "resumed", {"version": job.version})
            yield Query(WAKE, {"id": job_id, "at_once": False})
        return (yield from _held(job_id, changed=bool(rows)))

    @transaction()
    def trigger(self, job_id: str, note: Note) -> Steps[Triggered]:
        """Adds one run whose tick is now. Raises NotFound, or Refused where it must not run beside another run."""
        job = yield from _lock(job_id)
        done = job.done(note, "triggered")
        if done is None:
            _may_run_beside(job, job.definition.when)
            yield Query(EXTRA, {"id": job_id, "at": job.now})
            yield from _note(job, note, "triggered", {"version": job.version, "run": rfc3339(job.now)})
            yield Query(WAKE, {"id": job_id, "at_once": True})
        return Triggered(RunKey(job_id, done["run"] if done else rfc3339(job.now)), job.place.paused)

    @transaction()
    def pause_queue(self, queue: str, note: Note) -> Steps[Held]:
        """Pauses a queue: schedulers ask its lanes no more, within seconds. What the broker has of it goes on."""
        return (yield from _hold_queue(queue, note, pause=True))

    @transaction()
    def resume_queue(self, queue: str, note: Note) -> Steps[Held]:
        """Ends a queue's pause."""
        return (yield from _hold_queue(queue, note, pause=False))


def _lock(job_id: str) -> Steps[_Locked]:
    rows = yield Query(LOCK, {"id": job_id})
    if not rows:
        raise NotFound(f"job {job_id} has no future to change: it ran once, ended, or never was; see `rota show`")
    (row,) = rows
    ((now, live, waiting),) = yield Query(STANDING, {"id": job_id})
    handler, queue, tenant, args, schedule, policy, name, version, changes, created, cursor, due, paused, by, *runs = (
        row
    )
    when = Once(at=cursor) if schedule is None else _readable(schedule)
    definition = Definition(handler, queue, tenant, args_text(args), when, Policy.from_json(policy))
    edited = [datetime.fromisoformat(c["at"]) for c in changes if c["did"] == "changed"]
    place = Place(cursor, due, max([created, *edited]), paused and by is not None, bool(live), waiting, *runs)
    return _Locked(job_id, definition, name, version, changes, place, paused and by is None, now)


def _readable(schedule: dict[str, Any]) -> Schedule | None:
    try:
        return Schedule.from_json(schedule)
    except (RotaError, ValueError, TypeError):
        return None


def _instant(when: When | None, now: datetime) -> When | None:
    """A delay as an instant of the store's clock."""
    if isinstance(when, Once) and when.at is None:
        return Once(at=now + timedelta(seconds=when.after or 0.0))
    return when


def _amended(job: _Locked, new: Definition) -> Amended:
    if isinstance(new.when, Once):
        at = new.when.at
        assert at is not None
        moved = at != job.place.cursor
        return Amended(Advance((), (), at, max(at, job.now) if moved else job.place.due, job.place.missed))
    assert new.when is not None
    old = job.definition.when
    place = replace(job.place, paused=job.place.paused or job.set_aside)
    return amend(old if isinstance(old, Schedule) else None, new.when, job.id, place, job.now)


def _settle(job: _Locked, plan: Amended) -> Steps[None]:
    """What was due under the old definition becomes runs and history, as a claim does it; schedulers publish the runs."""
    settled = Plan(job.now)
    settled.take(job.id, plan.settled)
    yield from settled.cancel_others()
    yield Query(ADVANCE, {"member": None, **settled.params()})
    if plan.ready:
        yield Query(READY, {"id": job.id, "ticks": list(plan.settled.fire), "ats": list(plan.ready)})
        yield from line_up([job.id])


def _columns(job: _Locked, new: Definition, version: int, plan: Amended) -> dict[str, Any]:
    return {
        "id": job.id,
        "args": new.args,
        "schedule": Jsonb(new.when.to_json()) if isinstance(new.when, Schedule) else None,
        "policy": Jsonb(new.policy.to_json()) if new.policy else None,
        "version": version,
        "request": new.request if job.name is not None else None,
        "next": plan.settled.next,
        "due": plan.settled.due,
        "left": plan.left,
    }


def _may_run_beside(job: _Locked, when: When | None) -> None:
    """Refused for what runs once, and where the overlap policy forbids a run beside the one that is alive."""
    if isinstance(when, Once):
        remedy = f"`rota update {short(job.id)} --in 0s` makes that now"
        raise Refused(f"job {job.id} runs once, and an extra run is for schedules: {remedy}")
    if job.place.live and isinstance(when, Schedule) and when.overlap != "allow":
        raise Refused(
            f"a run of job {job.id} is alive, and overlap={when.overlap} lets no other run beside it: wait for it "
            f"(`rota runs --job {short(job.id)}`), or cancel it"
        )


def _note(job: _Locked, note: Note, did: str, told: dict[str, Any]) -> Steps[None]:
    entry = {"id": note.id, "did": did, "by": note.by, "reason": note.reason, "at": rfc3339(job.now), **told}
    yield Query(NOTE, {"id": job.id, "note": Jsonb(entry), "kept": CHANGES})


def _as_it_is(job: _Locked, version: int, *, changed: bool = True, run: str | None = None) -> Edited:
    return Edited(job.id, version, changed, rfc3339(job.place.cursor), rfc3339(job.place.due), run=run)


def _text(instant: datetime | None) -> str:
    assert instant is not None
    return rfc3339(instant)


def _held(job_id: str, *, changed: bool) -> Steps[Held]:
    ((paused, by, at, reason),) = yield Query(HELD, {"id": job_id})
    return Held(job_id, paused, changed, by, at, reason)


def _hold_queue(queue: str, note: Note, *, pause: bool) -> Steps[Held]:
    params = {"queue": queue, "by": note.by, "reason": note.reason}
    rows = yield Query(QUEUE, params)
    if not rows:
        raise NotFound(f"there is no queue {queue!r}: `rota status` lists them")
    ((was, by, at, reason),) = rows
    if was == pause:
        return Held(queue, was, changed=False, by=by, at=at, reason=reason)
    if pause:
        ((at,),) = yield Query(PAUSE_QUEUE, params)
        return Held(queue, paused=True, changed=True, by=note.by, at=at, reason=note.reason)
    yield Query(RESUME_QUEUE, params)
    yield Query(f"select pg_notify('{WAKE_CHANNEL}', %(queue)s)", params)
    return Held(queue, paused=False, changed=True)
