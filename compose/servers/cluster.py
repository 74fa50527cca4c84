"""Three nodes of RabbitMQ 4.x that form a cluster, of which any one may die.

They share an epmd, which belongs to the first node and dies with it: only the others are killed alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from servers import process
from servers.rabbitmq4 import RabbitMQ4, install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE = 3
EPMD = 10.0
"""Seconds for the first node's epmd to listen."""
DISCOVERY = {"cluster_formation.peer_discovery_backend": "classic_config"}


class Cluster:
    """The nodes, in the words of one server. `root` is where RabbitMQ 4 is or will be installed, `tag` names the nodes."""

    name = "a cluster of RabbitMQ 4"

    def __init__(self, root: Path, tag: str) -> None:
        self._root = root
        self._epmd = process.free_port()
        folders = [RabbitMQ4(root, f"{tag}-{n}") for n in range(SIZE)]
        peers = {f"cluster_formation.classic_config.nodes.{n}": node.nodename for n, node in enumerate(folders, 1)}
        self.nodes = [
            RabbitMQ4(root, f"{tag}-{n}", configuration=DISCOVERY | peers, ports={"epmd": self._epmd})
            for n in range(SIZE)
        ]

    @property
    def url(self) -> str:
        """Of the node that lives as long as the cluster does."""
        return self.nodes[0].url

    @property
    def management_url(self) -> str:
        """The management API of that node."""
        return self.nodes[0].management_url

    def start(self) -> None:
        """Installs it once, and starts all nodes together: each waits for the others. Raises `Missing`, `NotReady`."""
        install(self._root)
        with ThreadPoolExecutor(SIZE) as pool:
            first = pool.submit(self.nodes[0].start)
            process.wait_until(lambda: first.done() or not process.port_is_free(self._epmd), EPMD)
            started = [first, *(pool.submit(node.start) for node in self.nodes[1:])]
        for each in started:
            each.result()

    def crash(self) -> None:
        """Kills all nodes."""
        self._all(RabbitMQ4.crash)

    def destroy(self) -> None:
        """Kills all nodes and removes their folders."""
        self._all(RabbitMQ4.destroy)

    def _all(self, act: Callable[[RabbitMQ4], None]) -> None:
        with ThreadPoolExecutor(SIZE) as pool:
            list(pool.map(act, self.nodes))
