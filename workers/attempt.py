"""One attempt in a worker, and what its handler's end means. `judge` is pure."""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rota.sched.app import Cancel, NoRetry, RetryAfter, Snooze
from rota.sched.errors import Superseded

if TYPE_CHECKING:
    from rota.sched.app import Handler
    from rota.sched.broker.messages import Delivery
    from rota.sched.ids import RunKey
    from rota.sched.message import Work

RESULT_LIMIT = 64 * 1024
"""Results longer than this (bytes of JSON) are not kept."""
_MESSAGE_LIMIT = 2000
_TRACEBACK_LIMIT = 4000
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON text; behind an odd number of backslashes it is a backslash and `u0000`."""


@dataclass(eq=False, slots=True)
class Job:
    """A delivery with its parsed message. `delivery` is None where a guard copy has taken its place."""

    delivery: Delivery | None
    work: Work
    key: RunKey
    queue: str
    arrived: float
    body: bytes


@dataclass(eq=False, slots=True)
class Attempt:
    """A run that the ledger gave to this worker, until its end is written. Times are of the monotonic clock.

    completed: its transaction has written the end; released: handed back by a drain; dropped: its worker was taken for
    dead; sent: its end was sent before and no answer came.
    """

    job: Job
    fence: int
    number: int
    losses: int
    handler: Handler[..., Any]
    args: dict[str, Any]
    begun: float
    completed: bool = False
    released: bool = False
    dropped: bool = False
    sent: bool = False
    started: bool = False
    cancelled: bool = False
    result: tuple[Any] | None = None
    trail: dict[str, Any] = field(default_factory=dict)


Kind = Literal["succeeded", "dead", "cancelled", "retry", "snooze", "release", "completed", "superseded"]


class Verdict(NamedTuple):
    """What is to be written for an attempt. completed: its transaction has written it; superseded: nothing may be."""

    kind: Kind
    reason: str | None = None
    result: str | None = None
    error: str | None = None
    seconds: float = 0.0


def judge(attempt: Attempt, value: Any, error: BaseException | None, random: float) -> Verdict:
    """The verdict on a handler that returned `value` or raised `error`; `random` in [0, 1) is for the backoff."""
    if attempt.completed:
        return Verdict("completed")
    if error is None:
        return _success(attempt.result[0] if attempt.result else value)
    if isinstance(error, Superseded):
        return Verdict("superseded")
    if isinstance(error, Cancel):
        return Verdict("cancelled", reason=clean(_text(error)) or "cancelled by its handler")
    if isinstance(error, Snooze):
        return Verdict("snooze", seconds=error.seconds)
    return _failure(attempt, error, random)


def _failure(attempt: Attempt, error: BaseException, random: float) -> Verdict:
    told = describe(attempt.number, error)
    summary = clean(f"{type(error).__name__}: {_text(error)}")[:_MESSAGE_LIMIT]
    if isinstance(error, NoRetry):
        return Verdict("dead", reason=clean(_text(error)) or "not to be retried", error=told)
    policy = attempt.handler.retry
    if attempt.number >= policy.attempts:
        return Verdict("dead", reason=f"{attempt.number} attempts failed, the last with {summary}", error=told)
    seconds = error.seconds if isinstance(error, RetryAfter) else policy.delay(attempt.number, random)
    return Verdict("retry", reason=summary, error=told, seconds=seconds)


def _success(value: Any) -> Verdict:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Verdict("succeeded", reason=f"the result is not kept, it is no JSON value: {error}"[:_MESSAGE_LIMIT])
    size = len(text.encode("utf-8", "replace"))
    if size > RESULT_LIMIT:
        return Verdict("succeeded", reason=f"the result is not kept, it has {size} bytes of {RESULT_LIMIT}")
    return Verdict("succeeded", result=None if value is None else clean_json(text))


def describe(attempt: int, error: BaseException) -> str:
    """An error as the JSON entry that the ledger keeps."""
    lines = "".join(traceback.format_exception(error))[-_TRACEBACK_LIMIT:]
    entry = {
        "attempt": attempt,
        "type": type(error).__name__,
        "message": clean(_text(error))[:_MESSAGE_LIMIT],
        "traceback": clean(lines),
    }
    return json.dumps(entry, ensure_ascii=False)


def _text(error: BaseException) -> str:
    """What an error says; an error whose text raises is still an error."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - a user's __str__
        return f"(its text raised {type(raised).__name__})"


def clean(text: str) -> str:
    """Text that Postgres can store: no NUL, no lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def clean_json(text: str) -> str:
    """JSON text that jsonb can store: what it cannot hold becomes the replacement character."""
    return clean(_NUL.sub(r"\1\\ufffd", text))
