"""How full the broker's queues are, so that what is published and not yet begun stays under a cap.

A herd stays in the store, where it can be seen, cancelled and re-ordered. Depths are asked for by passive declares
(exact and cheap), once a second for queues in use; in between what was published since is added. A queue that was empty, and
into which nothing was published since, is asked less often: it is full no sooner than we fill it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.sched.broker.topology import PARKED, work_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.sched.broker.protocol import BrokerLink


@dataclass(slots=True)
class _Queue:
    cap: int
    ready: int = 0
    consumers: int = 0
    since: int = 0
    known: bool = False

    @property
    def quiet(self) -> bool:
        """Nothing was in it, and nothing was put into it."""
        return self.known and not self.ready and not self.since

    @property
    def capped(self) -> bool:
        return self.ready + self.since >= self.cap


class Depths:
    """The queues of the store and what the broker holds of each."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self.parked = 0
        """Messages that were set aside because they could not be used."""
        self.stirred = asyncio.Event()
        """A queue is not quiet any more."""

    def know(self, queues: Iterable[tuple[str, int]]) -> None:
        """The store's queues that are not paused, with their caps."""
        old = self._queues
        self._queues = {}
        for name, cap in queues:
            self._queues[name] = old.get(name, _Queue(cap))
            self._queues[name].cap = cap
        if not self._queues.keys() <= old.keys():
            self.stirred.set()

    def published(self, queue: str) -> None:
        """One more run was handed to the broker."""
        if queue in self._queues:
            self._queues[queue].since += 1
            self.stirred.set()

    @property
    def open(self) -> list[str]:
        """The queues that may be claimed from."""
        return [name for name, q in self._queues.items() if not q.capped]

    @property
    def empty(self) -> list[str]:
        """The queues in which no message waited when the broker was asked, and into which none was published since."""
        return [name for name, q in self._queues.items() if q.quiet]

    @property
    def quiet(self) -> bool:
        """Whether all queues are."""
        return all(q.quiet for q in self._queues.values())

    async def ask(self, link: BrokerLink, *, quiet: bool = True) -> None:
        """Asks the broker about every queue, and what is parked; without `quiet` about those that are not."""
        self.stirred.clear()
        asked = [(name, q, q.since) for name, q in self._queues.items() if quiet or not q.quiet]
        names = [work_queue(name) for name, _, _ in asked] + [PARKED] * quiet
        depths = await link.depths(names) if names else []
        for (_, q, before), depth in zip(asked, depths, strict=False):
            q.known = True
            q.ready, q.consumers = (depth.messages, depth.consumers) if depth else (0, 0)
            q.since -= before
        if quiet:
            self.parked = depths[-1].messages if depths[-1] else 0

    def figures(self) -> dict[str, dict[str, Any]]:
        """For the member row: `rota status` reads them there."""
        return {
            name: {"ready": q.ready, "consumers": q.consumers, "capped": q.capped} for name, q in self._queues.items()
        }
