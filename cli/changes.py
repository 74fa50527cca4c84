"""Commands that change jobs which are stored: update, pause, resume, trigger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rota.sched.client import Client
    from rota.sched.store.values import Edited, Held
    from rota.sched.when import When

PAGE = 500
"""Jobs of a handler that are listed at once."""
NONE = "none"
"""What an option is given for the default."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Job ids, unique beginnings, or names.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the job.")]
WholeQueue = Annotated[str | None, typer.Option("--queue", help="The whole queue, what comes later too.")]
OfHandler = Annotated[str | None, typer.Option("--handler", help="The jobs that this handler has now.")]


def update(
    job: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A job's id, a unique beginning, or its name.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Its name, in place of ID.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="Another cron expression.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="Another zone; also of --at.")] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="D", help="An interval instead.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="T", help="Another instant, of a job that runs once.")
    ] = None,
    in_: Annotated[str | None, typer.Option("--in", metavar="D", help="After this time, a job that runs once.")] = None,
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Other arguments, all of them.")] = None,
    misfire: common.Misfire = None,
    overlap: common.Overlap = None,
    jitter: common.Jitter = None,
    catchup_window: common.CatchupWindow = None,
    catchup_limit: Annotated[str | None, typer.Option(metavar="N", help="At most so many missed ticks run.")] = None,
    max_runs: Annotated[
        str | None, typer.Option(metavar="N", help="The job ends after so many runs, those before included.")
    ] = None,
    grace: common.Grace = None,
    dst_gap: common.DstGap = None,
    dst_overlap: common.DstOverlap = None,
    start: common.Start = None,
    end: common.End = None,
    exclude: common.Exclude = None,
    attempts: Annotated[str | None, typer.Option(metavar="N", help="Executions at most.")] = None,
    retry_for: Annotated[str | None, typer.Option(metavar="D", help="No attempt begins later than that.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="D", help="Of each attempt.")] = None,
    expires: Annotated[str | None, typer.Option(metavar="D", help="It may not begin later than that.")] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="V", help="Only if it is at this version, as `rota show` tells it."),
    ] = None,
    reason: Reason = None,
    store: common.Store = None,
    *,
    run_now: Annotated[bool, typer.Option("--run-now", help="And one run at once.")] = False,
    json: common.Json = False,
) -> None:
    """Change a stored job; what is not named stays as it is, and `none` is the default again.

    No tick is lost or doubled by it, and nothing of the new schedule runs before its next tick unless --run-now.
    """
    if (job is None) == (name is None):
        raise UsageError("give one job: its id, a unique beginning of it, or its name")
    retry = _parts({"attempts": _whole(attempts, "--attempts"), "retry_for": retry_for})
    given: dict[str, Any] = {
        "cron": cron,
        "tz": tz if at is None else None,
        "every": every,
        "misfire": misfire,
        "overlap": overlap,
        "jitter": jitter,
        "catchup_window": catchup_window,
        "catchup_limit": _whole(catchup_limit, "--catchup-limit"),
        "max_runs": _whole(max_runs, "--max-runs"),
        "grace": grace,
        "dst_gap": dst_gap,
        "dst_overlap": dst_overlap,
        "start": start,
        "end": end,
        "exclude": NONE if exclude == [NONE] else exclude or None,
        "retry": retry or None,
        "timeout": timeout,
        "expires": expires,
    }
    parts = _parts(given)
    values = None if args is None else common.json_object(args, "--args")
    with common.client(store) as client:
        done = client.update(
            job or name or "",
            _once(at, in_, tz),
            args=values,
            version=version,
            run_now=run_now,
            by=None,
            reason=reason,
            **parts,
        )
    if json:
        from dataclasses import asdict  # noqa: PLC0415

        output.emit(asdict(done))
    else:
        output.say(f"{job or name}: {', '.join(_edited(done))}")


def _parts(given: dict[str, Any]) -> dict[str, Any]:
    """What is to be changed: to None where the default is wanted."""
    return {word: None if value == NONE else value for word, value in given.items() if value is not None}


def _whole(text: str | None, option: str) -> int | str | None:
    if text is None or text == NONE:
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} is {text!r}: give a whole number, or none") from None


def _once(at: str | None, in_: str | None, tz: str | None) -> When | None:
    from rota.sched import when  # noqa: PLC0415
    from rota.sched.durations import instant, wall_time  # noqa: PLC0415

    if at is not None and in_ is not None:
        raise UsageError("--at and --in exclude each other: give one")
    if in_ is not None:
        return when.after(in_)
    if at is None:
        return None
    return when.at(instant(at, "--at")) if tz is None else when.at(wall_time(at, "--at"), tz=tz)


def _edited(done: Edited) -> Iterator[str]:
    yield f"version {done.version}" if done.changed else f"nothing to change, version {done.version}"
    yield f"next at {done.next}"
    if done.runs or done.skipped:
        yield f"of what was due before {done.runs} run" + (" and the rest is skipped" if done.skipped else "")
    if done.run:
        yield f"and one run now: {done.job_id[:18]}@{done.run}"


def pause(
    ids: Ids = None,
    queue: WholeQueue = None,
    handler: OfHandler = None,
    reason: Reason = None,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Pause jobs, or a queue: nothing of them is claimed until they are resumed. What was claimed before runs."""
    _hold(ids, queue, handler, reason, store, pause=True, json=json)


def resume(
    ids: Ids = None,
    queue: WholeQueue = None,
    handler: OfHandler = None,
    reason: Reason = None,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Resume jobs, or a queue. What has become late is the misfire policy's; a job that runs once runs now."""
    _hold(ids, queue, handler, reason, store, pause=False, json=json)


def _hold(
    ids: list[str] | None,
    queue: str | None,
    handler: str | None,
    reason: str | None,
    store: str | None,
    *,
    pause: bool,
    json: bool,
) -> None:
    if sum(bool(each) for each in (ids, queue, handler)) != 1:
        raise UsageError("give ids, or --queue, or --handler")
    with common.client(store) as client:
        if queue is not None:
            whole = client.pause_queue if pause else client.resume_queue
            good = _each(f"queue {queue}", lambda: whole(queue, reason=reason), json=json)
        else:
            one = client.pause if pause else client.resume
            targets = iter(ids or ()) if handler is None else _jobs_of(client, handler, paused=not pause)
            done = [_each(job, lambda job=job: one(job, reason=reason), json=json) for job in targets]  # type: ignore[misc]
            good = all(done)
            if not done and not json:
                output.say(f"handler {handler} has no job to {'pause' if pause else 'resume'}")
    if not good:
        raise typer.Exit(1)


def _jobs_of(client: Client, handler: str, *, paused: bool) -> Iterator[str]:
    """The ids of a handler's jobs that are paused, or are not; those that leave the list are looked at once."""
    from rota.sched.store.views import Filter  # noqa: PLC0415

    seen: set[str] = set()
    which = Filter(handler=handler, state="paused" if paused else "scheduled", limit=PAGE)
    while new := [row["id"] for row in client.run(client.store.list_jobs(which)) if row["id"] not in seen]:
        seen.update(new)
        yield from new


def _each(target: str, do: Callable[[], Held], *, json: bool) -> bool:
    """Does it to one and says what was done; False where it was refused."""
    try:
        done = do()
    except Refused as error:
        if json:
            output.emit({"id": target, "error": str(error)})
        else:
            output.complain(str(error))
        return False
    if json:
        from dataclasses import asdict  # noqa: PLC0415

        output.emit({**asdict(done), "id": target})
    else:
        output.say(f"{target}: {_held(done)}")
    return True


def _held(done: Held) -> str:
    word = "paused" if done.paused else "resumed" if done.changed else "was not paused"
    if done.changed:
        return word
    return f"was {common.paused_text(done.by, done.at, done.reason)} already" if done.paused else word


def trigger(
    ids: Ids = None,
    reason: Reason = None,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Run schedules once more, now, beside their ticks."""
    if not ids:
        raise UsageError("give ids or names of schedules")
    refused = False
    with common.client(store) as client:
        for each in ids:
            try:
                done = client.trigger(each, reason=reason)
            except Refused as error:
                refused = True
                output.emit({"id": each, "error": str(error)}) if json else output.complain(str(error))
                continue
            if json:
                output.emit({"id": each, "run": str(done.key), "paused": done.paused})
            else:
                told = ", though it is paused" if done.paused else ""
                output.say(f"{each}: runs now{told}, as {done.key.job_id[:18]}@{done.key.scheduled_for}")
    if refused:
        raise typer.Exit(1)


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    for command, lines in (
        (
            update,
            [
                "rota update nightly-refresh --cron '0 3 * * *' --tz Europe/Rome --version 2 --reason 'quieter there'",
                "rota update nightly-refresh --misfire run_all --catchup-limit 10 --jitter none",
                "rota update 0199c1d2-7b31-7c0e --at 2026-12-01T10:00:00+01:00",
            ],
        ),
        (
            pause,
            ["rota pause nightly-refresh --reason 'wrong customer'", "rota pause --queue mail --reason 'SMTP is down'"],
        ),
        (resume, ["rota resume nightly-refresh", "rota resume --queue mail"]),
        (trigger, ["rota trigger nightly-refresh --reason 'asked for by phone'"]),
    ):
        app.command(epilog=common.examples(lines))(command)
