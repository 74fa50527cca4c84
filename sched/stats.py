"""A member's figures: counters of the store's day and histograms of lags, written with each heartbeat.

`rota status` adds the members' figures up, so its totals never come from counting rows. The histograms have buckets
that grow by a fifth, and two windows that take turns, so percentiles are those of the last five to ten minutes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Lag = Literal["schedule", "queue", "run"]
LAGS: tuple[Lag, ...] = ("schedule", "queue", "run")

_STEP = math.log(1.2)
_FIRST = 0.0005  # seconds: the end of the first bucket
WINDOW = 300.0


def bucket(seconds: float) -> int:
    """The bucket of a lag; 0 holds everything up to half a millisecond."""
    return 0 if seconds <= _FIRST else math.ceil(math.log(seconds / _FIRST) / _STEP)


def upper(number: int) -> float:
    """The largest lag of a bucket, in seconds."""
    return _FIRST * math.exp(_STEP * number)


Refusal = Literal["claim", "begin", "finish", "retry", "transaction", "heartbeat"]
REFUSALS: tuple[Refusal, ...] = ("claim", "begin", "finish", "retry", "transaction", "heartbeat")
"""What a store refuses of a member that was taken for dead, or of an attempt whose run has gone on without it."""


COUNTERS = ("ended", "superseded", "republished")
"""The counters of a day."""
REPUBLISHED = ("returned", "nacked", "unknown")
"""How a publish can end that has to be repeated."""


class Stats:
    """Thread-safe. Counters are since the start of the day; what day it is (UTC) the store tells with each heartbeat."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._day: str | None = None
        self._counters: dict[str, Counter[str]] = {name: Counter() for name in COUNTERS}
        self._highest = 0
        self._told: Mapping[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._turned = time.monotonic()
        self._windows: list[dict[str, Counter[int]]] = [self._window(), self._window()]

    @staticmethod
    def _window() -> dict[str, Counter[int]]:
        return {lag: Counter() for lag in LAGS}

    def ended(self, outcome: str, n: int = 1) -> None:
        """Runs came to an end, or (retry, snooze, release) to an end for now."""
        if n:
            with self._lock:
                self._counters["ended"][outcome] += n

    def superseded(self, what: Refusal, n: int = 1) -> None:
        """Writes that came too late: somebody else has the run, or this member was taken for dead."""
        with self._lock:
            self._counters["superseded"][what] += n

    def republished(self, outcome: str) -> None:
        """A publish was not confirmed: it came back, was refused, or nobody knows."""
        with self._lock:
            self._counters["republished"][outcome] += 1

    def seen(self, numbers: Iterable[int]) -> bool:
        """Numbers that the store has given just now, to this process; False if it has given higher ones before."""
        numbers = list(numbers)
        with self._lock:
            rising = min(numbers, default=self._highest) >= self._highest
            self._highest = max(self._highest, *numbers, 0)
        return rising

    def told(self, figures: Mapping[str, Any], day: str) -> None:
        """The store has taken these figures, on this day of its own."""
        with self._lock:
            self._told = figures
            if self._day not in {None, day}:
                self._forget_told()
            self._day = day

    def rejoin(self) -> None:
        """The process goes on under a new id: what the row of the old one has is not to be counted twice."""
        with self._lock:
            self._forget_told()

    def _forget_told(self) -> None:
        for name, counter in self._counters.items():
            counter.subtract(self._told.get(name, {}))
        self._told = {}

    def observe(self, lag: Lag, seconds: Iterable[float]) -> None:
        """Lags: schedule is claim after due, queue is begin after claim, run is the handler's time."""
        buckets = [bucket(each) for each in seconds]
        with self._lock:
            self._windows[0][lag].update(buckets)

    def set(self, name: str, value: Any) -> None:
        """A value as it is now."""
        with self._lock:
            self._values[name] = value

    def to_json(self) -> dict[str, Any]:
        """Everything, for the member row."""
        with self._lock:
            if time.monotonic() - self._turned > WINDOW:
                self._turned = time.monotonic()
                self._windows = [self._window(), self._windows[0]]
            lag = {
                name: {str(k): v for k, v in (self._windows[0][name] + self._windows[1][name]).items()} for name in LAGS
            }
            counters = {name: {k: n for k, n in counter.items() if n} for name, counter in self._counters.items()}
            day = {} if self._day is None else {"day": self._day}
            return {**day, **counters, "lag": lag, "highest": self._highest, **self._values}


def percentiles(figures: Iterable[Mapping[str, Any]], lag: Lag) -> dict[str, float | None]:
    """p50 and p99 (seconds) of a lag over the figures of several members; None where there is nothing."""
    total: Counter[int] = Counter()
    for each in figures:
        total.update({int(k): int(v) for k, v in each.get("lag", {}).get(lag, {}).items()})
    return {"p50": _quantile(total, 0.5), "p99": _quantile(total, 0.99)}


def _quantile(histogram: Counter[int], share: float) -> float | None:
    count = sum(histogram.values())
    seen = 0
    for number in sorted(histogram):
        seen += histogram[number]
        if seen >= share * count:
            return round(upper(number), 6)
    return None
