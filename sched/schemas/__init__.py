"""JSON Schemas of what passes through AMQP, and the check of a message against one. `rota schema` prints them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from rota.sched.errors import UsageError
from rota.sched.schemas.explain import explain, first_of

_NAMES = (
    *("job.submit", "job.cancel", "job.redrive", "job.update", "job.pause", "job.resume", "job.trigger"),
    *("answer", "work", "event"),
)


def names() -> list[str]:
    """The schemas there are."""
    return list(_NAMES)


def schema(name: str) -> dict[str, Any]:
    """The schema `name`, a copy of its own. UsageError for a name that is not among `names()`."""
    value: dict[str, Any] = json.loads(_text(name))
    return value


def check(name: str, value: object) -> None:
    """Raises UsageError, with the path, the value and what to give instead, if `value` does not fit schema `name`."""
    error = first_of(_validator(name).iter_errors(value))
    if error is not None:
        root = "" if error.absolute_path else "the message"
        raise UsageError(f"not a {name} message: {explain(error, root)}; see `rota schema {name}`")


@cache
def _text(name: str) -> str:
    if name not in _NAMES:
        raise UsageError(f"there is no schema {name!r}: use one of {', '.join(_NAMES)}")
    return (files("rota.sched.schemas") / f"{name}.json").read_text(encoding="utf-8")


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - a tenth of a second of every command

    return Draft202012Validator(schema(name))
