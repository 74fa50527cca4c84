"""The work message: what a scheduler publishes and a worker reads. Pure, versioned.

Body: UTF-8 JSON, `{"v": 1, "job_id", "scheduled_for", "dispatch", "handler", "args", "tenant"}`. `args` is null where
they are over ARGS_INLINE bytes: the worker then gets them with begin. The ledger, not the message, decides what runs.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from rota.sched.model import Dispatch

VERSION = 1
ARGS_INLINE = 8 * 1024
"""Arguments longer than this (bytes of JSON) stay out of the message."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TICK = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_loads = json.JSONDecoder().decode  # `json.loads` looks at what it is given first
_quoted = lru_cache(4096)(json.JSONEncoder(ensure_ascii=False).encode)
"""A handler's or tenant's name as JSON: there are few."""


class Work(NamedTuple):
    """A parsed work message. `args` is None where they come with begin."""

    job_id: str
    scheduled_for: str
    dispatch: int
    handler: str
    args: dict[str, Any] | None
    tenant: str | None


def encode(d: Dispatch) -> bytes:
    """The body for a dispatch. Names are checked when a job is submitted, so only the tenant may be null."""
    tenant = "null" if d.tenant is None else _quoted(d.tenant)
    args = "null" if d.args is None else d.args
    return (
        f'{{"v":{VERSION},"job_id":"{d.job_id}","scheduled_for":"{d.scheduled_for}","dispatch":{d.dispatch},'
        f'"handler":{_quoted(d.handler)},"args":{args},"tenant":{tenant}}}'
    ).encode()


def decode(body: bytes) -> Work:
    """The message in `body`; UsageError if it is not one (wrong JSON, version, field or type)."""
    try:
        m = _loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a work message: {error} in {body[:80]!r}") from None
    if not isinstance(m, dict) or m.get("v") != VERSION:
        raise UsageError(f"not a work message of version {VERSION}: {body[:80]!r}; was it published by a newer Rota?")
    try:
        work = Work(m["job_id"], m["scheduled_for"], m["dispatch"], m["handler"], m["args"], m["tenant"])
    except KeyError as error:
        raise UsageError(f"work message without {error}: {body[:80]!r}") from None
    _check(work)
    return work


def _check(w: Work) -> None:
    good = (
        isinstance(w.job_id, str)
        and _ID.fullmatch(w.job_id)
        and type(w.dispatch) is int
        and 0 < w.dispatch < 1 << 63
        and isinstance(w.handler, str)
        and (w.args is None or isinstance(w.args, dict))
        and (w.tenant is None or isinstance(w.tenant, str))
        and _is_tick(w.scheduled_for)
    )
    if not good:
        raise UsageError(f"work message with a field of a wrong type or form: {w!r:.300}")


def _is_tick(text: object) -> bool:
    if not isinstance(text, str) or not _TICK.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
