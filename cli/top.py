"""`rota top`: the status, live. A thread asks the store, so that keys are heard while the store is away."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from rota.cli import output
from rota.cli.output import duration
from rota.cli.picture import Rates, picture
from rota.sched.client import Client
from rota.sched.errors import RotaError, Unreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rota.sched.store.views import StatusView

REFRESH = 0.2
"""Seconds between looks at the keyboard and at what the thread has found."""


class Feed:
    """The latest picture, and since when there has been none."""

    def __init__(self, client: Client, interval: float) -> None:
        self.view: StatusView | None = None
        self.error: str | None = None
        self.away_since = 0.0
        self.rates = Rates()
        self._client = client
        self._interval = interval
        self._stop = threading.Event()

    def start(self) -> None:
        """Begins to ask."""
        threading.Thread(target=self._run, name="status", daemon=True).start()

    def stop(self) -> None:
        """Asks no more; what is under way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(self._interval)

    def look(self) -> None:
        """Asks once."""
        try:
            view = self._client.run(self._client.store.status())
        except RotaError as error:
            if self.error is None:
                self.away_since = time.monotonic()
            self.error = str(error)
        else:
            self.rates.add(view)
            self.view, self.error = view, None

    def lines(self, title: str, height: int) -> list[Text]:
        """The screen."""
        head = [Text(title, "reverse")]
        if self.error is not None:
            away = duration(time.monotonic() - self.away_since)
            head += [Text(f"store away for {away}, trying again: {self.error}", "bold red")]
        if self.view is None:
            return head if self.error else [*head, Text("asking the store")]
        body = picture(self.view, self.rates, height - len(head) + 1)
        if self.error is not None:
            for line in body:
                line.stylize("dim")
        return [*head, *body][:height]


def run_top(store_url: str, broker: str | None, interval: float) -> None:
    """Shows the picture until `q` or ctrl-C; comes back by itself when the store was away. UsageError off a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("rota top needs a terminal: for scripts there is `rota status --json`")
    client = Client.open(store_url)
    title = "   ".join(word for word in ("rota top", client.store.masked_url, broker, "q quits") if word)
    feed = Feed(client, interval)
    console = Console(highlight=False, markup=False, emoji=False)
    feed.start()
    with suppress(KeyboardInterrupt), _keys() as quits, Live(console=console, screen=True, auto_refresh=False) as live:
        while not quits(REFRESH):
            live.update(screen(feed.lines(title, console.height)), refresh=True)
    feed.stop()


def follow(store_url: str, interval: float) -> None:
    """Prints the status as a JSON line every `interval` seconds; while the store is away lines have only `error`."""
    with Client.open(store_url) as client:
        while True:
            try:
                output.emit(client.run(client.store.status()).to_json())
            except Unreachable as error:
                output.emit({"error": str(error)})
            sys.stdout.flush()
            time.sleep(interval)


def screen(lines: list[Text]) -> Group:
    """Lines that are cut at the edge, never wrapped."""
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Reads keys without echo; gives a function that waits and tells whether to quit. Restores the terminal."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def quits(seconds: float) -> bool:
        ready, _, _ = select.select([fd], [], [], seconds)
        return bool(ready) and os.read(fd, 1) in {b"q", b"Q", b"\x03", b"\x04", b""}

    try:
        tty.setcbreak(fd)
        yield quits
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
