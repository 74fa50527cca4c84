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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from accounts import Accounts, Acknowledged
from app import prepare
from demo_load import by_amqp, by_api, by_cli, schedules, slow, slow_plain
from members import Members
from progress import Progress
from servers import signals
from servers.databases import create_database, drop_database
from servers.management import Management

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOGS = Path(__file__).resolve().parent.parent / ".rota" / "demo"
PATIENCE = 90.0
"""Seconds to wait for what is still owed after the last submission."""
ZOMBIES = 8
ZOMBIE_TRIES = 3
"""A worker that is frozen has no effect on what is not begun elsewhere meanwhile: then the fence was not tried."""
HOLD = 7.0
"""Seconds that they hold their transaction: longer than recovery takes, so that the second attempts are inside theirs."""


class Demo:
    """The run of the demo; `figures` is what it found."""

    def __init__(self, store: str, broker: str, progress: Progress) -> None:
        self.store = store
        self.broker = broker
        self.members = Members(store, broker, LOGS)
        self.acks = Acknowledged()
        self.accounts = Accounts(self.acks, self.rows)
        self.progress = progress
        self.say = progress.say
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
        self.progress.restart()
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
        pid = self.members.of("worker")[0].pid
        written = (
            "select count(*) from demo_plain p join rota.run r on r.job_id = p.job "
            "join rota.member m on m.id = r.owner where m.pid = %s"
        )
        self.until(lambda: self.value(written, pid) > 0, 10, "plain runs that have written on that worker", fatal=False)
        self.until(lambda: self.running(pid) > 0, 20, "runs on the worker to be killed")
        count = self.running(pid)
        self.members.replace(self.members.of("worker")[0])
        self.say(f"killed worker {pid} with {count} runs in flight, started another")
        time.sleep(3)
        self.until(
            lambda: self.value("select count(*) from rota.run where state = 'waiting'") > 0,
            10,
            "waiting runs",
            fatal=False,
        )
        dead = self.members.of("scheduler")[0]
        self.members.replace(dead)
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
            for worker in self.members.of("worker"):
                held[worker.pid] = [job for (job,) in self.rows(owned, ids, worker.pid)]
            return any(held.values())

        self.until(found, 20, "slow runs on a worker to be frozen")
        worker = max(self.members.of("worker"), key=lambda w: len(held[w.pid]))
        jobs = held[worker.pid]
        worker.freeze()
        self.say(f"froze worker {worker.pid} inside {len(jobs)} transactions")
        again = "select count(*) from (select from demo_seen where job = any(%s) group by job having count(*) > 1) x"
        try:
            self.until(lambda: self.value(again, jobs) == len(jobs), 15, "its runs to begin elsewhere", fatal=False)
            self.stale = self.value(again, jobs)
            self.say(f"{self.stale} of them run elsewhere: the frozen worker wakes up")
        finally:
            worker.thaw()

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
            self.accounts.died += 1
            args = json.dumps({**run["args"], "fixed": True})
            self.members.rota("redrive", f"{run['job_id']}@{run['scheduled_for']}", "--args", args)
            self.accounts.redriven += 1
            self.show()
        self.say(f"redrove {self.accounts.redriven} dead runs with a fixed argument")

    def stop_schedules(self) -> None:
        """Ends the schedules, so that there is an end to wait for."""
        self.members.rota("cancel", *self.acks.schedules.values(), check=False)

    # What came of it.

    def settled(self) -> bool:
        self.show()
        return self.accounts.settled()

    def figures(self) -> dict[str, Any]:
        return {**self.accounts.figures(), "stale_attempts": self.stale}

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

    def show(self) -> None:
        """The picture of the moment."""
        self.progress.show(self._picture)

    def _picture(self) -> Mapping[str, str]:
        runs = self.rows("select state, count(*) from rota.run group by 1 order by 1")
        return {
            "submitted": str(self.acks.total),
            "effects": str(self.accounts.effects()),
            "ahead": str(self.value("select count(*) from rota.job")),
            "runs": ", ".join(f"{state} {n}" for state, n in runs),
        }


def main() -> int:
    """Runs the demo on a database and a vhost of its own; whatever asks it to end leaves nothing running."""
    server, broker = os.environ["ROTA_TEST_STORE"], os.environ["ROTA_TEST_BROKER"]
    management = Management(broker, os.environ.get("ROTA_TEST_BROKER_MANAGEMENT", ""))
    name = f"rota_demo_{os.getpid()}_{secrets.token_hex(3)}"
    demo, done = None, False
    progress = Progress("rota demo")
    try:
        with signals.raised(), progress:
            demo = Demo(create_database(server, name), management.create_vhost(name), progress)
            figures = demo.run()
            done = True
    except signals.Interrupted as interrupted:
        return interrupted.status
    finally:
        with signals.ignored():
            codes = demo.close(40.0 if done else 3.0) if demo else {}
            drop_database(server, name)
            management.delete_vhost(name)
    progress.summary(figures, demo.acks.errors)
    if any(codes.values()):
        progress.console.print(f"members did not drain well: {codes}")
    print(json.dumps(figures))
    return 1 if figures["lost"] or figures["duplicate_effects"] or any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
