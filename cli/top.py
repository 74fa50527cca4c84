"""The status as lines of text, and the live view of it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.store.views import StatusView


def lines(view: StatusView, rates: dict[str, float] | None = None) -> Iterator[str]:
    """The picture, each line at most some 98 columns wide."""
    jobs, runs = view.jobs, view.runs
    about = "about " if jobs["estimated"] else ""
    yield f"{view.now[:19]}Z   degraded: {', '.join(view.degraded) or 'no'}"
    yield ""
    yield f"jobs    {about}{jobs['scheduled']} scheduled   {jobs['due']} due   {jobs['paused']} paused"
    yield "runs    " + "   ".join(f"{n} {state}" for state, n in runs.items()) + f"   {view.dead} dead"
    ended = "   ".join(f"{n} {outcome}" for outcome, n in view.ended.items())
    yield f"today   {ended}"
    if rates is not None:
        yield "rate    " + "   ".join(f"{n:.0f} {outcome}/s" for outcome, n in rates.items())
    yield f"lag     oldest due {_time(view.lag['oldest_due_s'])}   " + "   ".join(
        f"{name} p50 {_time(view.lag[name]['p50'])} p99 {_time(view.lag[name]['p99'])}"
        for name in ("schedule", "queue", "run")
    )
    yield ""
    yield f"parts   {view.partitions['owned']} owned   {view.partitions['unowned']} unowned"
    yield f"{'MEMBER':>8} {'KIND':10} {'HOST':24} {'PID':>7} {'PARTS':>6} {'RUNNING':>8} {'ENDED':>9} {'BEAT':>8}"
    for m in view.members:
        done = sum(n for outcome, n in m["ended"].items() if outcome in {"succeeded", "dead", "cancelled"})
        yield (
            f"{m['id']:>8} {m['kind']:10} {m['host'][:24]:24} {m['pid']:>7} {m['partitions']:>6} {m['running']:>8} "
            f"{done:>9} {_time(m['beat_s']):>8}"
        )
    yield ""
    yield f"{'QUEUE':32} {'READY':>8} {'CONSUMERS':>10} {'CAP':>8}"
    for q in view.queues:
        mark = "  capped" if q["capped"] else "  paused" if q["paused"] else ""
        yield f"{q['name'][:32]:32} {_known(q['ready']):>8} {_known(q['consumers']):>10} {q['cap']:>8}{mark}"


def _known(value: Any) -> str:
    return "?" if value is None else str(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def run_top(store_url: str, interval: float) -> None:
    """Shows the picture until `q` or ctrl-C; comes back by itself when the store was away."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("rota top needs a terminal: for scripts there is `rota status --json`")
    from rich.console import Console  # noqa: PLC0415 - only here
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from rota.sched.client import Client  # noqa: PLC0415

    console = Console(highlight=False)
    rates = _Rates()
    with (
        Client.open(store_url) as client,
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        title = f"rota top   {client.store.masked_url}   q quits"
        while True:
            try:
                view = client.run(client.store.status())
                body = list(lines(view, rates.of(view)))
            except RotaError as error:
                body = ["", f"away: {error}", "", "trying again"]
            height = console.size.height
            shown = [title, *body]
            if len(shown) > height:
                shown = [*shown[: height - 1], f"... {len(shown) - height + 1} more lines"]
            live.update(Text("\n".join(shown), no_wrap=True, overflow="crop"), refresh=True)
            if pressed(interval):
                return


class _Rates:
    """Ended runs a second between two pictures."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = 0.0

    def of(self, view: StatusView) -> dict[str, float]:
        now = time.monotonic()
        pause = max(0.001, now - self._at)
        first = not self._at
        rates = {
            outcome: 0.0 if first else max(0.0, (view.ended.get(outcome, 0) - self._before.get(outcome, 0)) / pause)
            for outcome in ("succeeded", "retry", "dead")
        }
        self._before, self._at = dict(view.ended), now
        return rates


@contextmanager
def _keys() -> Iterator[Any]:
    """Reads keys without echo; gives a function that waits and tells whether to quit. Restores the terminal."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([fd], [], [], seconds)
        return bool(ready) and os.read(fd, 1) in {b"q", b"Q", b"\x03", b""}

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
