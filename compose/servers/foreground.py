"""A command in the foreground, ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from servers import signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATIENCE = 30.0  # seconds that a command has to clean up after it was asked to end


def run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the command and return its exit status; a signal that we get is passed on to it, once each.

    The command has a process group of its own, and the terminal if there is one: a ctrl-C reaches it once and
    directly. What is left of the group when it has ended is killed.
    """
    child = subprocess.Popen(command, env=dict(env), process_group=0)
    with _terminal_of(child.pid):
        try:
            return _wait(child)
        finally:
            _kill_group(child)


def _wait(child: subprocess.Popen[bytes]) -> int:
    deadline = None
    while True:
        try:
            with signals.raised():
                return _exit_status(child, deadline)
        except signals.Interrupted as interrupted:
            deadline = deadline or time.monotonic() + PATIENCE
            child.send_signal(interrupted.status - 128)


def _exit_status(child: subprocess.Popen[bytes], deadline: float | None) -> int:
    while (status := child.poll()) is None:
        if deadline is not None and time.monotonic() > deadline:
            child.kill()
        if _is_stopped(child.pid):
            os.killpg(child.pid, signal.SIGCONT)  # a ctrl-Z would leave the terminal with nobody to give it back
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
    return status if status >= 0 else 128 - status


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] == "T"
    return False


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _terminal_of(group: int) -> Iterator[None]:
    """Give the terminal to that process group while inside, if it is ours to give."""
    if not _owns_terminal():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, group)
        os.killpg(group, signal.SIGCONT)
        yield
    finally:
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _owns_terminal() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
