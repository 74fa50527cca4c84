"""How a process becomes a member, its proof of life, and how long it may trust in it.

The heartbeat thread has a connection of its own that no handler can starve. Only the store judges who is dead; `Trust`
is what the member itself may believe meanwhile. A heart that beats proves nothing if the event loop stands still, so the
thread asks the loop for a sign with each beat.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from rota.sched.errors import RotaError
from rota.sched.lifecycle import end_at_once
from rota.sched.store.values import NewMember
from rota.sched.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rota.sched.model import Kind
    from rota.sched.stats import Stats
    from rota.sched.store.protocols import AsyncLink, Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
STUCK_SECONDS = 5.0
"""An event loop that has given no sign for so long is told of: something blocks it."""
STUCK_LEASES = 4
"""Leases after which a process whose event loop gives no sign is ended: others take what it holds."""

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
        self.lease = lease
        self._seconds = lease * (1 - MARGIN)
        self._until = 0.0

    def renewed(self, sent: float) -> None:
        """The store has taken a heartbeat (or join) that was sent at this instant of `now`."""
        self._until = sent + self._seconds

    @property
    def held(self) -> bool:
        """False: begin and publish nothing until the next heartbeat gets through."""
        return self.left > 0

    @property
    def left(self) -> float:
        """For how long it is held if no heartbeat gets through, in seconds."""
        return self._until - now()


async def join(store: Store, link: AsyncLink, kind: Kind, lease: float) -> tuple[int, Trust]:
    """Enters this process under a new id, which it may trust from now on for a lease."""
    trust, sent = Trust(lease), now()
    member = await link.run(store.join(NewMember(kind, socket.gethostname(), os.getpid(), __version__)))
    trust.renewed(sent)
    return member, trust


class Heartbeat(threading.Thread):
    """Beats every `beat` seconds until it is stopped or the store says that the member is not live any more.

    `lost` is set then, in the event loop in which the heart was made. If that loop stands still, the figures tell it
    (`stuck_loop`), and after STUCK_LEASES the process ends with code 1: nothing that it holds could go on, and it would not
    even hear a signal.
    """

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        store: Store,
        member: int,
        trust: Trust,
        stats: Stats,
        *,
        beat: float,
        figures: Callable[[], tuple[Mapping[str, Any], int | None]],
    ) -> None:
        """`figures` gives the member's stats and watermark; it is called in this thread."""
        super().__init__(name=f"heartbeat-{member}", daemon=True)
        self._store = store
        self._member = member
        self._trust = trust
        self._stats = stats
        self._beat = beat
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        self._ending = threading.Event()
        self._link = store.link("heartbeat")
        self._signed = True
        """Whether the loop has answered."""
        self._silent = 0.0
        """Seconds that the loop has been waited for. Only pauses of this thread count: a process that was frozen is not stuck."""

    def run(self) -> None:
        """The loop; its body is `beat`."""
        pause = self._beat
        while not self._ending.wait(pause):
            try:
                self._ask_loop(pause)
                if not self.beat():
                    log.warning("member %s was taken for dead", self._member)
                    self._stats.superseded("heartbeat")
                    self._loop.call_soon_threadsafe(self.lost.set)
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
        figures, watermark = self._figures()
        if self._silent >= STUCK_SECONDS:
            figures = {**figures, "degraded": [*figures.get("degraded", ()), "stuck_loop"]}
        sent = now()
        day = self._link.run(self._store.beat(self._member, figures, watermark))
        if day is None:
            return False
        self._trust.renewed(sent)
        self._stats.told(figures, day)
        return True

    def _ask_loop(self, waited: float) -> None:
        """Asks for the next sign, if the last one came; else that took `waited` seconds more."""
        if self._signed:
            self._signed, self._silent = False, 0.0
            self._loop.call_soon_threadsafe(self._sign)
            return
        before, self._silent = self._silent, self._silent + waited
        if before < STUCK_SECONDS <= self._silent:
            log.error(
                "the event loop of member %s stands still, blocked by what its thread is in:\n%s",
                self._member,
                _stack(),
            )
        if self._silent > STUCK_LEASES * self._trust.lease:
            log.critical(
                "the event loop of member %s stands still for %.0f s: the process ends", self._member, self._silent
            )
            end_at_once(1)

    def _sign(self) -> None:
        self._signed = True

    def stop(self) -> None:
        """Ends the thread; a beat under way is waited for."""
        self._ending.set()
        self.join(timeout=45)


def _stack() -> str:
    """Where the main thread is, in which the loop runs."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - there is no other way
    return "".join(traceback.format_stack(frame)).rstrip()
