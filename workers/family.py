"""Several worker processes under one parent: spawned, each a member of its own, and none outlives the parent."""

from __future__ import annotations

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
    threading.Thread(target=_die_with_parent, name="parent", daemon=True).start()
    sys.exit(child(settings))


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
