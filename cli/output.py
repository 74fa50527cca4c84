"""How answers are printed: JSON for scripts, tables for people."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rota.sched.ids import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def emit(value: Any) -> None:
    """One JSON object on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """One line for people."""
    sys.stdout.write(text + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A plain table, or the line `empty` where there are no rows."""
    from rich.console import Console  # noqa: PLC0415 - only for people
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=None, pad_edge=False, header_style="bold")
    for n, column in enumerate(columns):
        made.add_column(column, no_wrap=n == 0, overflow="fold")
    count = 0
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
        count += 1
    if not count:
        say(empty)
        return
    console = Console(markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console.width = 200
    console.print(made)


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
