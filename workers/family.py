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
    from multiprocessing.context import SpawnProcess

    from rota.sched.settings import Settings

log = logging.getLogger(__name__)


def run_children(settings: Settings) -> int:
    """Runs `settings.processes` workers; one that ends by itself is replaced. Returns 0 after a drain of all."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    children = [_spawn(settings) for _ in range(settings.processes)]
    backoff = Backoff(0.5, 30.0)
    while not stopping.wait(0.2):
        for n, child in enumerate(children):
            if child.exitcode is not None:
                log.error("worker process %s ended with %s; starting another", child.pid, child.exitcode)
                if stopping.wait(backoff.pause()):
                    break
                children[n] = _spawn(settings)
    for child in children:
        if child.pid is not None and child.exitcode is None:
            os.kill(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + settings.drain_timeout
    for child in children:
        child.join(max(0.1, deadline - time.monotonic()))
        if child.exitcode is None:
            child.kill()
            child.join()
    return max((abs(child.exitcode or 0) for child in children), default=0)


def _spawn(settings: Settings) -> SpawnProcess:
    child = mp.get_context("spawn").Process(target=_child, args=(replace(settings, processes=1), list(sys.path)))
    child.start()
    return child


def _child(settings: Settings, path: list[str]) -> None:
    sys.path[:] = path
    threading.Thread(target=_die_with_parent, name="parent", daemon=True).start()
    from rota.cli.logs import configure  # noqa: PLC0415 - in the child only
    from rota.sched.app import load_app  # noqa: PLC0415
    from rota.workers.service import run_worker  # noqa: PLC0415

    configure(settings)
    sys.exit(run_worker(settings, load_app(settings.app)))


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
