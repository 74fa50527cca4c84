"""Clocks of single processes that can be set: libfaketime, preloaded, reads an offset from a file at every call.

The monotonic clock stays true, as it does on a host whose clock is stepped.
"""

from __future__ import annotations

import os
from pathlib import Path

from servers.install import faketime_library

FILE = "FAKETIME_TIMESTAMP_FILE"
PATHS = (Path(__file__).parent / "clocked", Path(__file__).parents[2] / "compose")
"""What Python imports from: a sleep that works with the library, and the demo app."""


def library() -> Path:
    """Where the library is, in the build for processes with threads; installed if need be. Raises `Missing`."""
    return faketime_library().with_name("libfaketimeMT.so.1")


def environment(library: Path, file: Path) -> dict[str, str]:
    """What a process needs whose clock follows `file`; true at first."""
    step(file, "+0")
    return {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        FILE: str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def step(file: Path, seconds: str) -> None:
    """Sets the clock to so many seconds (with a sign) from the true one."""
    new = file.with_suffix(".new")
    new.write_text(seconds + "\n", encoding="ascii")
    new.replace(file)  # a reader sees the old or the new one, never none
