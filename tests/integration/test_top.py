"""`rota top` on a terminal of its own, while its servers come and go."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from rota.sched.store import open_store

from tests.conftest import BOUND
from tests.integration.conftest import ROTA, party_on

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME = b"\x1b[H"
"""rich sends the cursor home before it draws the screen anew."""


class Top:
    """The process, and what its screen shows."""

    def __init__(self, env: dict[str, str]) -> None:
        self.terminal, self._inner = pty.openpty()
        fcntl.ioctl(self._inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self._inner)
        ends = {"stdin": self._inner, "stdout": self._inner, "stderr": self._inner}
        self.process = subprocess.Popen([ROTA, "top"], env={**env, "TERM": "xterm-256color"}, **ends)
        self._drawn = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._drawn = (self._drawn + os.read(self.terminal, 65536))[-200_000:]
            except OSError:
                return

    @property
    def screen(self) -> str:
        """The last frame that is whole."""
        frames = self._drawn.split(FRAME)
        return frames[-2].decode(errors="replace") if len(frames) > 2 else ""

    @property
    def degraded(self) -> list[str]:
        """The words of the picture's first line."""
        found = re.search(r"degraded: ([a-z_]+(?:, [a-z_]+)*)", self.screen)
        return found[1].split(", ") if found else []

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


@contextmanager
def top_on(env: dict[str, str]) -> Iterator[Top]:
    top = Top(env)
    try:
        yield top
    finally:
        top.close()


@pytest.mark.rabbitmq4
def test_it_shows_that_servers_are_away_comes_back_by_itself_and_leaves_the_terminal_as_it_was(
    make_postgres, node, node_url, tmp_path
):
    database = make_postgres()
    open_store(database.url).migrate()
    with party_on(database.url, node_url, tmp_path) as party, top_on(party.env) as top:
        party.start("scheduler")
        party.until("a picture with its scheduler", lambda: "64 owned" in top.screen)
        node.crash()
        party.until("the broker to be missed", lambda: "broker" in top.degraded)
        database.crash()
        party.until("the store to be missed", lambda: "store away for" in top.screen)
        database.start()
        party.until("the picture to come back", lambda: top.screen and "store away" not in top.screen)
        node.start()
        party.until("the broker to be back", lambda: top.degraded == ["no_worker"])
        assert top.press(b"q") == 0
        assert top.settings() == top.before
