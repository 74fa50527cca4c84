"""Which acknowledgements to send for which settled deliveries. Pure."""

from __future__ import annotations

from collections import deque

Ack = tuple[int, bool]
"""A delivery tag, and whether everything below it is acknowledged with it (`multiple`)."""

_SLACK = 1024


class AckWindow:
    """The unacknowledged deliveries of one channel, and the fewest acks for those that are settled.

    Tags rise in the order of delivery, over all queues of the channel. `flush` covers what lies below the
    lowest delivery still open with one multiple ack and sends the others singly, so a long run never holds
    back the acks of the short ones behind it. A tag that is not open (never delivered, settled before) is
    ignored, because the broker closes the channel for it.
    """

    __slots__ = ("_open", "_order", "_settled")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._open: set[int] = set()
        self._settled: list[int] = []

    def __len__(self) -> int:
        """How many deliveries the broker still counts as ours: open, or settled and not flushed."""
        return len(self._open) + len(self._settled)

    @property
    def pending(self) -> bool:
        """Whether a flush would give acks."""
        return bool(self._settled)

    def delivered(self, tag: int) -> None:
        """A delivery has come. Tags come in rising order."""
        self._order.append(tag)
        self._open.add(tag)

    def settle(self, tag: int) -> bool:
        """The delivery is to be acknowledged by the next flush. False if it is not open."""
        if tag not in self._open:
            return False
        self._open.discard(tag)
        self._settled.append(tag)
        return True

    def settle_through(self, tag: int) -> bool:
        """Settle everything open up to and including `tag`. False if there was nothing."""
        covered = [each for each in self._open if each <= tag]
        self._open.difference_update(covered)
        self._settled.extend(covered)
        return bool(covered)

    def drop(self, tag: int) -> bool:
        """The delivery is nacked or rejected by the caller. False if it is not open."""
        if tag not in self._open:
            return False
        self._open.discard(tag)
        return True

    def flush(self) -> list[Ack]:
        """The acks for what was settled since the last flush, in rising order. They must be sent, in this order."""
        settled, self._settled = self._settled, []
        if not settled:
            return []
        settled.sort()
        lowest = self._lowest_open()
        below = len(settled) if lowest is None else sum(tag < lowest for tag in settled)
        acks: list[Ack] = [(settled[below - 1], below > 1)] if below else []
        acks += [(tag, False) for tag in settled[below:]]
        return acks

    def _lowest_open(self) -> int | None:
        order, still_open = self._order, self._open
        if len(order) > 2 * len(still_open) + _SLACK:  # one long run at the head would keep the tags of all after it
            self._order = order = deque(tag for tag in order if tag in still_open)
        while order and order[0] not in still_open:
            order.popleft()
        return order[0] if order else None
