"""What processes use: CPU time, memory and wake-ups of a process with all its descendants, from /proc (Linux).

CPU time is that of the living and of the children that they have reaped: a Postgres backend that ended is in its
postmaster's account.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class Usage(NamedTuple):
    """Of a process tree; differences of two tell what happened in between."""

    cpu: float
    """Seconds, user and system."""
    wakeups: int
    """Voluntary context switches of the living: how often one of their threads went to sleep."""


def usage(pid: int) -> Usage:
    """What the tree below `pid` has used until now."""
    tree = descendants(pid)
    return Usage(sum(map(_cpu, tree)), sum(map(_wakeups, tree)))


def memory_mb(pid: int) -> dict[str, float]:
    """Of the tree: resident, and proportional (shared pages divided among those who share them)."""
    totals = {"rss_mb": 0.0, "pss_mb": 0.0}
    for each in descendants(pid):
        with suppress(OSError):
            for line in (_PROC / str(each) / "smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if f"{name.lower()}_mb" in totals:
                    totals[f"{name.lower()}_mb"] += int(rest.split()[0]) / 1024
    return {name: round(value, 1) for name, value in totals.items()}


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, rest = [], [pid]
    while rest:
        found.append(rest.pop())
        rest += children.get(found[-1], [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields behind the command's name: state, parent, ..."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICK if fields else 0.0


def _wakeups(pid: int) -> int:
    total = 0
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total
