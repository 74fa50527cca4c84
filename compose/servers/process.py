"""Processes that outlive the one that started them: spawned, recognised again, signalled, waited for."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Below Linux's ephemeral range (32768 and up): an outgoing connection never sits on a port that we chose.
PORTS = range(20_000, 32_000)


class Credentials(TypedDict, total=False):
    """Whom a child runs as, in the words of `subprocess`."""

    user: int
    group: int
    extra_groups: list[int]


_children: dict[int, subprocess.Popen[bytes]] = {}


def free_port(taken: Iterable[int] = ()) -> int:
    """A port of 127.0.0.1 that nobody listens on now; another process may still take it first."""
    avoid = set(taken)
    for _ in range(1000):
        port = random.choice(PORTS)
        if port not in avoid and port_is_free(port):
            return port
    raise OSError("no free port between 20000 and 32000 on 127.0.0.1")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Whether the condition came true within so many seconds, looked at every `every` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def spawn(command: Sequence[str], env: Mapping[str, str], log: Path, uid: int | None = None) -> int:
    """Start a process in a session of its own (a ctrl-C does not reach it), output appended to `log`.

    `uid` is the user to become (with that user's group), `None` stays. Returns the pid.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            command,
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **credentials(uid),
        )
    _children[child.pid] = child
    return child.pid


def credentials(uid: int | None) -> Credentials:
    """The arguments of `subprocess` that make the child run as `uid`, without our other groups."""
    if uid is None:
        return {}
    import pwd  # noqa: PLC0415 - not on every platform, and only root needs it

    return {"user": uid, "group": pwd.getpwuid(uid).pw_gid, "extra_groups": []}


def user_name(uid: int) -> str:
    """The name of the user `uid`."""
    import pwd  # noqa: PLC0415 - as above

    return pwd.getpwuid(uid).pw_name


def started_at(pid: int) -> str | None:
    """A mark that tells this process from a later one with the same pid; `None` when it is dead or a zombie."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _started_without_proc(pid)
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[19]}"


def _started_without_proc(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return "unknown"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "boot"


def alive(pid: int | None, mark: str | None) -> bool:
    """Whether `pid` is still the process that `started_at` gave this mark."""
    return pid is not None and mark is not None and started_at(pid) == mark


def end(pid: int, mark: str, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal in turn and give the process so many seconds after it, until it is gone."""
    for number, seconds in signals:
        if not alive(pid, mark):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        wait_until(lambda: not alive(pid, mark), seconds)


def tree(pid: int) -> list[int]:
    """The process and its descendants, parents first (Linux only)."""
    children: dict[int, list[int]] = {}
    # One that ends meanwhile is passed over.
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send one signal to the process and all its descendants: SIGSTOP freezes a server, SIGCONT wakes it."""
    for member in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
