"""What the end of a handler means."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.app import App, Cancel, NoRetry, RetryAfter, Snooze
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey, new_job_id
from rota.sched.message import Work
from rota.sched.policy import Retry, policy
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


# A handler's policy about its errors, and a job's own.


@app.handler(retry=Retry(attempts=3, retry_for=60, on=OSError, never=ConnectionError))
def choosy() -> None:
    """Tries some errors again."""


def a_choosy_attempt(number=1, **more):
    attempt = an_attempt(number, **more)
    attempt.handler = choosy
    return attempt


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError("x"), "retry"), (ValueError("x"), "dead"), (ConnectionResetError("x"), "dead"), (RetryAfter(5), "retry")],
)
def test_errors_are_tried_again_by_their_class(error, kind):
    verdict = judge(a_choosy_attempt(), None, raised(error), 0)
    assert verdict.kind == kind
    assert kind == "retry" or "does not retry" in verdict.reason


def test_no_attempt_begins_after_the_window():
    assert judge(a_choosy_attempt(age=50.0), None, raised(OSError()), 0, elapsed=8.0).kind == "retry"
    verdict = judge(a_choosy_attempt(age=50.0), None, raised(OSError("no")), 0, elapsed=9.5)
    assert verdict.kind == "dead"
    assert "later than 60 s after it was due; the last of 1 failed with OSError: no" in verdict.reason
    assert judge(a_choosy_attempt(), None, raised(RetryAfter(61)), 0).kind == "dead"


def test_a_jobs_own_numbers_and_timeout_are_in_force():
    attempt = a_choosy_attempt(3, policy=policy({"attempts": 4}, timeout=7))
    assert attempt.timeout == 7
    assert judge(attempt, None, raised(OSError()), 0).kind == "retry"
    assert judge(attempt, None, raised(ConnectionError()), 0).kind == "dead"


@pytest.mark.parametrize("number", [1, 46, 47, 63, 64, 1023, 1024, 100_000])
def test_a_pause_is_clamped_at_any_attempt(number):
    attempt = an_attempt(number, policy=policy(Retry(attempts=1_000_000, base=1, cap="1h")))
    verdict = judge(attempt, None, raised(OSError()), 1 - 1e-9)
    assert verdict.seconds <= 3600
    assert number < 13 or verdict.seconds > 3599


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("in the middle"), NoRetry("never")])
def test_what_was_asked_to_stop_and_stops_is_cancelled(error):
    verdict = judge(an_attempt(cancelled=True), None, raised(error), 0)
    assert verdict.kind == "cancelled"
    assert (verdict.error is None) == isinstance(error, asyncio.CancelledError)


def test_what_was_asked_to_stop_and_returns_has_succeeded():
    assert judge(an_attempt(cancelled=True), 7, None, 0).kind == "succeeded"


@pytest.mark.parametrize("kind", [ValueError, NoRetry, Cancel])
def test_secrets_are_not_kept(kind):
    error = raised(
        kind("cannot reach amqp://me:hush@broker/ with password='hush' nor token: hush, Authorization: Bearer hush")
    )
    verdict = judge(an_attempt(3), None, error, 0)
    assert "hush" not in verdict.reason
    assert "amqp://me:***@broker/" in verdict.reason
    told = json.loads(describe(3, error))
    assert "hush" not in told["message"]
    assert "amqp://me:***@broker/" in told["traceback"]
    assert "hush" not in told["traceback"].rpartition("cannot reach")[2]


@pytest.mark.parametrize("kind", [ValueError, NoRetry, Cancel])
def test_what_is_kept_of_an_error_is_bounded(kind):
    error = raised(type("N" * 100_000, (kind,), {})("x" * 1_000_000))
    verdict = judge(an_attempt(3), None, error, 0)
    assert verdict.reason.count("x") >= 2000
    assert len(verdict.reason) < 3000
    assert len(describe(3, error)) < 10_000
