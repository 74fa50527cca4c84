"""The command that shows when a schedule will fire: needs no store."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import RotaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime
    from typing import TextIO

    from rota.sched.timing import Around, Fire
    from rota.sched.when import Schedule

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
    dst_gap: Annotated[str, typer.Option(help="run_after, shift or skip.")] = "run_after",
    dst_overlap: Annotated[str, typer.Option(help="first, last, both or skip.")] = "first",
    start: common.Start = None,
    end: common.End = None,
    exclude: common.Exclude = None,
    max_runs: Annotated[int | None, typer.Option("--max-runs", metavar="N", help="It ends after so many runs.")] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="D", help="Also show when each is due with this jitter, of --job.")
    ] = None,
    outage: Annotated[
        str | None,
        typer.Option("--outage", metavar="D", help="What each misfire policy makes of that long without a scheduler."),
    ] = None,
    catchup_window: Annotated[
        str | None, typer.Option(metavar="D", help="Of --outage: older ticks are skipped.")
    ] = None,
    catchup_limit: Annotated[int, typer.Option(metavar="N", help="Of --outage: at most so many run.")] = 100,
    grace: Annotated[str | None, typer.Option(metavar="D", help="Of --outage: a tick this late is missed.")] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="The full id of --jitter's job.")] = None,
    *,
    around_dst: Annotated[
        bool, typer.Option("--around-dst", help="What each policy makes of the zone's next two clock changes.")
    ] = False,
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
    if (jitter is None) != (job is None):
        raise UsageError("--jitter and --job belong together: a job's jitter follows from its id")
    words: dict[str, Any] = {
        "dst_gap": dst_gap,
        "dst_overlap": dst_overlap,
        "start": start,
        "end": end,
        "exclude": exclude or (),
        "max_runs": max_runs,
    }
    schedule = _schedule(cron=expr, tz=tz, jitter=jitter or 0, **words)
    begin = _instant(after)
    if outage is not None:
        words |= {"catchup_window": catchup_window, "catchup_limit": catchup_limit, "grace": grace}
        _tell_outage(_schedule(cron=expr, tz=tz, **words), begin, outage, json=json)
    elif around_dst:
        _tell_changes(schedule, begin, count, json=json)
    else:
        _tell_fires(schedule, begin, count, job, json=json)


def answer(line: str, count: int) -> dict[str, Any]:
    """What `--batch` says to one line: `{"fires": [...]}` or `{"error": "..."}`."""
    try:
        row = jsonlib.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("expr"), str):
            raise UsageError(f"no expr in {line.strip()!r:.200}")
        wanted = _count(row.get("count", count))
        schedule = _schedule(cron=row["expr"], tz=_text(row, "tz") or "UTC")
        found = _fires(schedule, _instant(_text(row, "after")), wanted)
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


def _schedule(**words: Any) -> Schedule:
    from rota.sched.when import Schedule  # noqa: PLC0415

    return Schedule(**words)


def _instant(text: str | None) -> datetime:
    from datetime import UTC, datetime  # noqa: PLC0415

    from rota.sched.durations import instant  # noqa: PLC0415

    return datetime.now(UTC) if text is None else instant(text, "after")


def _fires(schedule: Schedule, after: datetime, count: int) -> list[Fire]:
    from rota.sched.timing import fires  # noqa: PLC0415

    return fires(schedule, after, count)


def _tell_fires(schedule: Schedule, after: datetime, count: int, job: str | None, *, json: bool) -> None:
    """The fires, and when each is due if a job is given whose jitter decides it."""
    from rota.sched.timing import advice  # noqa: PLC0415

    found = _fires(schedule, after, count + 1)  # one more: jitter stays below the gap to the next
    dues = [] if job is None else _dues(schedule, job, found)[:count]
    found = found[:count]
    if json:
        output.emit({**_as_json(found, schedule.tz), "advice": advice(schedule), **({"due": dues} if dues else {})})
        return
    columns = [f"LOCAL ({schedule.tz})", "UTC", *(["DUE (UTC)"] if dues else []), "NOTE"]
    rows = ([_local(f), _second(f.utc), f.note] for f in found)
    output.table(columns, ([*r[:2], dues[n], r[2]] if dues else r for n, r in enumerate(rows)), "never")
    for sentence in advice(schedule):
        output.say(sentence)


def _dues(schedule: Schedule, job: str, found: list[Fire]) -> list[str]:
    from uuid import UUID  # noqa: PLC0415

    from rota.sched.durations import rfc3339  # noqa: PLC0415
    from rota.sched.timing import jitter_of  # noqa: PLC0415

    try:
        job_id = str(UUID(job))
    except ValueError:
        raise UsageError(f"--job is {job!r}: give the full id of a job, 36 characters") from None
    following = [*(fire.utc for fire in found[1:]), None]
    return [rfc3339(f.utc + jitter_of(schedule, job_id, f.utc, n)) for f, n in zip(found, following, strict=True)]


def _as_json(found: list[Fire], tz: str) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    from rota.sched.timing import zone_source  # noqa: PLC0415

    return {
        "fires": [_second(f.utc) for f in found],
        "local": [f.local.isoformat() for f in found],
        "nominal": [f.nominal.isoformat() for f in found],
        "notes": [f.note for f in found],
        "tz": tz,
        "tz_database": asdict(zone_source()),
    }


def _tell_changes(schedule: Schedule, after: datetime, count: int, *, json: bool) -> None:
    """Each of the next two clock changes, and the fires near it under each word of the policy that decides there."""
    from rota.sched.timing import advice, around_changes, zone  # noqa: PLC0415

    found = around_changes(schedule, after, most=count)
    if json:
        output.emit({"tz": schedule.tz, "changes": [_change_as_json(each) for each in found]})
        return
    if not found:
        output.say(f"the clock of {schedule.tz} does not change in the next three years")
    for sentence in advice(schedule):
        output.say(sentence)
    for each in found:
        there = each.at.astimezone(zone(schedule.tz))
        before = (there.replace(tzinfo=None) - each.moved).strftime("%H:%M")
        way = "forward" if each.policy == "dst_gap" else "back"
        output.say(f"{there:%a %Y-%m-%d}: at {before} the clock goes {way} to {there:%H:%M} ({_second(each.at)})")
        output.table(["POLICY", f"LOCAL ({schedule.tz})", "UTC", "NOTE"], _rows(each), "")


def _tell_outage(schedule: Schedule, until: datetime, length: str, *, json: bool) -> None:
    """Which of the ticks that were due up to `until` would run under each misfire policy, and which would not."""
    from rota.sched.durations import seconds  # noqa: PLC0415
    from rota.sched.timing import outage  # noqa: PLC0415

    since = until - timedelta(seconds=seconds(length, "--outage"))
    found = outage(schedule, since, until)
    if json:
        told = {
            word: {
                "runs": [_second(tick) for tick in plan.fire],
                "skipped": [
                    {"first": _second(s.first), "last": _second(s.last), "count": s.count, "why": s.why}
                    for s in plan.skipped
                ],
            }
            for word, plan in found.plans.items()
        }
        output.emit({"since": _second(since), "until": _second(until), "due": found.due, "policies": told})
        return
    due = "too many ticks to count" if found.due is None else f"{found.due} ticks"
    output.say(f"{due} between {_second(since)} and {_second(until)}, when somebody claims again")
    output.table(
        ["POLICY", "RUNS", "FROM (UTC)", "TO (UTC)", "SKIPPED"],
        (
            (
                f"misfire={word}",
                len(plan.fire),
                _second(plan.fire[0]) if plan.fire else None,
                _second(plan.fire[-1]) if plan.fire else None,
                "; ".join(s.text() for s in plan.skipped),
            )
            for word, plan in found.plans.items()
        ),
        "",
    )


def _rows(each: Around) -> Iterator[tuple[object, ...]]:
    for word, near in each.fires.items():
        if not near:
            yield f"{each.policy}={word}", "none"
        for fire in near:
            yield f"{each.policy}={word}", _local(fire), _second(fire.utc), fire.note


def _change_as_json(each: Around) -> dict[str, Any]:
    told = {word: [_second(fire.utc) for fire in near] for word, near in each.fires.items()}
    return {"at": _second(each.at), "moved_s": int(each.moved.total_seconds()), "policy": each.policy, "fires": told}


def _local(fire: Fire) -> str:
    return fire.local.strftime("%a %Y-%m-%d %H:%M:%S %Z")


def _second(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(
        epilog=common.examples(
            [
                "rota preview '*/15 9-17 * * mon-fri' --tz Europe/Paris --count 3",
                "rota preview '30 2 * * *' --tz Europe/Paris --around-dst",
                "rota preview '*/10 * * * *' --outage 1d --catchup-limit 20",
                "rota preview --batch crons.jsonl",
            ]
        )
    )(preview)
