"""What chaos breaks: a Postgres and a RabbitMQ of its own behind proxies, and the members that reach them through those.

Data and logs are in a folder below `.rota/chaos`; the servers of a run that was killed are ended by the next.
"""

from __future__ import annotations

import fcntl
import json
import logging
import secrets
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import clocks
import psycopg
from app import prepare
from crew import Crew, end_left_over
from proxy import Proxy
from rota.sched.ids import PARTITIONS
from servers import Missing, NotReady, Postgres, RabbitMQ, signals
from servers.cluster import Cluster
from servers.instance import remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from progress import Progress

FOLDER = Path(__file__).resolve().parents[2] / ".rota" / "chaos"
RABBITMQ4 = FOLDER.parent / "rabbitmq4"
"""Where compose/servers installs it."""
STORE_BACK = 120.0
"""Seconds that a question to the store waits for a Postgres that is being restarted."""
START = 120.0
"""Seconds for the members to come up."""


class Database:
    """The store as chaos itself asks it, past the proxy; an outage is waited out. A connection for each thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._local = threading.local()

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """The answer; asked again until Postgres is there."""
        end = time.monotonic() + STORE_BACK
        while True:
            try:
                return self._connection().execute(sql, params or None).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                self._local.connection = None
                time.sleep(0.1)

    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection: psycopg.Connection[tuple[Any, ...]] | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = self._local.connection = psycopg.connect(self.url, autocommit=True)
        return connection


class World:
    """The servers, the proxies before them, and the members. Made by `world`."""

    def __init__(self, folder: Path, progress: Progress, kinds: tuple[str, ...]) -> None:
        self.progress = progress
        self.kinds = kinds
        self.postgres = Postgres(folder / "postgres")
        self.rabbitmq: RabbitMQ | Cluster
        self.nodes: list[RabbitMQ]
        if "cluster" in kinds:
            self.rabbitmq = cluster = _cluster(folder)
            self.nodes = [*cluster.nodes]
        else:
            self.rabbitmq = single = RabbitMQ(folder / "rabbitmq")
            self.nodes = [single]
        self.logs = folder / "log"
        self.kept_logs = FOLDER / f"log-{folder.name}"
        self.keep_logs = False
        self.stopping = threading.Event()
        self.broker_up = threading.Event()

    def start(self, stack: ExitStack) -> None:
        """Servers, proxies, and the schema; what `stack` ends again."""
        for server in (self.postgres, self.rabbitmq):
            self.progress.say(f"starting {server.name}")
            stack.callback(server.destroy)
            server.start()
        self.broker_up.set()
        self.database = Database(self.postgres.url)
        self.store_proxy = stack.enter_context(Proxy(self.postgres.port("postgres")))
        self.broker_proxy = stack.enter_context(Proxy(*(node.port("amqp") for node in self.nodes)))
        self.store_url = _through(self.postgres.url, self.store_proxy.port)
        self.broker_url = _through(self.rabbitmq.url, self.broker_proxy.port)
        self.crew = Crew(self.store_url, self.broker_url, self.logs, self.database)
        stack.callback(self.crew.end)
        self.crew.rota("migrate")
        prepare(self.postgres.url)
        self.progress.say("starting the members")
        if not self.crew.assemble(self._clocks()) or not self.until(self._working, START):
            raise NotReady(f"the members did not come up within {START:.0f} s: look into {self.kept_logs}")

    def _working(self) -> bool:
        """Handlers are announced, partitions are owned: before that a submission by AMQP would be refused."""
        ready = "select exists(select from rota.handler) and count(owner) = %s from rota.partition"
        return bool(self.database.rows(ready, PARTITIONS)[0][0])

    def _clocks(self) -> dict[str, dict[str, str]]:
        wanted = [kind for kind in ("scheduler", "worker") if f"clock_{kind}" in self.kinds]
        if not wanted:
            return {}
        try:
            library = clocks.library()
        except Missing as error:
            self.progress.say(f"no clocks are stepped: {error}")
            self.kinds = tuple(kind for kind in self.kinds if not kind.startswith("clock_"))
            return {}
        return {kind: clocks.environment(library, self.logs / f"{kind}.clock") for kind in wanted}

    def stale_writes_rejected(self) -> int:
        """Writes of attempts that had lost their run, as the members counted them."""
        counted = json.loads(self.crew.rota("status", "--json")).get("superseded", {})
        return sum(counted.values())

    def until(self, done: Callable[[], object], seconds: float) -> bool:
        """Whether it came true within so many seconds; not when the run is being ended."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end or self.stopping.wait(0.03):
                return False
        return True


@contextmanager
def world(progress: Progress, kinds: tuple[str, ...]) -> Iterator[World]:
    """A new world that can suffer those kinds of faults, ended and removed afterwards, whatever ends it.

    Raises `Missing` where a server cannot be had. A kind that cannot be had is left out of `World.kinds` and told.
    """
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it has a traceback for every connection that is cut
    _sweep()
    folder = FOLDER / secrets.token_hex(4)
    folder.mkdir(parents=True)
    stack = ExitStack()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = World(folder, progress, kinds)
        try:
            made.start(stack)
            yield made
        except NotReady:
            made.keep_logs = True
            raise
        finally:
            with signals.ignored():
                made.stopping.set()
                stack.close()
                if made.keep_logs:
                    made.logs.rename(made.kept_logs)
                remove(folder)


def _sweep() -> None:
    """Ends and removes what is left of runs that were killed."""
    for lock in FOLDER.glob("*/lock"):
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            folder = lock.parent
            end_left_over(folder / "log")
            for server in (Postgres(folder / "postgres"), RabbitMQ(folder / "rabbitmq"), _cluster(folder)):
                server.destroy()
            remove(folder)


def _cluster(folder: Path) -> Cluster:
    return Cluster(RABBITMQ4, f"chaos-{folder.name}")


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")))
