"""What the end of a handler means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.app import App, Cancel, NoRetry, RetryAfter, Snooze
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey, new_job_id
from rota.sched.message import Work
from rota.sched.policy import Retry
from rota.workers.attempt import RESULT_LIMIT, Attempt, Job, clean, clean_json, describe, judge

TICK = "2026-01-01T00:00:00.000000Z"
app = App("tests")


@app.handler(retry=Retry(attempts=3, base=10, cap=15))
def work() -> None:
    """A handler."""


def an_attempt(number=1, **more):
    job_id = new_job_id()
    job = Job(None, Work(job_id, TICK, 1, "work", {}, None), RunKey(job_id, TICK), "tests", 0.0, b"")
    return Attempt(job, 1, number, 0, work, {}, 0.0, **more)


def raised(error):
    """The error with a traceback, as a worker catches it."""

    def handler():
        raise error

    with pytest.raises(type(error)) as caught:
        handler()
    return caught.value


def test_what_a_handler_returns_is_the_result():
    assert judge(an_attempt(), {"n": 1}, None, 0) == ("succeeded", None, '{"n": 1}', None, 0.0)
    assert judge(an_attempt(), None, None, 0).result is None


def test_a_result_set_before_goes_over_the_returned_one():
    assert judge(an_attempt(result=("set",)), "returned", None, 0).result == '"set"'
    assert judge(an_attempt(result=(None,)), "returned", None, 0).result is None


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), float("inf"), {(1, 2): 3}, b"x"])
def test_a_result_that_is_no_json_is_left_out_and_the_run_has_succeeded(value):
    verdict = judge(an_attempt(), value, None, 0)
    assert (verdict.kind, verdict.result) == ("succeeded", None)
    assert "no JSON" in verdict.reason


def test_a_result_that_contains_itself_is_left_out():
    loop = []
    loop.append(loop)
    assert judge(an_attempt(), loop, None, 0).kind == "succeeded"


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_result_over_the_limit_of_bytes_is_left_out(letter):
    size = len(letter.encode())
    fits = letter * ((RESULT_LIMIT - 2) // size)
    assert judge(an_attempt(), fits, None, 0).result is not None
    verdict = judge(an_attempt(), fits + letter, None, 0)
    assert verdict.result is None
    assert "bytes" in verdict.reason


def test_a_failure_is_retried_by_the_policy():
    verdict = judge(an_attempt(2), None, raised(ValueError("bad")), 0.5)
    assert verdict.kind == "retry"
    assert verdict.reason == "ValueError: bad"
    assert verdict.seconds == work.retry.delay(2, 0.5)
    error = json.loads(verdict.error)
    assert (error["attempt"], error["type"], error["message"]) == (2, "ValueError", "bad")
    assert "raise error" in error["traceback"]


@pytest.mark.parametrize("error", [ValueError("bad"), RetryAfter(3), SystemExit(1), KeyboardInterrupt()])
def test_a_failure_of_the_last_attempt_is_dead(error):
    verdict = judge(an_attempt(3), None, raised(error), 0)
    assert verdict.kind == "dead"
    assert verdict.reason.startswith("3 attempts failed, the last with ")
    assert json.loads(verdict.error)["attempt"] == 3


@pytest.mark.parametrize(
    ("error", "kind", "reason", "seconds"),
    [
        (NoRetry("no such user"), "dead", "no such user", 0),
        (NoRetry(), "dead", "not to be retried", 0),
        (Cancel("not needed"), "cancelled", "not needed", 0),
        (Cancel(), "cancelled", "cancelled by its handler", 0),
        (Snooze("5m"), "snooze", None, 300),
        (RetryAfter("1h"), "retry", "RetryAfter: failed; again in 3600 s", 3600),
        (Superseded("taken away"), "superseded", None, 0),
    ],
)
def test_a_signal_decides(error, kind, reason, seconds):
    verdict = judge(an_attempt(), None, raised(error), 0)
    assert (verdict.kind, verdict.reason, verdict.seconds) == (kind, reason, seconds)
    assert (verdict.error is None) == (kind not in {"dead", "retry"})


def test_a_snooze_of_the_last_attempt_is_still_a_snooze():
    assert judge(an_attempt(3), None, raised(Snooze(1)), 0).kind == "snooze"


@pytest.mark.parametrize("error", [None, ValueError("after the commit"), NoRetry(), Superseded("s")])
def test_what_its_transaction_has_completed_is_completed(error):
    assert judge(an_attempt(completed=True), 1, error, 0) == ("completed", None, None, None, 0.0)


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_that_cannot_be_printed_is_an_error_all_the_same():
    verdict = judge(an_attempt(), None, raised(UnprintableError()), 0)
    assert verdict.kind == "retry"
    assert json.loads(verdict.error)["type"] == "UnprintableError"


def test_a_long_error_is_kept_within_bounds():
    entry = describe(1, raised(ValueError("x" * 100_000)))
    assert len(entry) < 10_000


@given(st.text())
def test_what_is_kept_is_text_that_postgres_can_store(text):
    kept = clean(text)
    kept.encode()
    assert "\x00" not in kept
    verdict = judge(an_attempt(), None, raised(ValueError(text)), 0)
    assert "\\u0000" not in verdict.error
    verdict.error.encode()


@given(st.text())
def test_a_result_is_json_that_jsonb_can_store(text):
    kept = judge(an_attempt(), [text], None, 0).result
    kept.encode()
    (back,) = json.loads(kept)
    assert "\x00" not in back
    if "\x00" not in text and text.isprintable():
        assert back == text


def test_a_backslash_before_u0000_is_no_nul():
    assert json.loads(clean_json(json.dumps("\\u0000"))) == "\\u0000"
