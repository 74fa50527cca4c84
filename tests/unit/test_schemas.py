"""The schemas of what passes through AMQP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rota.sched import message, schemas
from rota.sched.errors import NotFound, UsageError
from rota.sched.model import Dispatch
from rota.sched.when import after, cron, every, when_from_json

JOB = {"handler": "send_invoice"}


@pytest.mark.parametrize("name", schemas.names())
def test_every_schema_is_one_and_is_named_after_its_file(name):
    schema = schemas.schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["title"] == name


def test_a_schema_is_a_copy_that_may_be_changed():
    schemas.schema("answer").clear()
    assert schemas.schema("answer")


def test_a_schema_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(UsageError, match=r"no schema 'job\.submi': use one of job\.submit"):
        schemas.schema("job.submi")


@pytest.mark.parametrize(
    "when",
    [
        {"at": "2026-12-01T09:00:00+01:00"},
        {"after": 5},
        {"after": "5m"},
        {"cron": "0 2 * * *"},
        {"cron": "0 2 * * *", "tz": "Europe/Paris", "misfire": "run_latest", "overlap": "skip", "jitter": 30},
        {"cron": "0 2 * * *", "catchup_window": "1h", "catchup_limit": 3, "grace": 5, "dst_gap": "skip"},
        {"every": 30, "jitter": "5s"},
        {"every": 30, "overlap": "buffer_one", "max_runs": 3},
        {"cron": "0 2 * * *", "overlap": "cancel_other", "max_runs": 1},
        {"at": "2026-12-01T09:00:00", "tz": "Europe/Paris"},
        {"every": 30, "start": "2026-12-01T09:00:00Z", "end": "2027-12-01T09:00:00+01:00"},
        {"cron": "0 2 * * *", "exclude": ["2026-12-25"], "end": "2027-12-01T09:00:00Z"},
        None,
    ],
)
def test_every_kind_of_time_passes_and_is_understood(when):
    schemas.check("job.submit", {**JOB, "when": when})
    when_from_json(when)


@pytest.mark.parametrize(
    "when", [after("90s"), cron("0 2 * * *", tz="Asia/Tokyo", jitter=5), every(0.5, overlap="skip")]
)
def test_what_a_time_writes_of_itself_passes(when):
    schemas.check("job.submit", {**JOB, "when": when.to_json()})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("job.submit", {}, "the message lacks 'handler': add it; see `rota schema job.submit`"),
        ("job.submit", [], "the message is []: give an object"),
        ("job.submit", {"handler": "a b"}, "handler is 'a b': give text matching"),
        ("job.submit", {**JOB, "x": 1}, "the message has 'x', which is not known there: use only handler, args"),
        ("job.submit", {**JOB, "args": [1]}, "args is [1]: give an object"),
        ("job.submit", {**JOB, "key": ""}, "key is '': give text of 1 or more characters"),
        ("job.submit", {**JOB, "when": 3}, "when is 3: give null or an object with just one of 'at', 'after', 'cron'"),
        ("job.submit", {**JOB, "when": {}}, "when is {}: give null or an object with just one of"),
        ("job.submit", {**JOB, "when": {"at": 1, "after": 2}}, "when is {'at': 1, 'after': 2}: give null or"),
        ("job.submit", {**JOB, "when": {"at": 5}}, "when.at is 5: give text (RFC 3339"),
        ("job.submit", {**JOB, "when": {"after": -1}}, "when.after is -1: give a number at least 0"),
        ("job.submit", {**JOB, "when": {"every": 0}}, "when.every is 0: give a number at least 0.1"),
        ("job.submit", {**JOB, "when": {"cron": "x", "zone": "y"}}, "when has 'zone', which is not known there"),
        ("job.submit", {**JOB, "when": {"cron": "x", "overlap": "y"}}, "when.overlap is 'y': give one of 'allow'"),
        ("job.cancel", {"id": 5}, "id is 5: give text"),
        ("job.cancel", {"id": "abcd", "running": 1}, "running is 1: give true or false"),
        ("job.redrive", {"runs": ["abcd", 3]}, "runs[1] is 3: give text"),
        ("job.redrive", {"queue": "q", "limit": 0}, "limit is 0: give a whole number at least 1"),
        ("answer", {"ok": False}, "the message lacks 'error': add it"),
        (
            "event",
            {"specversion": "0.3", "id": "i", "source": "s", "type": "run.dead"},
            "specversion is '0.3': give '1.0'",
        ),
    ],
)
def test_what_does_not_fit_is_told_once_with_path_value_and_remedy(name, value, told):
    with pytest.raises(UsageError) as caught:
        schemas.check(name, value)
    assert f"not a {name} message: {told}" in str(caught.value).replace("not an ", "not a ")


def test_a_very_long_value_does_not_make_a_very_long_message():
    with pytest.raises(UsageError) as caught:
        schemas.check("job.submit", {**JOB, "args": "x" * 100_000, "when": ["y" * 100_000]})
    assert len(str(caught.value)) < 500


def test_answers_of_every_kind_pass():
    error = NotFound("no such job")
    for answer in (
        {"ok": True, "job_id": "x", "duplicate": False},
        {"ok": True, "job": True, "runs": 1, "asked": 0, "running": 0},
        {"ok": True, "runs": ["x@t"]},
        {"ok": False, "error": {"code": error.code, "message": str(error)}},
    ):
        schemas.check("answer", answer)


@pytest.mark.parametrize("args", ['{"a":1}', None])
def test_the_work_message_fits_its_schema(args):
    job = "0199c1d2-7b31-7c0e-8000-000000000001"
    body = message.encode(Dispatch(7, job, "2026-11-30T02:00:00.000000Z", "q", "h", None, args))
    schemas.check("work", {"v": 1, **message.decode(body)._asdict()})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["handler", "when", "at", "cron", "every", "runs", "id", "ok", "v"]), inner)
    ),
    max_leaves=8,
)


@given(st.sampled_from(schemas.names()), anything)
def test_any_value_either_passes_or_is_refused_as_usage(name, value):
    try:
        schemas.check(name, value)
    except UsageError:
        return
    assert Draft202012Validator(schemas.schema(name)).is_valid(value)
