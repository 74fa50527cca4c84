"""A command on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading

from tests.conftest import BOUND
from tests.integration.conftest import ROTA


class Terminal:
    """The process of a `rota` command, and what it has drawn. `close` ends both."""

    def __init__(self, env: dict[str, str], *command: str) -> None:
        self.terminal, self._inner = pty.openpty()
        fcntl.ioctl(self._inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = self.settings()
        ends = {"stdin": self._inner, "stdout": self._inner, "stderr": self._inner}
        self.process = subprocess.Popen([ROTA, *command], env={**env, "TERM": "xterm-256color"}, **ends)
        self.drawn = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.drawn = (self.drawn + os.read(self.terminal, 65536))[-200_000:]
            except OSError:
                return

    def press(self, key: bytes) -> int:
        os.write(self.terminal, key)
        return self.process.wait(BOUND)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._inner)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._inner)
        os.close(self.terminal)
