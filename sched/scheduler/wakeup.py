"""Hears the store's NOTIFY: something is due earlier than the scheduler expects.

LISTEN does not work behind a pooler in transaction mode (it succeeds, and nothing is ever heard); the scheduler then
looks more often (`longest`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import psycopg
from rota.sched.errors import RotaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rota.sched.store.protocols import Store

log = logging.getLogger(__name__)

HEARD_SECONDS = 5.0
"""From one look to the next while LISTEN works: what was committed late and not told is found after this."""
DEAF_SECONDS = 1.0
"""The same while it does not."""


class Wakeup:
    """Calls `heard` with the queue's name for each notification. `run` until cancelled."""

    def __init__(self, store: Store, heard: Callable[[str], None]) -> None:
        self._store = store
        self._heard = heard
        self.listening = False
        self.missed = False
        """It began to listen, and something may have been said before that."""

    @property
    def longest(self) -> float:
        """How long a scheduler may go without a look, in seconds."""
        return HEARD_SECONDS if self.listening else DEAF_SECONDS

    async def run(self) -> None:
        """Listens; connects anew after a loss. Ends where there is nothing to hear."""
        while True:
            link = self._store.async_link("listen")
            try:
                connection = await link.connection()
                if link.pooled:
                    log.info("the store is behind a pooler: no LISTEN, looking every %s s", DEAF_SECONDS)
                    return
                await self._listen(connection)
            except (RotaError, psycopg.Error, OSError) as error:
                log.warning("LISTEN is lost: %s; looking every %s s meanwhile", error, DEAF_SECONDS)
            finally:
                self.listening = False
                await link.close()
            await asyncio.sleep(DEAF_SECONDS)

    async def _listen(self, connection: psycopg.AsyncConnection[object]) -> None:
        await connection.execute(f"listen {self._store.wake_channel}")
        self.listening = self.missed = True
        self._heard("")
        # The driver's own `notifies` wakes up ten times a second to see whether it was interrupted.
        loop, readable, socket = asyncio.get_running_loop(), asyncio.Event(), connection.fileno()
        loop.add_reader(socket, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                connection.pgconn.consume_input()
                while note := connection.pgconn.notifies():
                    self._heard(note.extra.decode(connection.info.encoding))
        finally:
            loop.remove_reader(socket)
