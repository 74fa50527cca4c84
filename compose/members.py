"""Schedulers and workers as processes of one's own, to be killed, frozen and replaced: for the demo and for chaos."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROTA = str(Path(sys.executable).parent / "rota")
PRIVATE = {"ROTA_LEASE": "4", "ROTA_BEAT": "1", "ROTA_PREFETCH": "32"}
"""Short leases, so that what the dead leave behind is taken over within the half minute; and a frozen worker, to which the
broker goes on sending until it notices, shall hoard little meanwhile."""

OVERDUE = 1000
"""No exit code: a member that had to be killed because it did not end by itself."""


@dataclass(eq=False, frozen=True)
class Member:
    """One process. `env` is what it has beside the environment of all."""

    kind: str
    process: subprocess.Popen[bytes]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """The process id, which its row in the store has too."""
        return self.process.pid

    def freeze(self) -> None:
        """Stops it in its tracks: a zombie in the making."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        self.process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """SIGTERM, also to one that is frozen."""
        with suppress(ProcessLookupError):
            self.thaw()
            self.process.terminate()

    def wait(self, deadline: float) -> int:
        """The exit code; what has not ended by the deadline (monotonic) is killed, and its code is OVERDUE."""
        try:
            return self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return OVERDUE


class Members:
    """Started and ended by this process only, by their ids. Logs are in the folder `log`, one file each."""

    def __init__(self, store: str, broker: str, log: Path, **settings: str) -> None:
        self.env = {
            **os.environ,
            **PRIVATE,
            **settings,
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": "app:app",
            "PYTHONPATH": str(Path(__file__).resolve().parent),
        }
        self.alive: list[Member] = []
        self.lock = threading.Lock()
        self.log = log
        self.log.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._closed = False

    def of(self, kind: str) -> list[Member]:
        """The living of a kind, the oldest first."""
        return [member for member in self.alive if member.kind == kind]

    def rota(self, *args: str, check: bool = True) -> str:
        """One command of the command line; its output."""
        done = subprocess.run([ROTA, *args], env=self.env, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"rota {' '.join(args)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start(self, kind: str, env: Mapping[str, str] | None = None) -> Member:
        """One more member. After `stop` nothing is started any more."""
        with self.lock:
            if self._closed:
                raise SystemExit("no members are started any more")
            self._count += 1
            own = dict(env or {})
            with (self.log / f"{kind}-{self._count}.log").open("wb") as log:
                process = subprocess.Popen(
                    [ROTA, kind], env={**self.env, **own}, stdout=log, stderr=log, start_new_session=True
                )
            member = Member(kind, process, own)
            self.alive.append(member)
            return member

    def replace(self, member: Member) -> None:
        """Kills one with -9 and starts another like it, unless it has ended already."""
        with self.lock:
            if member not in self.alive:
                return
            self.alive.remove(member)
        member.process.kill()
        member.process.wait()
        self.start(member.kind, member.env)

    def stop(self, seconds: float = 40.0) -> dict[int, int]:
        """Drains all, and kills what has not ended after `seconds`; exit codes by process id."""
        with self.lock:
            self._closed = True
        return self.drain(seconds)

    def drain(self, seconds: float) -> dict[int, int]:
        """The same, but others may be started afterwards."""
        with self.lock:
            members, self.alive = self.alive, []
        end = time.monotonic() + seconds
        for member in members:
            member.ask_to_end()
        return {member.pid: member.wait(end) for member in members}
