"""Which publish a confirm is about. Pure.

The broker numbers the publishes of a channel from 1 and never says so; the client counts along. A confirm is for
one number or for all up to it. A returned message comes back with its content, before its own confirm.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from rota.sched.broker.messages import Publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from rota.sched.broker.messages import Outgoing

log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""Message id, exchange and routing key: what a return can be matched by."""


class Confirms:
    """The unconfirmed publishes of one channel. Every outcome is given exactly once; each step costs O(1)."""

    __slots__ = ("_lowest", "_pending", "_returned", "published")

    def __init__(self) -> None:
        self.published = 0
        """The number of the last publish."""
        self._lowest = 1
        self._pending: dict[int, tuple[Outgoing, Callable[[Publish], None]]] = {}
        self._returned: Counter[Key] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def settled_through(self) -> int:
        """All publishes up to this number have their outcome."""
        while self._lowest <= self.published and self._lowest not in self._pending:
            self._lowest += 1
        return self._lowest - 1

    def add(self, message: Outgoing, done: Callable[[Publish], None]) -> None:
        """The next publish of the channel."""
        self.published += 1
        self._pending[self.published] = (message, done)

    def returned(self, key: Key) -> None:
        """The broker has sent a message back; its confirm is still to come."""
        self._returned[key] += 1

    def settle(self, number: int, *, multiple: bool, acked: bool) -> None:
        """A confirm (or, not `acked`, a refusal) of publish `number`, or of all up to it; number 0 means all."""
        last = number or self.published
        first = self._lowest if multiple else last
        if multiple:
            self._lowest = max(first, last + 1)
        for each in range(first, last + 1):
            entry = self._pending.pop(each, None)
            if entry is not None:
                give(entry[1], self._outcome(entry[0], acked=acked))

    def abandon(self) -> None:
        """The channel is gone: what is left is unknown, in the order of publishing."""
        pending, self._pending = self._pending, {}
        self._lowest = self.published + 1
        self._returned.clear()
        for _, done in pending.values():
            give(done, Publish.UNKNOWN)

    def _outcome(self, message: Outgoing, *, acked: bool) -> Publish:
        if not acked:
            return Publish.NACKED
        if self._returned:
            key = (message.message_id, message.exchange, message.routing_key)
            if self._returned[key]:
                self._returned -= Counter([key])
                return Publish.RETURNED
            del self._returned[key]
        return Publish.CONFIRMED


def give(done: Callable[[Publish], None], outcome: Publish) -> None:
    """Tell the outcome. What the callback raises is its own affair: the others must still get theirs."""
    try:
        done(outcome)
    except Exception:
        log.exception("a callback for the outcome %s of a publish failed", outcome.name)
