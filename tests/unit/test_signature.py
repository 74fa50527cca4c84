"""What a handler's signature says of its arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Union  # noqa: UP035 - users write these too

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rota.sched import context  # noqa: TC002 - annotations of handlers are read at run time
from rota.sched.app import App
from rota.sched.errors import UsageError
from rota.sched.signature import args_schema, check_args, parameters, surely_fits, wants_context

if TYPE_CHECKING:
    from decimal import Decimal

    from rota.sched.context import Context
    from somewhere import Nothing


def schema_of(function):
    return args_schema(function, parameters(function, "h"))


def test_the_context_is_the_first_parameter_by_name_or_annotation():
    def by_name(ctx, n): ...
    def by_annotation(run: context.Context): ...
    def seen_by_type_checkers_only(run: Context): ...
    def not_first(n, other): ...
    def nothing(): ...

    assert [wants_context(f) for f in (by_name, by_annotation, seen_by_type_checkers_only)] == [True] * 3
    assert [wants_context(f) for f in (not_first, nothing)] == [False] * 2


class Elsewhere:
    class Context: ...


def test_a_context_of_another_library_is_an_argument():
    def click(c: Elsewhere.Context): ...

    assert not wants_context(click)


def test_the_context_is_not_among_the_arguments():
    def f(ctx: Context, n: int): ...

    assert list(schema_of(f)["properties"]) == ["n"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, /): ...",
        "def f(*a): ...",
        "def f(a, *, ctx): ...",
        "def f(*, ctx): ...",
        "def f(ctx, a, /, b): ...",
        "def f(a, ctx): ...",
    ],
)
def test_parameters_that_named_arguments_cannot_reach_are_refused(text):
    scope: dict = {}
    exec(text, scope)
    with pytest.raises(UsageError, match=r"handler h: parameter '(a|ctx)'"):
        parameters(scope["f"], "h")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (list, {"type": "array"}),
        (List, {"type": "array"}),  # noqa: UP006
        (dict, {"type": "object"}),
        (Dict, {"type": "object"}),  # noqa: UP006
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (dict[int, bool], {}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | Any, {}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),  # noqa: PYI061 - users write it
        (Literal[b"a"], {}),
        (Any, {}),
        (object, {}),
        (Elsewhere, {}),
        ("list[int]", {"type": "array", "items": {"type": "integer"}}),
        ("not python at all", {}),
    ],
)
def test_annotations_become_json_schema(annotation, expected):
    def f(a): ...

    f.__annotations__["a"] = annotation
    schema = schema_of(f)
    assert schema["properties"]["a"] == expected
    Draft202012Validator.check_schema(json.loads(json.dumps(schema)))


def test_one_name_that_is_not_there_at_run_time_does_not_hide_the_others():
    def f(ctx: Context, n: int, d: Decimal, x: Nothing): ...

    assert schema_of(f)["properties"] == {"n": {"type": "integer"}, "d": {}, "x": {}}


def test_defaults_make_a_parameter_optional_and_double_star_lets_others_in():
    def f(a, b=1, *, c, d=None): ...
    def g(a, **more): ...

    assert schema_of(f)["required"] == ["a", "c"]
    assert schema_of(f)["additionalProperties"] is False
    assert schema_of(g) == {
        "type": "object",
        "properties": {"a": {}},
        "required": ["a"],
        "additionalProperties": True,
    }


app = App("billing")


@app.handler
def send(ctx, invoice_id: int, to: list[str] | None = None, how: Literal["mail", "fax"] = "mail", extra: Any = None):
    """A handler."""


@app.handler
def free(a: int, **more: Any):
    """A handler."""


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "handler send: missing a required argument: 'invoice_id': it takes invoice_id"),
        ((1,), {"x": 1}, "handler send: got an unexpected keyword argument 'x': it takes"),
        ((1, [], "fax", 0, 0), {}, "handler send: too many positional arguments"),
        (("7",), {}, r"argument send\.invoice_id is '7': give a whole number"),
        ((True,), {}, r"argument send\.invoice_id is True: give a whole number"),
        ((1, ["a", 2]), {}, r"argument send\.to\[1\] is 2: give text"),
        ((1, "a"), {}, r"argument send\.to is 'a': give a list or null"),
        ((1, None, "post"), {}, r"argument send\.how is 'post': give one of 'mail', 'fax'"),
        ((1,), {"extra": {"a": [object]}}, r"argument send\.extra\.a\[0\] is <class 'object'>, a type: .*JSON values"),
        ((1,), {"extra": (1, 2)}, r"argument send\.extra is \(1, 2\), a tuple: .*pass list"),
        ((1,), {"extra": [float("inf")]}, r"argument send\.extra\[0\] is inf"),
        ((1,), {"extra": {1: 2}}, r"argument send\.extra has the key 1"),
        ((1,), {"extra": b"x"}, r"argument send\.extra is b'x', a bytes"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_argument_value_and_remedy(args, kwargs, told):
    with pytest.raises(UsageError, match=told):
        send.call(*args, **kwargs)


def test_arguments_nested_without_end_are_refused():
    value: list = []
    value.append(value)
    with pytest.raises(UsageError, match="nested deeper"):
        send.call(1, extra=value)


def test_other_arguments_of_a_handler_that_takes_any_are_flat():
    assert free.call(1, b=2, c=[3]).args == {"a": 1, "b": 2, "c": [3]}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, "handler send needs the argument 'invoice_id': give it"),
        ({"invoice_id": 1, "b": 2}, "handler send has no argument 'b': leave it out"),
        ({"invoice_id": "x"}, r"argument send\.invoice_id is 'x': give a whole number"),
        ({"invoice_id": 1, "to": [None]}, r"argument send\.to\[0\] is None: give text"),
    ],
)
def test_arguments_that_came_from_elsewhere_are_checked_against_the_schema(args, told):
    with pytest.raises(UsageError, match=told):
        check_args(send.schema, args, "send")


def test_a_schema_survives_the_store():
    check_args(json.loads(json.dumps(send.schema)), {"invoice_id": 1, "to": ["a"]}, "send")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_any_json_value_passes_unchanged_where_anything_is_taken(value):
    args = send.call(1, extra=value).args
    assert json.loads(json.dumps(args)) == {"invoice_id": 1, "extra": value}


@given(values)
def test_a_value_is_either_taken_or_refused_as_usage(value):
    try:
        args = send.call(value, value, value).args
    except UsageError:
        return
    check_args(send.schema, args, "send")


def shapes(
    a: int,
    b: float = 0,
    c: str | None = None,
    d: bool = False,  # noqa: FBT001, FBT002 - users write these too
    e: list[int] | None = None,
    f: dict[str, float | str] = {},  # noqa: B006 - users write these too
    g: list[dict[str, list[bool]]] = [],  # noqa: B006
    h: Literal["x", 1] = 1,
    i: list = [],  # noqa: B006
    j: Any = None,
): ...


plain = st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 3) | st.sampled_from("xy")
fitting = (
    plain | st.lists(plain, max_size=2) | st.dictionaries(st.sampled_from("kl"), plain | st.lists(plain), max_size=2)
)


@given(st.dictionaries(st.sampled_from("abcdefghijk"), fitting, max_size=5))
def test_what_surely_fits_does(args):
    schema = schema_of(shapes)
    valid = Draft202012Validator(schema).is_valid(args)
    assert valid or not surely_fits(schema)(args)


def test_usual_arguments_are_known_to_fit_at_a_glance():
    fits = surely_fits(schema_of(shapes))
    assert fits({"a": 1})
    assert fits(
        {"a": 1, "b": 1.5, "c": None, "d": True, "e": [1, 2], "f": {"k": "v", "l": 1.0}, "g": [{"k": [True]}], "i": [0]}
    )
    assert not fits({})
    assert not fits({"a": True})
    assert not fits({"a": 1, "k": 1})
    assert not fits({"a": 1, "e": ["x"]})
