"""One private PgBouncer in front of a PostgreSQL server, in transaction mode."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from servers import process
from servers.install import pgbouncer_bin
from servers.instance import Instance
from servers.postgres import server_user

if TYPE_CHECKING:
    from pathlib import Path


class PgBouncer(Instance):
    """Every database of the server at `store` through a pool of `pool` sessions, each lent for one transaction."""

    name = "PgBouncer"

    def __init__(self, folder: Path, store: str, pool: int = 5) -> None:
        super().__init__(folder)
        self.store = urlsplit(store)
        self.pool = pool

    @property
    def url(self) -> str:
        """The URL of the store's database through the pool."""
        credentials = self.store.netloc.rpartition("@")[0]
        return urlunsplit(self.store._replace(netloc=f"{credentials}@127.0.0.1:{self.port('pgbouncer')}"))

    def _roles(self) -> tuple[str, ...]:
        return ("pgbouncer",)

    def _polite(self) -> tuple[tuple[signal.Signals, float], ...]:
        return ((signal.SIGTERM, 5.0),)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def _launch(self, ports: dict[str, int]) -> dict[str, Any]:
        config = self.folder / "pgbouncer.ini"
        config.write_text(self._config(ports["pgbouncer"]), encoding="utf-8")
        config.chmod(0o600)
        # It refuses to stay root, and reads its configuration before it becomes somebody else.
        become = ["-u", process.user_name(uid)] if (uid := server_user()) is not None else []
        command = [str(pgbouncer_bin() / "pgbouncer"), *become, str(config)]
        return {"pid": process.spawn(command, os.environ, self.log), "ports": ports}

    def _config(self, port: int) -> str:
        store = self.store
        user, password = unquote(store.username or ""), unquote(store.password or "")
        server = f"host={store.hostname} port={store.port or 5432} user={user} password={password}"
        return (
            f"[databases]\n* = {server}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {self.pool}\nmax_client_conn = 500\n"
        )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port("pgbouncer")), timeout=2):
            return True
        return False
