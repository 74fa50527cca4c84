"""What a scheduler has claimed stays its own until the broker has confirmed it."""

import asyncio
import itertools
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from rota.sched.broker.messages import Publish
from rota.sched.errors import Unreachable
from rota.sched.ids import new_job_id
from rota.sched.model import Dispatch
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import Dispatcher
from rota.sched.scheduler.lanes import START, TRAIL, LaneBook
from rota.sched.scheduler.service import STUCK_SECONDS, Scheduler
from rota.sched.stats import Stats
from rota.sched.store.values import Claimed, Readied, Served

from tests.conftest import BOUND
from tests.unit.conftest import TICK, AnyStore, ScriptedLink, SilentPublisher

DUE = datetime(2026, 1, 1, tzinfo=UTC)
HELD = SimpleNamespace(held=True)
"""A lease that is not over."""


def dispatched(number):
    return Dispatch(number, new_job_id(), TICK, "mail", "send", None, "{}")


def a_dispatcher(link, publisher):
    lanes = LaneBook()
    lanes.set([0], ["mail"])
    return Dispatcher(
        AnyStore(), link, publisher, 1, HELD, lanes, Depths(), Stats(), batch=10, window=10, wake=asyncio.Event()
    )


async def claimed(*numbers):
    """A dispatcher that has claimed these, and its publisher."""
    answers = [Claimed([dispatched(n) for n in given], [], datetime.now(UTC), [], 0) for given in (numbers, (), ())]
    publisher = SilentPublisher()
    dispatcher = a_dispatcher(
        ScriptedLink(claim_once=lambda *_: answers.pop(0), ready=Readied([], [], None)), publisher
    )
    await dispatcher.round()
    return dispatcher, publisher


async def test_what_recurs_is_claimed_whole_until_nothing_is_due_that_recurs():
    def told(number, *, recurring):
        return Claimed([dispatched(number)], [Served(0, 2, DUE)], DUE, [], 0, recurring=recurring)

    answers = {
        "claim_once": [told(5, recurring=True), told(9, recurring=False)],
        "claim": [told(6, recurring=True), told(7, recurring=True), told(8, recurring=False)],
    }
    asked, lows = [], []

    def answer(name):
        def give(*_):
            asked.append(name)
            lows.append(dispatcher._lanes.walk().lows[0])
            return answers[name].pop(0)

        return give

    link = ScriptedLink(claim_once=answer("claim_once"), claim=answer("claim"), ready=Readied([], [], None))
    dispatcher = a_dispatcher(link, SilentPublisher())
    for _ in range(4):
        await dispatcher.round()
    assert asked == ["claim_once", "claim", "claim", "claim", "claim_once"]
    assert (lows[0], lows[1], lows[2]) == (START, START, DUE - TRAIL), "what recurs was still in its lane"
    assert sorted(dispatcher.outstanding) == [5, 6, 7, 8, 9]


async def test_what_is_ready_is_looked_for_while_claims_go_on():
    def claim(*_):
        return Claimed([dispatched(next(numbers))], [Served(0, 1, DUE)], DUE, [], 0)

    numbers, looked = itertools.count(1), []
    link = ScriptedLink(claim_once=claim, ready=lambda *_: looked.append(1) or Readied([], [], None))
    dispatcher = a_dispatcher(link, publisher := SilentPublisher())
    end = time.monotonic() + BOUND
    while len(looked) < 3 and time.monotonic() < end:
        await dispatcher.round()
        publisher.answer(Publish.CONFIRMED)
        await asyncio.sleep(0.001)
    assert len(looked) == 3


async def test_claims_of_both_kinds_share_the_room():
    given = Claimed([dispatched(n) for n in range(10)], [Served(0, 10, DUE)], DUE, [], 0, recurring=True)
    dispatcher = a_dispatcher(ScriptedLink(claim_once=given, ready=Readied([], [], None)), SilentPublisher())
    assert await dispatcher.round() == 10
    assert dispatcher.room == 0


async def test_what_is_not_confirmed_lies_above_the_watermark():
    dispatcher, publisher = await claimed(5, 6)
    assert len(publisher.published) == 2
    assert dispatcher.watermark.value == 4
    publisher.answer(Publish.CONFIRMED)
    assert dispatcher.watermark.value == 6
    assert not dispatcher.outstanding


@pytest.mark.parametrize("outcome", [Publish.RETURNED, Publish.NACKED, Publish.UNKNOWN])
async def test_what_came_back_or_is_unknown_is_not_confirmed_and_is_published_again(outcome):
    dispatcher, publisher = await claimed(5)
    publisher.answer(outcome)
    assert dispatcher.watermark.value == 4
    assert list(dispatcher.outstanding) == [5]
    await dispatcher.round()
    assert [m.message_id for m in publisher.published] == ["5", "5"]


def degraded(dispatcher):
    """What the scheduler's member row says with this dispatcher."""
    service = SimpleNamespace(
        _publisher=dispatcher._publisher,
        _dispatcher=dispatcher,
        _depths=Depths(),
        _stats=dispatcher._stats,
        _lanes=LaneBook(),
    )
    return Scheduler._figures(service, HELD)["degraded"]


@pytest.mark.parametrize(
    ("outcome", "words"), [(Publish.RETURNED, ["unroutable"]), (Publish.NACKED, []), (Publish.UNKNOWN, [])]
)
async def test_what_came_back_is_counted_and_a_missing_queue_is_told_until_it_takes_something(outcome, words):
    dispatcher, publisher = await claimed(5, 6)
    publisher.answer(outcome)
    assert degraded(dispatcher) == words
    assert dispatcher._stats.to_json()["republished"] == {outcome.value: 2}
    await dispatcher.round()
    publisher.answer(Publish.CONFIRMED)
    assert degraded(dispatcher) == []


async def test_a_claim_without_an_answer_ends_the_pipeline():
    """The membership ends with it: what it may have claimed is adopted from its id."""
    dispatcher = a_dispatcher(
        ScriptedLink(claim_once=Unreachable("the answer is lost"), ready=Readied([], [], None)), SilentPublisher()
    )
    with pytest.raises(Unreachable):
        await dispatcher.round()


async def test_a_confirm_after_the_end_of_a_membership_is_nobodys():
    dispatcher, publisher = await claimed(5)
    dispatcher.close()
    publisher.answer(Publish.CONFIRMED)
    assert dispatcher.watermark.value == 4


class SlowBroker:
    """A publisher whose first declaration takes until it is cancelled; the others, and confirms, are instant."""

    up = True
    blocked = False

    def __init__(self):
        self.declared = 0
        self.published = []

    async def declare_work_queue(self, queue):
        self.declared += 1
        if self.declared == 1:
            await asyncio.Event().wait()

    def publish(self, message, done):
        self.published.append(message.message_id)
        asyncio.get_running_loop().call_soon(done, Publish.CONFIRMED)


async def test_what_was_claimed_and_not_published_when_the_scheduler_is_asked_to_end_goes_out_in_its_drain():
    """Else the drain waited half its time for confirms of what nobody published."""
    broker = SlowBroker()
    dispatcher = Dispatcher(
        None, None, broker, 1, HELD, LaneBook(), Depths(), Stats(), batch=500, window=2000, wake=asyncio.Event()
    )
    dispatching = asyncio.create_task(dispatcher.dispatch([dispatched(7)]))
    await asyncio.sleep(0)
    dispatching.cancel()
    await asyncio.wait([dispatching])
    assert dispatcher.outstanding
    assert await dispatcher.drain(5)
    assert broker.published == ["7"]
    assert dispatcher.watermark.value >= 7


async def test_a_scheduler_whose_lease_is_over_claims_and_publishes_nothing_until_it_is_renewed():
    dispatcher, publisher = await claimed(5)
    publisher.answer(Publish.UNKNOWN)
    dispatcher._trust = SimpleNamespace(held=False)
    assert dispatcher.room == 0
    await dispatcher.round()
    assert len(publisher.published) == 1
    dispatcher._trust = HELD
    await dispatcher.round()
    assert len(publisher.published) == 2


async def test_numbers_that_the_store_gives_anew_are_told_until_they_rise_again():
    dispatcher, _ = await claimed(1000)
    for number, told in ((5, True), (6, True), (2000, False)):
        await dispatcher.dispatch([dispatched(number)])
        assert dispatcher.numbers_back is told


async def test_who_has_something_to_publish_again_does_not_go_to_sleep(monkeypatch):
    """It may have come back, and the call for it been heard, while claims were looking. Without `dispatcher.repeating` in
    `_dispatch` (sched/scheduler/service.py) it would wait for something else to become due.
    """
    monkeypatch.setattr("rota.sched.scheduler.service.AGAIN_SECONDS", 0.01)
    dispatcher, publisher = await claimed(5)
    publisher.answer(Publish.RETURNED)
    slept = []

    async def until_due():
        slept.append(dispatcher.repeating)
        raise Unreachable("seen enough")

    async def comes_back_meanwhile(*_):
        publisher.answer(Publish.RETURNED if len(publisher.published) == 2 else Publish.CONFIRMED)
        return 0

    dispatcher._move = comes_back_meanwhile
    sleeper = SimpleNamespace(until_due=until_due, overdue=False)
    with pytest.raises(Unreachable):
        await Scheduler._dispatch(dispatcher, sleeper)
    assert len(publisher.published) == 3
    assert slept == [False]


async def test_a_pipeline_that_does_not_come_round_ends_its_membership():
    dispatcher, _ = await claimed(5)
    dispatcher.last_round = time.monotonic() - STUCK_SECONDS - 1
    with pytest.raises(Unreachable, match="nothing was looked for during 91 s"):
        await Scheduler._watch(dispatcher, SimpleNamespace(last=dispatcher.last_round))


@pytest.mark.parametrize("kept", ["blocked", "lease", "window", "nothing"])
async def test_a_pipeline_that_comes_round_and_claims_nothing_is_left_alone(kept):
    """What keeps it would keep the next membership, too (docs/decisions/0015-stalled-is-told-not-cured.md)."""
    dispatcher, publisher = await claimed(5)
    dispatcher.last_round = time.monotonic() - STUCK_SECONDS - 1
    publisher.blocked = kept == "blocked"
    dispatcher._trust = SimpleNamespace(held=kept != "lease")
    dispatcher._window = 1 if kept == "window" else 10
    assert bool(dispatcher.room) == (kept == "nothing")
    assert await dispatcher.round() == 0
    await Scheduler._watch(dispatcher, SimpleNamespace(last=dispatcher.last_round))
