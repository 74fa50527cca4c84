"""Options that many commands share, and the way from them to settings and a client."""

from __future__ import annotations

import getpass
import json
import os
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import output
from rota.sched.errors import UsageError
from rota.sched.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.client import Client
    from rota.sched.when import When

Store = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Store, default ROTA_STORE.", show_default=False)
]
Broker = Annotated[
    str | None, typer.Option("--broker", metavar="URL", help="Broker, default ROTA_BROKER.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="For scripts: one JSON object, or one a line.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
HandlerOption = Annotated[str | None, typer.Option("--handler", help="Only this handler.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
Since = Annotated[str | None, typer.Option("--since", metavar="T", help="From this instant on (RFC 3339), or 2h ago.")]
Until = Annotated[str | None, typer.Option("--until", metavar="T", help="Up to this instant (RFC 3339), or 2h ago.")]
ErrorText = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Only those whose errors contain this.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]

Misfire = Annotated[str | None, typer.Option("--misfire", help="run_latest, run_earliest, run_all or skip.")]
Overlap = Annotated[str | None, typer.Option("--overlap", help="allow, skip, buffer_one, buffer_all or cancel_other.")]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="D", help="Spread ticks over this time.")]
CatchupWindow = Annotated[
    str | None, typer.Option("--catchup-window", metavar="D", help="Missed ticks older than this are skipped.")
]
Grace = Annotated[str | None, typer.Option("--grace", metavar="D", help="A tick this late is missed.")]
DstGap = Annotated[str | None, typer.Option("--dst-gap", help="run_after, shift or skip.")]
DstOverlap = Annotated[str | None, typer.Option("--dst-overlap", help="first, last, both or skip.")]
Start = Annotated[str | None, typer.Option("--start", metavar="T", help="No tick before this instant (RFC 3339).")]
End = Annotated[str | None, typer.Option("--end", metavar="T", help="No tick after this instant (RFC 3339).")]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="DATE", help="No tick on this date of the zone; repeatable.")
]


def settings(**overrides: Any) -> Settings:
    """The environment's settings with a command's options over them."""
    return Settings.from_env(os.environ, **overrides)


def client(store: str | None) -> Client:
    """A client of the effective store, in the name of who sits here."""
    from rota.sched.client import Client  # noqa: PLC0415 - keeps `rota --help` quick

    return Client.open(settings(store=store).need("store").store, _who())


def _who() -> str:
    """Who sits at this command line."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def json_object(text: str | None, what: str) -> dict[str, Any]:
    """An option's JSON object; UsageError if it is none."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what} is {text!r:.200}, not JSON: {error}; quote it, for example '{{\"n\": 1}}'") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} is {text!r:.200}: give a JSON object, arguments have names")
    return value


def moment(text: str | None, what: str) -> Any:
    """The instant that option `what` names, or a duration before now by this host's clock."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    from rota.sched.durations import instant, seconds  # noqa: PLC0415

    if text is None:
        return None
    if text[-1:] in "smhdw" or text.isdigit():
        return datetime.now(UTC) - timedelta(seconds=seconds(text, what))
    return instant(text, what)


def paused_text(by: str | None, at: str | None, reason: str | None) -> str:
    """Who paused something, since when and why; what nobody paused was set aside by a scheduler."""
    if by is None:
        return f"paused: {reason}" if reason else "paused"
    return f"paused by {by} since {output.when(at)}" + (f": {reason}" if reason else "")


def advise(when: When) -> None:
    """On stderr, what a person should know of a schedule before it is stored."""
    from rota.sched.timing import advice  # noqa: PLC0415
    from rota.sched.when import Schedule  # noqa: PLC0415

    for sentence in advice(when) if isinstance(when, Schedule) else ():
        output.complain(sentence)


def examples(lines: Sequence[str]) -> str:
    """The end of a command's help."""
    return "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)
