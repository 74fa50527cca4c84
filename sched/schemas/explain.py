"""What is wrong with a value, in the words of its schema: where, which value, and what to give instead. Pure.

jsonschema's own messages speak of schemas ("is not valid under any of the given schemas"). Here a choice (`anyOf`) is
narrowed to the branch that the value's members point to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema.exceptions import ValidationError

_CHOICES = {"anyOf", "oneOf"}
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "pattern": "matching {}",
    "minLength": "of {} or more characters",
    "maxLength": "of at most {} characters",
    "minItems": "of {} or more items",
    "maxItems": "of at most {} items",
    "minProperties": "with {} or more members",
    "description": "({})",
}


def first_of(errors: Iterable[ValidationError]) -> ValidationError | None:
    """The one error to be told, always the same for the same value: the outermost, narrowed to its branch."""
    error = min(errors, key=_rank, default=None)
    while error is not None and error.validator in _CHOICES:
        branch = _branch(error)
        if branch is None:
            break
        error = branch
    return error


def explain(error: ValidationError, root: str) -> str:
    """The error as "what, with which value, what to do". `root` names the whole value."""
    path, value = path_of(error, root), error.instance
    if error.validator == "required":
        return f"{path} lacks {missing(error)!r}: add it"
    if error.validator == "additionalProperties":
        known = ", ".join(error.schema.get("properties", ())) or "none"
        return f"{path} has {unknown(error)!r}, which is not known there: use only {known}"
    return f"{path} is {value!r:.100}: give {wanted(error.schema)}"


def path_of(error: ValidationError, root: str) -> str:
    """Where it is: `root.lines[0].price`, without the root where `root` is empty and it lies deeper."""
    path = root
    for step in error.absolute_path:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")[:200]


def missing(error: ValidationError) -> str:
    """The first member that is required and not there."""
    return next(str(name) for name in error.validator_value if name not in error.instance)


def unknown(error: ValidationError) -> str:
    """The first member that the schema does not have."""
    return min(str(name) for name in error.instance if name not in error.schema.get("properties", ()))


def wanted(schema: Mapping[str, Any]) -> str:
    """What a schema asks for: `a whole number at least 1`, `one of 'a', 'b'`."""
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    for choice in _CHOICES & schema.keys():
        return _either(schema[choice])
    kinds = schema.get("type", [])
    words = [_WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    if schema.get("required"):
        bounds.append("with " + " and ".join(map(repr, schema["required"])))
    return " ".join([" or ".join(words) or "another value", *bounds])


def _either(branches: Iterable[Mapping[str, Any]]) -> str:
    """A choice in words; objects that differ in what they require are one word, told by their first members."""
    first = [repr(each["required"][0]) for each in branches if each.get("required")]
    words = [wanted(each) for each in branches if not each.get("required")]
    return " or ".join(dict.fromkeys([*words, *([f"an object with just one of {', '.join(first)}"] if first else [])]))


def _rank(error: ValidationError) -> tuple[int, list[str]]:
    return len(error.absolute_path), [*map(str, error.absolute_path), str(error.validator)]


def _branch(error: ValidationError) -> ValidationError | None:
    """The error of the branch that was meant: the only one of the value's type whose required members are there."""
    branches: dict[Any, list[ValidationError]] = {}
    for each in error.context:
        branches.setdefault(each.schema_path[0], []).append(each)
    meant = [errors for errors in branches.values() if not any(_rules_out(each, error) for each in errors)]
    return min(meant[0], key=_rank) if len(meant) == 1 else None


def _rules_out(each: ValidationError, choice: ValidationError) -> bool:
    here = len(each.absolute_path) == len(choice.absolute_path)
    return here and each.validator in {"type", "required", "enum", "const"}
