"""How answers are printed: JSON for scripts, tables for people."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from rota.sched.ids import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.progress import Progress

WIDE = 200
"""Columns of a table that goes to a file or pipe."""


def emit(value: Any, stream: TextIO | None = None) -> None:
    """One JSON object on a line of its own, on stdout by default."""
    (stream or sys.stdout).write(json.dumps(value, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """One line for people."""
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"rota: {text}\n")


def rich(picture: RenderableType) -> None:
    """Something of rich's: coloured on a terminal, plain and wide elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - only for people

    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else WIDE)
    with console.capture() as captured:
        console.print(picture)
    lines = (line.rstrip() for line in captured.get().rstrip("\n").split("\n"))
    sys.stdout.write("\n".join(lines) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A plain table, or the line `empty` where there are no rows. The first column is never cut: people copy it."""
    from rich.table import Table  # noqa: PLC0415 - only for people

    made = Table(box=None, pad_edge=False, header_style="bold")
    for n, column in enumerate(columns):
        made.add_column(column, no_wrap=n == 0, overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    if made.row_count:
        rich(made)
    else:
        say(empty)


def bar(what: str) -> Progress:
    """How far something is, on stderr; it is gone at the end. For terminals."""
    from rich.console import Console  # noqa: PLC0415 - only for people
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def run_id(row: dict[str, Any]) -> str:
    """A run as people copy it: enough digits of the job, and the tick."""
    return f"{short(row['job_id'])}@{row['scheduled_for']}"


def when(text: str | None) -> str:
    """A time without what nobody reads."""
    return "" if text is None else text.replace("T", " ")[:19]


def brief(value: Any, width: int = 60) -> str:
    """JSON on one line, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(seconds: float | None) -> str:
    """A measured time as people read it; `-` where there is none."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.0f} h"
