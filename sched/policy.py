"""When a failed attempt is tried again, and what a single job asks for itself. Pure: the random number is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.sched.durations import seconds
from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    Duration = float | str | timedelta

_LARGEST_EXPONENT = 64

Errors = tuple[type[BaseException], ...]
NUMBERS = ("attempts", "base", "cap", "retry_for")
"""The fields of a Retry that JSON can have."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter, and what ends it.

    `attempts` counts executions: after the last one the run is dead. The pause after the n-th failure is drawn from the
    upper half of `base * 2**(n-1)`, at most `cap`. `retry_for`: no attempt begins later than that after the run was due.
    Durations are seconds or text such as `90s`, `5m`, `1h`.

    `on`: only these exceptions are tried again; `never`: these are not. What is not tried again is dead at once. They are
    classes, so they belong to handlers: what a job asks for itself leaves its handler's in force.
    """

    attempts: int = 5
    base: float | str = 2.0
    cap: float | str = 3600.0
    retry_for: float | str | None = None
    on: Errors = (BaseException,)
    never: Errors = ()

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise UsageError(f"Retry attempts is {self.attempts!r}: give the number of executions, 1 or more")
        base, cap = seconds(self.base, "Retry base"), seconds(self.cap, "Retry cap")
        if cap < base:
            raise UsageError(f"Retry cap is {self.cap!r}: it must not be below base {self.base!r}")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "cap", cap)
        object.__setattr__(self, "retry_for", positive(self.retry_for, "Retry retry_for"))
        for name in ("on", "never"):
            object.__setattr__(self, name, _classes(getattr(self, name), name))

    def delay(self, failures: int, random: float) -> float:
        """Seconds to wait after `failures` failed attempts (1 or more); `random` in [0, 1)."""
        assert isinstance(self.base, float)
        assert isinstance(self.cap, float)
        exponent = min(max(failures, 1) - 1, _LARGEST_EXPONENT)
        return min(self.cap, self.base * 2.0**exponent) * (0.5 + random / 2)

    def wants(self, error: BaseException) -> bool:
        """Whether this error is one to be tried again."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def over(self, age: float) -> bool:
        """Whether an attempt that would begin `age` seconds after the run was due comes too late."""
        return isinstance(self.retry_for, float) and age > self.retry_for

    def numbers(self) -> dict[str, Any]:
        """All but the exceptions, as JSON has it."""
        return {name: getattr(self, name) for name in NUMBERS if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class Policy:
    """What one job asks for itself, instead of its handler's. None where it asks for nothing.

    retry: some of the numbers of a `Retry`; timeout: seconds of each attempt; expires: a run may not begin later than so
    many seconds after it was due.
    """

    retry: Mapping[str, Any] | None = None
    timeout: float | None = None
    expires: float | None = None

    def __bool__(self) -> bool:
        return self != NO_POLICY

    def to_json(self) -> dict[str, Any]:
        """What it asks for; the store keeps it and `from_json` reads it."""
        found = {"retry": self.retry, "timeout": self.timeout, "expires": self.expires}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Policy:
        """The policy that `to_json` wrote, or that a command has. UsageError for what is none."""
        value = value or {}
        if unknown := set(value) - {"retry", "timeout", "expires"}:
            raise UsageError(f"unknown word {min(unknown)!r} in a job's policy: retry, timeout and expires are known")
        return policy(**value)

    def retrying(self, handlers: Retry) -> Retry:
        """What is in force for a handler with a policy of its own: the job's numbers, the handler's exceptions."""
        if not self.retry:
            return handlers
        numbers = {**handlers.numbers(), **self.retry}
        numbers["base"] = min(numbers["base"], numbers["cap"])
        return Retry(**numbers, on=handlers.on, never=handlers.never)


NO_POLICY = Policy()
"""Of a job that asks for nothing."""


def policy(
    retry: Retry | Mapping[str, Any] | None = None, timeout: Duration | None = None, expires: Duration | None = None
) -> Policy:
    """A job's own policy from what a user gives. Raises UsageError for what cannot be meant."""
    if retry is None and timeout is None and expires is None:
        return NO_POLICY
    return Policy(_numbers(retry), positive(timeout, "timeout"), positive(expires, "expires"))


def _numbers(retry: object) -> dict[str, Any] | None:
    if retry is None:
        return None
    if isinstance(retry, Retry):
        if retry.never or retry.on != (BaseException,):
            raise UsageError(
                "a job's retry cannot name exceptions (on, never), which are classes: give them to its handler"
            )
        return retry.numbers()
    if not isinstance(retry, dict) or set(retry) - set(NUMBERS):
        raise UsageError(f"retry is {retry!r:.200}: give Retry(...), or some of {', '.join(NUMBERS)}")
    checked = Retry(**{"cap": max(seconds(retry.get("base", 0), "Retry base"), 3600.0), **retry}).numbers()
    return {name: checked[name] for name in retry}


def positive(value: Duration | None, what: str) -> float | None:
    """A duration above zero in seconds, or None. UsageError for anything else."""
    if value is None:
        return None
    found = seconds(value, what)
    if found == 0:
        raise UsageError(f"{what} is {value!r}: give more than 0 seconds, or leave it out")
    return found


def _classes(value: object, name: str) -> Errors:
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in found):
        raise UsageError(f"Retry {name} is {value!r:.100}: give an exception class, or several in a tuple")
    return found
