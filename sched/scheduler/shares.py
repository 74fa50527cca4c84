"""Which partitions a scheduler shall take or give up: a pure function of who is live and who owns what."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rota.sched.ids import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Change(NamedTuple):
    """Partitions to take (they are free) and to release (they are ours)."""

    take: list[int]
    release: list[int]


def rebalance(me: int, live: Sequence[int], owners: Mapping[int, int | None]) -> Change:
    """The change that brings `me` to its even share of the partitions.

    `live` are the ids of live schedulers, `owners` maps each partition to its owner or None. Shares differ by one at
    most, the older members have the larger ones. A member that is not live has no share. Ownership saves work and
    nothing rests on it: a claim locks rows whoever makes it.
    """
    mine = [part for part, owner in owners.items() if owner == me]
    if me not in live:
        return Change([], mine)
    rank = sorted(live).index(me)
    base, extra = divmod(len(owners), len(live))
    share = base + (rank < extra)
    if len(mine) > share:
        return Change([], mine[share:])
    # Each starts at another free one, so that two members that join together seldom want the same.
    free = [part for part, owner in owners.items() if owner is None]
    start = rank * base % len(free) if free else 0
    return Change((free[start:] + free[:start])[: share - len(mine)], [])


def is_fair(me: int, live: Sequence[int], owners: Mapping[int, int | None], known: Collection[int]) -> bool:
    """Whether there is nothing to take or to release, and `known` are the partitions of `me`."""
    mine = {part for part, owner in owners.items() if owner == me}
    return len(owners) == PARTITIONS and mine == set(known) and rebalance(me, live, owners) == Change([], [])
