"""Rota: jobs at a time, on a schedule or now, on Postgres and RabbitMQ. What `import rota` gives.

    from rota import App, Client, Context, Retry, after, at, cron, every

Importing it connects to nothing and reads no environment. A name is imported from its home at its first use: who writes
handlers does not wait for the client, nor a member that starts for both.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from rota.sched.version import __version__
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

_HOMES = {
    "app": ("App", "Cancel", "NoRetry", "Retry", "RetryAfter", "Snooze"),
    "client": ("AsyncClient", "Client"),
    "context": ("Context",),
    "errors": (
        "Conflict",
        "NotFound",
        "NotMigrated",
        "Refused",
        "RotaError",
        "Superseded",
        "Unreachable",
        "UsageError",
    ),
    "requests": ("JobRef", "Submission"),
    "version": ("__version__",),
    "when": ("after", "at", "cron", "every"),
}
"""The module of `rota.sched` that each name is from."""

if not TYPE_CHECKING:  # who checks types knows the names from above, and would take any other for one

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"rota.sched.{home}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
