"""The main job, end to end, in half a minute: what `make demo` shows.

Real submissions by the Python API, the command line and AMQP, schedules in several zones, handlers that fail; a worker
and a scheduler are killed with -9 while they have runs in flight, and a worker is frozen past its lease and wakes up
again. Then every acknowledged job is looked for among the effects. The last line is one JSON object; exit 1 if
anything was lost or had its effect twice.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
from app import prepare
from demo_load import Acknowledged, by_amqp, by_api, by_cli, schedules, slow, slow_plain
from demo_stack import Members
from rich.console import Console
from rich.live import Live
from rich.table import Table
from servers import signals
from servers.databases import create_database, drop_database
from servers.management import Management

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 90.0
"""Seconds to wait for what is still owed after the last submission."""
ZOMBIES = 8
ZOMBIE_TRIES = 3
"""A worker that is frozen has no effect on what is not begun elsewhere meanwhile: then the fence was not tried."""
HOLD = 7.0
"""Seconds that they hold their transaction: longer than recovery takes, so that the second attempts are inside theirs."""

console = Console(highlight=False)


class Demo:
    """The run of the demo; `figures` is what it found."""

    def __init__(self, store: str, broker: str) -> None:
        self.store = store
        self.broker = broker
        self.members = Members(store, broker)
        self.acks = Acknowledged()
        self.events: list[str] = []
        self.begun = time.monotonic()
        self.redriven = 0
        self.died = 0
        self.stale = 0
        self.db = psycopg.connect(store, autocommit=True)
        self.lock = threading.Lock()

    def run(self) -> dict[str, Any]:
        """Submits, breaks things, waits, counts."""
        self.say("migrating, starting two schedulers and two workers (lease 4 s, heartbeat 1 s)")
        self.members.rota("migrate")
        prepare(self.store)
        for kind in ("scheduler", "worker", "scheduler", "worker"):
            self.members.start(kind)
        self.until(lambda: self.value("select count(*) from rota.handler") > 0, 30, "a worker to come up")
        self.until(
            lambda: self.value("select count(owner) from rota.partition") == 64, 30, "the partitions to be owned"
        )
        self.begun = time.monotonic()
        schedules(self.store, self.acks)
        threads = [
            self.thread(by_api, self.store, self.acks),
            self.thread(by_cli, self.members, self.acks),
            self.thread(by_amqp, self.broker, self.acks),
            self.thread(self.faults),
        ]
        while any(t.is_alive() for t in threads):
            self.show()
            time.sleep(0.5)
        self.redrive()
        self.stop_schedules()
        self.until(self.settled, PATIENCE, "everything to be done", fatal=False)
        return self.figures()

    def thread(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                target(*args)
            except BaseException as error:  # noqa: BLE001 - told in the figures
                self.acks.errors.append(f"{target.__name__}: {error!r}")

        made = threading.Thread(target=guarded, daemon=True)
        made.start()
        return made

    # What goes wrong on purpose.

    def faults(self) -> None:
        """Kills and freezes, each while there are runs in flight."""
        time.sleep(4)
        slow_plain(self.store, self.acks, 8, 2.0)
        slow(self.store, self.acks, "kill", 8, 2.0)
        pid = self.members.alive["worker"][0].pid
        written = (
            "select count(*) from demo_plain p join rota.run r on r.job_id = p.job "
            "join rota.member m on m.id = r.owner where m.pid = %s"
        )
        self.until(lambda: self.value(written, pid) > 0, 10, "plain runs that have written on that worker", fatal=False)
        self.until(lambda: self.running(pid) > 0, 20, "runs on the worker to be killed")
        count = self.running(pid)
        dead = self.members.kill("worker")
        self.say(f"killed worker {dead.pid} with {count} runs in flight, started another")
        time.sleep(3)
        self.until(
            lambda: self.value("select count(*) from rota.run where state = 'waiting'") > 0,
            10,
            "waiting runs",
            fatal=False,
        )
        dead = self.members.kill("scheduler")
        self.say(f"killed scheduler {dead.pid}, started another")
        for attempt in range(ZOMBIE_TRIES):
            self.zombie(f"zombie-{attempt}")
            if self.stale:
                break

    def zombie(self, name: str) -> None:
        """Freezes a worker inside its transactions until its runs have begun elsewhere, then lets it go on."""
        ids = slow(self.store, self.acks, name, ZOMBIES, HOLD)
        inside = "select count(distinct job) from demo_seen where job = any(%s::uuid[])"
        self.until(lambda: self.value(inside, ids) == ZOMBIES, 4, "all slow runs to begin", fatal=False)
        held: dict[int, list[Any]] = {}

        def found() -> bool:
            owned = (
                "select r.job_id from rota.run r join rota.member m on m.id = r.owner "
                "where r.job_id = any(%s::uuid[]) and m.pid = %s"
            )
            for worker in self.members.alive["worker"]:
                held[worker.pid] = [job for (job,) in self.rows(owned, ids, worker.pid)]
            return any(held.values())

        self.until(found, 20, "slow runs on a worker to be frozen")
        worker = max(self.members.alive["worker"], key=lambda w: len(held[w.pid]))
        jobs = held[worker.pid]
        self.members.freeze(worker)
        self.say(f"froze worker {worker.pid} inside {len(jobs)} transactions")
        again = "select count(*) from (select from demo_seen where job = any(%s) group by job having count(*) > 1) x"
        try:
            self.until(lambda: self.value(again, jobs) == len(jobs), 15, "its runs to begin elsewhere", fatal=False)
            self.stale = self.value(again, jobs)
            self.say(f"{self.stale} of them run elsewhere: the frozen worker wakes up")
        finally:
            self.members.thaw(worker)

    def running(self, pid: int) -> int:
        return self.value("select count(*) from rota.run r join rota.member m on m.id = r.owner where m.pid = %s", pid)

    # What is done about it.

    def redrive(self) -> None:
        """The broken ones, each with a fixed argument."""
        if self.acks.broken:
            self.until(
                lambda: self.value("select count(*) from rota.dead") >= len(self.acks.broken),
                30,
                "the broken to die",
                fatal=False,
            )
        for line in self.members.rota("dead", "--json", "--limit", "1000").splitlines():
            run = json.loads(line)
            self.died += 1
            args = json.dumps({**run["args"], "fixed": True})
            self.members.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}", "--args", args)
            self.redriven += 1
            self.show()
        self.say(f"redrove {self.redriven} dead runs with a fixed argument")

    def stop_schedules(self) -> None:
        """Ends the schedules, so that there is an end to wait for."""
        self.members.rota("cancel", *self.acks.schedules.values(), check=False)

    # What came of it.

    def settled(self) -> bool:
        self.show()
        return (
            not self.lost()
            and not self.value("select count(*) from rota.run")
            and not self.value("select count(*) from rota.job")
        )

    def lost(self) -> int:
        """Acknowledged one-offs without an effect, and ticks of schedules that are missing or have none."""
        missing = 0
        for table, owed in (
            ("demo_effect", {**self.acks.effects, **self.acks.broken}),
            ("demo_plain", self.acks.plain),
        ):
            found = {(str(job), key) for job, key in self.rows(f"select job, key from {table}")}
            missing += len(set(owed.items()) - found)
        return missing + self.ticks_without_effect()

    def ticks_without_effect(self) -> int:
        """Ticks of schedules that the ledger has as done, or should have by their rhythm, without an effect."""
        ended = "select count(*) from rota.history h where outcome = 'succeeded' and job_id = any(%s) and not exists (select from demo_effect e where e.job = h.job_id and e.tick = h.scheduled_for)"
        return self.value(ended, list(self.acks.schedules)) + self.gaps()

    def gaps(self) -> int:
        """Nominal ticks between a schedule's first effect and its last that have no effect and no row that says why."""
        return sum(
            self._gaps(job, self.acks.steps[key], on_grid=key.startswith("cron"))
            for job, key in self.acks.schedules.items()
        )

    def _gaps(self, job: str, step: float, *, on_grid: bool) -> int:
        ticks = self._ticks("select tick from demo_effect where job = %s", job)
        told = self._ticks(
            "select scheduled_for from rota.history where job_id = %s and outcome in ('skipped', 'cancelled')", job
        )
        if not ticks:
            return 1  # each of them has had seconds to tick
        first, last = min(ticks), max(ticks)
        if on_grid:
            owed = {float(t) for t in range(int(first), int(last) + 1) if t % 60 % step == 0}
        else:
            owed = {first + n * step for n in range(round((last - first) / step) + 1)}
        have = {round(tick, 1) for tick in ticks | told}
        return sum(round(tick, 1) not in have for tick in owed)

    def _ticks(self, sql: str, job: str) -> set[float]:
        return {at.timestamp() for (at,) in self.rows(sql, job)}

    def figures(self) -> dict[str, Any]:
        lateness = self.db.execute(
            "select percentile_cont(array[0.5, 0.99]) within group (order by extract(epoch from begun_at - due_at) * 1000) "
            "from rota.history where outcome = 'succeeded' and attempt = 1"
        ).fetchone()
        p50, p99 = lateness[0] if lateness and lateness[0] else (0.0, 0.0)
        executed = self.value("select count(*) from rota.history where outcome = 'succeeded'")
        seconds = self.db.execute(
            "select extract(epoch from max(ended_at) - min(claimed_at))::float8 from rota.history where outcome = 'succeeded'"
        ).fetchone()
        return {
            "submitted": self.acks.total + len(self.acks.schedules),
            "executed": executed,
            "effects": self.value("select count(*) from demo_effect") + self.value("select count(*) from demo_plain"),
            "lost": self.lost() + len(self.acks.errors),
            "duplicate_effects": self.value("select count(*) - count(distinct (job, tick)) from demo_effect"),
            "plain_reruns": self.value("select count(*) - count(distinct (job, tick)) from demo_plain"),
            "retried": self.value(
                "select coalesce(sum(jsonb_array_length(errors)), 0) from rota.history where errors is not null"
            )
            - self.died,
            "dead": self.died,
            "redriven": self.redriven,
            "stale_attempts": self.stale,
            "skipped": self.value("select count(*) from rota.history where outcome = 'skipped'"),
            "losses": self.value("select coalesce(sum(losses), 0) from rota.history"),
            "lateness_p50_ms": round(p50, 1),
            "lateness_p99_ms": round(p99, 1),
            "jobs_per_s": round(executed / max(0.001, seconds[0] if seconds and seconds[0] else 0.001), 1),
        }

    def close(self, seconds: float) -> dict[int, int]:
        """Ends the members within `seconds`; their exit codes."""
        codes = self.members.stop(seconds)
        self.db.close()
        return codes

    # Showing and waiting.

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """What the database says; from any thread."""
        with self.lock:
            return self.db.execute(sql, params or None).fetchall()

    def value(self, sql: str, *params: Any) -> int:
        """One number from the database."""
        return int(self.rows(sql, *params)[0][0])

    def until(self, done: Callable[[], bool], seconds: float, what: str, *, fatal: bool = True) -> bool:
        """Waits for a condition, a bounded time."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                self.say(f"waited {seconds:.0f} s in vain for {what}")
                if fatal:
                    raise SystemExit(f"demo: waited {seconds:.0f} s in vain for {what}: see .rota/demo/*.log")
                return False
            time.sleep(0.05)
        return True

    def say(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self.begun:6.1f} s  {text}")
        if not console.is_terminal:
            console.print(self.events[-1])

    live: Live | None = None
    _shown = 0.0

    def show(self) -> None:
        """The picture of the moment: live on a terminal, a line every few seconds elsewhere."""
        now = time.monotonic()
        if now - self._shown < (0.4 if console.is_terminal else 3.0):
            return
        self._shown = now
        runs: dict[str, int] = dict(self.db.execute("select state, count(*) from rota.run group by 1").fetchall())
        done = self.value("select count(*) from demo_effect") + self.value("select count(*) from demo_plain")
        ahead = self.value("select count(*) from rota.job")
        line = f"submitted {self.acks.total:5}  effects {done:5}  ahead {ahead:5}  runs {runs}"
        if self.live is None:
            console.print(f"{now - self.begun:6.1f} s  {line}")
            return
        table = Table.grid(padding=(0, 2))
        table.add_row("[bold]rota demo[/bold]", f"{now - self.begun:.0f} s")
        table.add_row("submitted", str(self.acks.total))
        table.add_row("effects", f"{done}  [green]{'█' * (done * 40 // max(1, self.acks.total + 200))}[/green]")
        table.add_row("ahead", str(ahead))
        table.add_row("runs", "  ".join(f"{state} {n}" for state, n in sorted(runs.items())))
        for event in self.events[-8:]:
            table.add_row("", event)
        self.live.update(table, refresh=True)


def summary(figures: dict[str, Any], demo: Demo) -> None:
    """The table before the last line."""
    table = Table(title="What came of it", show_header=False)
    for name, value in figures.items():
        bad = name in {"lost", "duplicate_effects"} and value
        table.add_row(name, f"[red]{value}[/red]" if bad else str(value))
    for error in demo.acks.errors:
        table.add_row("error", error)
    console.print(table)


def main() -> int:
    """Runs the demo on a database and a vhost of its own; whatever asks it to end leaves nothing running."""
    server, broker = os.environ["ROTA_TEST_STORE"], os.environ["ROTA_TEST_BROKER"]
    management = Management(broker, os.environ.get("ROTA_TEST_BROKER_MANAGEMENT", ""))
    name = f"rota_demo_{os.getpid()}_{secrets.token_hex(3)}"
    demo, done = None, False
    try:
        with signals.raised():
            demo = Demo(create_database(server, name), management.create_vhost(name))
            figures = shown(demo)
            done = True
    except signals.Interrupted as interrupted:
        return interrupted.status
    finally:
        with signals.ignored():
            codes = demo.close(40.0 if done else 3.0) if demo else {}
            drop_database(server, name)
            management.delete_vhost(name)
    summary(figures, demo)
    if any(codes.values()):
        console.print(f"members did not drain well: {codes}")
    print(json.dumps(figures))
    return 1 if figures["lost"] or figures["duplicate_effects"] or any(codes.values()) else 0


def shown(demo: Demo) -> dict[str, Any]:
    """Runs it, live where there is a terminal."""
    if not console.is_terminal:
        return demo.run()
    with Live(console=console, auto_refresh=False, transient=True) as demo.live:
        return demo.run()


if __name__ == "__main__":
    sys.exit(main())
