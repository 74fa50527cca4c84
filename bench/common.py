"""What the benches share: databases and vhosts of their own, members on them, sizes, and how figures are told.

A bench measures on the servers of `make bench`, fsync on, and takes down what it made. What it tells comes as one table a
kind of figure and then as JSON, one object a line; the first line has the machine, the versions and the parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

from handlers import app, live, noop  # noqa: E402 - the servers below are found by the line above
from rota import Client  # noqa: E402
from servers import Missing, NotReady, Services  # noqa: E402
from servers.cluster import Cluster  # noqa: E402
from servers.databases import create_database, drop_database  # noqa: E402
from servers.management import Management  # noqa: E402
from servers.postgres import Postgres  # noqa: E402
from servers.rabbitmq4 import RabbitMQ4  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rota.sched.app import Call

NAME = "rota_bench"
QUEUE = app.name
ROTA = str(Path(sys.executable).parent / "rota")
PATIENCE = 300.0
"""Seconds that anything may take before a bench gives up."""
BROKERS = ("own", "4", "cluster")
"""What --rabbitmq names: the broker of `make bench`, one node of RabbitMQ 4, three nodes of it."""
SERVER_SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
)
# One statement: a claim between two would move jobs from where the second has yet to look to where the first has looked.
WORK_LEFT = """
select exists(select from rota.run) or exists(select from generate_series(0, 63) part cross join rota.queue q cross join lateral (
  select from rota.job j where j.part = part::smallint and j.queue = q.name and not j.paused and j.next_run_at <= now() limit 1) d)
"""
LIBRARIES = ("psycopg", "pika", "sqlalchemy")


# Sizes.


@dataclass(frozen=True)
class Size:
    """A number, or several, in three sizes: on its own, as a part of `make bench`, and to see that it works."""

    full: Any
    short: Any
    quick: Any
    help: str


def parse(doc: str | None, **sizes: Size) -> argparse.Namespace:
    """The options of a bench: `--short`, `--quick` and each of its sizes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the sizes of a run of all benches")
    parser.add_argument(
        "--quick", action="store_true", help="very small, to see that it works; the figures mean nothing"
    )
    for name, size in sizes.items():
        if isinstance(size.full, bool):
            parser.add_argument(f"--{name}", action="store_true", help=size.help)
            continue
        told = f"{size.help} (default {size.full}, short {size.short}, quick {size.quick})"
        kind = _numbers if isinstance(size.full, tuple) else type(size.full)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=told)
    options = parser.parse_args()
    ends_by_exception()
    for name, size in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, size.quick if options.quick else size.short if options.short else size.full)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.replace("_", "").split(","))


def rounds(options: argparse.Namespace, report: Report) -> Iterator[int]:
    """As many as `options.rounds`, but none after the first that would probably end after `options.minutes`."""
    begun, longest = time.monotonic(), 0.0
    for n in range(options.rounds):
        at = time.monotonic()
        if at - begun + longest > options.minutes * 60:
            report.note(f"{n} of {options.rounds} rounds, another would take it beyond {options.minutes:.0f} minutes")
            break
        yield n
        longest = max(longest, time.monotonic() - at)
        report.rows[0]["rounds"] = n + 1


# Servers and members.


class Bench:
    """A database and a vhost of its own, and members on them."""

    def __init__(self, store: str, broker: str, management: Management) -> None:
        self.store = store
        self.broker = broker
        self.management = management
        self.env = {
            **os.environ,
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": "handlers:app",
            "ROTA_LOG_LEVEL": "error",
            "PYTHONPATH": str(ROOT / "bench"),
        }
        output([ROTA, "migrate"], env=self.env)
        self.db = psycopg.connect(store, autocommit=True)
        self._members: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def member(self, *command: str) -> Iterator[int]:
        """Runs a member meanwhile; gives its pid. One that ends by itself ends the bench, at the next wait."""
        process = subprocess.Popen([ROTA, *command], env=self.env)
        self._members.append(process)
        try:
            yield process.pid
        finally:
            self._members.remove(process)
            end(process)

    def lift_cap(self, runs: int, queue: str = QUEUE) -> None:
        """Lets so many runs be published and not begun; 20,000 by default."""
        self.db.execute(
            "insert into rota.queue (name, cap) values (%s, %s) on conflict (name) do update set cap = excluded.cap",
            [queue, runs],
        )

    def submit(self, jobs: int, call: Callable[[], Call] | None = None) -> None:
        """Jobs that are due now, no-ops by default, a thousand at a time."""
        call = call or (lambda: noop.call(a=1, b="hello"))
        with Client.open(self.store) as client:
            for n in range(0, jobs, 1000):
                client.submit_many([call() for _ in range(min(1000, jobs - n))])

    def value(self, sql: str, *params: Any) -> Any:
        """The first column of the first row."""
        row = self.db.execute(sql, params or None).fetchone()
        return row[0] if row else None

    def wait(self, what: str, reached: Callable[[], object], pause: float = 0.1) -> None:
        """Looks every `pause` seconds whether that is reached."""
        limit = time.monotonic() + PATIENCE
        while not reached():
            for member in self._members:
                if member.poll() is not None:
                    raise SystemExit(
                        f"bench: waiting for {what}: {member.args!r} ended with status {member.returncode}"
                    )
            if time.monotonic() > limit:
                raise SystemExit(f"bench: {what} was not reached within {PATIENCE:.0f} s; {self.standing()}")
            time.sleep(pause)

    def standing(self) -> str:
        """How many jobs, runs and ended runs there are."""
        counts = {
            table: self.value(f"select count(*) from rota.{table}") for table in ("job", "run", "dead", "history")
        }
        return ", ".join(f"{table} {count:,}" for table, count in counts.items())

    def wait_idle(self) -> None:
        """Until no run is alive and no job is due, by index."""
        self.wait("the end of all runs", lambda: not self.value(WORK_LEFT))


def ends_by_exception() -> None:
    """Whoever ends this process lets it take down what it has started."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def end(process: subprocess.Popen[Any]) -> None:
    """Asks a process to end, and kills it where it does not within a minute."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kills what is left of a process that was started in a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def output(command: Sequence[object], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command prints; it fails with it, or when it takes longer than PATIENCE, and none of its children stays."""
    words = list(map(str, command))
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env, cwd=cwd
    ) as process:
        try:
            told, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"bench: {' '.join(words)} took longer than {PATIENCE:.0f} s") from None
        finally:
            kill_group(process)
    if process.returncode:
        raise SystemExit(f"bench: {' '.join(words)} ended with status {process.returncode}, see above")
    return told


@contextmanager
def broker(which: str) -> Iterator[None]:
    """The broker of everything that is opened meanwhile, by a name of BROKERS."""
    if which not in BROKERS:
        raise SystemExit(f"bench: --rabbitmq {which}: give one of {', '.join(BROKERS)}")
    if which == "own":
        yield
        return
    root = Services(ROOT).rabbitmq4.root
    server = Cluster(root, "bench") if which == "cluster" else RabbitMQ4(root, "bench")
    before = {name: os.environ.get(name, "") for name in ("ROTA_TEST_BROKER", "ROTA_TEST_BROKER_MANAGEMENT")}
    try:
        try:
            server.start()
        except (Missing, NotReady) as error:
            raise SystemExit(f"bench: --rabbitmq {which}: {error}") from None
        os.environ |= {"ROTA_TEST_BROKER": server.url, "ROTA_TEST_BROKER_MANAGEMENT": server.management_url}
        yield
    finally:
        os.environ |= before
        server.destroy()


@contextmanager
def opened(server: str | None = None, name: str = NAME) -> Iterator[Bench]:
    """A bench on the servers of the environment, or on another Postgres; it is taken down afterwards."""
    with place(server, name) as (store, broker):
        bench = Bench(store, broker, _management())
        try:
            yield bench
        finally:
            bench.db.close()


@contextmanager
def place(server: str | None = None, name: str = NAME) -> Iterator[tuple[str, str]]:
    """The URLs of an empty database and an empty vhost, which are dropped afterwards."""
    server, management = server or os.environ["ROTA_TEST_STORE"], _management()
    drop_database(server, name)
    management.delete_vhost(name)
    try:
        yield create_database(server, name), management.create_vhost(name)
    finally:
        drop_database(server, name)
        management.delete_vhost(name)


def _management() -> Management:
    return Management(os.environ["ROTA_TEST_BROKER"], os.environ.get("ROTA_TEST_BROKER_MANAGEMENT", ""))


@contextmanager
def own_postgres(**settings: str) -> Iterator[Postgres]:
    """A new Postgres of the bench's own that counts what each statement costs; removed afterwards."""
    defaults = {
        "shared_preload_libraries": "pg_stat_statements",
        "pg_stat_statements.track_planning": "off",
        "pg_stat_statements.max": "2000",
        "compute_query_id": "on",
    }
    server = Postgres(ROOT / ".rota" / "bench-postgres", settings={**defaults, **settings})
    server.destroy()
    server.start()
    try:
        yield server
    finally:
        server.destroy()


def server_pids(store: Postgres | None = None) -> dict[str, int]:
    """The processes of Postgres and RabbitMQ by name; none for those that run elsewhere (containers, given URLs)."""
    services = Services(ROOT)
    shared = {"postgres": (services.postgres, "STORE"), "rabbitmq": (services.rabbitmq, "BROKER")}
    found = {
        name: server.pid
        for name, (server, variable) in shared.items()
        if server.running and server.url == os.environ.get(f"ROTA_TEST_{variable}")
    }
    if store is not None:
        found["postgres"] = store.pid
    return {name: pid for name, pid in found.items() if pid is not None}


@contextmanager
def live_work(store: str, per_second: int) -> Iterator[None]:
    """Submits jobs that are due now, evenly, until the end. Raises what a submit raised."""
    over = threading.Event()

    def submit() -> None:
        with Client.open(store) as client:
            due = time.monotonic()
            while not over.is_set():
                client.submit(live.call())
                due = max(due + 1 / per_second, time.monotonic() - 1)
                over.wait(max(0.0, due - time.monotonic()))

    with ThreadPoolExecutor(1) as thread:
        submitting = thread.submit(submit)
        try:
            yield
        finally:
            over.set()
    submitting.result()


# Figures.


def spread(values: Iterable[float], digits: int = 0) -> dict[str, float]:
    """Median, lowest and highest."""
    values = sorted(values)
    numbers = {"median": statistics.median(values), "low": values[0], "high": values[-1]}
    return {name: _rounded(value, digits) for name, value in numbers.items()}


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else round(value)


class Report:
    """What a bench tells. Figures go to stderr as they come, so that one that is broken off has told something."""

    def __init__(self, bench: str, options: argparse.Namespace, server: str | None = None) -> None:
        self.bench = bench
        self._console = Console(stderr=True, highlight=False)
        self.rows: list[dict[str, Any]] = [
            {"bench": bench, "what": "setting", **_setting(server), "options": vars(options)}
        ]

    def note(self, text: str) -> None:
        """Progress, for the impatient."""
        self._console.print(f"{self.bench}: {text}", style="dim", markup=False, soft_wrap=True)

    def add(self, what: str, **figures: Any) -> None:
        """One object. Figures that belong into one table have the same `what`."""
        self.rows.append({"bench": self.bench, "what": what, **figures})
        self.note(json.dumps({"what": what, **figures}))

    def show(self) -> None:
        """The tables, then the JSON lines."""
        show(self.rows)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table for each kind of figures, then all of them as JSON, one object a line."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for bench, what in dict.fromkeys((row["bench"], row["what"]) for row in rows if row["what"] != "setting"):
        console.print(_table([row for row in rows if (row["bench"], row["what"]) == (bench, what)], f"{bench}: {what}"))
    for row in rows:
        print(json.dumps(row), flush=True)


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    columns = [c for c in dict.fromkeys(name for row in rows for name in row) if c not in {"bench", "what"}]
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict) and set(value) == {"median", "low", "high"}:
        around = f" ({_cell(value['low'])} to {_cell(value['high'])})" if value["low"] < value["high"] else ""
        return _cell(value["median"]) + around
    if isinstance(value, dict):
        return "\n".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _setting(server: str | None) -> dict[str, Any]:
    overview = _management().request("GET", "/api/overview")
    with psycopg.connect(server or os.environ["ROTA_TEST_STORE"]) as db:
        found = db.execute(
            "select name, current_setting(name) from unnest(%s::text[]) name", [["server_version", *SERVER_SETTINGS]]
        )
        postgres: dict[str, str] = dict(found.fetchall())
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": _machine(),
        "python": platform.python_version(),
        "rota": version("rota"),
        "postgres": postgres,
        "rabbitmq": {
            "server_version": overview["rabbitmq_version"],
            "erlang": overview["erlang_version"],
            "nodes": len(_management().request("GET", "/api/nodes")),
        },
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def _machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name")
    ]
    memory = [int(line.split()[1]) for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory[0] / 2**20, 1) if memory else None,
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _commit() -> str:
    """What was measured, with a plus where files were changed since."""
    git = ("git", "-C", str(ROOT))
    try:
        told = [
            subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told[0] + "+" * bool(told[1])
