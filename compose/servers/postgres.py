"""One private PostgreSQL server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import process
from servers.errors import NotReady
from servers.install import postgres_bin
from servers.instance import Instance, may_enter, remove

if TYPE_CHECKING:
    from collections.abc import Mapping

USER = PASSWORD = DATABASE = "rota"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a checkout's path is easily longer than the 107 bytes of a socket's
    "max_connections": "200",
    "fsync": "on",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


class Postgres(Instance):
    """A PostgreSQL server in `folder` on 127.0.0.1, user and password `rota`, durable like a real one.

    `port` is chosen at the first start unless given; `settings` are server settings beside ours. The server
    refuses root: root's runs as the user `postgres`, with its data in /var/tmp when that user cannot reach
    `folder`.
    """

    name = "PostgreSQL"

    def __init__(self, folder: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, {} if port is None else {"postgres": port})
        self.settings = {**SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        """The URL of the database `rota`."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port('postgres')}/{DATABASE}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def crash(self) -> None:
        """An immediate shutdown: no checkpoint, recovery from the log at the next start."""
        self._end(((signal.SIGQUIT, 10.0),))

    def destroy(self) -> None:
        """Crash the server and remove its folders."""
        self.crash()
        remove(self.data)
        remove(self.folder)

    def _polite(self) -> tuple[tuple[signal.Signals, float], ...]:
        return ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))

    def _roles(self) -> tuple[str, ...]:
        return ("postgres",)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.data / "PG_VERSION").exists():
            return
        programs, uid = postgres_bin(), server_user()
        remove(self.data)
        self._make_data_folder(uid)
        self._initdb(programs, uid)

    def _make_data_folder(self, uid: int | None) -> None:
        """An empty data folder that the server's user owns and can reach."""
        place = self.data
        if uid is not None and not may_enter(self.folder, uid, pwd.getpwuid(uid).pw_gid):
            digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
            place = Path("/var/tmp") / f"rota-postgres-{digest}"
            # Never through somebody's link: anybody may write there.
            place.unlink() if place.is_symlink() else remove(place)
            self.data.symlink_to(place)
        place.mkdir(mode=0o700)
        if uid is not None:
            os.chown(place, uid, pwd.getpwuid(uid).pw_gid)

    def _initdb(self, programs: Path, uid: int | None) -> None:
        # In /var/tmp, which the server's user can reach whatever TMPDIR is.
        with tempfile.NamedTemporaryFile("w", dir="/var/tmp", prefix="rota-", suffix=".pw") as secret:
            secret.write(PASSWORD)
            secret.flush()
            if uid is not None:
                os.chown(secret.name, uid, -1)
            names = [f"--pgdata={self.data.resolve()}", f"--username={USER}", f"--pwfile={secret.name}"]
            rules = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
            command, whom = [str(programs / "initdb"), *names, *rules], process.credentials(uid)
            done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **whom)
        if done.returncode:
            shutil.rmtree(self.data.resolve(), ignore_errors=True)
            raise NotReady(f"initdb failed in {self.data}: {' '.join(done.stderr.split()[-40:])}")

    def _launch(self, ports: dict[str, int]) -> dict[str, Any]:
        self._forget_stale_pid()
        programs = postgres_bin()
        settings = {**self.settings, "port": str(ports["postgres"])}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command = [str(programs / "postgres"), "-D", str(self.data.resolve()), *options]
        owner = self.data.resolve().stat().st_uid
        pid = process.spawn(command, os.environ, self.log, owner if os.geteuid() == 0 else None)
        return {"pid": pid, "ports": ports}

    def _forget_stale_pid(self) -> None:
        """After a reboot another process may have the pid in `postmaster.pid`, and the server would refuse to start."""
        lock = self.data / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(lock.read_text(encoding="utf-8").split()[0])
            if str(self.data.resolve()) not in _command_of(pid):
                lock.unlink()

    def _answers(self) -> bool:
        """Whether the database `rota` can be used; makes it the first time the server answers."""
        programs, port = postgres_bin(), self.port("postgres")
        where = ["-h", "127.0.0.1", "-p", str(port), "-U", USER]
        if _quiet([str(programs / "pg_isready"), "-q", "-t", "2", *where]).returncode:
            return False
        made = self.folder / "database.made"
        if not made.exists():
            done = _quiet([str(programs / "createdb"), *where, DATABASE])
            if done.returncode and b"already exists" not in done.stderr:
                return False
            made.touch()
        return True


def server_user() -> int | None:
    """The user that the server runs as when we are root, else `None`: it stays ours."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise NotReady("PostgreSQL refuses to run as root and there is no user postgres: run `useradd --system postgres`")


def _quiet(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C"}
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
