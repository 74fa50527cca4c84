"""When a failed attempt is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.policy import Retry

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
