"""Job ids, partitions and the names of runs. Pure.

A job id is a UUIDv7 that the client makes, so that an unkeyed submit may be repeated safely. Its last byte carries
the partition: whoever holds an id knows the partition without asking. A run is a job's tick and is written
`JOB@SCHEDULED_FOR`.
"""

from __future__ import annotations

import re
import secrets
import time
import uuid
from typing import NamedTuple

from rota.sched.durations import instant, rfc3339
from rota.sched.errors import UsageError

PARTITIONS = 64
"""How many shares the jobs are split into; fixed for the life of a store."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIX = re.compile(r"[0-9a-f]{4,32}")


class RunKey(NamedTuple):
    """A run's identity: the job's id and the nominal tick, both as text (RFC 3339, UTC, microseconds)."""

    job_id: str
    scheduled_for: str

    def __str__(self) -> str:
        return f"{self.job_id}@{self.scheduled_for}"


def new_job_id() -> str:
    """A UUIDv7 (RFC 9562): 48 bits of this host's clock in milliseconds, 74 random bits. Nothing relies on the clock."""
    millis = time.time_ns() // 1_000_000 & (1 << 48) - 1
    high, low = divmod(secrets.randbits(74), 1 << 62)
    digits = f"{millis:012x}7{high:03x}{2 << 62 | low:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def partition_of(job_id: str) -> int:
    """The partition of a full job id, 0 to 63."""
    return int(job_id[-2:], 16) % PARTITIONS


def short(job_id: str) -> str:
    """The first 16 digits, which `rota` prints and accepts."""
    return job_id[:18]


def check_name(value: str, what: str) -> str:
    """`value`, if it may name a handler, queue or tenant; UsageError otherwise."""
    if not NAME.fullmatch(value):
        raise UsageError(f"{what} {value!r} is not a name: use 1 to 100 of the characters A-Z a-z 0-9 _ -")
    return value


class IdRange(NamedTuple):
    """The ids that begin with a prefix: both ends belong to it."""

    low: str
    high: str


def id_range(text: str) -> IdRange | None:
    """The range of job ids that begin with `text` (4 to 32 hex digits, dashes anywhere), None if it is no prefix."""
    digits = text.replace("-", "").lower()
    if not _PREFIX.fullmatch(digits):
        return None
    return IdRange(str(uuid.UUID(digits.ljust(32, "0"))), str(uuid.UUID(digits.ljust(32, "f"))))


def split_run(text: str) -> tuple[str, str | None]:
    """`JOB@T` as (job, T in canonical form), a bare job as (job, None); T must be RFC 3339 with an offset."""
    job, mark, tick = text.partition("@")
    return (job, rfc3339(instant(tick, "the tick of a run"))) if mark else (job, None)
