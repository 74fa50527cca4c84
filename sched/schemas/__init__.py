"""JSON Schemas of what passes through AMQP, and the check of a message against one. `rota schema` prints them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from rota.sched.errors import UsageError

_NAMES = ("job.submit", "job.cancel", "job.redrive", "answer", "work", "event")


def names() -> list[str]:
    """The schemas there are."""
    return list(_NAMES)


@cache
def _text(name: str) -> str:
    return (files("rota.sched.schemas") / f"{name}.json").read_text(encoding="utf-8")


def schema(name: str) -> dict[str, Any]:
    """The schema `name`."""
    value: dict[str, Any] = json.loads(_text(name))
    return value


@cache
def _validator(name: str) -> Any:
    return Draft202012Validator(schema(name))


def check(name: str, value: object) -> None:
    """Raises UsageError, with path and value, if `value` does not fit the schema `name`."""
    error = best_match(_validator(name).iter_errors(value))
    if error is not None:
        raise UsageError(f"not a {name} message: {_explain(error)}; see `rota schema {name}`")


def _explain(error: ValidationError) -> str:
    path = ".".join(str(each) for each in error.absolute_path) or "the message"
    return f"at {path}: {error.message[:300]}"
