"""Commands on dead runs: redrive them, or discard them for good.

Each portion is a transaction of its own. Ctrl-C lets the one under way end, and then the counts are told; a second one
does not wait for it.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import common, output
from rota.sched.errors import Unreachable, UsageError
from rota.sched.ids import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress
    from rota.sched.dead import DeadResult
    from rota.sched.ids import RunKey
    from rota.sched.store.values import DeadBatch

Runs = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Dead runs, JOB@T as `rota dead` prints them.")
]
All = Annotated[bool, typer.Option("--all", help="Instead of filters: everything that is dead.")]
AtMost = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; default all that fit.")]
MaxRedrives = Annotated[
    int | None,
    typer.Option("--max-redrives", metavar="N", min=0, help="Leave alone what was redriven so often already."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")]


def redrive(
    runs: Runs = None,
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    error: common.ErrorText = None,
    since: common.Since = None,
    until: common.Until = None,
    limit: AtMost = None,
    max_redrives: MaxRedrives = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/s", help="So many a second; default all at once.")
    ] = None,
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Other arguments for them.")] = None,
    store: common.Store = None,
    *,
    everything: All = False,
    dry_run: DryRun = False,
    json: common.Json = False,
) -> None:
    """Run dead runs again: attempts start anew, errors are kept, and who did it is noted."""
    which = _which(queue, handler, tenant, error, since, until, everything=everything, limit=limit, spare=max_redrives)
    values = None if args is None else common.json_object(args, "--args")
    per_second = _rate(rate)
    with common.client(store) as client, _Teller("redriven", runs, dry_run=dry_run, json=json) as teller:
        done = client.redrive(
            *(runs or []),
            **which,
            args=values,
            per_second=per_second,
            dry_run=dry_run,
            progress=teller.portion,
        )
        teller.end(done, per_second)


def discard(
    runs: Runs = None,
    queue: common.Queue = None,
    handler: common.HandlerOption = None,
    tenant: common.Tenant = None,
    error: common.ErrorText = None,
    since: common.Since = None,
    until: common.Until = None,
    limit: AtMost = None,
    max_redrives: MaxRedrives = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for history.")] = None,
    store: common.Store = None,
    *,
    everything: All = False,
    dry_run: DryRun = False,
    json: common.Json = False,
) -> None:
    """Settle dead runs for good: they go to history as discarded, with who did it and why."""
    which = _which(queue, handler, tenant, error, since, until, everything=everything, limit=limit, spare=max_redrives)
    with common.client(store) as client, _Teller("discarded", runs, dry_run=dry_run, json=json) as teller:
        done = client.discard(*(runs or []), **which, reason=reason, dry_run=dry_run, progress=teller.portion)
        teller.end(done)


def _which(
    queue: str | None,
    handler: str | None,
    tenant: str | None,
    error: str | None,
    since: str | None,
    until: str | None,
    *,
    everything: bool,
    limit: int | None,
    spare: int | None,
) -> dict[str, Any]:
    return {
        "queue": queue,
        "handler": handler,
        "tenant": tenant,
        "error": error,
        "since": common.moment(since, "--since"),
        "until": common.moment(until, "--until"),
        "everything": everything,
        "limit": limit,
        "max_redrives": spare,
    }


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"--rate is {text!r}: give a number above 0, for example 10/s")
    return rate


class _Teller:
    """Tells what becomes of the runs, as it happens and at the end; `verb` is what is done to them.

    Runs that were named are told one by one, others only counted, but for scripts (`json`) all of them, and last of all the
    counts. While it is entered, Ctrl-C ends the command after the portion under way.
    """

    def __init__(self, verb: str, named: Sequence[str] | None, *, dry_run: bool, json: bool) -> None:
        self._verb = verb
        self._done = f"would be {verb}" if dry_run else verb
        self._named = bool(named)
        self._dry_run = dry_run
        self._json = json
        self._taken = 0
        self._interrupted = False
        self._ended = False
        self._bar: Progress | None = None
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._bar is not None:
            self._bar.stop()
        if isinstance(error, KeyboardInterrupt | Unreachable) and not self._ended:
            if self._json:
                output.emit({self._verb: self._taken, "interrupted": True})
            output.complain(f"interrupted: {self._taken} {self._done}; the same command goes on with the rest")

    def _interrupt(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        output.complain("stopping when the runs under way are done; Ctrl-C again does not wait for that")

    def portion(self, batch: DeadBatch, total: int) -> None:
        """What became of one portion; `total` is how many there are to look at."""
        self._taken += len(batch.taken)
        if self._json or self._named:
            for key in batch.taken:
                self._tell(key)
        elif sys.stderr.isatty():
            self._advance(batch.looked, total)
        if self._interrupted:
            raise KeyboardInterrupt

    def _tell(self, key: RunKey) -> None:
        if self._json:
            output.emit({"job_id": key.job_id, "scheduled_for": key.scheduled_for, "done": self._done})
        else:
            output.say(f"{short(key.job_id)}@{key.scheduled_for} {self._done}")

    def _advance(self, looked: int, total: int) -> None:
        if self._bar is None:
            self._bar = output.bar("dead runs")
            self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], advance=looked)

    def end(self, done: DeadResult, per_second: float | None = None) -> None:
        """The counts. Exit 1 where a run that was named was not taken."""
        self._ended = True
        if self._json:
            for key, why in done.refused.items():
                output.emit({"job_id": key.job_id, "scheduled_for": key.scheduled_for, "error": why})
            output.emit(
                {
                    self._verb: len(done),
                    "refused": len(done.refused),
                    "left_alone": len(done.spared),
                    "elsewhere": len(done.elsewhere),
                    "more": done.more,
                    "dry_run": self._dry_run,
                }
            )
        elif self._named:
            for key, why in done.refused.items():
                output.complain(f"{short(key.job_id)}@{key.scheduled_for}: {why}")
            for line in self._left(done):
                output.say(line)
        else:
            output.say(self._counted(done, per_second))
            for why, n in Counter(done.refused.values()).items():
                output.say(f"{n} not: {why}")
            for line in self._left(done):
                output.say(line)
        if self._named and len(done.refused) + len(done.elsewhere):
            raise typer.Exit(1)

    def _counted(self, done: DeadResult, per_second: float | None) -> str:
        if not done.runs:
            return f"no dead run fits that can be {self._verb}" if done.refused or done.spared else "no dead run fits"
        last = f", the last one in {output.duration(len(done) / per_second)}" if per_second else ""
        return f"{len(done)} {'run' if len(done) == 1 else 'runs'} {self._done}{last}"

    @staticmethod
    def _left(done: DeadResult) -> Iterator[str]:
        """What is still dead though it fits."""
        if done.spared:
            yield f"{len(done.spared)} left alone: redriven so often already (--max-redrives)"
        if done.elsewhere:
            yield f"{len(done.elsewhere)} were being taken by another command: see `rota dead`"
        if done.more:
            yield "more fit and are still dead: the same command goes on, or give a higher --limit, or none"


def add(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command(
        epilog=common.examples(
            [
                "rota redrive 0199c1d2-7b31-7c0e@2026-11-30T02:00:00.000000Z",
                "rota redrive --handler send_invoice --error timeout --since 2h --rate 10/s",
                "rota redrive --all --max-redrives 3 --dry-run",
            ]
        )
    )(redrive)
    app.command(epilog=common.examples(["rota discard --queue mail --until 7d --reason 'too late' --dry-run"]))(discard)
