"""One private RabbitMQ node, with an epmd of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import process
from servers.errors import Missing
from servers.install import rabbitmq_bin
from servers.instance import Instance
from servers.management import Management

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURATION = {
    "vm_memory_high_watermark.absolute": "1GB",
    "disk_free_limit.absolute": "50MB",
    "raft.wal_max_size_bytes": "67108864",
    "log.console": "false",
    "log.file.level": "info",
}

ADVANCED = {
    # Milliseconds, three minutes by default: so long waits what a rung could not pass on while the node started.
    "dead_letter_worker_publisher_confirm_timeout": 5000,
}

# Busy waiting of Erlang's schedulers takes the processor from whoever shares a small machine with it.
EMULATOR = "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQ(Instance):
    """A RabbitMQ node in `folder` on 127.0.0.1, user `guest`, with the management plugin where it is installed.

    `port` is the AMQP port, chosen at the first start unless given; `configuration` are lines of `rabbitmq.conf`
    beside ours, `advanced` are settings of the application `rabbit` that `rabbitmq.conf` does not know, also beside ours. Nodes that share a `cookie` and an epmd (`ports={"epmd": ...}`) can be joined into a cluster.
    """

    name = "RabbitMQ"
    start_seconds = 120.0

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        configuration: Mapping[str, str] | None = None,
        ports: Mapping[str, int] | None = None,
        *,
        advanced: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(folder, {**(ports or {}), **({} if port is None else {"amqp": port})})
        self.configuration = {**CONFIGURATION, **(configuration or {})}
        self.advanced = {**ADVANCED, **(advanced or {})}

    @property
    def url(self) -> str:
        """The URL of the default vhost."""
        return f"amqp://guest:guest@127.0.0.1:{self.port('amqp')}/"

    @property
    def management_url(self) -> str:
        """The base URL of the management API, with user and password; empty when there is no such plugin."""
        return f"http://guest:guest@127.0.0.1:{self.port('management')}" if self._has_management() else ""

    @property
    def nodename(self) -> str:
        """The Erlang name of the node."""
        return f"rota-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]}@localhost"

    def ctl(self, *arguments: str, seconds: float = 120.0) -> str:
        """The output of `rabbitmqctl` against this node. Raises `subprocess.CalledProcessError`."""
        command = self._command("rabbitmqctl", "-n", self.nodename, *arguments)
        env = self._environment(self._load()["ports"])
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=True, timeout=seconds)
        return done.stdout

    def stop(self) -> None:
        """Shut the node down in order, then its epmd."""
        super().stop()
        self._end_epmd()

    def crash(self) -> None:
        """Kill the node, then its epmd: what a power cut leaves behind."""
        super().crash()
        self._end_epmd()

    def _polite(self) -> tuple[tuple[signal.Signals, float], ...]:
        return ((signal.SIGTERM, 30.0),)

    def _roles(self) -> tuple[str, ...]:
        return ("amqp", "management", "dist", "epmd")

    # Where the node runs: here, or (4.x) in a folder of its own. A subclass replaces these four.

    def _programs(self) -> Path:
        return rabbitmq_bin()

    def _home(self) -> Path:
        """The node's folder as the node sees it."""
        return self.folder

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._programs() / program), *arguments]

    def _epmd(self) -> list[str]:
        found = shutil.which("epmd") or next(map(str, Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None)
        if found is None:
            raise Missing(
                "RabbitMQ is missing: Erlang's epmd is not installed: run `apt-get install erlang-base` as root"
            )
        return [found]

    # The steps of a start.

    def _make(self) -> None:
        self._programs()
        self.folder.mkdir(parents=True, exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("ROTA", encoding="ascii")
            cookie.chmod(0o400)

    def _launch(self, ports: dict[str, int]) -> dict[str, Any]:
        self._configure(ports)
        epmd = self._start_epmd(ports)
        # With "input allowed" the script becomes the node instead of staying its parent: the pid is the node's.
        command = self._command("rabbitmq-server", "-noinput")
        env = {**self._environment(ports), "RABBITMQ_ALLOW_INPUT": "1"}
        return {"pid": process.spawn(command, env, self.log), "ports": ports, **epmd}

    def _configure(self, ports: dict[str, int]) -> None:
        lines = {"listeners.tcp.default": f"127.0.0.1:{ports['amqp']}"}
        if self._has_management():
            lines |= {"management.tcp.ip": "127.0.0.1", "management.tcp.port": str(ports["management"])}
        text = "".join(f"{key} = {value}\n" for key, value in (lines | self.configuration).items())
        (self.folder / "rabbitmq.conf").write_text(text, encoding="utf-8")
        settings = ", ".join(f"{{{key}, {value}}}" for key, value in self.advanced.items())
        (self.folder / "advanced.config").write_text(f"[{{rabbit, [{settings}]}}].\n", encoding="utf-8")
        plugins = "[rabbitmq_management]." if self._has_management() else "[]."
        (self.folder / "enabled_plugins").write_text(plugins + "\n", encoding="ascii")

    def _has_management(self) -> bool:
        return any(self._programs().parent.glob("lib/*/plugins/rabbitmq_management-*")) or any(
            self._programs().parent.glob("plugins/rabbitmq_management-*")
        )

    def _environment(self, ports: dict[str, int]) -> dict[str, str]:
        home = self._home()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **inherited,
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.nodename,
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(home / "node.pid"),
            "RABBITMQ_DIST_PORT": str(ports["dist"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": EMULATOR,
        }

    def _start_epmd(self, ports: dict[str, int]) -> dict[str, Any]:
        """Our own epmd on our own port: the one of the machine, if any, is left alone and ours can be ended."""
        if not process.port_is_free(ports["epmd"]):
            return {}  # shared with the other nodes of a cluster, whoever started it ends it
        command = [*self._epmd(), "-port", str(ports["epmd"]), "-address", "127.0.0.1"]
        pid = process.spawn(command, self._environment(ports), self.log)
        process.wait_until(lambda: not process.port_is_free(ports["epmd"]), 10.0)
        return {"epmd_pid": pid, "epmd_started": process.started_at(pid)}

    def _end_epmd(self) -> None:
        known = self._load()
        if (pid := known.get("epmd_pid")) is not None:
            process.end(pid, known["epmd_started"] or "", ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)))

    def _answers(self) -> bool:
        if not _speaks_amqp(self.port("amqp")):
            return False
        return not self._has_management() or Management(self.url, self.management_url).answers()


def _speaks_amqp(port: int) -> bool:
    """Whether the port answers AMQP's greeting with a method frame, not only with an open socket."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as link:
        link.sendall(b"AMQP\x00\x00\x09\x01")
        return link.recv(1) == b"\x01"
    return False
