"""When a scheduler sleeps, for how long, and why nothing that becomes due meanwhile is missed.

A scheduler that finds nothing to do publishes until when it will sleep (`wakes_at`): the promise. Who stores something that is
due before that time sends a NOTIFY. The promise reaches three looks ahead, or to the next thing that is due, and each look
renews it with one statement that says all that a sleeper has to know: what is due in its lanes, the queues, and how the
partitions are shared. As long as there was a promise all the time, everything that came since was told, so one look that
finds nothing is enough.

Who had no promise out, because it was awake or looked too late, has to look twice. A submit may have read that nobody needs a
NOTIFY just before the promise was there, and commit after the first look. The second one, behind the promise, sees what was
committed by then; whoever reads `wakes_at` after it has read the promise. Who read it before and is still writing is
waited for by looks at short intervals, until all who wrote during the second look have ended.

A look locks nothing, so it sees what claims pass by: rows that somebody has locked, and what was committed so late that it lies
below their low watermarks (lanes.py). That is claimed from then on, again and again at growing intervals until it is gone.
While LISTEN does not work promises are worth nothing: then there is a look every second, and a whole one every few.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rota.sched.lifecycle import set_within
from rota.sched.scheduler.lanes import Depth
from rota.sched.scheduler.shares import is_fair

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from rota.sched.scheduler.depths import Depths
    from rota.sched.scheduler.lanes import LaneBook
    from rota.sched.scheduler.wakeup import Wakeup
    from rota.sched.store.protocols import AsyncLink, Store
    from rota.sched.store.values import Look

LOOKS_AHEAD = 3
"""How many looks a promise reaches ahead: one that is late must not break it."""
SETTLE_SECONDS = 0.1
"""Twice this from the second look to the next, and twice as long each time while somebody is still writing."""
UNSEEN_SECONDS = 0.02
"""Pause before the next claim where something is due and the last one did not get it; it doubles."""
UNSEEN_LONGEST = 1.0
WHOLE_SECONDS = 60.0
"""From one whole look to the next while LISTEN works."""
WHOLE_LONGEST = 600.0
WHOLE_SHARE = 0.001
"""Whole looks take no more than this share of time: where they are dear they are rarer, up to WHOLE_LONGEST."""
WHOLE_DEAF_SECONDS = 5.0
"""From one whole look to the next while it does not."""


class Sleeper:
    """The sleep of one scheduler in one membership.

    `wake` is set by whoever has something to do for it; `unfair` is called when partitions have to be taken or given up.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it looks after
        self,
        store: Store,
        link: AsyncLink,
        member: int,
        lanes: LaneBook,
        depths: Depths,
        wakeup: Wakeup,
        wake: asyncio.Event,
        unfair: Callable[[], None],
        *,
        beat: float,
    ) -> None:
        """`beat`: there is a look at least so often, in seconds."""
        self._store = store
        self._link = link
        self._member = member
        self._lanes = lanes
        self._depths = depths
        self._wakeup = wakeup
        self._wake = wake
        self._unfair = unfair
        self._beat = beat
        self._unseen = UNSEEN_SECONDS
        self._called = False
        """It was woken, and no claim has found anything since."""
        self._found = 0
        """Claims in a row that found something."""
        self._promised = False
        self._next_whole = 0.0
        self.last = time.monotonic()
        """When it looked last, other than from where claims go."""

    @property
    def period(self) -> float:
        """From one look to the next, in seconds, if nothing becomes due."""
        return min(self._wakeup.longest, self._beat)

    @property
    def overdue(self) -> bool:
        """Whether it is time for a look, also for who is awake."""
        return time.monotonic() - self.last >= self.period

    async def stay_awake(self) -> None:
        """To be told of each claim that found something: who goes on finding need not be notified."""
        self._found += 1
        self._called, self._unseen = False, UNSEEN_SECONDS
        if self._found > 1 and self._promised:
            self._promised = False
            await self._link.run(self._store.wake(self._member))

    async def until_due(self) -> None:
        """Sleeps until it is worth while to claim. To be called when a claim has found nothing."""
        self._found = 0
        self._wake.clear()
        ahead = self.period * LOOKS_AHEAD
        look, second = await self.look(ahead), None
        if not look.kept and not look.due:
            look = await self.look(ahead)
            second = look.number
        pause = SETTLE_SECONDS
        while not look.due:
            pause = self.period if second is None or look.oldest > second else min(self.period, pause * 2)
            self._called = await set_within(self._wake, min(pause, look.seconds))
            if self._called or look.seconds <= pause:
                return
            look = await self.look(self.period * LOOKS_AHEAD)
        # From now on claims go from there. If that was tried before, somebody has locked it.
        if self._unseen > UNSEEN_SECONDS:
            self._called = await set_within(self._wake, self._unseen)
        self._unseen = min(UNSEEN_LONGEST, self._unseen * 2)

    async def look(self, longest: float = 0.0) -> Look:
        """Looks once, with a promise for `longest` seconds, and passes on what there is to know. Raises what the store raises."""
        began = time.monotonic()
        depth = Depth.SEEN if self._called or self.overdue else Depth.CLAIMED
        if began >= self._next_whole or self._wakeup.missed:
            depth, self._wakeup.missed = Depth.WHOLE, False
        lanes = self._lanes.walk_through(depth)
        look = await self._link.run(self._store.sleep(self._member, lanes, longest))
        self._promised = longest > 0
        self._lanes.looked(lanes, look)
        if depth is not Depth.CLAIMED:
            self.last = time.monotonic()
        if depth is Depth.WHOLE:
            rarely = min(WHOLE_LONGEST, max(WHOLE_SECONDS, (self.last - began) / WHOLE_SHARE))
            self._next_whole = self.last + (rarely if self._wakeup.listening else WHOLE_DEAF_SECONDS)
        if not is_fair(self._member, look.schedulers, look.owners, self._lanes.parts):
            self._unfair()
        self._depths.know(look.queues)
        if self._lanes.set(self._lanes.parts, self._depths.open):
            self._wake.set()
        return look
