"""A handler's signature: binding a call's arguments to names, and their JSON Schema. Pure."""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Union

from jsonschema import Draft202012Validator

from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIMPLE: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
}


def wants_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is `ctx`, or is annotated as a Context."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    annotation = first.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return first.name == "ctx" or str(name).rsplit(".", 1)[-1] == "Context"


def parameters(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature without the context. UsageError for what JSON arguments cannot be bound to."""
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[int(wants_context(function)) :]
    for p in rest:
        if p.kind in {p.POSITIONAL_ONLY, p.VAR_POSITIONAL}:
            raise UsageError(
                f"handler {name}: parameter {p.name!r} takes positions only, and a job's arguments have names: "
                "make it an ordinary parameter"
            )
    return signature.replace(parameters=rest)


def bind(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, checked to be JSON. Defaults are left to the handler."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"handler {name}{signature}: {error}") from None
    values: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        if signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
        else:
            values[key] = value
    for key, value in values.items():
        _check_json(value, f"{name}.{key}", 0)
    return values


def _check_json(value: Any, path: str, depth: int) -> None:
    if depth > 64:
        raise UsageError(f"argument {path} is nested deeper than 64 levels")
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"argument {path} is {value!r}: JSON has no word for it")
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            _check_json(item, f"{path}[{n}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"argument {path} has the key {key!r}: keys of JSON objects are strings")
            _check_json(item, f"{path}.{key}", depth + 1)
    else:
        raise UsageError(
            f"argument {path} is {value!r:.100}, a {type(value).__name__}: "
            "arguments are JSON values (str, int, float, bool, None, list, dict); pass an id or text instead"
        )


def args_schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """The JSON Schema of a handler's arguments, from its annotations; what has none may be anything."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # a name that only type checkers see
        hints = {}
    properties, required, extra = {}, [], False
    for p in signature.parameters.values():
        if p.kind is p.VAR_KEYWORD:
            extra = True
            continue
        properties[p.name] = _of(hints.get(p.name, Any))
        if p.default is p.empty:
            required.append(p.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}


def _of(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type | None) and hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {Union, types.UnionType}:
        options = [_of(each) for each in inner]
        return {} if {} in options else {"anyOf": options}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _of(inner[0])}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _of(inner[1])}
    return {}


def check_args(schema: Mapping[str, Any], args: Mapping[str, Any], handler: str) -> None:
    """Raises UsageError if arguments do not fit a handler's schema."""
    errors = sorted(_validator(json.dumps(schema, sort_keys=True)).iter_errors(args), key=lambda e: list(e.path))
    if errors:
        error = errors[0]
        path = ".".join([handler, *map(str, error.absolute_path)])
        raise UsageError(f"arguments of handler {handler} do not fit at {path}: {error.message:.300}")


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return Draft202012Validator(json.loads(schema))
