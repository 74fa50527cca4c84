"""From what a user asks to what is stored: the checks that a submit must pass before any I/O. Pure.

What is refused here would otherwise be refused by the database for a whole batch, or could never be published: NUL
characters and lone surrogates (Postgres stores neither), numbers that JSON has no word for, arguments that are too
long, names that cannot name a queue.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rota.sched.app import Call
from rota.sched.errors import Conflict, UsageError
from rota.sched.ids import check_name, new_job_id
from rota.sched.policy import NO_POLICY, policy
from rota.sched.store.transaction import Steps, Transaction
from rota.sched.store.values import NewJob, Submitted
from rota.sched.when import Once, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rota.sched.policy import Duration, Policy, Retry
    from rota.sched.store import protocols
    from rota.sched.when import When

ARGS_LIMIT = 64 * 1024
"""Longest arguments of a job, in bytes of JSON (UTF-8)."""
KEY_LIMIT = 200
"""Longest idempotency key, in characters."""
SCOPE_LIMIT = 600
REASON_LIMIT = 500
"""Longest reason that somebody gives, in characters."""
BATCH = 1000
"""Most jobs that are stored in one transaction."""

_NOW = Once()
_DEEPEST = 64
_WIDEST = 1024
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class JobRef:
    """A stored job. `duplicate`: it was there already, by the same key, name or id."""

    id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Submission:
    """One item of `submit_many`, where a call and its time are not enough. The fields are those of `submit`."""

    call: Call
    when: When = _NOW
    key: str | None = None
    name: str | None = None
    queue: str | None = None
    tenant: str | None = None
    retry: Retry | Mapping[str, Any] | None = None
    timeout: Duration | None = None
    expires: Duration | None = None


Submittable = Call | tuple[Call, "When"] | Submission


def submission(item: object) -> Submission:
    """What an item of `submit_many` means. UsageError, with the remedy, for what is none."""
    if isinstance(item, Submission):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return Submission(*item)
    return Submission(cast("Call", item))  # new_job tells what is wrong with it


def new_job(  # noqa: PLR0913 - the words of the request
    call: Call,
    when: When,
    *,
    key: str | None = None,
    scope: str = "",
    name: str | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    retry: Retry | Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    expires: Duration | None = None,
) -> NewJob:
    """The job to be stored for a call. Raises UsageError for whatever cannot be stored, with the path inside the args.

    `key` is idempotent within `scope`. `name` is for schedules: it makes them idempotent as long as they live, and a
    request has one or the other.
    """
    _check_kinds(call, when)
    check_name(call.handler, "handler")
    queue = call.queue if queue is None else queue
    if queue is None:
        raise UsageError(f"the call of {call.handler!r} has no queue: give one, or use handler.call(...)")
    check_name(queue, "queue")
    if tenant is not None:
        check_name(tenant, "tenant")
    _check_identity(key, scope, name, when)
    args = args_text(call.args)
    own = policy(retry, timeout, expires)
    request = request_hash(call.handler, args, queue, tenant, when, own)
    return NewJob(new_job_id(), queue, call.handler, args, when, request, tenant, name, key, scope, policy=own)


def args_text(args: Mapping[str, Any]) -> str:
    """Arguments as canonical JSON: sorted keys, no blanks. UsageError for what is no JSON or over ARGS_LIMIT."""
    if not isinstance(args, dict):
        raise UsageError(f"args {args!r:.80} are not an object: give one with a member for each argument")
    _check_value(args, "args", 0)
    text = _dumps(args)
    size = len(text.encode())
    if size > ARGS_LIMIT:
        remedy = "store them elsewhere and pass a reference"
        raise UsageError(f"args have {size} bytes of JSON, the limit is {ARGS_LIMIT}: {remedy}")
    return text


def request_hash(  # noqa: PLR0913, PLR0917 - all that is asked for
    handler: str, args: str, queue: str, tenant: str | None, when: When, own: Policy = NO_POLICY
) -> str:
    """What tells a repeated request from another one.

    sha256 of handler, args (canonical), queue, tenant and time, and of the job's own policy if it has one.
    """
    asked = [handler, queue, tenant, when.to_json(), *([own.to_json()] if own else [])]
    text = f"[{_dumps(asked)},{args}]"
    return hashlib.sha256(text.encode()).hexdigest()


def _check_kinds(call: object, when: object) -> None:
    if not isinstance(call, Call):
        what = getattr(call, "name", None) or getattr(call, "__name__", None)
        remedy = f"submit({what}.call(...))" if what else "submit(handler.call(...))"
        raise UsageError(f"{call!r:.120} is not a call of a handler: write {remedy}")
    if not isinstance(when, Once | Schedule):
        raise UsageError(f"when is {when!r:.120}: give at(...), after(...), cron(...) or every(...)")


def _check_identity(key: str | None, scope: str, name: str | None, when: When) -> None:
    if key is not None:
        check_text(key, "key", KEY_LIMIT)
        if not key:
            raise UsageError("key is empty: give 1 to 200 characters, or leave it out")
    check_text(scope, "scope", SCOPE_LIMIT)
    if name is None:
        return
    check_name(name, "name")
    if isinstance(when, Once):
        raise UsageError(f"name {name!r} is for a schedule, and this job runs once: give a key to make it idempotent")
    if key is not None:
        raise UsageError(f"name {name!r} and key {key!r}: a name makes it idempotent already, leave out the key")


def check_text(text: object, what: str, limit: int) -> None:
    """UsageError for what is no text, too long, or cannot be stored. `what` names it."""
    if not isinstance(text, str) or len(text) > limit:
        raise UsageError(f"{what} {text!r:.80} must be text of at most {limit} characters")
    _check_text(text, what)


def _check_value(value: object, path: str, depth: int) -> None:
    """Refuses what JSON or the store cannot hold. `path` names the place as a JSON path does."""
    if depth > _DEEPEST:
        raise UsageError(f"{path[:200]} is nested more than {_DEEPEST} deep")
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_member(key, path)
            _check_value(each, f"{path}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for n, each in enumerate(value):
            _check_value(each, f"{path}[{n}]", depth + 1)
    else:
        _check_scalar(value, path)


def _check_member(key: object, path: str) -> None:
    if not isinstance(key, str):
        raise UsageError(f"{path} has the key {key!r:.80}: keys are text")
    _check_text(key, f"a key of {path}")


def _check_scalar(value: object, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{path} is {value!r}, which JSON does not have: pass null or text")
    elif isinstance(value, int):
        if value.bit_length() > _WIDEST:
            raise UsageError(f"{path} is a whole number of more than {_WIDEST} bits: pass it as text")
    elif value is not None:
        raise UsageError(f"{path} is {value!r:.80}, a {type(value).__name__}: arguments are JSON values")


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise UsageError(f"{path} contains a NUL character, which the store cannot hold: leave it out or encode it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{path} contains a lone surrogate at position {error.start}"
        raise UsageError(f"{where}, which is no Unicode text: decode it properly or send base64") from None


# Batches.


def batches(jobs: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    """Jobs in the portions that are stored in one transaction each, in order."""
    return [jobs[n : n + BATCH] for n in range(0, len(jobs), BATCH)]


def storing(
    store: protocols.Submission, jobs: Sequence[NewJob], *, repeated: bool = False, own: bool = True
) -> Transaction[list[Submitted]]:
    """One transaction that stores jobs and answers each in order; `conflict` is an answer, not an error.

    A statement takes a key once, so what repeats a key within the batch is stored by a further statement.
    """
    plans = [
        (wave, store.submit([jobs[n] for n in wave], repeated=repeated, own_transaction=own)) for wave in waves(jobs)
    ]

    def steps() -> Steps[list[Submitted]]:
        answers: dict[int, Submitted] = {}
        for wave, plan in plans:
            answers.update(zip(wave, (yield from plan.steps()), strict=True))
        return [answers[n] for n in range(len(jobs))]

    single = own and not repeated and len(plans) == 1 and all(job.plain for job in jobs)
    return Transaction("submit", steps, pinned=all(plan.pinned for _, plan in plans), single=single)


def all_or_none(plan: Transaction[list[Submitted]], jobs: Sequence[NewJob]) -> Transaction[list[JobRef]]:
    """The same transaction, ended by Conflict where one of the jobs meets another request; nothing is stored then."""

    def steps() -> Steps[list[JobRef]]:
        answers = yield from plan.steps()
        return references(jobs, answers)

    return Transaction(plan.name, steps, plan.pinned, plan.single)


def references(jobs: Sequence[NewJob], answers: Sequence[Submitted]) -> list[JobRef]:
    """The stored jobs. Raises Conflict for the first that met another request."""
    for job, answer in zip(jobs, answers, strict=True):
        if answer.conflict is not None:
            raise conflict(job, answer)
    return [JobRef(answer.job_id, answer.duplicate) for answer in answers]


def conflict(job: NewJob, answer: Submitted) -> Conflict:
    """Why a job was not stored, and what to do."""
    if job.name is not None:
        remedy = f"change that one with `rota update {job.name}`, cancel it first, or use another name"
    else:
        remedy = "use another key, or send the same handler, args, queue, tenant and time"
    return Conflict(f"{answer.conflict} belongs to job {answer.job_id}, which is another request: {remedy}")


def waves(jobs: Sequence[NewJob]) -> list[list[int]]:
    """Indices of jobs in portions of which none has a key twice. Nearly always one portion; at least one."""
    seen: Counter[tuple[str, str]] = Counter()
    found: list[list[int]] = [[]]
    for n, job in enumerate(jobs):
        wave = 0
        if job.key is not None:
            wave = seen[job.scope, job.key]
            seen[job.scope, job.key] += 1
        if wave == len(found):
            found.append([])
        found[wave].append(n)
    return found
