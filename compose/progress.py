"""A long run told as it goes: live on a terminal, a line every few seconds elsewhere; a table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

EVENTS = 8
"""How many of the last events the live picture shows."""


class Progress:
    """`say` tells an event, `show` the picture of the moment. Used as a context manager."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.console = Console(highlight=False)
        self.begun = time.monotonic()
        self._events: list[str] = []
        self._live: Live | None = None
        self._shown = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def restart(self) -> None:
        """Counts the seconds from now on."""
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        """Something happened. From any thread."""
        self._events.append(f"{time.monotonic() - self.begun:6.1f} s  {text}")
        if self._live is None:
            self.console.print(self._events[-1], soft_wrap=True)

    def show(self, picture: Callable[[], Mapping[str, str]]) -> None:
        """The picture, which is asked for only if it is time again."""
        now = time.monotonic()
        if now - self._shown < (3.0 if self._live is None else 0.4):
            return
        self._shown = now
        values = picture()
        if self._live is None:
            line = "  ".join(f"{name} {value:>5}" for name, value in values.items())
            self.console.print(f"{now - self.begun:6.1f} s  {line}", soft_wrap=True)
            return
        table = Table.grid(padding=(0, 2))
        table.add_row(f"[bold]{self.title}[/bold]", f"{now - self.begun:.0f} s")
        for name, value in values.items():
            table.add_row(name, value)
        for event in self._events[-EVENTS:]:
            table.add_row("", event)
        self._live.update(table, refresh=True)

    def summary(self, figures: Mapping[str, Any], errors: list[str]) -> None:
        """The table at the end."""
        table = Table(title="What came of it", show_header=False)
        for name, value in figures.items():
            bad = name in {"lost", "duplicate_effects"} and value
            table.add_row(name, f"[red]{value}[/red]" if bad else str(value))
        for error in errors:
            table.add_row("error", error)
        self.console.print(table)
