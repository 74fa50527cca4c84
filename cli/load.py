"""The command that shows what stored schedules will bring: fires per minute of the next day, and its spikes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.store.views import Row
    from rota.sched.timing.load import Load, Planned

SPIKES = 5
CAUSES = 3
BAR = 40


def load(
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    jitter: Annotated[
        str, typer.Option("--jitter", metavar="D", help="What this jitter for all schedules would make of it.")
    ] = "5m",
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Show the fires of all schedules in each minute of the next 24 hours, which make its spikes, and what jitter would do."""
    from rota.sched.durations import seconds  # noqa: PLC0415
    from rota.sched.store.views import Filter  # noqa: PLC0415
    from rota.sched.timing import load as timing  # noqa: PLC0415

    spread = seconds(jitter, "--jitter")
    with common.client(store) as client:
        rows = client.run(client.store.list_schedules(Filter(queue=queue, handler=handler, tenant=tenant)))
    planned = [each for row in rows if (each := _planned(row))]
    start = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    found = timing.load(planned, start, spread)
    told = {"schedules": len(planned), "jitter_s": spread, **_as_json(found)}
    if json:
        output.emit(told)
    else:
        _picture(told, found)


def _planned(row: Row) -> Planned | None:
    """The schedule of a row; one that cannot be read is told and left out."""
    from rota.sched.timing.load import Planned  # noqa: PLC0415
    from rota.sched.when import Schedule  # noqa: PLC0415

    try:
        schedule = replace(Schedule.from_json(row["schedule"]), max_runs=row["runs_left"])
    except UsageError as error:
        output.complain(f"job {row['id']}: {error}")
        return None
    return Planned(row["id"], schedule, datetime.fromisoformat(row["scheduled_for"]))


def _as_json(found: Load) -> dict[str, Any]:
    highest = sorted((n for n, fires in enumerate(found.due) if fires), key=lambda n: -found.due[n])[:SPIKES]
    return {
        "from": _at(found, 0),
        "fires": sum(found.due),
        "sampled": found.sampled,
        "peak": max(found.due),
        "peak_with_jitter": max(found.spread),
        "spikes": [
            {
                "at": _at(found, n),
                "fires": found.due[n],
                "fires_with_jitter": found.spread[n],
                "schedules": [
                    {"schedule": text, "fires": fires} for text, fires in found.causes[n].most_common(CAUSES)
                ],
            }
            for n in highest
        ],
        "per_minute": found.due,
        "per_minute_with_jitter": found.spread,
    }


def _at(found: Load, minute: int) -> str:
    return (found.start + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:00Z")


def _picture(told: dict[str, Any], found: Load) -> None:
    about = "about " if told["sampled"] else ""
    output.say(
        f"{told['schedules']} schedules, {about}{told['fires']} fires in 24 hours from {told['from']}; "
        f"the busiest minute has {told['peak']}, with a jitter of {told['jitter_s']:g} s {told['peak_with_jitter']}"
    )
    output.table(["FROM (UTC)", "FIRES", "BUSIEST MINUTE", ""], _hours(found), "no fires")
    output.table(
        ["SPIKE (UTC)", "FIRES", "WITH JITTER", "MOST OF THEM"],
        (
            (
                s["at"],
                s["fires"],
                s["fires_with_jitter"],
                ", ".join(f"{c['fires']} of {c['schedule']}" for c in s["schedules"]),
            )
            for s in told["spikes"]
        ),
        "no spikes",
    )


def _hours(found: Load) -> Iterator[tuple[object, ...]]:
    highest = max(found.due) or 1
    for begin in range(0, len(found.due), 60):
        fires = found.due[begin : begin + 60]
        yield _at(found, begin)[11:16], sum(fires), max(fires), "#" * round(max(fires) / highest * BAR)


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(epilog=common.examples(["rota load", "rota load --queue mail --jitter 10m --json"]))(load)
