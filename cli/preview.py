"""The command that shows when a schedule will fire: needs no store."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import RotaError, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import datetime
    from typing import TextIO

    from rota.sched.timing import Fire

MOST = 1000
"""Most fires that are told of one expression."""


def preview(
    expr: Annotated[str | None, typer.Argument(metavar="EXPR", help="A cron expression.")] = None,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA zone.")] = "UTC",
    after: Annotated[
        str | None, typer.Option("--after", metavar="T", help="Fires after this instant, default now.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=MOST, help="How many.")] = 5,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="FILE", help="JSON lines with expr, tz, after; - is stdin.")
    ] = None,
    *,
    json: common.Json = False,
) -> None:
    """Print the next fires of a cron expression, local and UTC, clock changes marked. Needs no store."""
    if (expr is None) == (batch is None):
        raise UsageError("give an expression, or --batch FILE: rota preview '*/15 9-17 * * mon-fri' --tz Europe/Paris")
    if batch is not None:
        with _source(batch) as lines:
            for line in lines:
                if line.strip():
                    output.emit(answer(line, count))
        return
    assert expr is not None
    found = _fires(expr, tz, after, count)
    if json:
        output.emit(_as_json(found, tz))
        return
    rows = ((f.local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), _second(f.utc), f.note) for f in found)
    output.table([f"LOCAL ({tz})", "UTC", "NOTE"], rows, "never")


def answer(line: str, count: int) -> dict[str, Any]:
    """What `--batch` says to one line: `{"fires": [...]}` or `{"error": "..."}`."""
    try:
        row = jsonlib.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("expr"), str):
            raise UsageError(f"no expr in {line.strip()!r:.200}")
        found = _fires(row["expr"], _text(row, "tz") or "UTC", _text(row, "after"), _count(row.get("count", count)))
    except (RotaError, ValueError) as error:
        return {"error": str(error)}
    return {"fires": [_second(f.utc) for f in found]}


def _text(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}: give text")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise UsageError(f"count is {value!r}: give a whole number from 1 to {MOST}")
    return value


def _source(file: str) -> AbstractContextManager[TextIO]:
    from pathlib import Path  # noqa: PLC0415

    if file == "-":
        return nullcontext(sys.stdin)
    try:
        return Path(file).open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--batch {file}: {error.strerror}") from None


def _fires(expr: str, tz: str, after: str | None, count: int) -> list[Fire]:
    from datetime import UTC, datetime  # noqa: PLC0415

    from rota.sched.durations import instant  # noqa: PLC0415
    from rota.sched.timing import fires  # noqa: PLC0415
    from rota.sched.when import Schedule  # noqa: PLC0415

    start = datetime.now(UTC) if after is None else instant(after, "after")
    return fires(Schedule(cron=expr, tz=tz), start, count)


def _as_json(found: list[Fire], tz: str) -> dict[str, Any]:
    return {
        "fires": [_second(f.utc) for f in found],
        "local": [f.local.isoformat() for f in found],
        "notes": [f.note for f in found],
        "tz": tz,
    }


def _second(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(
        epilog=common.examples(
            ["rota preview '*/15 9-17 * * mon-fri' --tz Europe/Paris --count 3", "rota preview --batch crons.jsonl"]
        )
    )(preview)
