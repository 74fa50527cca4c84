"""One attempt in a worker, and what its handler's end means. `judge` is pure."""

from __future__ import annotations

import asyncio
import json
import re
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rota.sched.app import Cancel, NoRetry, RetryAfter, Snooze
from rota.sched.errors import Superseded
from rota.sched.policy import NO_POLICY
from rota.sched.urls import mask_text
from rota.workers.carried import Carried

if TYPE_CHECKING:
    from rota.sched.app import Handler
    from rota.sched.broker.messages import Delivery
    from rota.sched.ids import RunKey
    from rota.sched.message import Work
    from rota.sched.policy import Policy, Retry

RESULT_LIMIT = 64 * 1024
"""Results longer than this (bytes of JSON) are not kept."""
_MESSAGE_LIMIT = 2000
_TRACEBACK_LIMIT = 4000
_NAME_LIMIT = 200
"""Characters of an error's text, traceback and type that are kept."""
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON text; behind an odd number of backslashes it is a backslash and `u0000`."""


@dataclass(eq=False, slots=True)
class Job:
    """A delivery with its parsed message. `delivery` is None where a copy has taken its place, `guarded` if one shall.

    `waited`: seconds since its run was due, of one that is to be begun alone.
    """

    delivery: Delivery | None
    work: Work
    key: RunKey
    queue: str
    arrived: float
    body: bytes
    guarded: bool = False
    waited: float = 0.0


@dataclass(eq=False, slots=True)
class Attempt:
    """A run that the ledger gave to this worker, until its end is written. Times are of the monotonic clock.

    completed: its transaction has written the end; committing: that commit was asked for, and may have got through; released:
    handed back by a drain; dropped: its worker was taken for dead; sent: its end was sent before and no answer came; cancelled:
    somebody asked for it; given_up: its thread or coroutine did not end in time, what it still does is in vain. `started`: when
    its handler was called; `told`: when its coroutine was cancelled; `age`: seconds from when the run was due until it was
    begun; `checkpoint` and `progress` are JSON text. `catchup` and `missed`: how late its tick was claimed.
    """

    job: Job
    fence: int
    number: int
    losses: int
    handler: Handler[..., Any]
    args: dict[str, Any]
    begun: float
    completed: bool = False
    committing: bool = False
    released: bool = False
    dropped: bool = False
    sent: bool = False
    started: float | None = None
    told: float | None = None
    cancelled: bool = False
    given_up: bool = False
    result: tuple[Any] | None = None
    policy: Policy = NO_POLICY
    age: float = 0.0
    checkpoint: str | None = None
    progress: str | None = None
    catchup: bool = False
    missed: int | None = 0

    @property
    def timeout(self) -> float | None:
        """Seconds that it may take: its job's own, or its handler's."""
        return self.handler.timeout if self.policy.timeout is None else self.policy.timeout

    @property
    def retry(self) -> Retry:
        """What is in force when it fails."""
        return self.policy.retrying(self.handler.retry)


Kind = Literal["succeeded", "dead", "cancelled", "retry", "snooze", "release", "completed", "superseded"]


class Verdict(NamedTuple):
    """What is to be written for an attempt. completed: its transaction has written it; superseded: nothing may be."""

    kind: Kind
    reason: str | None = None
    result: str | None = None
    error: str | None = None
    seconds: float = 0.0


def judge(attempt: Attempt, value: Any, error: BaseException | None, random: float, elapsed: float = 0.0) -> Verdict:
    """The verdict on a handler that returned `value` or raised `error` after `elapsed` seconds.

    `random` in [0, 1) is for the backoff. Who was asked to cancel and returns has done it all the same.
    """
    if attempt.completed:
        return Verdict("completed")
    if error is None:
        return success(attempt.result[0] if attempt.result else value)
    if isinstance(error, Superseded):
        return Verdict("superseded")
    if isinstance(error, Cancel):
        return Verdict("cancelled", reason=_told(error) or "cancelled by its handler")
    if isinstance(error, Snooze):
        return Verdict("snooze", seconds=error.seconds)
    return _failure(attempt, error, random, elapsed)


def _failure(attempt: Attempt, error: BaseException, random: float, elapsed: float) -> Verdict:
    told = describe(attempt.number, error)
    if attempt.cancelled:
        by_us = isinstance(error, asyncio.CancelledError)
        return Verdict("cancelled", reason="cancelled while it ran", error=None if by_us else told)
    policy = attempt.retry
    seconds = error.seconds if isinstance(error, RetryAfter) else policy.delay(attempt.number, random)
    summary = f"{_name(error)}: {_told(error)}"
    if isinstance(error, NoRetry):
        final = _told(error) or "not to be retried"
    elif not (policy.wants(error) or isinstance(error, RetryAfter)):
        final = f"its handler does not retry {summary}"
    elif attempt.number >= policy.attempts:
        final = f"{attempt.number} attempts failed, the last with {summary}"
    elif policy.over(attempt.age + elapsed + seconds):
        window = f"another attempt would come later than {policy.retry_for:g} s after it was due"
        final = f"{window}; the last of {attempt.number} failed with {summary}"
    else:
        return Verdict("retry", reason=summary, error=told, seconds=seconds)
    return Verdict("dead", reason=final, error=told)


def success(value: Any) -> Verdict:
    """The verdict on a handler that has ended well; a result that cannot be kept is told of."""
    if isinstance(value, Verdict):
        return value  # its own process has judged it
    if value is None:
        return Verdict("succeeded")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Verdict("succeeded", reason=f"the result is not kept, it is no JSON value: {error}"[:_MESSAGE_LIMIT])
    size = len(text.encode("utf-8", "replace"))
    if size > RESULT_LIMIT:
        return Verdict("succeeded", reason=f"the result is not kept, it has {size} bytes of {RESULT_LIMIT}")
    return Verdict("succeeded", result=clean_json(text))


def describe(attempt: int, error: BaseException) -> str:
    """An error as the JSON entry that the ledger keeps: bounded, and without the secrets that can be told."""
    told = error.traceback if isinstance(error, Carried) else "".join(traceback.format_exception(error))
    lines = told[-4 * _TRACEBACK_LIMIT :]
    entry = {
        "attempt": attempt,
        "type": _name(error),
        "message": _told(error),
        "traceback": clean(mask_text(lines))[-_TRACEBACK_LIMIT:],
    }
    return json.dumps(entry, ensure_ascii=False)


def _name(error: BaseException) -> str:
    return type(error).__name__[:_NAME_LIMIT]


def _told(error: BaseException) -> str:
    """What an error says, as it is kept; an error whose text raises is still an error."""
    try:
        text = str(error)
    except Exception as raised:  # noqa: BLE001 - a user's __str__
        return f"(its text raised {_name(raised)})"
    return clean(mask_text(text[: 4 * _MESSAGE_LIMIT]))[:_MESSAGE_LIMIT]


def clean(text: str) -> str:
    """Text that Postgres can store: no NUL, no lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def clean_json(text: str) -> str:
    """JSON text that jsonb can store: what it cannot hold becomes the replacement character."""
    return clean(_NUL.sub(r"\1\\ufffd", text))
