"""The work message between schedulers and workers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.message import Work, decode, encode
from rota.sched.model import Dispatch

JOB, TICK = "0199c1d2-7b31-7c0e-8000-000000000001", "2026-11-30T02:00:00.000000Z"
GOOD = {"v": 1, "job_id": JOB, "scheduled_for": TICK, "dispatch": 7, "handler": "h", "args": {}, "tenant": None}

args = st.none() | st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()))
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.integers(1, 2**63 - 1), text, args, st.none() | text)
def test_what_is_encoded_is_decoded(number, handler, values, tenant):
    kept = None if values is None else json.dumps(values)
    body = encode(Dispatch(number, JOB, TICK, "q", handler, tenant, kept))
    assert decode(body) == Work(JOB, TICK, number, handler, values, tenant)


@pytest.mark.parametrize("field", GOOD)
def test_a_message_without_a_field_is_refused(field):
    with pytest.raises(UsageError):
        decode(json.dumps({name: value for name, value in GOOD.items() if name != field}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"job_id": "x"},
        {"job_id": JOB.upper()},
        {"scheduled_for": "2026-11-30T02:00:00Z"},
        {"scheduled_for": "2026-13-30T02:00:00.000000Z"},
        {"dispatch": "7"},
        {"dispatch": True},
        {"dispatch": 0},
        {"dispatch": 1 << 63},
        {"handler": 1},
        {"args": []},
        {"tenant": 5},
    ],
)
def test_a_field_of_a_wrong_type_or_form_is_refused(change):
    with pytest.raises(UsageError):
        decode(json.dumps({**GOOD, **change}).encode())


@given(st.binary(max_size=50))
def test_bytes_that_are_no_message_are_refused_as_usage(body):
    with pytest.raises(UsageError):
        decode(body)


def test_a_message_nested_without_end_is_refused_as_usage():
    with pytest.raises(UsageError):
        decode(b"[" * 100_000)


def test_fields_of_later_versions_are_ignored():
    assert decode(json.dumps({**GOOD, "later": 1}).encode()).dispatch == 7
