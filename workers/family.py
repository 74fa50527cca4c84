"""Several worker processes under one parent: spawned, each a member of its own, and none outlives the parent."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rota.sched.lifecycle import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnProcess
    from multiprocessing.process import BaseProcess

    from rota.sched.settings import Settings

log = logging.getLogger(__name__)


def run_children(settings: Settings, child: Callable[[Settings], int]) -> int:
    """Runs `settings.processes` workers; one that ends by itself is replaced. Returns 0 after a drain of all.

    `child` is what each process calls: a function at the top of a module, as spawning needs.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    children = [_spawn(settings, child) for _ in range(settings.processes)]
    backoff = Backoff(0.5, 30.0)
    while not stopping.wait(0.2):
        for n, process in enumerate(children):
            if process.exitcode is not None:
                log.error("worker process %s ended with %s; starting another", process.pid, process.exitcode)
                if stopping.wait(backoff.pause()):
                    break
                children[n] = _spawn(settings, child)
    for process in children:
        if process.pid is not None and process.exitcode is None:
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + settings.drain_timeout
    for process in children:
        process.join(max(0.1, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
    return max((abs(process.exitcode or 0) for process in children), default=0)


def _spawn(settings: Settings, child: Callable[[Settings], int]) -> SpawnProcess:
    one = replace(settings, processes=1)
    process = mp.get_context("spawn").Process(target=_live, args=(one, child, list(sys.path)))
    process.start()
    return process


def _live(settings: Settings, child: Callable[[Settings], int], path: list[str]) -> None:
    sys.path[:] = path
    die_with_parent()
    sys.exit(child(settings))


def die_with_parent() -> None:
    """Kills this process as soon as its parent is gone, and with it the process group if it leads one."""
    parent = mp.parent_process()
    if parent is None:
        return
    leads = os.getpgrp() == os.getpid()
    threading.Thread(target=_outlive_nobody, args=(parent, leads), name="parent", daemon=True).start()
    if sys.platform == "linux":
        # The kernel kills by itself when the parent's end of this pipe closes: C code may keep the thread from running.
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)


def _outlive_nobody(parent: BaseProcess, leads: bool) -> None:  # noqa: FBT001 - a thread's argument
    parent.join()
    if leads:
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
