"""Dead runs, again or settled for good: what a redrive and a discard do, written once for clients, command line and AMQP.

Both walk along the dead, the oldest first, one portion a transaction: whoever is interrupted or killed in between has done
what is done, and to ask again goes on with the rest. What dies while a walk is under way is not taken by it, so a run that
fails at once does not go round and round. A plan as in `sched/plans.py`; no I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rota.sched import requests
from rota.sched.app import check_args
from rota.sched.durations import utc
from rota.sched.errors import Refused, UsageError
from rota.sched.ids import RunKey, short, split_run
from rota.sched.store.values import PORTION, DeadBatch, DeadFilter, Redrive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from rota.sched.plans import Plan
    from rota.sched.store.protocols import Store
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import DeadSurvey

    Told = Callable[[DeadBatch, int], object]
    """Is called after each portion with it and with how many dead runs there are to look at. What it raises ends the walk."""
    Take = Callable[[DeadFilter, DeadBatch], Transaction[DeadBatch]]
    """What is done to one portion, given what became of the one before."""

ALIVE = "it is alive again, and its old death is kept: see `rota show`; `rota discard` settles the old death"
AHEAD = 2.0
"""Seconds that a redrive is ahead of the runs that it spreads, at least."""
PAUSE = 0.05
"""Seconds between its portions when it is: at full speed it would take the store from the work that goes on meanwhile."""
PACED = 100
"""The portion where a rate was asked for, up to PACED / PAUSE a second: what goes on meanwhile waits for a portion."""


@dataclass(slots=True)
class DeadResult:
    """What a redrive or discard did.

    `runs` were taken, the oldest death first. `refused` says for others why not; `spared` were left alone because they had
    been redriven `max_redrives` times already, `elsewhere` were being taken by another command. `more`: others fit and are
    still dead, because of the limit.
    """

    runs: list[RunKey] = field(default_factory=list)
    refused: dict[RunKey, str] = field(default_factory=dict)
    spared: list[RunKey] = field(default_factory=list)
    elsewhere: list[RunKey] = field(default_factory=list)
    more: bool = False

    def __len__(self) -> int:
        return len(self.runs)


def dead_filter(  # noqa: PLR0913 - the words of the request
    runs: Sequence[str | RunKey],
    *,
    queue: str | None = None,
    handler: str | None = None,
    tenant: str | None = None,
    error: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    everything: bool = False,
    limit: int | None = None,
    max_redrives: int | None = None,
) -> DeadFilter:
    """The dead runs that a request means. UsageError if it names none, or runs and filters together."""
    described = everything or any(each is not None for each in (queue, handler, tenant, error, since, until))
    if not runs and not described:
        raise UsageError(
            "which dead runs? name them (JOB@SCHEDULED_FOR), give queue, handler, tenant, error, since or until, or say all"
        )
    if runs and described:
        raise UsageError("runs and filters together: name the runs, or describe them")
    for name, number, least in (("limit", limit, 1), ("max_redrives", max_redrives, 0)):
        if number is not None and (type(number) is not int or number < least):
            raise UsageError(f"{name} {number!r} must be a whole number from {least} on")
    return DeadFilter(
        queue=queue,
        handler=handler,
        tenant=tenant,
        error=error,
        since=None if since is None else utc(since, "since"),
        until=None if until is None else utc(until, "until"),
        max_redrives=max_redrives,
        limit=limit,
    )


def how_to_redrive(by: str, args: Mapping[str, Any] | None, per_second: float | None) -> Redrive:
    """The other half of a redrive's request. UsageError for arguments that cannot be stored, or a rate not above zero."""
    if per_second is not None and not 0 < per_second < float("inf"):
        raise UsageError(f"per_second {per_second!r} must be above 0: how many runs a second")
    return Redrive(by, None if args is None else requests.args_text(args), per_second)


def why_discarded(by: str, reason: str | None) -> str:
    """What history says of a discarded run, before what it died of."""
    return f"discarded by {by}: {reason}" if reason else f"discarded by {by}"


def redriving(  # noqa: PLR0913 - the words of the request
    store: Store,
    runs: Sequence[str | RunKey],
    which: DeadFilter,
    how: Redrive,
    *,
    told: Told | None = None,
    dry_run: bool = False,
) -> Plan[DeadResult]:
    """Runs dead runs again. New arguments are checked against what handlers announced."""
    rate = how.per_second
    spacing = timedelta(seconds=1 / rate if rate else 0.0)
    if rate:
        which = replace(which, portion=max(PACED, min(PORTION, round(rate * PAUSE))))

    def take(portion: DeadFilter, before: DeadBatch) -> Transaction[DeadBatch]:
        nonlocal how
        if before.ready_until is not None:
            how = replace(how, ready_from=before.ready_until + spacing)
        return store.choose_dead(portion) if dry_run else store.redrive(portion, how)

    return (yield from _walk(store, runs, which, take, args=how.args, told=told))


def discarding(  # noqa: PLR0913 - the words of the request
    store: Store,
    runs: Sequence[str | RunKey],
    which: DeadFilter,
    reason: str,
    *,
    told: Told | None = None,
    dry_run: bool = False,
) -> Plan[DeadResult]:
    """Settles dead runs for good, also those that are alive again, which live on; `reason` goes into history."""

    def take(portion: DeadFilter, _: DeadBatch) -> Transaction[DeadBatch]:
        return store.choose_dead(portion, alive=True) if dry_run else store.discard(portion, reason)

    return (yield from _walk(store, runs, which, take, told=told))


def _walk(  # noqa: PLR0913 - what a walk joins
    store: Store,
    runs: Sequence[str | RunKey],
    which: DeadFilter,
    take: Take,
    *,
    args: str | None = None,
    told: Told | None = None,
) -> Plan[DeadResult]:
    """One portion after the other until the end, the limit, or an exception of `told`."""
    result, batch = DeadResult(), DeadBatch()
    keys = yield from _keys(store, runs, result)
    if runs and not keys:
        return result
    survey: DeadSurvey = yield store.survey_dead(replace(which, keys=keys))
    misfits: dict[str, str] = {}
    if args is not None:
        misfits = yield from _misfits(store, survey, json.loads(args))
        which = replace(which, handlers=[name for name in survey.handlers if name not in misfits])
    which = replace(which, until=min(which.until or survey.now, survey.now))
    todo = [replace(which, keys=keys[n : n + which.portion]) for n in range(0, len(keys), which.portion)] or [which]
    while todo:
        if which.limit is not None and len(result.runs) >= which.limit:
            result.more = result.more or (yield from _any_left(store, todo))
            break
        if batch.ahead > AHEAD:
            yield PAUSE
        portion = todo.pop(0)
        batch = yield take(replace(portion, limit=which.limit and which.limit - len(result.runs)), batch)
        if batch.last is not None:
            todo.append(replace(which, after=batch.last))
        _enter(batch, result, misfits)
        if told is not None:
            told(batch, survey.total)
    if keys:
        yield from _explain(store, keys, result)
    return result


def _enter(batch: DeadBatch, result: DeadResult, misfits: Mapping[str, str]) -> None:
    """Adds what became of one portion."""
    result.runs += batch.taken
    result.spared += batch.spared
    result.elsewhere += batch.elsewhere
    result.more = result.more or batch.more
    result.refused |= dict.fromkeys(batch.alive, ALIVE) | dict.fromkeys(batch.unfit, "; ".join(misfits.values()))


def _any_left(store: Store, todo: Sequence[DeadFilter]) -> Plan[bool]:
    """Whether what a walk has not got to holds a run that fits."""
    portions = list(todo)
    while portions:
        portion = portions.pop(0)
        batch: DeadBatch = yield store.choose_dead(replace(portion, limit=1))
        if batch.taken:
            return True
        if batch.last is not None:
            portions.append(replace(portion, after=batch.last))
    return False


def _keys(store: Store, runs: Sequence[str | RunKey], result: DeadResult) -> Plan[list[RunKey]]:
    """The runs that were named, each once. One whose job is not there, or not one, is refused and stops no other."""
    keys = []
    for run in runs:
        job, tick = (run.job_id, run.scheduled_for) if isinstance(run, RunKey) else split_run(run)
        if tick is None:
            raise UsageError(f"{job!r} names a job and not a run: write JOB@SCHEDULED_FOR, as `rota dead` prints it")
        try:
            keys.append(RunKey((yield store.resolve(job)), tick))
        except Refused as error:
            result.refused[RunKey(job, tick)] = str(error)
    return list(dict.fromkeys(keys))


def _misfits(store: Store, survey: DeadSurvey, args: Mapping[str, Any]) -> Plan[dict[str, str]]:
    """Which of the dead runs' handlers cannot take these arguments, and why. One that nobody announced may.

    Raises UsageError if none can.
    """
    known = yield store.handlers(sorted(survey.handlers))
    misfits = {}
    for name in survey.handlers:
        if name in known:
            try:
                check_args(known[name].schema, args, name)
            except UsageError as error:
                misfits[name] = str(error)
    if misfits and len(misfits) == len(survey.handlers):
        raise UsageError("; ".join(misfits.values()))
    return misfits


def _explain(store: Store, keys: Sequence[RunKey], result: DeadResult) -> Plan[None]:
    """Why runs that were named were not taken."""
    told = {*result.runs, *result.spared, *result.refused, *result.elsewhere}
    missing = [key for key in keys if key not in told]
    where: dict[RunKey, str | None] = {}
    for n in range(0, len(missing), PORTION):
        where |= yield store.whereabouts(missing[n : n + PORTION])
    result.refused.update({key: _why(key, where[key], result) for key in missing})


def _why(key: RunKey, found: str | None, result: DeadResult) -> str:
    run = f"{short(key.job_id)}@{key.scheduled_for}"
    if found in {"waiting", "running", "retrying", "buffered"}:
        return f"it is not dead but {found}: `rota show {run}` follows it"
    if found is not None:
        return f"it is not dead, it has ended as {found}: to run it once more, submit a new job"
    if result.more:
        return "the limit was reached before it: give a higher one"
    return "there is no such run, or it has been forgotten: `rota dead` lists the dead"
