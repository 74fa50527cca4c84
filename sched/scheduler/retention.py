"""The duty that keeps history: days are made ahead and dropped by age, on a connection of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rota.sched.durations import duration_text
from rota.sched.errors import StoreFault, Unreachable

if TYPE_CHECKING:
    from rota.sched.store.protocols import Store

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0
"""From the begin of one round to the next, whoever does it. A day that could not go is tried again then."""

_FAILURES = 3
"""Days that cannot go, after which a round ends: they wait for the same reader."""


class Retention:
    """One scheduler's part in it."""

    def __init__(self, store: Store, keep: float) -> None:
        self._store = store
        self._keep = keep

    async def round(self, member: int) -> None:
        """One round, if it is due and nobody else has it. What waits here holds up no claim."""
        link = self._store.async_link("retention")
        try:
            found = await link.run(self._store.retain(member, self._keep, ROUND_SECONDS))
            if not found.ran:
                return
            why: dict[str, str] = {}
            for day in found.stale:
                try:
                    reason = await self._store.drop_day(link, day)
                except (StoreFault, Unreachable) as error:
                    reason = str(error)
                if reason is None:
                    log.info("history: day %s ended more than %s ago: dropped", day, duration_text(self._keep))
                else:
                    log.warning("history: day %s has to go and is still there: %s", day, reason)
                    why[day] = reason
                if len(why) == _FAILURES:
                    break
            await link.run(self._store.note_retention(self._keep, why))
            while await link.run(self._store.forget_keys()):
                pass
        finally:
            await link.close()
