"""Commands that set up the store and run members: migrate, scheduler, worker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, logs, output

if TYPE_CHECKING:
    from collections.abc import Callable

    from rota.sched.settings import Settings

Level = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
Drain = Annotated[
    str | None, typer.Option("--drain-timeout", metavar="D", help="Longest drain after SIGTERM, default 30s.")
]

Lease = Annotated[
    str | None, typer.Option("--lease", metavar="D", help="A member unheard of for this long is dead, default 15s.")
]
Beat = Annotated[str | None, typer.Option("--beat", metavar="D", help="Time between heartbeats, default 5s.")]

AckTimeout = Annotated[
    str | None,
    typer.Option(
        "--ack-timeout",
        metavar="D",
        help="RabbitMQ's consumer_timeout; no delivery is held longer than a third of it, default 30m.",
    ),
]


def migrate(
    store: common.Store = None,
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements and change nothing.")] = False,
    json: common.Json = False,
) -> None:
    """Bring the store's schema up to date. Idempotent, and safe from many hosts at once."""
    from rota.sched.store import open_store  # noqa: PLC0415

    settings = common.settings(store=store).need("store")
    opened = open_store(settings.store)
    if sql:
        text = opened.migration_sql()
        if json:
            output.emit({"sql": text})
        else:
            output.say(text)
        return
    version = opened.migrate()
    if json:
        output.emit({"store": opened.masked_url, "version": version})
    else:
        output.say(f"{opened.masked_url} is at version {version}")


def scheduler(
    store: common.Store = None,
    broker: common.Broker = None,
    lease: Lease = None,
    beat: Beat = None,
    batch: Annotated[int | None, typer.Option(help="Jobs claimed at once at most, default 500.")] = None,
    confirm_window: Annotated[int | None, typer.Option(help="Publishes not yet confirmed, default 2000.")] = None,
    reconcile_after: Annotated[
        str | None,
        typer.Option(metavar="D", help="A message not begun for so long may be lost: looked after, default 120s."),
    ] = None,
    history_keep: Annotated[
        str | None,
        typer.Option(metavar="D", help="How long ended runs are kept after the end of their day (UTC), default 14d."),
    ] = None,
    ack_timeout: AckTimeout = None,
    drain_timeout: Drain = None,
    log_level: Level = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Run a scheduler until SIGTERM, then drain."""
    settings = common.settings(
        store=store,
        broker=broker,
        lease=lease,
        beat=beat,
        batch=batch,
        confirm_window=confirm_window,
        reconcile_after=reconcile_after,
        history_keep=history_keep,
        ack_timeout=ack_timeout,
        drain_timeout=drain_timeout,
        log_level=log_level,
    )
    settings.need("store", "broker")
    logs.configure(settings.log_level, as_json=json)
    from rota.sched.scheduler.service import run_scheduler  # noqa: PLC0415

    raise typer.Exit(run_scheduler(settings))


def worker(
    app: Annotated[str | None, typer.Argument(metavar="MODULE:app", help="The app, default ROTA_APP.")] = None,
    store: common.Store = None,
    broker: common.Broker = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", help="A queue to work on; default: those of the app.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Runs at a time in each process, default 16.")] = None,
    processes: Annotated[int | None, typer.Option(help="Worker processes, default 1.")] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(
            help="Deliveries of a queue held at most; default 4 x concurrency, 128 at least, 1000 where runs are short."
        ),
    ] = None,
    lease: Lease = None,
    beat: Beat = None,
    ack_timeout: AckTimeout = None,
    drain_timeout: Drain = None,
    log_level: Level = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
) -> None:
    """Run a worker until SIGTERM, then drain."""
    settings = common.settings(
        app=app,
        store=store,
        broker=broker,
        queues=tuple(queue) if queue else None,
        concurrency=concurrency,
        processes=processes,
        prefetch=prefetch,
        lease=lease,
        beat=beat,
        ack_timeout=ack_timeout,
        drain_timeout=drain_timeout,
        log_level=log_level,
    )
    settings.need("store", "broker", "app")
    from rota.workers.family import run_children  # noqa: PLC0415

    prepare = partial(logs.configure, settings.log_level, as_json=json)
    prepare()
    _load(settings)
    if settings.processes > 1:
        raise typer.Exit(run_children(settings, partial(work, prepare)))
    raise typer.Exit(work(prepare, settings))


def work(prepare: Callable[[], None], settings: Settings) -> int:
    """What a process of a worker does; `prepare` sets up logging there, and in processes of its isolated handlers."""
    from rota.workers.service import run_worker  # noqa: PLC0415

    prepare()
    return run_worker(settings, _load(settings), prepare)


def _load(settings: Settings) -> Any:
    from rota.sched.app import load_app  # noqa: PLC0415

    return load_app(settings.app)


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(epilog=common.examples(["rota migrate", "rota migrate --sql > schema.sql"]))(migrate)
    app.command(epilog=common.examples(["rota scheduler", "rota scheduler --drain-timeout 10s"]))(scheduler)
    app.command(
        epilog=common.examples(
            ["rota worker billing:app", "rota worker billing:app --queue mail --concurrency 50 --processes 2"]
        )
    )(worker)
