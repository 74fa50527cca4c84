"""What is told to all members at once, through the exchange `rota.control`. Pure.

A control message is a hint and no order: who gets it looks into the store, which decides. One that is lost costs the time
until the next look, and one that anybody else publishes costs a look.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from rota.sched.broker.messages import Outgoing
from rota.sched.broker.topology import CONTROL
from rota.sched.ids import new_job_id

CANCEL = "cancel"
CANCEL_CALL = "!cancel "
"""Begins a notification of the store; no queue is named like that."""

SHARE_CALL = "!share"
"""A notification of the store: partitions are free, whoever wants more shall look."""


FROM_CALL = "!from "
"""Begins a notification of the store: a queue, and the time from which on something of it may have been passed by."""


def from_call(note: str) -> tuple[str, datetime] | None:
    """The queue and the time of the store, if a notification tells of what may have been passed by."""
    try:
        seconds, queue = note.removeprefix(FROM_CALL).split(" ", 1)
        at = datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return (queue, at) if note.startswith(FROM_CALL) else None


def cancel_call(note: str) -> str | None:
    """The job whose running runs were asked to cancel, if a notification of the store says so."""
    return note.removeprefix(CANCEL_CALL) if note.startswith(CANCEL_CALL) else None


def cancel_message(job_id: str) -> Outgoing:
    """Tells workers to look after what they run of a job. Nobody has to be there to hear it."""
    body = json.dumps({"v": 1, "job_id": job_id}).encode()
    return Outgoing(CONTROL, "", body, new_job_id(), type=CANCEL, mandatory=False)


def cancelled_job(body: bytes) -> str | None:
    """The job that a cancel message is about; None for what is no message of this version."""
    try:
        told = json.loads(body)
    except ValueError:
        return None
    found = told.get("job_id") if isinstance(told, dict) and told.get("v") == 1 else None
    return found if isinstance(found, str) else None
