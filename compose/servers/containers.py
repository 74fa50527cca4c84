"""The servers as containers, by `docker compose` over compose/compose.yaml.

Built for machines with a container engine; not exercised where no engine answers, which is where most of this
was written.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from servers.errors import NotReady


@dataclass(frozen=True)
class Found:
    """Where the containers' ports came out on the host."""

    store: str
    broker: str
    management: str


class Compose:
    """The compose project of one checkout, on ports that the engine chooses."""

    def __init__(self, root: Path) -> None:
        self.file = Path(root).absolute() / "compose" / "compose.yaml"
        self.marker = Path(root).absolute() / ".rota" / "containers"
        self.project = "rota-" + hashlib.sha256(str(self.file).encode()).hexdigest()[:12]

    def usable(self) -> bool:
        """Whether an engine really answers (a client alone proves nothing) and has compose."""
        return (
            shutil.which("docker") is not None
            and _succeeds("docker", "info")
            and _succeeds("docker", "compose", "version")
        )

    def start(self, *, store: bool, broker: bool) -> Found:
        """Start the containers that are asked for and wait until they are healthy. Raises `NotReady`."""
        wanted = [name for name, yes in (("postgres", store), ("rabbitmq", broker)) if yes]
        self.marker.parent.mkdir(parents=True, exist_ok=True)
        self.marker.touch()
        self._run("up", "--detach", "--wait", *wanted)
        return Found(
            store=f"postgresql://rota:rota@{self._port('postgres', 5432)}/rota" if store else "",
            broker=f"amqp://rota:rota@{self._port('rabbitmq', 5672)}/" if broker else "",
            management=f"http://rota:rota@{self._port('rabbitmq', 15672)}" if broker else "",
        )

    def stop(self) -> None:
        """Stop the containers if we ever started them; their data stays."""
        if self.marker.exists():
            self._run("stop")

    def remove(self) -> None:
        """Remove containers and data if we ever started them."""
        if self.marker.exists():
            self._run("down", "--volumes", "--remove-orphans")
            self.marker.unlink()

    def status(self) -> dict[str, dict[str, object]]:
        """The names of the running containers."""
        names = self._run("ps", "--services").split() if self.marker.exists() else []
        return {name: {"container": f"{self.project}-{name}"} for name in names}

    def _port(self, service: str, port: int) -> str:
        return self._run("port", service, str(port)).strip().replace("0.0.0.0", "127.0.0.1")

    def _run(self, *arguments: str) -> str:
        command = ["docker", "compose", "--project-name", self.project, "--file", str(self.file), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotReady(f"containers: `{' '.join(command)}` failed: {reason}")
        return done.stdout


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
