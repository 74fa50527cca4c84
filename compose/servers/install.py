"""Programs that are found on the machine, or installed from Debian where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servers.errors import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Product:
    """A server's programs: where they may be, and what brings them."""

    name: str
    package: str
    setting: str
    programs: tuple[str, ...]
    folders: Callable[[], Iterator[Path]]

    def find(self) -> Path | None:
        """The first folder that has all the programs."""
        for folder in self.folders():
            if all((folder / program).exists() for program in self.programs):
                return folder
        return None

    def ensure(self) -> Path:
        """The folder with the programs, installed from Debian if need be. Raises `Missing`."""
        if found := self.find():
            return found
        debian(self.name, [self.package], self.setting)
        if found := self.find():
            return found
        remedy = f": set {self.setting}" if self.setting else ""
        raise Missing(f"{self.name} is missing: {self.package} is not where it should be{remedy}")


def postgres_bin() -> Path:
    """The folder with `postgres` and `initdb`. Raises `Missing`."""
    setting = "ROTA_TEST_STORE=postgresql://..."
    return Product("PostgreSQL", "postgresql", setting, ("postgres", "initdb"), _postgres_folders).ensure()


def rabbitmq_bin() -> Path:
    """The folder with the bare `rabbitmq-server`. Raises `Missing`."""
    setting = "ROTA_TEST_BROKER=amqp://..."
    return Product("RabbitMQ", "rabbitmq-server", setting, ("rabbitmq-server",), _rabbitmq_folders).ensure()


def pgbouncer_bin() -> Path:
    """The folder with `pgbouncer`, which only tests need. Raises `Missing`."""
    return Product("PgBouncer", "pgbouncer", "", ("pgbouncer",), _pgbouncer_folders).ensure()


def faketime_library() -> Path:
    """What gives a process another clock when it is preloaded; only tests need it. Raises `Missing`."""
    name = "libfaketime.so.1"
    return Product("libfaketime", "libfaketime", "", (name,), _faketime_folders).ensure() / name


def _pgbouncer_folders() -> Iterator[Path]:
    yield Path("/usr/sbin")
    if program := shutil.which("pgbouncer"):
        yield Path(program).resolve().parent


def _faketime_folders() -> Iterator[Path]:
    yield from Path("/usr/lib").glob("*/faketime")


def _postgres_folders() -> Iterator[Path]:
    if chosen := os.environ.get("ROTA_POSTGRES_BIN"):
        yield Path(chosen)
        return
    yield from sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _number(path.parent.name), reverse=True
    )
    if config := shutil.which("pg_config"):
        found = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(found.stdout.strip() or ".")
    if server := shutil.which("postgres"):
        yield Path(server).resolve().parent


def _rabbitmq_folders() -> Iterator[Path]:
    if chosen := os.environ.get("ROTA_RABBITMQ_BIN"):
        yield Path(chosen)
        return
    yield Path("/usr/lib/rabbitmq/bin")
    server = shutil.which("rabbitmq-server")
    # Debian's /usr/sbin/rabbitmq-server is a wrapper that wants to be the package's own user.
    if server and (real := Path(server).resolve().parent) != Path("/usr/sbin"):
        yield real


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def debian(product: str, packages: list[str], setting: str) -> None:
    """Install Debian packages without starting their services. Raises `Missing` with the remedy where it may not."""
    command = f"apt-get install {' '.join(packages)}"
    remedy = f"run `{command}` as root" + (f", start a container engine, or set {setting}" if setting else "")
    if reason := _forbidden():
        raise Missing(f"{product} is missing: {remedy} ({reason})")
    print(f"installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    _apt(["update", "-qq"])  # a mirror that fails here may be one that is not needed
    if failure := _install(packages):
        raise Missing(f"{product} is missing: `{command}` failed ({failure}): {remedy}")


def _forbidden() -> str:
    if os.environ.get("ROTA_NO_INSTALL"):
        return "ROTA_NO_INSTALL forbids installing it"
    if not shutil.which("apt-get"):
        return "there is no apt-get to install it with"
    return "" if os.geteuid() == 0 else "installing it takes root"


def _install(packages: list[str]) -> str:
    ours = not POLICY.exists()
    if ours:
        # Our servers are private ones: the packages' own services must not come up beside them.
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        POLICY.chmod(0o755)
    try:
        return _apt(["install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *packages])
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def _apt(arguments: list[str]) -> str:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
    return lines[-1]
