"""A RabbitMQ 4.x node on a Debian whose own package is older.

Debian unstable's package is unpacked into a folder by debootstrap, and the node runs in it by chroot, in a mount
namespace of its own: its /proc vanishes with the node, and nothing of the machine is ever mounted below the
folder. Takes root, half a minute and 400 MB, once.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from servers.errors import Missing
from servers.install import debian
from servers.instance import remove
from servers.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Mapping

SUITE = "sid"
PROGRAMS = Path("usr/lib/rabbitmq/bin")
DEVICES = {"null": (1, 3), "zero": (1, 5), "random": (1, 8), "urandom": (1, 9)}


class RabbitMQ4(RabbitMQ):
    """A node of RabbitMQ 4.x installed in `root`; several nodes share one `root`, each with a `node` of its own."""

    name = "RabbitMQ 4"

    def __init__(  # noqa: PLR0913 - a node's settings, all but one may be left out
        self,
        root: Path,
        node: str = "main",
        port: int | None = None,
        configuration: Mapping[str, str] | None = None,
        ports: Mapping[str, int] | None = None,
        *,
        advanced: Mapping[str, int] | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        super().__init__(self.root / "rota" / node, port, configuration, ports, advanced=advanced)

    def _make(self) -> None:
        install(self.root)
        super()._make()

    def _programs(self) -> Path:
        return self.root / PROGRAMS

    def _home(self) -> Path:
        return Path("/") / self.folder.relative_to(self.root)

    def _command(self, program: str, *arguments: str) -> list[str]:
        inside = ["chroot", str(self.root), f"/{PROGRAMS / program}", *arguments]
        return ["unshare", "--mount", "sh", "-c", 'mount -t proc proc "$0/proc" && exec "$@"', str(self.root), *inside]

    def _epmd(self) -> list[str]:
        return ["chroot", str(self.root), "/usr/bin/epmd"]


def install(root: Path) -> None:
    """Unpack the package into `root` unless it is there. Raises `Missing`."""
    if (root / "rota.installed").exists():
        return
    if os.geteuid() != 0:
        raise Missing(
            "RabbitMQ 4 is missing: unpacking it takes root; set ROTA_TEST_BROKER=amqp://... to a 4.x broker instead"
        )
    if not shutil.which("debootstrap"):
        debian("RabbitMQ 4", ["debootstrap"], "ROTA_TEST_BROKER=amqp://...")
    if len(str(root).split()) > 1:
        raise Missing(
            f"RabbitMQ 4 is missing: debootstrap cannot unpack into {root}: move the checkout to a path without spaces"
        )
    remove(root)
    root.mkdir(parents=True)
    _unpack(root)
    (root / "rota.installed").touch()


def _unpack(root: Path) -> None:
    print(f"unpacking RabbitMQ 4 into {root} ...", file=sys.stderr, flush=True)
    # In a mount namespace: a debootstrap that fails leaves its mounts behind.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", "--include=rabbitmq-server", SUITE, str(root)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise Missing(
            f"RabbitMQ 4 is missing: debootstrap failed ({' '.join(reason)}): see {root}/debootstrap/debootstrap.log"
        )
    # Without the hosts file the node waits for ever on its own name.
    shutil.copy("/etc/hosts", root / "etc/hosts")
    for name, (major, minor) in DEVICES.items():
        if not (device := root / "dev" / name).exists():
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
