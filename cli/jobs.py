"""Commands that change jobs: submit, cancel."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import NotFound, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.client import Client
    from rota.sched.store.values import Cancelled, HandlerRow
    from rota.sched.when import When

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Job ids, unique beginnings, names, or runs JOB@T.")]


def submit(
    handler: Annotated[str, typer.Argument(help="A handler that some worker has announced.")],
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Arguments, a JSON object.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="T", help="At this instant: RFC 3339 with an offset, or without and --tz."),
    ] = None,
    in_: Annotated[str | None, typer.Option("--in", metavar="D", help="After this time: 90s, 5m, 26h.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="On a cron expression.")] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="IANA zone of --cron (default UTC), or of --at.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="D", help="At a fixed interval: 30s.")] = None,
    misfire: common.Misfire = None,
    overlap: common.Overlap = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", metavar="N", help="The schedule ends after so many runs.")
    ] = None,
    jitter: common.Jitter = None,
    catchup_window: common.CatchupWindow = None,
    catchup_limit: Annotated[int | None, typer.Option(help="At most so many missed ticks run.")] = None,
    grace: common.Grace = None,
    dst_gap: common.DstGap = None,
    dst_overlap: common.DstOverlap = None,
    start: common.Start = None,
    end: common.End = None,
    exclude: common.Exclude = None,
    attempts: Annotated[int | None, typer.Option(metavar="N", help="Executions at most, not the handler's.")] = None,
    retry_for: Annotated[
        str | None, typer.Option(metavar="D", help="No attempt begins later than that after it was due.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="D", help="Of each attempt, not the handler's.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="D", help="It may not begin later than that after it was due.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name, one job at a time has it.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same submit again is a duplicate.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue, default the handler's.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Tenant.")] = None,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Submit a job and print its id."""
    from rota.sched.app import Call, check_args  # noqa: PLC0415

    policies: dict[str, Any] = {
        "misfire": misfire,
        "overlap": overlap,
        "max_runs": max_runs,
        "jitter": jitter,
        "catchup_window": catchup_window,
        "catchup_limit": catchup_limit,
        "grace": grace,
        "dst_gap": dst_gap,
        "dst_overlap": dst_overlap,
        "start": start,
        "end": end,
        "exclude": exclude or None,
    }
    when = _when(at, in_, cron, tz, every, {k: v for k, v in policies.items() if v is not None})
    values = common.json_object(args, "--args")
    common.advise(when)
    with common.client(store) as client:
        row = announced(client, handler)
        check_args(row.schema, values, handler)
        ref = client.submit(
            Call(handler, values, queue or row.queue),
            when,
            key=key,
            name=name,
            queue=queue,
            tenant=tenant,
            retry={k: v for k, v in {"attempts": attempts, "retry_for": retry_for}.items() if v is not None} or None,
            timeout=timeout,
            expires=expires,
        )
    if json:
        output.emit({"job_id": ref.id, "duplicate": ref.duplicate})
    else:
        output.say(ref.id)


def _when(
    at: str | None, in_: str | None, cron: str | None, tz: str | None, every: str | None, policies: dict[str, Any]
) -> When:
    from rota.sched import when  # noqa: PLC0415
    from rota.sched.durations import instant, seconds, wall_time  # noqa: PLC0415
    from rota.sched.when import Once, Schedule  # noqa: PLC0415

    if sum(each is not None for each in (at, in_, cron, every)) > 1:
        raise UsageError("--at, --in, --cron and --every exclude each other: give one")
    if tz is not None and cron is None and at is None:
        raise UsageError(f"--tz {tz} belongs to --cron, or to --at without an offset")
    if cron is not None:
        return Schedule(cron=cron, tz=tz or "UTC", **policies)
    if every is not None:
        return Schedule(every=seconds(every, "--every"), **policies)
    if policies:
        raise UsageError(f"--{next(iter(policies)).replace('_', '-')} belongs to schedules: give --cron or --every")
    if at is not None:
        return Once(at=instant(at, "--at")) if tz is None else when.at(wall_time(at, "--at"), tz=tz)
    return Once() if in_ is None else Once(after=seconds(in_, "--in"))


def announced(client: Client, handler: str) -> HandlerRow:
    """What workers have announced of a handler. NotFound, with those that are near, for one that none has."""
    row = client.run(client.store.handlers([handler])).get(handler)
    if row is not None:
        return row
    reading: Any = client.store
    known = client.run(reading.known_handlers())
    near = get_close_matches(handler, known, n=3) or known[:10]
    told = f"known are {', '.join(near)}{' and more' if len(known) > len(near) else ''}" if known else "none is, yet"
    raise NotFound(
        f"handler {handler!r} is not known ({told}): check the name, or start a worker that has it; "
        "workers announce their handlers when they start"
    )


def cancel(
    ids: Ids,
    store: common.Store = None,
    *,
    running: Annotated[bool, typer.Option("--running", help="Ask a running run to stop, too.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; history keeps it.")] = None,
    json: common.Json = False,
) -> None:
    """End jobs, or single runs (JOB@T). What has not begun ends at once; what runs is left unless --running."""
    with common.client(store) as client:
        refused = [each for each in ids if not _cancel(client, each, reason, running=running, json=json)]
    if refused:
        raise typer.Exit(1)


def _cancel(client: Client, target: str, reason: str | None, *, running: bool, json: bool) -> bool:
    try:
        done = client.cancel(target, running=running, reason=reason)
    except Refused as error:
        return _refused(target, str(error), json=json)
    if done.nothing:
        left = "it is running: give --running" if done.running else "it has ended already: see `rota show`"
        return _refused(target, f"{target}: nothing to cancel, {left}", json=json)
    if json:
        output.emit({"id": target, "job": done.job, "runs": done.runs, "asked": done.asked, "running": done.running})
    else:
        output.say(f"{target}: {', '.join(_cancelled(done))}")
    return True


def _cancelled(done: Cancelled) -> Iterator[str]:
    if done.job:
        yield "job ended"
    if done.runs:
        yield f"{done.runs} {'run' if done.runs == 1 else 'runs'} ended"
    if done.asked:
        yield f"{done.asked} running asked to stop"
    elif done.running:
        yield f"{done.running} running left alone (--running asks it to stop)"


def _refused(what: str, message: str, *, json: bool) -> bool:
    if json:
        output.emit({"id": what, "error": message})
    else:
        output.complain(message)
    return False


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(
        epilog=common.examples(
            [
                "rota submit send_invoice --args '{\"invoice_id\": 7}' --key invoice-7",
                "rota submit refresh --in 5m",
                "rota submit refresh --at 2026-12-01T09:00:00+01:00",
                "rota submit refresh --at 2026-12-01T09:00 --tz Europe/Paris",
                "rota submit refresh --cron '0 2 * * *' --tz Europe/Paris --name nightly-refresh",
            ]
        )
    )(submit)
    app.command(
        epilog=common.examples(
            ["rota cancel nightly-refresh", "rota cancel 0199c1d2-7b31-7c0e --running --reason 'wrong customer'"]
        )
    )(cancel)
