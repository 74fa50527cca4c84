"""A handler's signature: binding a call's arguments to names, and their JSON Schema. Pure."""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Union

from rota.sched.context import Context
from rota.sched.errors import UsageError
from rota.sched.schemas.explain import explain, first_of, missing, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DEEPEST = 64
_UNKNOWN = object()
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
_KINDS = {kind["type"]: of for of, kind in _SIMPLE.items() if of is not None}
"""What has a type of JSON Schema beyond doubt: a whole float is an integer, too."""


def wants_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is named `ctx`, or annotated as a `rota.Context`."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and (first.name == "ctx" or _is_context(function, first))


def parameters(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature without the context. UsageError for what JSON arguments cannot be bound to."""
    signature = inspect.signature(function)
    all_of_them = list(signature.parameters.values())
    skip = int(wants_context(function))
    for p in all_of_them[:skip]:
        if p.kind not in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}:
            raise UsageError(f"handler {name}: parameter {p.name!r} is passed by position: put it first, before any *")
    for p in all_of_them[skip:]:
        if p.kind in {p.POSITIONAL_ONLY, p.VAR_POSITIONAL}:
            raise UsageError(
                f"handler {name}: parameter {p.name!r} takes positions only, and a job's arguments have names: "
                "make it an ordinary parameter"
            )
        if p.name == "ctx" or _is_context(function, p):
            raise UsageError(f"handler {name}: parameter {p.name!r} is the context: put it first")
    return signature.replace(parameters=all_of_them[skip:])


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    hint = _hint(function, parameter)
    if hint is not _UNKNOWN:
        return hint is Context
    # A name that only type checkers see, most often because Context is imported for them alone.
    return str(parameter.annotation).strip("'\"").rsplit(".", 1)[-1] == "Context"


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation as an object; Any where there is none, _UNKNOWN where it names what is not there at run time.

    One parameter at a time, so that one such name does not hide the others.
    """
    if parameter.annotation is parameter.empty:
        return Any
    names = getattr(inspect.unwrap(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=names)[parameter.name]
    except Exception:  # noqa: BLE001 - an annotation may be any expression, and is only a help
        return _UNKNOWN


def bind(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, checked to be JSON. Defaults are left to the handler."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(str(each) for each in signature.parameters.values()) or "no arguments"
        raise UsageError(f"handler {name}: {error}: it takes {takes}") from None
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
    if depth > _DEEPEST:
        raise UsageError(
            f"argument {path[:200]} is nested deeper than {_DEEPEST} levels: pass a reference to it instead"
        )
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, list):
        for n, item in enumerate(value):
            _check_json(item, f"{path}[{n}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(
                    f"argument {path} has the key {key!r:.100}: keys of JSON objects are text, use str(...)"
                )
            _check_json(item, f"{path}.{key}", depth + 1)
    else:
        _check_number(value, path)


def _check_number(value: Any, path: str) -> None:
    if not isinstance(value, float):
        remedy = "pass list(...)" if isinstance(value, tuple | set | frozenset) else "pass an id or text instead"
        raise UsageError(
            f"argument {path} is {value!r:.100}, a {type(value).__name__}: "
            f"arguments are JSON values (str, int, float, bool, None, list, dict); {remedy}"
        )
    if not math.isfinite(value):
        raise UsageError(f"argument {path} is {value!r}, for which JSON has no word: pass None or text instead")


def args_schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """The JSON Schema of a handler's arguments, from its annotations; what has none may be anything."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    extra = False
    for p in signature.parameters.values():
        if p.kind is p.VAR_KEYWORD:
            extra = True
            continue
        properties[p.name] = _of(_hint(function, p))
        if p.default is p.empty:
            required.append(p.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}


def _of(hint: Any) -> dict[str, Any]:
    """The schema of an annotation; {} (anything) for what JSON Schema has no word for."""
    if isinstance(hint, type | None) and hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {Union, types.UnionType}:
        options = [_of(each) for each in inner]
        return {} if {} in options else {"anyOf": options}
    if origin is Literal:
        plain = all(each is None or isinstance(each, str | int) for each in inner)
        return {"enum": list(inner)} if plain else {}
    if origin is list:
        return {"type": "array", "items": _of(inner[0])} if inner else {"type": "array"}
    if origin is dict:
        return _of_dict(inner)
    return {}


def _of_dict(inner: tuple[Any, ...]) -> dict[str, Any]:
    if not inner:
        return {"type": "object"}
    return {"type": "object", "additionalProperties": _of(inner[1])} if inner[0] is str else {}


def check_args(schema: Mapping[str, Any], args: Mapping[str, Any], handler_name: str) -> None:
    """Raises UsageError, with the argument, its value and the remedy, if `args` do not fit a handler's schema.

    `schema` is an `args_schema`, which the store keeps of each handler that a worker has announced.
    """
    error = first_of(_validator(json.dumps(schema, sort_keys=True)).iter_errors(args))
    if error is None:
        return
    takes = ", ".join(schema.get("properties", ())) or "none"
    if error.absolute_path or error.validator not in {"required", "additionalProperties"}:
        raise UsageError(f"argument {explain(error, handler_name)}")
    if error.validator == "required":
        raise UsageError(f"handler {handler_name} needs the argument {missing(error)!r}: give it (it takes {takes})")
    raise UsageError(f"handler {handler_name} has no argument {unknown(error)!r}: leave it out (it takes {takes})")


def surely_fits(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    """A quick look that is True only for what fits an `args_schema`; what it does not know `check_args` has to judge.

    It spares nearly every submit a validation that takes longer than all else that the client does for a job.
    """
    if not schema:
        return lambda _: True
    if "properties" in schema:
        members = {name: surely_fits(each) for name, each in schema["properties"].items()}
        needed = frozenset(schema["required"])
        return lambda args: needed <= args.keys() and all(n in members and members[n](v) for n, v in args.items())
    if "anyOf" in schema:
        options = [surely_fits(each) for each in schema["anyOf"]]
        return lambda value: any(fits(value) for fits in options)
    if "items" in schema:
        item = surely_fits(schema["items"])
        return lambda value: type(value) is list and all(map(item, value))
    if "additionalProperties" in schema:
        member = surely_fits(schema["additionalProperties"])
        return lambda value: type(value) is dict and all(map(member, value.values()))
    kind = _KINDS.get(schema.get("type"))
    return lambda value: type(value) is kind


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - a tenth of a second of every command

    return Draft202012Validator(json.loads(schema))
