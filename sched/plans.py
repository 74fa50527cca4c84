"""What each request of a client does, written once for both kinds of client.

A plan is a generator that yields what is to be done (one of the store's transactions, or a number of seconds to wait),
is given the outcome, and returns the request's answer. It does no I/O; `sched/client.py` runs it, with a connection of
its own or on the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rota.sched import requests
from rota.sched.app import check_args
from rota.sched.errors import NotFound, NotMigrated, Unreachable, UsageError
from rota.sched.ids import split_run
from rota.sched.store.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rota.sched.edits import Edit, Note
    from rota.sched.requests import JobRef
    from rota.sched.store.protocols import Store
    from rota.sched.store.values import Cancelled, Edited, Held, NewJob, Triggered
    from rota.sched.store.views import JobView

T = TypeVar("T")
Plan = Generator[Transaction[Any] | float, Any, T]

SUBMIT_PAUSES = (0.1, 0.4, 1.5)
"""Seconds before each further try of a submit whose outcome is unknown."""


def single(txn: Transaction[T]) -> Plan[T]:
    """One transaction and its answer."""
    answer: T = yield txn
    return answer


def submitting(store: Store, jobs: Sequence[NewJob], *, borrowed: bool) -> Plan[list[JobRef]]:
    """Stores jobs. After a lost answer the same ids are sent again, so nothing is stored twice.

    `borrowed`: in the caller's transaction, where there is nothing to try again.
    """
    refs: list[JobRef] = []
    for batch in requests.batches(jobs):
        if borrowed:
            refs += yield requests.all_or_none(requests.storing(store, batch, own=False), batch)
        else:
            refs += yield from _surely(partial(_stored, store, batch))
    return refs


def _stored(store: Store, batch: Sequence[NewJob], repeated: bool) -> Transaction[list[JobRef]]:  # noqa: FBT001 - given by _surely
    return requests.all_or_none(requests.storing(store, batch, repeated=repeated), batch)


def _surely(attempt: Callable[[bool], Transaction[T]]) -> Plan[T]:
    """Tries again while the outcome is unknown; `attempt` is told whether it is a repetition."""
    repeated = False
    for pause in SUBMIT_PAUSES:
        try:
            answer: T = yield attempt(repeated)
        except NotMigrated:
            raise
        except Unreachable:
            yield pause
            repeated = True
        else:
            return answer
    last: T = yield attempt(repeated)
    return last


def why_cancelled(by: str, reason: str | None) -> str:
    """What history says of what somebody cancelled. UsageError for a reason that cannot be stored."""
    requests.check_text(reason or "", "reason", requests.REASON_LIMIT)
    return f"cancelled by {by}: {reason}" if reason else f"cancelled by {by}"


def cancelling(store: Store, target: str, *, running: bool, reason: str) -> Plan[Cancelled]:
    """Ends a job (id, unique prefix or name) or one run (JOB@T). NotFound where there is no such job."""
    job, tick = split_run(target)
    job_id = yield store.resolve(job)
    cancelled: Cancelled = yield store.cancel(job_id, tick, running=running, reason=reason)
    return cancelled


def updating(store: Store, target: str, edit: Edit) -> Plan[Edited]:
    """Changes a job (id, unique prefix or name). Sent again after a lost answer: its id makes it one change.

    New arguments are checked against what its handler has announced. NotFound where there is no such job, Conflict where
    it has another version than the one that is meant.
    """
    job_id = yield store.resolve(_whole(target, "changed"))
    if edit.args is not None:
        view: JobView | None = yield store.show(job_id, 0)
        if view is not None and view.job is not None:
            handler = str(view.job["handler"])
            known = yield store.handlers([handler])
            if handler in known:
                check_args(known[handler].schema, json.loads(edit.args), handler)
    return (yield from _surely(lambda _: store.update(job_id, edit)))


def pausing(store: Store, target: str, note: Note) -> Plan[Held]:
    """Pauses a job (id, unique prefix or name): no tick of it is claimed. NotFound where there is no such job."""
    job_id = yield store.resolve(_whole(target, "paused"))
    return (yield from single(store.pause(job_id, note)))


def resuming(store: Store, target: str, note: Note) -> Plan[Held]:
    """Lets a paused job go on. NotFound where there is no such job."""
    job_id = yield store.resolve(_whole(target, "resumed"))
    return (yield from single(store.resume(job_id, note)))


def triggering(store: Store, target: str, note: Note) -> Plan[Triggered]:
    """One run of a schedule now, beside its ticks. Sent again after a lost answer: its id makes it one run."""
    job_id = yield store.resolve(_whole(target, "triggered"))
    return (yield from _surely(lambda _: store.trigger(job_id, note)))


def _whole(target: str, what: str) -> str:
    """The job that a target names. UsageError for a run."""
    job, tick = split_run(target)
    if tick is not None:
        raise UsageError(f"{target!r} names a run: jobs are {what}, give {job!r}")
    return job


def looking(store: Store, target: str) -> Plan[JobView]:
    """What is known of a job. NotFound where there is no such job."""
    job, _ = split_run(target)
    job_id = yield store.resolve(job)
    view: JobView | None = yield store.show(job_id)
    if view is None:
        raise NotFound(f"job {job_id} is not there: it has ended and its history was dropped, or it never was")
    return view


def new_jobs(items: Iterable[object], scope: str = "") -> list[NewJob]:
    """The jobs of a `submit_many`, in order; UsageError says which item is wrong."""
    jobs = []
    for n, item in enumerate(items):
        s = requests.submission(item)
        try:
            jobs.append(
                requests.new_job(
                    s.call,
                    s.when,
                    key=s.key,
                    scope=scope,
                    name=s.name,
                    queue=s.queue,
                    tenant=s.tenant,
                    retry=s.retry,
                    timeout=s.timeout,
                    expires=s.expires,
                )
            )
        except UsageError as error:
            raise UsageError(f"item {n}: {error}") from None
    return jobs
