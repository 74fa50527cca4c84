"""The signals that ask a process to end: raised, ignored or put off for a while."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class Interrupted(BaseException):
    """A signal that asks us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP raise `Interrupted`."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(handle):
        yield


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """While inside, the same signals are ignored: cleaning up is bounded and must not be cut short."""
    with _handled(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """While inside, the same signals wait; they are delivered on leaving. A started process is not left unrecorded."""
    arrived: list[int] = []
    with _handled(lambda number, _frame: arrived.append(number)):
        yield
    for number in arrived:
        signal.raise_signal(number)


@contextlib.contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
