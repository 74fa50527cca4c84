"""The confirmed watermark: the number up to which all of a scheduler's dispatches are confirmed by the broker.

When a scheduler dies, what it claimed and never confirmed lies above its watermark, and only that is published again.
The watermark is never read off the sequence: numbers commit out of order, and other members draw from it too.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Watermark:
    """Numbers come in ascending order (one claim at a time) and are confirmed in any. The heartbeat's thread reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, None] = {}
        self._highest = 0

    def add(self, numbers: Iterable[int]) -> None:
        """Dispatches that were claimed, ascending, before any of them is published."""
        with self._lock:
            for number in numbers:
                self._open[number] = None
                self._highest = number

    def confirm(self, number: int) -> None:
        """The broker has stored this one."""
        with self._lock:
            self._open.pop(number, None)

    @property
    def value(self) -> int:
        """Everything up to here is confirmed."""
        with self._lock:
            return next(iter(self._open)) - 1 if self._open else self._highest
