"""The command that takes a day of history out, before it goes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rota.sched.client import Client
    from rota.sched.export import Exported


def export(
    day: Annotated[
        str | None,
        typer.Option("--day", metavar="D", help="The day (UTC) on which runs ended: 2026-11-30, or yesterday."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Default rota-history-DAY.jsonl.gz here; - is stdout.")
    ] = None,
    store: common.Store = None,
    *,
    days: Annotated[bool, typer.Option("--list", help="Which days there are, how large, and when each goes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    json: common.Json = False,
) -> None:
    """Write a day of history to a file: gzip'ed JSON lines, one for each run that ended on it."""
    if days == (day is not None):
        raise UsageError("give --day, or --list for the days that there are")
    with common.client(store) as client:
        if day is None:
            _list(client, store, json=json)
        else:
            _export(client, day, out, force=force, json=json)


def _list(client: Client, store: str | None, *, json: bool) -> None:
    from rota.sched.durations import size_text  # noqa: PLC0415

    history = client.run(client.store.days())
    keep = common.settings(store=store).history_keep
    rows: list[dict[str, Any]] = [
        {
            "day": each.day,
            "rows": each.rows,
            "bytes": each.bytes,
            "open": each.open,
            "goes_at": history.goes_at(each.day, keep),
        }
        for each in history.days
        if each.day <= history.now[:10]
    ]
    if json:
        for row in rows:
            output.emit(row)
        return
    output.table(
        ["DAY (UTC)", "RUNS", "SIZE", "GOES AT (UTC)", ""],
        (
            (
                r["day"],
                f"~{r['rows']}",
                size_text(r["bytes"]),
                output.when(r["goes_at"]),
                "not over" if r["open"] else "",
            )
            for r in rows
        ),
        "no history",
    )


def _export(client: Client, text: str, out: str | None, *, force: bool, json: bool) -> None:
    from rota.sched.export import day_named, export_day, whole_file  # noqa: PLC0415

    day = day_named(text, client.run(client.store.days()))
    if out == "-":
        if sys.stdout.isatty():
            raise UsageError("--out is '-' and stdout a terminal: send it to a file or through a pipe")
        with _bar(day) as progress:
            done = export_day(client, day, sys.stdout.buffer, progress)
        _tell(done, None, json=json)
        return
    path = Path(out or f"rota-history-{day}.jsonl.gz")
    with whole_file(path, force=force) as sink, _bar(day) as progress:
        done = export_day(client, day, sink, progress)
    _tell(done, path, json=json)


def _tell(done: Exported, path: Path | None, *, json: bool) -> None:
    """On stderr where stdout is the file."""
    from rota.sched.durations import size_text  # noqa: PLC0415

    if not done.complete:
        output.complain(f"{done.day} is not over: what ends from now on is missing")
    told = f"{done.day}: {done.rows} runs, {size_text(done.bytes)}" + ("" if path is None else f", in {path}")
    if json:
        output.emit(
            {**done.to_json(), "file": None if path is None else str(path)}, sys.stderr if path is None else None
        )
    elif path is None:
        output.complain(told)
    else:
        output.say(told)


@contextmanager
def _bar(day: str) -> Iterator[Callable[[int, int], None]]:
    """How far it is, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with output.bar(f"history of {day}") as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def add(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command(
        epilog=common.examples(
            [
                "rota export --list",
                "rota export --day yesterday",
                "rota export --day 2026-11-30 --out - | aws s3 cp - s3://history/2026-11-30.jsonl.gz",
            ]
        )
    )(export)
