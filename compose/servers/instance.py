"""What is common to one server in one folder: its file `instance.json`, and its life."""

from __future__ import annotations

import json
import re
import shutil
import signal
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import process, signals
from servers.errors import NotReady

if TYPE_CHECKING:
    import os


class Instance(ABC):
    """One server in one folder. Every verb is idempotent and may be called by another process than the starter.

    The ports are chosen at the first start and kept, so that a URL stays true over restarts.
    """

    name: str
    start_seconds = 60.0

    def __init__(self, folder: Path, ports: dict[str, int] | None = None) -> None:
        self.folder = Path(folder).absolute()
        self._wanted = dict(ports or {})

    @property
    def log(self) -> Path:
        """The server's output."""
        return self.folder / "server.log"

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect; known from the first start on."""

    @property
    def pid(self) -> int | None:
        """The server's own process, `None` when it does not run."""
        known = self._load()
        pid: int | None = known.get("pid")
        return pid if process.alive(pid, known.get("started")) else None

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self.pid is not None

    def port(self, role: str) -> int:
        """The port for `role`, as of the last start."""
        port: int = self._load()["ports"][role]
        return port

    def start(self) -> None:
        """Start the server unless it runs, and return when it answers. Raises `Missing` or `NotReady`."""
        if not self.running:
            self._make()
            with signals.deferred():
                self._save(self._launch(self._ports()))
        self._wait_ready()

    def stop(self) -> None:
        """Shut the server down in order; kill it when it does not end within its time."""
        self._end(self._polite())

    def crash(self) -> None:
        """End the server at once, without any farewell."""
        self._end(((signal.SIGKILL, 10.0),))

    def freeze(self) -> None:
        """Stop the server's processes where they are; connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Crash the server and remove its folder."""
        self.crash()
        remove(self.folder)

    @abstractmethod
    def _make(self) -> None:
        """Create what the first start needs."""

    @abstractmethod
    def _launch(self, ports: dict[str, int]) -> dict[str, Any]:
        """Start the process; returns what to keep, with at least `pid` and `ports`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers its clients."""

    @abstractmethod
    def _roles(self) -> tuple[str, ...]:
        """The ports that it needs."""

    @abstractmethod
    def _polite(self) -> tuple[tuple[signal.Signals, float], ...]:
        """The signals of an orderly shutdown, each with the seconds it may take."""

    def _ports(self) -> dict[str, int]:
        kept = {**self._load().get("ports", {}), **self._wanted}
        ports: dict[str, int] = {}
        for role in self._roles():
            usable = role in kept and (role in self._wanted or _becomes_free(kept[role]))
            ports[role] = kept[role] if usable else process.free_port({*kept.values(), *ports.values()})
        return ports

    def _end(self, signals: tuple[tuple[signal.Signals, float], ...]) -> None:
        known, pid = self._load(), self.pid
        if pid is not None:
            process.signal_tree(pid, signal.SIGCONT)
            process.end(pid, known["started"], (*signals, (signal.SIGKILL, 10.0)))

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            process.signal_tree(pid, number)

    def _wait_ready(self) -> None:
        answered = False

        def settled() -> bool:
            nonlocal answered
            answered = self._answers()
            return answered or not self.running

        process.wait_until(settled, self.start_seconds)
        if not answered:  # not asked once more: a machine that stands still now and then has shown enough
            self.crash()
            raise NotReady(f"{self.name} did not start within {self.start_seconds:.0f} s: look into {self.log}")

    def _load(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads((self.folder / "instance.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known

    def _save(self, known: dict[str, Any]) -> None:
        known["started"] = process.started_at(known["pid"])
        path = self.folder / "instance.json"
        path.with_suffix(".new").write_text(json.dumps(known), encoding="utf-8")
        path.with_suffix(".new").replace(path)


def _becomes_free(port: int) -> bool:
    """Whether the port is free by and by: the kernel closes a killed server's socket a little after its death."""
    return process.wait_until(lambda: process.port_is_free(port), 30.0)


def remove(folder: Path) -> None:
    """Remove a folder of ours, and where its link points if it is one. Never crosses into a mounted file system."""
    if folder.is_symlink():
        remove(folder.resolve())
        folder.unlink(missing_ok=True)
        return
    if not folder.exists():
        return
    if mounted := mounts_below(folder):
        raise NotReady(f"{mounted[0]} is a mount point: `umount {mounted[0]}`, then try again")
    shutil.rmtree(folder)


def mounts_below(folder: Path) -> list[Path]:
    """The mount points in a folder or at it (Linux only)."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    points = [re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in lines]
    return [Path(point) for point in points if Path(point).is_relative_to(folder.absolute())]


def may_enter(folder: Path, uid: int, gid: int) -> bool:
    """Whether that user, in no other group, may walk down to `folder`."""
    return all(_may_search(parent.stat(), uid, gid) for parent in (folder, *folder.parents))


def _may_search(found: os.stat_result, uid: int, gid: int) -> bool:
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IXUSR)
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH))
