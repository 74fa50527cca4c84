"""Changes of a stored job: what may be asked, what a job is after it, and what differs. Pure.

A change names only what it changes. It is told from others by an id of its own, so that it may be sent again after a lost
answer, and refused if the job is not any more at the version that it was meant for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rota.sched import requests
from rota.sched.errors import Conflict, UsageError
from rota.sched.ids import new_job_id, short
from rota.sched.policy import Policy
from rota.sched.when import Once, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rota.sched.when import When

_POLICY = frozenset(f.name for f in fields(Policy))
_SCHEDULE = frozenset(f.name for f in fields(Schedule))
_CRON_ONLY = ("cron", "tz", "exclude", "dst_gap", "dst_overlap")
"""What an interval has no use for: it goes with the expression."""


@dataclass(frozen=True, slots=True)
class Note:
    """Who asks for something, and why. `id` is of this request alone."""

    by: str
    reason: str | None = None
    id: str = field(default_factory=new_job_id)


@dataclass(frozen=True, slots=True)
class Edit:
    """What shall be different: a whole `when`, or `parts` (fields of Schedule and Policy, None for the default), `args`.

    `args` is JSON text, `version` the one that is meant (None: whichever it is). `run_now` adds one run at once.
    """

    note: Note
    when: When | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    args: str | None = None
    version: int | None = None
    run_now: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """What a stored job is, apart from where it stands. `when` is None where its schedule cannot be computed."""

    handler: str
    queue: str
    tenant: str | None
    args: str
    when: When | None
    policy: Policy

    @property
    def request(self) -> str:
        """The hash under which a submit of the same is a duplicate."""
        assert self.when is not None
        return requests.request_hash(self.handler, self.args, self.queue, self.tenant, self.when, self.policy)

    def to_json(self) -> dict[str, Any]:
        """Its parts by name, as a change tells them."""
        when = {} if self.when is None else self.when.to_json()
        return {**when, **self.policy.to_json(), "args": json.loads(self.args)}


def edit(  # noqa: PLR0913 - the words of the request
    by: str,
    when: When | None,
    args: Mapping[str, Any] | None,
    parts: Mapping[str, Any],
    *,
    version: int | None = None,
    reason: str | None = None,
    run_now: bool = False,
) -> Edit:
    """What a user asks for. UsageError for words that nothing has, or two answers to one question."""
    unknown = set(parts) - _SCHEDULE - _POLICY
    if unknown:
        known = ", ".join(sorted(_SCHEDULE | _POLICY))
        raise UsageError(f"unknown word {min(unknown)!r} in a change: when, args and {known} are known")
    if when is not None and not isinstance(when, Once | Schedule):
        raise UsageError(f"when is {when!r:.120}: give at(...), after(...), cron(...) or every(...)")
    twice = sorted(set(parts) & _SCHEDULE) if when is not None else []
    if twice:
        raise UsageError(f"{twice[0]} and when: a new when replaces the whole schedule, put {twice[0]} into it")
    if {"cron", "every"} <= {name for name, value in parts.items() if value is not None}:
        raise UsageError("cron and every: a schedule has either, give one of them")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise UsageError(f"version is {version!r}: give the number that `rota show` tells")
    text = None if args is None else requests.args_text(args)
    if when is None and not parts and text is None and not run_now:
        raise UsageError("nothing to change: give a schedule, a policy, args or run_now")
    return Edit(note(by, reason), when, dict(parts), text, version, run_now)


def note(by: str, reason: str | None) -> Note:
    """Who asks, and why. UsageError for a reason that cannot be stored."""
    requests.check_text(reason or "", "reason", requests.REASON_LIMIT)
    requests.check_text(by, "by", requests.SCOPE_LIMIT)
    return Note(by, reason or None)


def revised(job_id: str, old: Definition, asked: Edit) -> Definition:
    """The job after the change. UsageError for what it cannot be."""
    when, policy = old.when, old.policy
    own = {name: value for name, value in asked.parts.items() if name in _POLICY}
    if isinstance(own.get("retry"), dict):
        numbers = {**(policy.retry or {}), **own["retry"]}
        own["retry"] = {name: value for name, value in numbers.items() if value is not None} or None
    if own:
        policy = Policy.from_json({n: v for n, v in {**policy.to_json(), **own}.items() if v is not None})
    timing = {name: value for name, value in asked.parts.items() if name in _SCHEDULE}
    if isinstance(when, Once) and (timing or isinstance(asked.when, Schedule)):
        raise UsageError(f"job {short(job_id)} runs once, and stays so: give at or after, or submit a schedule")
    if isinstance(asked.when, Once) and not isinstance(when, Once):
        raise UsageError(
            f"job {short(job_id)} has a schedule, and keeps one: give cron or every, or submit another job"
        )
    if asked.when is not None:
        when = asked.when
    elif timing:
        when = _rescheduled(when, timing)
    if when is None:
        raise UsageError(f"the schedule of job {short(job_id)} cannot be computed: give a whole one, cron or every")
    return replace(old, args=old.args if asked.args is None else asked.args, when=when, policy=policy)


def _rescheduled(when: When | None, parts: Mapping[str, Any]) -> Schedule | None:
    """The schedule with some parts replaced; those that are None get their defaults. None where too little is given."""
    if when is None and parts.get("cron") is None and parts.get("every") is None:
        return None
    given = {} if when is None else when.to_json()
    if parts.get("every") is not None:
        given = {name: value for name, value in given.items() if name not in _CRON_ONLY}
    elif parts.get("cron") is not None:
        given.pop("every", None)
    return Schedule.from_json({n: v for n, v in {**given, **parts}.items() if v is not None})


def differences(old: Definition, new: Definition) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a change has changed, before and after; null for what one of them has not."""
    before, after = old.to_json(), new.to_json()
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def stale(job_id: str, version: int, asked: int, changes: Sequence[Mapping[str, Any]]) -> Conflict:
    """Why an edit of another version is refused: who changed what since, and what to do."""
    since = [c for c in changes if c["did"] == "changed" and c["version"] > asked]
    told = "; ".join(change_text(c) for c in since[-3:])
    look = f"look at it with `rota show {short(job_id)}`, and give version {version}"
    return Conflict(f"job {job_id} is at version {version}, not {asked}{f' ({told})' if told else ''}: {look}")


def change_text(change: Mapping[str, Any]) -> str:
    """One change for people: who did what, when and why."""
    before, after = change.get("from") or {}, change.get("to") or {}
    parts = [f"{name} from {_brief(before.get(name))} to {_brief(after.get(name))}" for name in sorted(after)]
    what = f", {', '.join(parts)}" if parts else ""
    run = f", run {change['run']}" if change.get("run") else ""
    why = f": {change['reason']}" if change.get("reason") else ""
    return f"{change['did']} by {change['by']} at {change['at']}{what}{run}{why}"


def _brief(value: Any) -> str:
    if value is None:
        return "the default"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
