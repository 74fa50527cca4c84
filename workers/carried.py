"""Errors on their way from the process of a handler to its worker. Pure.

An error itself is not sent: many cannot be pickled, more come back as something else, and unpickling would import and
call what the worker never loaded. What is sent is what the ledger keeps of it, the names of its classes, and what the
worker reads of a handler's signals.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_READ = ("seconds", "reason")
"""What a worker reads of Snooze, RetryAfter, NoRetry and Cancel."""


class Carried(Exception):  # noqa: N818 - it stands for errors of all names
    """An error of another process. It counts as an instance of whatever the original was, as far as is loaded here.

    `traceback` is the other process's, as text. A class by which `Retry(on=..., never=...)` decides is loaded: the
    policy has it.
    """

    stands_for: type[BaseException] = Exception
    traceback = ""

    @property  # type: ignore[misc]
    def __class__(self) -> type[BaseException]:  # type: ignore[override]
        """`isinstance` asks for it after the real class. So no class of a user is subclassed, made or called here."""
        return self.stands_for


def carry(error: BaseException, described: str) -> dict[str, Any]:
    """An error as JSON. `described` is what the ledger keeps of it (`attempt.describe`)."""
    told = json.loads(described)
    return {
        "name": told["type"],
        "message": told["message"],
        "traceback": told["traceback"],
        "classes": [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__],
        "read": {name: value for name in _READ if isinstance(value := getattr(error, name, None), str | int | float)},
    }


def restore(told: dict[str, Any]) -> Carried:
    """What `carry` told, to be raised: an error with the same name, text, traceback and classes."""
    kind: type[Carried] = type(told["name"], (Carried,), {})
    error = kind(told["message"])
    error.traceback = told["traceback"]
    error.stands_for = next(filter(None, (_loaded(*names) for names in told["classes"])), Exception)
    for name, value in told["read"].items():
        setattr(error, name, value)
    return error


def _loaded(module: str, name: str) -> type[BaseException] | None:
    """The class of that name if this process has it; nothing is imported."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
