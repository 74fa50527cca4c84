"""Members, their heartbeat, and the sharing of partitions among live schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb
from rota.sched.control import SHARE_CALL
from rota.sched.ids import PARTITIONS
from rota.sched.scheduler.shares import rebalance
from rota.sched.store.postgres.text import WAKE_CHANNEL
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.values import HandlerRow, NewMember

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


QUEUES = "select name, cap from rota.queue where not paused order by name"
TELL_FREE = f"pg_notify('{WAKE_CHANNEL}', '{SHARE_CALL}')"
# What it may have left shall not wait for the next round of recovery. If there is one just now, that is soon enough.
LOOK_SOON = """
update rota.duty set due_at = clock_timestamp() where name = (
  select name from rota.duty where name = 'recovery' and due_at > clock_timestamp() for update skip locked)
"""
_DAY = "to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD')"
_WITH_DAY = f"jsonb_build_object('day', {_DAY}) || %s"
BEAT = f"""
update rota.member set beat_at = clock_timestamp(), stats = {_WITH_DAY},
  watermark = greatest(watermark, coalesce(%s, watermark))
where id = %s and state = 'live' returning {_DAY}
"""


class MemberStatements:
    """Who takes part (DESIGN 3.7). Leases are judged by the store's clock, and only by recovery."""

    @transaction()
    def join(self, new: NewMember) -> Steps[int]:
        """Enters a process as a live member under a new id."""
        rows = yield Query(
            "insert into rota.member (kind, host, pid, version) values (%s, %s, %s, %s) returning id",
            [new.kind, new.host, new.pid, new.version],
        )
        return int(rows[0][0])

    @transaction(single=True, again=True)
    def beat(self, member: int, stats: Mapping[str, Any], watermark: int | None = None) -> Steps[str | None]:
        """A heartbeat with the member's figures and, of a scheduler, its confirmed watermark. Returns the store's day.

        The day that a member does not know yet is written into its figures. None: the member is not live any more. A
        heartbeat never revives: drop everything, join under a new id.
        """
        rows = yield Query(BEAT, [Jsonb(dict(stats)), watermark, member])
        return rows[0][0] if rows else None

    @transaction()
    def leave(self, member: int, stats: Mapping[str, Any] | None = None, watermark: int | None = None) -> Steps[None]:
        """Ends a membership by the member's own will; its partitions are free at once.

        Waits for a claim or begin of this member that is still under way (its lock), so nothing commits after it.
        """
        yield Query("select id from rota.member where id = %s for update", [member])
        yield Query(
            "update rota.member set state = 'left', ended_at = clock_timestamp(), wakes_at = null, "
            f"stats = coalesce({_WITH_DAY}, stats), watermark = greatest(watermark, coalesce(%s, watermark)) "
            "where id = %s and state = 'live'",
            [None if stats is None else Jsonb(dict(stats)), watermark, member],
        )
        yield Query(LOOK_SOON)
        yield Query(
            f"with freed as (update rota.partition set owner = null, epoch = epoch + 1 where owner = %s returning 1) "
            f"select {TELL_FREE} where exists (select from freed)",
            [member],
        )

    @transaction()
    def partitions(self, member: int) -> Steps[list[int]]:
        """Takes and gives up partitions so that live schedulers have even shares; returns those of the member now."""
        live = yield Query("select id from rota.member where kind = 'scheduler' and state = 'live' order by id")
        rows = yield Query("select part, owner from rota.partition order by part")
        if len(rows) < PARTITIONS:  # nobody would serve a partition whose row got lost
            yield Query(
                "insert into rota.partition (part) select generate_series(0, %s) on conflict do nothing",
                [PARTITIONS - 1],
            )
            rows = yield Query("select part, owner from rota.partition order by part")
        change = rebalance(member, [row[0] for row in live], {row[0]: row[1] for row in rows})
        if change.release:
            yield Query(
                f"with freed as (update rota.partition set owner = null, epoch = epoch + 1 "
                f"where owner = %s and part = any(%s) returning 1) select {TELL_FREE} where exists (select from freed)",
                [member, change.release],
            )
        if change.take:
            yield Query(
                "update rota.partition set owner = %s, epoch = epoch + 1 where owner is null and part = any(%s)",
                [member, change.take],
            )
        if change.release or change.take:
            rows = yield Query("select part, owner from rota.partition order by part")
        return [part for part, owner in rows if owner == member]

    @transaction(pinned=True, single=True, again=True)
    def queues(self) -> Steps[list[tuple[str, int]]]:
        """Every queue that is not paused, with its cap on what is published and not yet begun."""
        rows = yield Query(QUEUES)
        return [(name, cap) for name, cap in rows]

    @transaction()
    def announce(self, handlers: Sequence[HandlerRow], queues: Sequence[str]) -> Steps[None]:
        """Tells the store what a worker can run, so that submits can be checked and queues are known."""
        handlers = sorted(handlers, key=lambda h: h.name)
        yield Query(
            "insert into rota.queue (name) select x from unnest(%s::text[]) x order by x on conflict do nothing",
            [sorted({*queues, *(h.queue for h in handlers)})],
        )
        yield Query(
            "insert into rota.handler (name, app, queue, args_schema, options, seen_at) "
            "select name, app, queue, args_schema, options, clock_timestamp() "
            "from unnest(%s::text[], %s::text[], %s::text[], %s::jsonb[], %s::jsonb[]) "
            "x(name, app, queue, args_schema, options) "
            "on conflict (name) do update set app = excluded.app, queue = excluded.queue, "
            "args_schema = excluded.args_schema, options = excluded.options, seen_at = excluded.seen_at",
            [
                [h.name for h in handlers],
                [h.app for h in handlers],
                [h.queue for h in handlers],
                [Jsonb(dict(h.schema)) for h in handlers],
                [Jsonb(dict(h.options)) for h in handlers],
            ],
        )

    @transaction()
    def handlers(self, names: Sequence[str]) -> Steps[dict[str, HandlerRow]]:
        """The announced handlers among `names`."""
        rows = yield Query(
            "select name, app, queue, args_schema, options from rota.handler where name = any(%s)", [list(names)]
        )
        return {row[0]: HandlerRow(*row) for row in rows}
