"""Commands that services publish to `rota.submit`, from bytes to values, and the answers to them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rota.sched import edits, requests, schemas
from rota.sched.app import Call, check_args
from rota.sched.broker.messages import Outgoing
from rota.sched.dead import dead_filter, how_to_redrive
from rota.sched.durations import instant
from rota.sched.errors import NotFound, RotaError, UsageError
from rota.sched.ids import new_job_id
from rota.sched.policy import Policy
from rota.sched.when import when_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rota.sched.broker.messages import Delivery
    from rota.sched.dead import DeadResult
    from rota.sched.edits import Edit, Note
    from rota.sched.store.values import Cancelled, DeadFilter, Edited, HandlerRow, Held, NewJob, Redrive, Triggered
    from rota.sched.when import When

SUBMIT, CANCEL, REDRIVE = "job.submit", "job.cancel", "job.redrive"
UPDATE, PAUSE, RESUME, TRIGGER = "job.update", "job.pause", "job.resume", "job.trigger"
BODY_LIMIT = 512 * 1024
"""Longest body of a command, in bytes."""
REDRIVE_LIMIT = 1000
"""Most runs that one command redrives unless it says so: commands of others wait behind it. The answer says if more fit."""
_RESERVED = "rota."


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """`job.submit`. `scope` keeps the keys of different senders apart."""

    handler: str
    args: dict[str, Any]
    when: When
    key: str | None
    scope: str
    name: str | None
    queue: str | None
    tenant: str | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """`job.cancel` of a job or run."""

    target: str
    running: bool
    by: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class RedriveCommand:
    """`job.redrive` of runs (JOB@T), or of what a filter describes."""

    runs: Sequence[str]
    which: DeadFilter
    how: Redrive


@dataclass(frozen=True, slots=True)
class UpdateCommand:
    """`job.update` of a stored job."""

    target: str
    edit: Edit


@dataclass(frozen=True, slots=True)
class HoldCommand:
    """`job.pause`, `job.resume` or `job.trigger` (`kind`) of a stored job."""

    kind: str
    target: str
    note: Note


Command = SubmitCommand | CancelCommand | RedriveCommand | UpdateCommand | HoldCommand


def read(delivery: Delivery) -> Command:
    """The command in a delivery. UsageError says what is wrong with it and how to write it."""
    kind = delivery.properties.type or ""
    reader = _READERS.get(kind)
    if reader is None:
        words = ", ".join(_READERS)
        raise UsageError(f"type property {kind!r} is no command: set it to one of {words}, like the routing key")
    reply_to = delivery.properties.reply_to
    if reply_to is not None and reply_to.startswith(_RESERVED):
        raise UsageError(f"reply_to {reply_to!r}: queues named {_RESERVED}* are Rota's own, use one of yours")
    body = _parse(delivery.body)
    schemas.check(kind, body)
    return reader(body, delivery)


def _parse(body: bytes) -> dict[str, Any]:
    if len(body) > BODY_LIMIT:
        raise UsageError(f"the body has {len(body)} bytes, the limit is {BODY_LIMIT}: pass a reference to large data")
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not UTF-8 JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"the body is a JSON {type(value).__name__}: send an object")
    return value


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _read_submit(body: dict[str, Any], delivery: Delivery) -> SubmitCommand:
    sender, name = delivery.properties, body.get("name")
    key = body.get("key")
    if key is None and name is None:  # a name makes a schedule idempotent already
        key = sender.message_id
        if not key:
            raise UsageError("no idempotency key: set the message_id property, or key in the body")
    return SubmitCommand(
        handler=body["handler"],
        args=body.get("args") or {},
        when=when_from_json(body.get("when")),
        key=key,
        scope=f"{sender.user_id or ''}/{sender.app_id or ''}",
        name=name,
        queue=body.get("queue"),
        tenant=body.get("tenant"),
        policy=Policy.from_json({word: body[word] for word in ("retry", "timeout", "expires") if word in body}),
    )


def _read_cancel(body: dict[str, Any], delivery: Delivery) -> CancelCommand:
    return CancelCommand(body["id"], bool(body.get("running")), _sender(delivery), body.get("reason"))


def _sender(delivery: Delivery) -> str:
    """Who asks. The broker vouches for `user_id`; without one it is the application's word."""
    return delivery.properties.user_id or delivery.properties.app_id or "an AMQP client"


def _read_redrive(body: dict[str, Any], delivery: Delivery) -> RedriveCommand:
    runs = body.get("runs") or []
    since, until = body.get("since"), body.get("until")
    which = dead_filter(
        runs,
        queue=body.get("queue"),
        handler=body.get("handler"),
        tenant=body.get("tenant"),
        error=body.get("error"),
        since=None if since is None else instant(since, "since"),
        until=None if until is None else instant(until, "until"),
        everything=bool(body.get("all")),
        limit=body.get("limit", REDRIVE_LIMIT),
        max_redrives=body.get("max_redrives"),
    )
    return RedriveCommand(runs, which, how_to_redrive(_sender(delivery), body.get("args"), body.get("rate")))


def _read_update(body: dict[str, Any], delivery: Delivery) -> UpdateCommand:
    when = body.get("when")
    edit = edits.edit(
        _sender(delivery),
        None if when is None else when_from_json(when),
        body.get("args"),
        body.get("set") or {},
        version=body.get("version"),
        reason=body.get("reason"),
        run_now=bool(body.get("run_now")),
    )
    return UpdateCommand(body["id"], replace(edit, note=_noted(edit.note, delivery, needed=edit.run_now)))


def _read_hold(body: dict[str, Any], delivery: Delivery) -> HoldCommand:
    kind = delivery.properties.type or ""
    note = edits.note(_sender(delivery), body.get("reason"))
    return HoldCommand(kind, body["id"], _noted(note, delivery, needed=kind == TRIGGER))


def _noted(note: Note, delivery: Delivery, *, needed: bool) -> Note:
    """The request as its sender's message names it: however often that comes, it is one."""
    sender = delivery.properties
    if sender.message_id:
        return replace(note, id=f"{sender.user_id or ''}/{sender.app_id or ''}/{sender.message_id}")
    if needed:
        raise UsageError("no idempotency key: set the message_id property, or a repetition would run the job once more")
    return note


_READERS: dict[str, Callable[[dict[str, Any], Delivery], Command]] = {
    SUBMIT: _read_submit,
    CANCEL: _read_cancel,
    REDRIVE: _read_redrive,
    UPDATE: _read_update,
    PAUSE: _read_hold,
    RESUME: _read_hold,
    TRIGGER: _read_hold,
}


def job_of(command: SubmitCommand, known: Mapping[str, HandlerRow]) -> NewJob:
    """The job to be stored. NotFound for a handler that no worker announced, UsageError for what it cannot take."""
    row = known.get(command.handler)
    if row is None:
        raise NotFound(
            f"no worker has announced handler {command.handler!r}: check the name, or start a worker that has it first"
        )
    check_args(row.schema, command.args, row.name)
    call = Call(row.name, command.args, row.queue)
    return requests.new_job(
        call,
        command.when,
        key=command.key,
        scope=command.scope,
        name=command.name,
        queue=command.queue,
        tenant=command.tenant,
        retry=command.policy.retry,
        timeout=command.policy.timeout,
        expires=command.policy.expires,
    )


# Answers.


def stored(job_id: str, *, duplicate: bool) -> dict[str, Any]:
    """The answer to a submit."""
    return {"ok": True, "job_id": job_id, "duplicate": duplicate}


def cancelled(done: Cancelled) -> dict[str, Any]:
    """The answer to a cancel: whether the job ended, how many runs ended, were asked to stop, and still run."""
    return {"ok": True, "job": done.job, "runs": done.runs, "asked": done.asked, "running": done.running}


def updated(done: Edited) -> dict[str, Any]:
    """The answer to an update: the version after it, whether anything changed, and the next tick."""
    return {"ok": True, "job_id": done.job_id, "version": done.version, "changed": done.changed, "next": done.next}


def held(done: Held) -> dict[str, Any]:
    """The answer to a pause or resume: what is so now, and whether it was not before."""
    return {"ok": True, "job_id": done.id, "paused": done.paused, "changed": done.changed, "by": done.by}


def triggered(done: Triggered) -> dict[str, Any]:
    """The answer to a trigger: the run."""
    return {"ok": True, "job_id": done.key.job_id, "run": str(done.key)}


def redriven(done: DeadResult) -> dict[str, Any]:
    """The answer to a redrive: which dead runs were taken, which were not and why, and whether more fit.

    Of runs and refusals the first are listed, so that the answer is a message of an ordinary size.
    """
    return {
        "ok": True,
        "redriven": len(done),
        "runs": [str(key) for key in done.runs[:REDRIVE_LIMIT]],
        "refused": [{"run": str(key), "reason": why} for key, why in list(done.refused.items())[:REDRIVE_LIMIT]],
        "left_alone": len(done.spared),
        "more": done.more,
    }


def refused(error: RotaError) -> dict[str, Any]:
    """The answer to what was not accepted."""
    return {"ok": False, "error": {"code": error.code, "message": str(error)}}


def reply(delivery: Delivery, answer: Mapping[str, Any]) -> Outgoing | None:
    """The message that answers a delivery; None where the sender wants none.

    Not mandatory: 3.10 returns what it has delivered to a direct reply-to.
    """
    sender = delivery.properties
    if not sender.reply_to or sender.reply_to.startswith(_RESERVED):
        return None
    body = json.dumps(answer, ensure_ascii=True, separators=(",", ":")).encode()
    return Outgoing(
        "",
        sender.reply_to,
        body,
        new_job_id(),
        type="answer",
        correlation_id=sender.correlation_id,
        mandatory=False,
    )
