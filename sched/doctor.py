"""What `rota doctor` looks at: store, broker, topology, clocks, versions, numbers. Each check says what to do.

Nothing is changed, but for what every member does too: the broker's topology is declared where it is missing. A few
messages are looked at and go back to their places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from rota.sched import parked
from rota.sched.broker.channel import Calls, ChannelGone, Got
from rota.sched.broker.probe import leads_somewhere, probe
from rota.sched.broker.rabbitmq import Publisher
from rota.sched.broker.topology import DEAD, PARKED, SUBMIT, work_queue
from rota.sched.durations import duration_text, size_text
from rota.sched.errors import RotaError, UsageError
from rota.sched.message import decode
from rota.sched.store import open_store
from rota.sched.store.views import DEGRADED
from rota.sched.timing import zone_source
from rota.sched.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from rota.sched.settings import Settings
    from rota.sched.store.protocols import Store, SyncLink
    from rota.sched.store.views import HealthView, HistoryView, Row, StatusView, UpkeepView

CLOCK_SECONDS = 2.0
"""Difference between this host's clock and the store's from which on it is told."""
PEEKED = 20
"""Messages of each work queue that are looked at for their dispatch numbers, and of `rota.parked` for their reasons."""
OLD_SECONDS = 300.0
"""A snapshot that is older is told: dead rows have been kept for so long."""
OLD_TRANSACTIONS = 100_000
"""The same for what has no time, as a replication slot."""
BEHIND = 2
"""So many times the dead rows at which autovacuum acts."""
UNVACUUMED_SECONDS = 600.0
_REASONS = 3
"""How many different reasons are told."""
FIX_FENCE = "stop all members, run `rota doctor --fix-fence`, start them again"

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `remedy` is empty where all is well."""

    name: str
    state: State
    told: str
    remedy: str = ""
    figures: Any = None

    def to_json(self) -> dict[str, Any]:
        """With the keys name, state, told, remedy, and `figures` for scripts where there are any."""
        return asdict(self)


@dataclass(slots=True)
class Findings:
    """The checks, and the largest dispatch number that was seen in a message."""

    checks: list[Check]
    highest_seen: int = 0

    def add(self, name: str, told: str, *, bad: bool = False, remedy: str = "", state: State = "warning") -> None:
        """One check; `state` is what it is if `bad`."""
        self.checks.append(Check(name, state if bad else "ok", told, remedy if bad else ""))


def examine(settings: Settings, *, fix_fence: bool = False) -> list[Check]:
    """Looks at everything that can be reached. With `fix_fence` also moves the numbers on."""
    found = Findings([_zones()])
    store = open_store(settings.store)
    with closing(store.link("doctor")) as link:
        queues = _store(found, store, link)
        if settings.broker:
            asyncio.run(_broker(found, settings.broker, queues))
        else:
            found.add("broker", "not looked at", bad=True, remedy="set ROTA_BROKER or give --broker")
        _numbers(found, store, link, fix=fix_fence)
    return found.checks


def _zones() -> Check:
    """Which rules of time zones decide: this host's members should have the same (docs/time.md)."""
    source = zone_source()
    return Check("zones", "ok", f"IANA {source.iana}, from the package {source.package} {source.version}")


def _store(found: Findings, store: Store, link: SyncLink) -> list[str]:
    """Looks at the store; the queues that it knows."""
    try:
        link.run(store.health())  # the first one connects
        before = datetime.now(UTC)
        health = link.run(store.health())
        host = before + (datetime.now(UTC) - before) / 2
        status = link.run(store.status())
        history, upkeep = link.run(store.days()), link.run(store.upkeep())
    except RotaError as error:
        found.add("store", str(error), bad=True, remedy="see the message", state="failed")
        return []
    found.add("store", f"{store.masked_url}, PostgreSQL {health.server}, schema {health.schema}")
    checks = (_clock(host, health), _days(health, history), *_late(history), *_upkeep(upkeep), _members(status))
    for check in (*checks, *_paused(status), *_degraded(status)):
        found.checks.append(check)
    return [row["name"] for row in status.queues]


def _clock(host: datetime, health: HealthView) -> Check:
    off = (host - datetime.fromisoformat(health.now)).total_seconds()
    told = f"this host's is {off:+.3f} s from the store's, whose time counts"
    bad = abs(off) > CLOCK_SECONDS
    return Check("clock", "warning" if bad else "ok", told, "let an NTP client set this host's clock" if bad else "")


def _days(health: HealthView, history: HistoryView) -> Check:
    last = health.last_day
    bad = last is None or last <= health.today
    remedy = "run a scheduler with the right to create tables: it makes a week ahead" if bad else ""
    past = [each for each in history.days if not each.open]
    kept = "" if history.keep_s is None else f", each is kept for {duration_text(history.keep_s)} after its end"
    since = f"; from {past[0].day} on they take {size_text(sum(each.bytes for each in history.days))}" if past else ""
    return Check("history", "failed" if bad else "ok", f"days are made up to {last}{kept}{since}", remedy)


def _late(history: HistoryView) -> Iterator[Check]:
    """The oldest of the days that should have gone; the others wait behind it."""
    late = history.late()
    if late:
        more = f", and {len(late) - 1} more" if len(late) > 1 else ""
        why = late[0]["why"] or "no round of retention has told why: is a scheduler live, and may it drop tables?"
        told = f"day {late[0]['day']} should have gone at {late[0]['since']}{more}: {why}"
        remedy = "it goes within a minute after that has ended; `select pg_terminate_backend(PID)` ends a session"
        yield Check("history late", "warning", told, remedy, late)


def _upkeep(upkeep: UpkeepView) -> Iterator[Check]:
    """Dead rows of the tables that change all the time, and who is in the way of their removal."""
    old = [each for each in upkeep.holders if _is_old(each)]
    for each in old:
        since = "" if each["since"] is None else f" since {each['since']}"
        told = f"{each['what']} holds a snapshot{since}, {each['transactions']} transactions ago: no row that died since is removed"
        yield Check(
            "snapshot", "warning", told, "end it, if it is forgotten: claims grow slower the longer it is open", each
        )
    behind = [
        each
        for each in upkeep.tables
        if each["dead"] > BEHIND * each["limit"] and (old or each["vacuumed_s"] > UNVACUUMED_SECONDS)
    ]
    told = "; ".join(
        f"{each['name']} has {each['dead']} dead rows beside {each['live']}, {size_text(each['bytes'])}, last vacuumed "
        f"{duration_text(round(each['vacuumed_s']))} ago"
        for each in behind or upkeep.tables[:1]
    )
    remedy = "autovacuum does not keep up: " + ("see `snapshot`" if old else "is it on, and has it a worker to spare?")
    yield Check("bloat", "warning" if behind else "ok", told, remedy if behind else "", upkeep.to_json()["tables"])


def _is_old(holder: Row) -> bool:
    if holder["age_s"] is None:
        return bool(holder["transactions"] > OLD_TRANSACTIONS)
    return bool(holder["age_s"] > OLD_SECONDS)


def _members(status: StatusView) -> Check:
    versions = sorted({m["version"] for m in status.members})
    kinds = [m["kind"] for m in status.members]
    told = (
        f"{kinds.count('scheduler')} schedulers, {kinds.count('worker')} workers, version {', '.join(versions) or '-'}"
    )
    odd = set(versions) - {__version__}
    remedy = f"this is version {__version__}: a rolling update is under way, or somebody was forgotten" if odd else ""
    return Check("members", "warning" if odd else "ok", told, remedy)


def _paused(status: StatusView) -> Iterator[Check]:
    for queue in status.queues:
        if queue["paused"]:
            why = f": {queue['paused_reason']}" if queue["paused_reason"] else ""
            told = f"queue {queue['name']} is paused by {queue['paused_by']} since {queue['paused_at']}{why}"
            yield Check("paused", "warning", told, f"`rota resume --queue {queue['name']}` when that is over")
    if status.jobs["paused"]:
        told = f"{status.jobs['paused']} jobs are paused"
        yield Check("paused jobs", "warning", told, "`rota jobs --state paused` tells which, by whom and why")


def _degraded(status: StatusView) -> Iterator[Check]:
    for word in status.degraded:
        if word in {"parked", "history_late"}:
            continue  # told with the reasons
        yield Check(word, "failed", DEGRADED.get(word, "a member reports it"), "see what it says")


async def _broker(found: Findings, url: str, queues: list[str]) -> None:
    try:
        publisher = Publisher(url, "rota doctor")
        await publisher.start(10)
    except UsageError:
        raise
    except RotaError as error:
        found.add("broker", str(error), bad=True, remedy="is RabbitMQ up, is ROTA_BROKER right?", state="failed")
        return
    try:
        async for check in _broker_checks(publisher, queues):
            found.checks.append(check)
        found.highest_seen = await _peek(publisher, queues)
    except RotaError as error:
        found.add("broker", str(error), bad=True, remedy="run it again", state="failed")
    finally:
        await publisher.close()


async def _broker_checks(publisher: Publisher, queues: list[str]) -> AsyncIterator[Check]:
    able = await probe(publisher)
    state: State = "ok" if able.supported else "failed"
    yield Check("broker", state, f"{able.server}", "" if able.supported else "Rota needs RabbitMQ 3.10 or later")
    if able.at_least_once is not True:
        yield Check("dead-lettering", "warning", able.note, "without it, a broker crash can make retries late")
    if not await leads_somewhere(publisher, DEAD):
        told = f"no queue was bound to the exchange {DEAD}: dead letters stayed in their work queues, where nobody sees them"
        yield Check(
            "dead letters", "failed", told, "it is bound again, and they arrive within minutes; who unbound it?"
        )
    drifts = await publisher.declare()
    for drift in drifts:
        remedy = "Rota never changes what is there: remove it when it is empty, a member declares it anew"
        yield Check("topology", "warning", f"{drift.name} differs from what Rota declares: {drift.reason}", remedy)
    if not drifts:
        yield Check("topology", "ok", "as declared")
    for queue in queues:
        depth = await publisher.passive(work_queue(queue))
        if depth and depth.messages and not depth.consumers:
            told = f"queue {queue} holds {depth.messages} messages and nobody consumes it"
            yield Check("consumers", "failed", told, f"start `rota worker --queue {queue}`")
    for name in (DEAD, SUBMIT):
        depth = await publisher.passive(name)
        if depth and depth.messages:
            yield Check(name, "warning", f"{depth.messages} messages wait for a scheduler", "is a scheduler running?")
    depth = await publisher.passive(PARKED)
    if depth and depth.messages:
        yield Check(PARKED, "warning", await _parked(publisher, depth.messages), parked.REMEDY)


async def _parked(publisher: Publisher, messages: int) -> str:
    """How many messages are parked, and the reasons of the first of them."""
    reasons: Counter[str] = Counter()
    async for got in _first(publisher, PARKED):
        reasons[parked.why(got.exchange, got.routing_key, got.properties.headers)] += 1
    looked_at = reasons.total()
    told = "; ".join(f"{n} because {reason}" for reason, n in reasons.most_common(_REASONS))
    first = f"of the first {looked_at}: " if looked_at < messages else ""
    return f"{messages} messages are parked: {first}{told}"


async def _first(publisher: Publisher, queue: str) -> AsyncIterator[Got]:
    """The first messages of a queue; they go back with their channel. None where there is no such queue."""
    calls = await Calls.open(publisher.wire)
    try:
        for _ in range(PEEKED):
            got = await calls.get(queue)
            if got is None:
                break
            yield got
    except ChannelGone:
        pass
    finally:
        calls.shut()


async def _peek(publisher: Publisher, queues: list[str]) -> int:
    """The largest dispatch number among the first messages of the work queues."""
    return max([0, *[_number(got.body) for queue in queues async for got in _first(publisher, work_queue(queue))]])


def _number(body: bytes) -> int:
    try:
        return decode(body).dispatch
    except UsageError:
        return 0


def _numbers(found: Findings, store: Store, link: SyncLink, *, fix: bool) -> None:
    """Whether the store gives numbers that it has given before."""
    try:
        if fix:
            moved = link.run(store.move_number(found.highest_seen))
            found.add("numbers", f"dispatch numbers and fences go on from {moved}")
            return
        health = link.run(store.health())
    except RotaError:
        return  # told before
    known = max(health.highest, found.highest_seen)
    told = f"the last one given is {health.number}, the highest seen is {known}"
    remedy = f"the store was restored from a backup and gives numbers anew: {FIX_FENCE}"
    found.add("numbers", told, bad=known > health.number, remedy=remedy, state="failed")
