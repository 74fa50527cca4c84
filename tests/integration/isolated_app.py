"""Isolated handlers of tests. A handler that is to be killed writes its process's number to a file before."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing as mp
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from rota import App, Cancel, Context, NoRetry, Retry, RetryAfter, Snooze

app = App("isolated")
INSERT = "insert into isolated_effect values (%s, %s)"
TABLE = "create table isolated_effect (key text not null, fence bigint not null)"


class Odd(LookupError):  # noqa: N818 - no error's name either
    """Cannot be pickled, made without arguments, or subclassed."""

    def __init_subclass__(cls) -> None:
        raise AssertionError

    def __init__(self, what: str, *, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.lock = threading.Lock()


ERRORS: dict[str, BaseException] = {
    "cancel": Cancel("no need"),
    "no retry": NoRetry("never"),
    "snooze": Snooze(7),
    "retry after": RetryAfter(8),
    "odd": Odd("odd", why="it is"),
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError(),
    "timeout": TimeoutError("its own"),
}


@app.handler(isolate="process")
def echo(value: Any) -> Any:
    return value


@app.handler(isolate="process")
async def echo_later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@app.handler(isolate="process")
def not_json() -> Any:
    return {1, 2}


@app.handler(isolate="process")
def large(size: int) -> str:
    return "x" * size


@app.handler(isolate="process")
def where(ctx: Context, text: str = "") -> dict[str, Any]:
    print(text)
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "main": threading.current_thread() is threading.main_thread(),
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "cancelled": ctx.cancelled,
        "deadline": ctx.deadline is not None,
    }


@app.handler(isolate="process")
def raises(what: str) -> None:
    raise ERRORS[what]


def _sleep_in_a_fork() -> None:
    time.sleep(300)


def hang(way: str, told: str) -> None:
    """For ever, after it has written who hangs."""
    pids = [os.getpid()]
    if way == "program":
        pids.append(subprocess.Popen(["sleep", "300"]).pid)
    if way == "fork":
        child = mp.get_context("fork").Process(target=_sleep_in_a_fork)
        child.start()
        pids.append(child.pid or 0)
    Path(told).write_text(" ".join(map(str, pids)))
    if way == "python":
        while True:
            pass
    if way == "C":
        re.match(r"(a*)*b", "a" * 64)  # without letting go of the interpreter's lock
    time.sleep(3600)


@app.handler(isolate="process", retry=Retry(attempts=1))
def hangs(way: str, told: str) -> None:
    hang(way, told)


@app.handler(isolate="process", retry=Retry(attempts=1), timeout=5)
def late(way: str, told: str) -> None:
    hang(way, told)


@app.handler(isolate="process", retry=Retry(attempts=1))
def dies(way: str) -> None:
    if way == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "segfault":
        ctypes.string_at(0)
    if way == "exit":
        os._exit(3)
    if way == "fork":  # what holds its ends of all pipes lives on
        mp.get_context("fork").Process(target=_sleep_in_a_fork).start()
        os.kill(os.getpid(), signal.SIGKILL)
    os.closerange(3, 256)
    time.sleep(3600)


@app.handler(isolate="process", retry=Retry(attempts=2, base=0.1))
def effect(ctx: Context, key: str, dies: str = "") -> None:
    """One effect; the first attempt dies at that point."""
    first = ctx.attempt == 1
    with ctx.transaction(raw=True) as connection:
        connection.execute(INSERT, [key, ctx.fence])
        if first and dies == "before the commit":
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.result("kept")
    if first and dies == "after the commit":
        os.kill(os.getpid(), signal.SIGKILL)
    if first and dies == "hangs after the commit":
        time.sleep(3600)


@app.handler(isolate="process")
async def effect_later(ctx: Context, key: str) -> None:
    async with ctx.transaction(raw=True) as connection:
        await connection.execute(INSERT, [key, ctx.fence])


@app.handler(isolate="process", retry=Retry(attempts=2, base=0.1))
def steps(ctx: Context) -> Any:
    """The second attempt gives what the first has kept before it died."""
    if ctx.last_checkpoint is None:
        ctx.progress(0.5, "half")
        ctx.checkpoint({"page": 1})
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.last_checkpoint


@app.handler(isolate="process")
def waits(gate: str) -> str:
    """Until the file is there."""
    while not Path(gate).exists():
        time.sleep(0.02)
    return "through"


@app.handler
def beside() -> str:
    """Not isolated."""
    return "here"
