"""The heartbeat thread: a member's proof of life, with a connection of its own that no handler can starve."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rota.sched.store.protocols import Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Heartbeat(threading.Thread):
    """Beats every `beat` seconds until it is stopped or the store says that the member is not live any more."""

    def __init__(
        self,
        store: Store,
        member: int,
        beat: float,
        figures: Callable[[], tuple[Mapping[str, Any], int | None]],
        on_lost: Callable[[], object],
    ) -> None:
        """`figures` gives the member's stats and watermark, `on_lost` is told of a death; both in this thread."""
        super().__init__(name=f"heartbeat-{member}", daemon=True)
        self._store = store
        self._member = member
        self._beat = beat
        self._figures = figures
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
        self._link.close()

    def beat(self) -> bool:
        """One heartbeat; False if the member is not live."""
        stats, watermark = self._figures()
        return self._link.run(self._store.beat(self._member, stats, watermark))

    def stop(self) -> None:
        """Ends the thread; a beat under way is waited for."""
        self._ending.set()
        self.join(timeout=45)
