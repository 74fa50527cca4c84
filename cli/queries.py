"""Commands that look: jobs, runs, history, dead, show, status, top, config, schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import NotFound, UsageError
from rota.sched.ids import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rota.sched.client import Client
    from rota.sched.store.values import HandlerRow
    from rota.sched.store.views import Filter, JobView, Row


EXCLUDED = 5
"""Dates that a schedule excludes, so many of which are told."""
SECONDS = {"jitter", "grace", "catchup_window"}


def _filter(**fields: Any) -> Filter:
    from rota.sched.store.views import Filter  # noqa: PLC0415

    moments = {name: common.moment(fields.get(name), f"--{name}") for name in ("since", "until")}
    return Filter(**{**fields, **moments})


def jobs(
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    state: Annotated[str | None, typer.Option("--state", help="scheduled or paused.")] = None,
    since: common.Since = None,
    limit: common.Limit = 50,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """List jobs that have a future, by when they are due."""
    _one_of(state, ("scheduled", "paused"))
    which = _filter(queue=queue, handler=handler, tenant=tenant, state=state, since=since, limit=limit)
    with common.client(store) as client:
        rows = client.run(client.store.list_jobs(which))
    if _as_json(rows, json=json):
        return
    output.table(
        ["ID", "NAME", "HANDLER", "QUEUE", "NEXT RUN (UTC)", "SCHEDULE", "POLICIES", "STATE"],
        (
            (
                short(r["id"]),
                r["name"],
                r["handler"],
                r["queue"],
                output.when(r["next_run_at"]),
                _schedule(r),
                ", ".join(_policies(r)),
                _job_state(r),
            )
            for r in rows
        ),
        "no jobs",
    )


def runs(
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    state: Annotated[
        str | None, typer.Option("--state", help="waiting, running, retrying, buffered, or an outcome.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job's.")] = None,
    since: common.Since = None,
    limit: common.Limit = 50,
    store: common.Store = None,
    *,
    history: Annotated[bool, typer.Option("--history", help="Ended runs, not the live ones.")] = False,
    json: common.Json = False,
) -> None:
    """List live runs, or with --history (or an outcome as --state) ended ones."""
    from rota.sched.model import OUTCOMES, STATES  # noqa: PLC0415

    _one_of(state, STATES + OUTCOMES)
    past = history or state in OUTCOMES
    with common.client(store) as client:
        job_id = None if job is None else client.run(client.store.resolve(job))
        which = _filter(queue=queue, handler=handler, tenant=tenant, state=state, job=job_id, since=since, limit=limit)
        rows = client.run(client.store.list_history(which) if past else client.store.list_runs(which))
    if _as_json(rows, json=json):
        return
    kind, at = ("outcome", "ended_at") if past else ("state", "begun_at")
    output.table(
        ["RUN", "HANDLER", "QUEUE", kind.upper(), "ATTEMPT", at.upper().replace("_", " "), "REASON"],
        (
            (output.run_id(r), r["handler"], r["queue"], r[kind], r["attempt"], output.when(r[at]), _reason(r))
            for r in rows
        ),
        "no runs",
    )


def dead(
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    error: common.ErrorText = None,
    since: common.Since = None,
    until: common.Until = None,
    limit: common.Limit = 50,
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """List runs that failed for good, until they are redriven or discarded."""
    which = _filter(queue=queue, handler=handler, tenant=tenant, error=error, since=since, until=until, limit=limit)
    with common.client(store) as client:
        rows = client.run(client.store.list_dead(which))
    if _as_json(rows, json=json):
        return
    output.table(
        ["RUN", "HANDLER", "QUEUE", "ATTEMPTS", "REDRIVEN", "DIED AT (UTC)", "REASON"],
        (
            (
                output.run_id(r),
                r["handler"],
                r["queue"],
                r["attempt"],
                _redriven(r),
                output.when(r["died_at"]),
                r["reason"],
            )
            for r in rows
        ),
        "no dead runs",
    )


def show(
    id: Annotated[str, typer.Argument(help="A job's id, a unique beginning of it, its name, or a run JOB@T.")],  # noqa: A002
    store: common.Store = None,
    *,
    json: common.Json = False,
) -> None:
    """Show all that is known of a job: its future, its live runs, its dead ones, its past. Of JOB@T only that run."""
    from rota.sched.ids import split_run  # noqa: PLC0415

    job, tick = split_run(id)
    with common.client(store) as client:
        view = client.get(job) if tick is None else _one_run(client, job, tick)
        handlers = client.run(client.store.handlers([row["handler"] for row in view.runs]))
    if json:
        output.emit(view.to_json())
        return
    for line in _picture(view, handlers):
        output.say(line)


def _one_run(client: Client, job: str, tick: str) -> JobView:
    from rota.sched.store.views import JobView  # noqa: PLC0415

    whole = client.get(job)
    which = _filter(job=whole.id, tick=tick)
    lists = (client.store.list_runs, client.store.list_dead, client.store.list_history)
    runs, dead, history = (client.run(each(which)) for each in lists)
    future = whole.job if whole.job and whole.job["scheduled_for"] == tick else None
    if not (future or runs or dead or history):
        raise NotFound(f"job {short(whole.id)} has no run at {tick}: `rota show {short(whole.id)}` lists those it has")
    return JobView(whole.id, future, runs, dead, history)


def _picture(view: JobView, handlers: Mapping[str, HandlerRow]) -> Iterator[str]:
    yield f"job {view.id}: {view.state}"
    if view.job:
        yield from _future(view.job)
    for title, rows, kind in (
        ("run", view.runs, "state"),
        ("dead", view.dead, None),
        ("past", view.history, "outcome"),
    ):
        for r in rows:
            word = "dead" if kind is None else r[kind]
            yield f"{title} {output.run_id(r)}: {word}, attempt {r['attempt']}, {r['handler']} on {r['queue']}"
            if _reason(r):
                yield f"  {_reason(r)}"
            if kind == "state":
                yield from _live(r, handlers.get(r["handler"]))
            for redrive in r["lineage"] or []:
                yield (
                    f"  redriven at {output.when(redrive['at'])} by {redrive['by']}, "
                    f"after {redrive['attempts']} attempts: {redrive['reason']}"
                )
            for error in r["errors"] or []:
                yield f"  attempt {error.get('attempt')}: {error.get('type')}: {error.get('message')}"


def _future(job: Row) -> Iterator[str]:
    """What there is to know of a job that has a future, and what was done to it by whom."""
    from rota.sched.edits import change_text  # noqa: PLC0415

    named = f"{job['name']}, " if job["name"] else ""
    yield f"  {named}{job['handler']} on {job['queue']}, next at {job['next_run_at']}, version {job['version']}"
    yield f"  {', '.join([_schedule(job) or 'once', *_policies(job)])}"
    yield f"  args {output.brief(job['args'], 200)}"
    if job["runs_left"] is not None:
        yield f"  ends after {job['runs_left']} more {'run' if job['runs_left'] == 1 else 'runs'}"
    if job["policy"]:
        yield f"  of its own: {output.brief(job['policy'], 200)}"
    if job["paused"] or job["queue_paused"]:
        yield f"  {_job_state(job)}"
    for change in job["changes"]:
        yield f"  {change_text(change)}"


def _live(run: Row, handler: HandlerRow | None) -> Iterator[str]:
    """What there is to know of a run that has not ended."""
    timeout = (run["policy"] or {}).get("timeout") or (handler.options.get("timeout") if handler else None)
    if run["state"] == "running":
        yield f"  begun at {run['begun_at']} by member {run['owner']}" + (f", timeout {timeout:g} s" if timeout else "")
    elif run["retry_at"]:
        yield f"  again at {run['retry_at']}"
    elif run["state"] == "buffered":
        yield "  waits until the runs of this job that are alive have ended"
    if run["catchup"] or run["missed"] != 0:
        yield f"  {'claimed late, ' if run['catchup'] else ''}{_missed(run['missed'])} skipped before it"
    if run["expires_at"]:
        yield f"  may begin until {run['expires_at']}, and expires then"
    if run["unknown_since"]:
        yield f"  no worker that got it has its handler, since {run['unknown_since']}"
    if run["progress"]:
        yield f"  {run['progress']['fraction']:.0%} at {run['progress']['at']}: {run['progress']['note']}"
    if run["checkpoint"] is not None:
        yield f"  checkpoint {output.brief(run['checkpoint'], 200)}"
    if run["cancel_requested"]:
        yield f"  asked to stop: {run['cancel_reason']}"


def _missed(count: int | None) -> str:
    if count is None:
        return "too many ticks to count"
    return "1 tick" if count == 1 else f"{count} ticks"


def status(store: common.Store = None, *, json: common.Json = False) -> None:
    """One picture: members, partitions, jobs, runs, queues, lags."""
    with common.client(store) as client:
        view = client.run(client.store.status())
    if json:
        output.emit(view.to_json())
        return
    from rota.cli.picture import picture  # noqa: PLC0415

    for line in picture(view):
        output.rich(line)


def top(
    store: common.Store = None,
    broker: common.Broker = None,
    interval: Annotated[
        str, typer.Option("--interval", metavar="D", help="Time between looks at the store, 0.1 s at least.")
    ] = "1s",
    *,
    json: Annotated[
        bool, typer.Option("--json", help="For scripts: the status as one JSON object a line, until interrupted.")
    ] = False,
) -> None:
    """The status, live. `q` quits."""
    from rota.cli.top import follow, run_top  # noqa: PLC0415
    from rota.sched.durations import seconds  # noqa: PLC0415

    pause = max(0.1, seconds(interval, "--interval"))
    settings = common.settings(store=store, broker=broker).need("store")
    if json:
        follow(settings.store, pause)
    else:
        run_top(settings.store, settings.to_json()["broker"], pause)


def config(store: common.Store = None, broker: common.Broker = None, *, json: common.Json = False) -> None:
    """Print the effective settings, secrets masked."""
    value = common.settings(store=store, broker=broker).to_json()
    if json:
        output.emit(value)
        return
    output.table(
        ["SETTING", "VARIABLE", "VALUE"],
        ((name, f"ROTA_{name.upper()}", each if each != [] else None) for name, each in value.items()),
        "nothing",
    )


def schema(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None, *, json: common.Json = False
) -> None:
    """Print the JSON Schemas of AMQP messages, or one of them."""
    import json as jsonlib  # noqa: PLC0415

    from rota.sched import schemas  # noqa: PLC0415

    names = schemas.names() if name is None else [name]
    if name is not None and name not in schemas.names():
        raise UsageError(f"there is no schema {name!r}: {', '.join(schemas.names())}")
    for each in names:
        output.say(jsonlib.dumps(schemas.schema(each), indent=None if json else 2))


def _as_json(rows: list[Row], *, json: bool) -> bool:
    if json:
        for row in rows:
            output.emit(row)
    return json


def _one_of(state: str | None, allowed: tuple[str, ...]) -> None:
    if state is not None and state not in allowed:
        raise UsageError(f"--state is {state!r}: use one of {', '.join(allowed)}")


def _schedule(row: Row) -> str:
    s = row["schedule"]
    if not s:
        return ""
    return f"{s['cron']} {s.get('tz', 'UTC')}" if s.get("cron") else f"every {s['every']:g} s"


def _job_state(row: Row) -> str:
    if row["paused"]:
        return common.paused_text(row["paused_by"], row["paused_at"], row["paused_reason"])
    return "scheduled, and its queue is paused" if row["queue_paused"] else "scheduled"


def _policies(row: Row) -> list[str]:
    """What a schedule asks for beside its times: only what differs from the defaults is stored."""
    told = []
    for name, value in (row["schedule"] or {}).items():
        if name in {"cron", "every", "tz"}:
            continue
        if name == "exclude" and len(value) > EXCLUDED:
            value = [*value[:EXCLUDED], f"and {len(value) - EXCLUDED} more"]  # noqa: PLW2901 - for people
        text = " ".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value)
        told.append(f"{name} {text} s" if name in SECONDS else f"{name} {text}")
    return told


def _reason(row: Row) -> str:
    if row.get("reason"):
        return str(row["reason"])
    errors = row.get("errors") or []
    return f"{errors[-1].get('type')}: {errors[-1].get('message')}" if errors else ""


def _redriven(row: Row) -> str:
    """How often, and who did it last."""
    return f"{row['redrives']}, by {row['lineage'][-1]['by']}" if row["redrives"] else ""


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    for command, lines in (
        (jobs, ["rota jobs --queue mail", "rota jobs --state paused --json"]),
        (runs, ["rota runs --state running", "rota runs --job nightly-refresh --history"]),
        (dead, ["rota dead --handler send_invoice", "rota dead --error timeout --since 2h --json"]),
        (show, ["rota show 0199c1d2-7b31-7c0e", "rota show nightly-refresh --json"]),
        (status, ["rota status", "rota status --json"]),
        (top, ["rota top", "rota top --interval 5s"]),
        (config, ["rota config --json"]),
        (schema, ["rota schema job.submit"]),
    ):
        app.command(epilog=common.examples(lines))(command)
