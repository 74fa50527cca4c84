"""The handlers of the benches. They do next to nothing."""

from __future__ import annotations

import os
from functools import cache

from rota import App

app = App("bench")


@app.handler
def noop(a: int, b: str) -> None:
    """Nothing, with the floor's arguments."""


@app.handler
async def anoop(a: int, b: str) -> None:
    """The same in an async handler."""


@app.handler
def at(planned: float) -> None:
    """Nothing; the argument tells bench/lateness.py when it was planned."""


@cache
def _file() -> int:
    return os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.handler
def mark(key: int) -> None:
    """One line in the file BENCH_MARKS, written at once: those of several threads and processes do not mix."""
    os.write(_file(), b"%d\n" % key)


@app.handler
def live() -> None:
    """What goes on while bench/redrive.py redrives."""
