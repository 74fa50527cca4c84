"""When a failed attempt is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.policy import Policy, Retry, policy

fraction = st.floats(0, 1, exclude_max=True)


def test_durations_may_be_text():
    assert Retry(base="2s", cap="1h") == Retry(base=2, cap=3600)


def test_the_pause_doubles_up_to_the_cap():
    retry = Retry(base=2, cap=60)
    assert [retry.delay(n, 0.0) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


@given(st.integers(-5, 10_000), fraction, st.floats(0, 1e6), st.floats(0, 1e6))
def test_every_pause_lies_in_the_upper_half_of_its_step(failures, random, base, more):
    retry = Retry(base=base, cap=base + more)
    step = min(retry.cap, base * 2.0 ** min(max(failures, 1) - 1, 64))
    assert step / 2 <= retry.delay(failures, random) <= step


@given(st.integers(1, 5000), fraction)
def test_more_failures_never_make_a_shorter_pause(failures, random):
    assert Retry().delay(failures + 1, random) >= Retry().delay(failures, random)


@pytest.mark.parametrize("attempts", [0, -1, True, 2.5, "3", None])
def test_attempts_are_a_number_from_one_on(attempts):
    with pytest.raises(UsageError, match="Retry attempts is"):
        Retry(attempts=attempts)


@pytest.mark.parametrize(
    ("options", "told"), [({"base": -1}, "base"), ({"cap": "x"}, "cap"), ({"base": 9, "cap": 5}, "below")]
)
def test_pauses_that_make_no_sense_are_refused(options, told):
    with pytest.raises(UsageError, match=told):
        Retry(**options)


def test_exceptions_are_tried_again_by_class():
    retry = Retry(on=(OSError, ValueError), never=ConnectionError)
    assert [retry.wants(error) for error in (OSError(), ValueError(), KeyError(), ConnectionResetError())] == [
        True,
        True,
        False,
        False,
    ]
    assert Retry().wants(SystemExit())


@pytest.mark.parametrize("wrong", ["ValueError", (ValueError, "x"), int, 3])
def test_what_is_no_exception_class_is_refused(wrong):
    with pytest.raises(UsageError, match="Retry on is"):
        Retry(on=wrong)


def test_the_window_ends_attempts_that_would_come_too_late():
    assert [Retry(retry_for="1m").over(age) for age in (0.0, 60.0, 60.5)] == [False, False, True]
    assert not Retry().over(1e9)


def test_a_jobs_numbers_replace_its_handlers_and_leave_its_exceptions():
    handlers = Retry(attempts=3, base=10, cap=20, never=ValueError)
    assert policy().retrying(handlers) is handlers
    assert policy(Retry(attempts=9)).retrying(handlers) == Retry(attempts=9, never=ValueError)
    assert policy({"attempts": 9}).retrying(handlers) == Retry(attempts=9, base=10, cap=20, never=ValueError)
    assert policy({"cap": 5}).retrying(handlers) == Retry(attempts=3, base=5, cap=5, never=ValueError)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "retry": st.fixed_dictionaries(
                {}, optional={"attempts": st.integers(1, 99), "retry_for": st.floats(1, 1e6)}
            ),
            "timeout": st.floats(0.1, 1e6),
            "expires": st.floats(0.1, 1e6),
        },
    )
)
def test_a_policy_survives_json(asked):
    assert Policy.from_json(Policy.from_json(asked).to_json()) == Policy.from_json(asked)
    assert bool(Policy.from_json(asked)) == bool(asked)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"timeout": 0}, "timeout"),
        ({"expires": "soon"}, "expires"),
        ({"retry": {"attempts": 0}}, "attempts"),
        ({"retry": {"times": 3}}, "retry"),
        ({"deadline": 3}, "deadline"),
        ({"retry": Retry(never=ValueError)}, "never"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(asked, told):
    with pytest.raises(UsageError, match=told):
        Policy.from_json(asked)
