"""When a failed attempt is tried again. Pure: the random number is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from rota.sched.durations import seconds
from rota.sched.errors import UsageError

_LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter.

    `attempts` counts executions: after the last one the run is dead. The pause after the n-th failure is drawn from the
    upper half of `base * 2**(n-1)`, at most `cap`; `base` and `cap` are seconds or text such as `90s`, `5m`, `1h`.
    """

    attempts: int = 5
    base: float | str = 2.0
    cap: float | str = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise UsageError(f"Retry attempts is {self.attempts!r}: give the number of executions, 1 or more")
        base, cap = seconds(self.base, "Retry base"), seconds(self.cap, "Retry cap")
        if cap < base:
            raise UsageError(f"Retry cap is {self.cap!r}: it must not be below base {self.base!r}")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "cap", cap)

    def delay(self, failures: int, random: float) -> float:
        """Seconds to wait after `failures` failed attempts (1 or more); `random` in [0, 1)."""
        assert isinstance(self.base, float)
        assert isinstance(self.cap, float)
        exponent = min(max(failures, 1) - 1, _LARGEST_EXPONENT)
        return min(self.cap, self.base * 2.0**exponent) * (0.5 + random / 2)
