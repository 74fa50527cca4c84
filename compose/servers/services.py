"""The servers that a checkout shares: found in a fixed order, started once, stopped by the last that used them.

The order, for each of the two: the URL in `ROTA_TEST_STORE` or `ROTA_TEST_BROKER`; containers when an engine
answers; local processes in `.rota/`. `ROTA_STORE` and `ROTA_BROKER` are never looked at: an exported production
URL must not be what a test kills.

Who uses the servers holds a shared lock on `.rota/in-use`. Whoever lets go last stops them, unless `keep` was
asked for; the kernel drops the lock of a user that was killed. Starting and stopping is serialised by a lock on
`.rota/lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from servers import containers, signals
from servers.instance import remove
from servers.postgres import Postgres
from servers.rabbitmq import RabbitMQ
from servers.rabbitmq4 import RabbitMQ4

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Urls:
    """Where the servers are. `management` is RabbitMQ's HTTP API, empty when it is not known."""

    store: str
    broker: str
    management: str = ""

    def environment(self) -> dict[str, str]:
        """The settings that tests, demo, bench and chaos read."""
        found = {
            "ROTA_TEST_STORE": self.store,
            "ROTA_TEST_BROKER": self.broker,
            "ROTA_TEST_BROKER_MANAGEMENT": self.management,
        }
        return {key: value for key, value in found.items() if value}


class Services:
    """The servers of the checkout at `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(root).absolute() / ".rota"
        self.postgres = Postgres(self.folder / "postgres")
        self.rabbitmq = RabbitMQ(self.folder / "rabbitmq")
        self.rabbitmq4 = RabbitMQ4(self.folder / "rabbitmq4")
        self.containers = containers.Compose(root)

    @contextlib.contextmanager
    def use(self, *, rabbitmq4: bool = False) -> Iterator[Urls]:
        """The URLs of running servers, stopped afterwards if nobody else uses them. Raises `Missing`, `NotReady`."""
        with self._hold() as user:
            try:
                with self.locked():
                    urls = self._start(rabbitmq4=rabbitmq4)
                yield urls
            finally:
                with signals.ignored(), self.locked():
                    fcntl.flock(user, fcntl.LOCK_UN)
                    self._stop_unused()

    def up(self) -> Urls:
        """Start what does not run yet and keep it until `down`. Raises `Missing`, `NotReady`."""
        with self.locked():
            urls = self._start(rabbitmq4=False)
            self._keep_file.write_text(json.dumps(asdict(urls)), encoding="utf-8")
            return urls

    def down(self, *, force: bool = False) -> bool:
        """Stop what `up` started. Servers that somebody still uses stop with the last user (False), unless forced."""
        with self.locked():
            self._keep_file.unlink(missing_ok=True)
            if force:
                self._stop()
                return True
            return self._stop_unused()

    def clean(self) -> None:
        """Stop everything, used or not, and remove it with its data."""
        self.down(force=True)
        for server in (self.postgres, self.rabbitmq):
            server.destroy()
        self.containers.remove()
        remove(self.folder)

    def status(self) -> dict[str, dict[str, object]]:
        """What runs here, by name of the server."""
        local: dict[str, dict[str, object]] = {
            server.name: {"pid": server.pid, "url": server.url, "log": str(server.log)}
            for server in (self.postgres, self.rabbitmq, self.rabbitmq4)
            if server.running
        }
        return {**local, **self.containers.status()}

    @property
    def _keep_file(self) -> Path:
        return self.folder / "services.json"

    def _start(self, *, rabbitmq4: bool) -> Urls:
        store, broker = os.environ.get("ROTA_TEST_STORE", ""), os.environ.get("ROTA_TEST_BROKER", "")
        management = os.environ.get("ROTA_TEST_BROKER_MANAGEMENT", "")
        if rabbitmq4 and not broker:
            self.rabbitmq4.start()
            broker, management = self.rabbitmq4.url, self.rabbitmq4.management_url
        if (not store or not broker) and self.containers.usable():
            found = self.containers.start(store=not store, broker=not broker)
            return Urls(store or found.store, broker or found.broker, management or found.management)
        return self._start_local(store, broker, management)

    def _start_local(self, store: str, broker: str, management: str) -> Urls:
        if not store:
            self.postgres.start()
            store = self.postgres.url
        if not broker:
            self.rabbitmq.start()
            broker, management = self.rabbitmq.url, self.rabbitmq.management_url
        return Urls(store, broker, management)

    def _stop_unused(self) -> bool:
        if self._keep_file.exists() or not self._unused():
            return False
        self._stop()
        return True

    def _stop(self) -> None:
        for server in (self.rabbitmq4, self.rabbitmq, self.postgres):
            server.stop()
        self.containers.stop()

    def _unused(self) -> bool:
        with self._open("in-use") as probe:
            try:
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    @contextlib.contextmanager
    def _hold(self) -> Iterator[IO[str]]:
        with self._open("in-use") as user:
            fcntl.flock(user, fcntl.LOCK_SH)
            yield user

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in this checkout: nobody else sets up, starts or stops meanwhile."""
        with self._open("lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _open(self, name: str) -> IO[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return (self.folder / name).open("a", encoding="utf-8")
