"""The command that takes over a crontab: each line becomes a named schedule of the handler `rota_command`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.cli.jobs import announced
from rota.sched.errors import NotFound, Refused, UsageError
from rota.sched.ids import check_name

if TYPE_CHECKING:
    from rota.sched.client import Client
    from rota.sched.crontab import Entry, Remark

HANDLER = "rota_command"


def crontab(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A crontab; - is stdin.")],
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA zone of lines without CRON_TZ.")] = "UTC",
    prefix: Annotated[str, typer.Option("--prefix", help="How the names of the schedules begin.")] = "crontab",
    queue: Annotated[str | None, typer.Option("--queue", help="Queue, default the handler's.")] = None,
    store: common.Store = None,
    *,
    system: Annotated[
        bool, typer.Option("--system", help="With a user column, as /etc/crontab and /etc/cron.d have it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of each line.")] = False,
    json: common.Json = False,
) -> None:
    """Make a schedule of each line of a crontab. Each is imported or refused by its number; exit 1 if one was refused.

    Schedules are named after their content: the same file again adds nothing, and a line that was changed or taken out
    leaves its schedule behind. A command runs once, as under cron, and only where the app has `rota_command`.
    """
    from rota.sched.crontab import Remark, read_crontab  # noqa: PLC0415

    check_name(prefix, "--prefix")
    found = list(read_crontab(_text(file), tz=tz, system=system))
    remarks = [each for each in found if isinstance(each, Remark)]
    told = {each.line: _remark(each) for each in remarks}
    entries = [each for each in found if not isinstance(each, Remark)]
    if dry_run:
        told |= {e.line: _entry(e, _name(prefix, e, entries), None, "would be imported") for e in entries}
    elif entries:
        with common.client(store) as client:
            told |= {e.line: _import(client, e, _name(prefix, e, entries), queue) for e in entries}
    for _, row in sorted(told.items()):
        _tell(row, json=json)
    if any("error" in row for row in told.values()):
        raise typer.Exit(1)


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"crontab {file}: {error.strerror}") from None
    return data.decode(errors="surrogateescape")


def _name(prefix: str, entry: Entry, entries: list[Entry]) -> str:
    """Of the same line twice, each has a name of its own."""
    digest = entry.digest()
    before = sum(each.digest() == digest for each in entries if each.line < entry.line)
    return f"{prefix}-{digest}{f'-{before + 1}' if before else ''}"


def _import(client: Client, entry: Entry, name: str, queue: str | None) -> dict[str, Any]:
    from rota.sched.app import Call  # noqa: PLC0415

    try:
        row = announced(client, HANDLER)
    except NotFound as error:
        raise NotFound(
            f"{error}; for this one put app.handler(rota_command) into your app (see rota.commands)"
        ) from None
    try:
        call = Call(HANDLER, entry.args(), queue or row.queue)
        ref = client.submit(call, entry.schedule, name=name, queue=queue, retry={"attempts": 1})
    except (Refused, UsageError) as error:
        return {"line": entry.line, "error": str(error)}
    return _entry(entry, name, ref.id, "there already" if ref.duplicate else "imported")


def _entry(entry: Entry, name: str, job_id: str | None, done: str) -> dict[str, Any]:
    from rota.sched.timing import advice  # noqa: PLC0415

    return {
        "line": entry.line,
        "done": done,
        "name": name,
        "job_id": job_id,
        "cron": entry.schedule.cron,
        "tz": entry.schedule.tz,
        "command": entry.command,
        "user": entry.user,
        "advice": advice(entry.schedule),
    }


def _remark(remark: Remark) -> dict[str, Any]:
    return {"line": remark.line, "error" if remark.refused else "note": remark.why, "text": remark.text}


def _tell(row: dict[str, Any], *, json: bool) -> None:
    if json:
        output.emit(row)
    elif "error" in row:
        output.complain(f"line {row['line']}: refused: {row['error']}")
    elif "note" in row:
        output.say(f"line {row['line']}: {row['note']}")
    else:
        output.say(f"line {row['line']}: {row['done']} as {row['name']}: {row['cron']} {row['tz']}, {row['command']}")
        for sentence in row["advice"]:
            output.say(f"line {row['line']}: {sentence}")


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.callback()(_group)
    group.command(
        epilog=common.examples(
            [
                "crontab -l | rota import crontab - --tz Europe/Paris --dry-run",
                "rota import crontab /etc/cron.d/backup --system",
            ]
        )
    )(crontab)
    app.add_typer(group, name="import")


def _group() -> None:
    """Take over schedules of other programs."""
