"""Rota: jobs at a time, on a schedule or now, on Postgres and RabbitMQ. What `import rota` gives.

    from rota import App, Client, Context, Retry, after, at, cron, every

Importing it connects to nothing and reads no environment.
"""

from __future__ import annotations

from rota.sched.app import App, Cancel, NoRetry, Retry, RetryAfter, Snooze
from rota.sched.client import AsyncClient, Client
from rota.sched.context import Context
from rota.sched.errors import (
    Conflict,
    NotFound,
    NotMigrated,
    Refused,
    RotaError,
    Superseded,
    Unreachable,
    UsageError,
)
from rota.sched.requests import JobRef, Submission
from rota.sched.version import VERSION as __version__  # noqa: N811 - the name that the world expects
from rota.sched.when import after, at, cron, every

__all__ = [
    "App",
    "AsyncClient",
    "Cancel",
    "Client",
    "Conflict",
    "Context",
    "JobRef",
    "NoRetry",
    "NotFound",
    "NotMigrated",
    "Refused",
    "Retry",
    "RetryAfter",
    "RotaError",
    "Snooze",
    "Submission",
    "Superseded",
    "Unreachable",
    "UsageError",
    "__version__",
    "after",
    "at",
    "cron",
    "every",
]
