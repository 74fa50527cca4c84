"""The demo's processes: two schedulers and two workers of its own, which it kills, freezes and replaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
ROTA = str(Path(sys.executable).parent / "rota")
PRIVATE = {"ROTA_LEASE": "4", "ROTA_BEAT": "1", "ROTA_PREFETCH": "32"}
"""Short leases, so that what the dead leave behind is taken over within the half minute; and a frozen worker, to which the
broker goes on sending until it notices, shall hoard little meanwhile."""


class Members:
    """Started and ended by this process only, by their ids."""

    def __init__(self, store: str, broker: str) -> None:
        self.env = {
            **os.environ,
            **PRIVATE,
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": "app:app",
            "PYTHONPATH": str(ROOT / "compose"),
        }
        self._log = ROOT / ".rota" / "demo"
        self._log.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._files: list[IO[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False
        self.alive: dict[str, list[subprocess.Popen[bytes]]] = {"scheduler": [], "worker": []}

    def rota(self, *args: str, check: bool = True) -> str:
        """One command of the command line; its output."""
        done = subprocess.run([ROTA, *args], env=self.env, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"rota {' '.join(args)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        """One more member. After `stop` nothing is started any more."""
        with self._lock:
            if self._closed:
                raise SystemExit("the demo is over")
            self._count += 1
            log = (self._log / f"{kind}-{self._count}.log").open("wb")
            self._files.append(log)
            member = subprocess.Popen([ROTA, kind], env=self.env, stdout=log, stderr=log, start_new_session=True)
            self.alive[kind].append(member)
            return member

    def kill(self, kind: str) -> subprocess.Popen[bytes]:
        """Kills the oldest of a kind with -9 and starts another."""
        member = self.alive[kind].pop(0)
        member.kill()
        member.wait()
        self.start(kind)
        return member

    def freeze(self, member: subprocess.Popen[bytes]) -> None:
        """Stops a process in its tracks: a zombie in the making."""
        member.send_signal(signal.SIGSTOP)

    def thaw(self, member: subprocess.Popen[bytes]) -> None:
        """Lets it go on."""
        member.send_signal(signal.SIGCONT)

    def stop(self, seconds: float = 40.0) -> dict[int, int]:
        """Drains all, and kills what has not ended after `seconds`; exit codes by process id."""
        with self._lock:
            self._closed = True
        end = time.monotonic() + seconds
        members = [m for kind in self.alive.values() for m in kind]
        for member in members:
            with suppress(ProcessLookupError):
                member.send_signal(signal.SIGCONT)
                member.terminate()
        codes = {}
        for member in members:
            try:
                codes[member.pid] = member.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                codes[member.pid] = member.wait()
        for file in self._files:
            file.close()
        return codes
