"""A member's proof of life, and how long it may trust in it.

The heartbeat thread has a connection of its own that no handler can starve. Only the store judges who is dead; `Trust`
is what the member itself may believe meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rota.sched.store.protocols import Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
MARGIN = 0.1
"""The share of a lease that is not trusted in: for the drift between this host's clock and the store's."""


def now() -> float:
    """Seconds of a clock that never steps and goes on while the host sleeps."""
    return time.clock_gettime(_CLOCK)


class Trust:
    """Whether a member may still take itself for live: it stops before anybody may take over what it has.

    A lease counts from when its renewal was *sent*: the store dates it later, so the store's own count ends later too.
    """

    def __init__(self, lease: float) -> None:
        self._seconds = lease * (1 - MARGIN)
        self._until = 0.0

    def renewed(self, sent: float) -> None:
        """The store has taken a heartbeat (or join) that was sent at this instant of `now`."""
        self._until = sent + self._seconds

    @property
    def held(self) -> bool:
        """False: begin and publish nothing until the next heartbeat gets through."""
        return now() < self._until


class Heartbeat(threading.Thread):
    """Beats every `beat` seconds until it is stopped or the store says that the member is not live any more."""

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        store: Store,
        member: int,
        trust: Trust,
        *,
        beat: float,
        figures: Callable[[], tuple[Mapping[str, Any], int | None]],
        told: Callable[[Mapping[str, Any], str], object],
        on_lost: Callable[[], object],
    ) -> None:
        """All three are called in this thread.

        `figures` gives the member's stats and watermark, `told` gets the stats that were taken and the store's day,
        `on_lost` is told of a death.
        """
        super().__init__(name=f"heartbeat-{member}", daemon=True)
        self._store = store
        self._member = member
        self._trust = trust
        self._beat = beat
        self._figures = figures
        self._told = told
        self._on_lost = on_lost
        self._ending = threading.Event()
        self._link = store.link("heartbeat")

    def run(self) -> None:
        """The loop; its body is `beat`."""
        pause = self._beat
        while not self._ending.wait(pause):
            try:
                if not self.beat():
                    log.warning("member %s was taken for dead", self._member)
                    self._on_lost()
                    break
                pause = self._beat
            except RotaError as error:
                log.warning("heartbeat of member %s failed: %s", self._member, error)
                pause = min(RETRY_SECONDS, self._beat)
            except Exception:
                log.exception("heartbeat of member %s failed", self._member)
                pause = min(RETRY_SECONDS, self._beat)
        self._link.close()

    def beat(self) -> bool:
        """One heartbeat; False if the member is not live."""
        stats, watermark = self._figures()
        sent = now()
        day = self._link.run(self._store.beat(self._member, stats, watermark))
        if day is None:
            return False
        self._trust.renewed(sent)
        self._told(stats, day)
        return True

    def stop(self) -> None:
        """Ends the thread; a beat under way is waited for."""
        self._ending.set()
        self.join(timeout=45)
