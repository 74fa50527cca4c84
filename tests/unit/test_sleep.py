"""When a scheduler looks, what it promises, and how it goes on from there."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from rota.sched.control import from_call
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.lanes import START, TRAIL, LaneBook
from rota.sched.scheduler.sleep import LOOKS_AHEAD, Sleeper
from rota.sched.store.values import Claimed, Look, Readied

from tests.conftest import BOUND
from tests.unit.conftest import AnyStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEAT = 0.01
PARTS = range(64)


class Sky:
    """A store whose looks answer what the test says; the last answer for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.looked = asyncio.Event()
        self.asked = []
        """The first low watermark and the promise of each look; None for a promise that was taken back."""

    async def run(self, txn):
        name, args = txn
        if name == "wake":
            self.asked.append(None)
            return None
        _, lanes, longest = args
        self.asked.append((min(lanes.lows), longest))
        self.looked.set()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def looks(self):
        return len(self.asked)


def a_look(*due, seconds=60.0, kept=True, number=10, oldest=None, queues=(("mail", 9),), at=NOW, schedulers=(1,)):
    lanes = [(0, "mail", since) for since in due]
    owners = dict.fromkeys(PARTS, 1)
    return Look(
        at, 0.0 if due else seconds, lanes, kept, number, oldest or number + 1, list(queues), list(schedulers), owners
    )


class Bed:
    def __init__(self, *answers, listening=True):
        self.sky = Sky(*answers)
        self.wake = asyncio.Event()
        self.lanes, self.depths, self.unfair = LaneBook(), Depths(), []
        self.depths.know([("mail", 9)])
        self.lanes.set(PARTS, ["mail"])
        self.wakeup = SimpleNamespace(longest=500.0 if listening else 1.0, listening=listening, missed=False)
        parts = (
            AnyStore(),
            self.sky,
            1,
            self.lanes,
            self.depths,
            self.wakeup,
            self.wake,
            lambda: self.unfair.append(1),
        )
        self.sleeper = Sleeper(*parts, beat=BEAT)

    async def looks(self, number):
        """Sleeps until there were so many looks."""
        task = asyncio.ensure_future(self.sleeper.until_due())
        while self.sky.looks < number:
            self.sky.looked.clear()
            await asyncio.wait_for(self.sky.looked.wait(), BOUND)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def test_a_promise_that_was_kept_is_renewed_by_one_look_at_a_time():
    bed = Bed(a_look())
    await bed.looks(4)
    assert {longest for _, longest in bed.sky.asked} == {LOOKS_AHEAD * BEAT}


async def test_who_had_no_promise_out_looks_twice_before_it_sleeps():
    """Without the second look a submit that read that nobody sleeps, and committed behind the first, waits for the next."""
    bed = Bed(a_look(kept=False), a_look(NOW))
    bed.sleeper._beat = 500.0
    await asyncio.wait_for(bed.sleeper.until_due(), BOUND)
    assert bed.sky.looks == 2


async def test_who_was_writing_during_the_second_look_is_waited_for():
    bed = Bed(
        a_look(kept=False, number=10), a_look(number=11, oldest=9), a_look(number=12, oldest=9), a_look(number=13)
    )
    bed.sleeper._beat = 500.0
    began = asyncio.get_running_loop().time()
    await bed.looks(4)
    assert asyncio.get_running_loop().time() - began < BOUND


async def test_what_is_due_at_a_time_is_claimed_at_that_time():
    bed = Bed(a_look(seconds=0.2))
    bed.sleeper._beat = 500.0
    await asyncio.wait_for(bed.sleeper.until_due(), BOUND)
    assert bed.sky.looks == 1


async def test_who_is_called_wakes_up_at_once():
    bed = Bed(a_look())
    bed.sleeper._beat = 500.0
    asyncio.get_running_loop().call_later(0.1, bed.wake.set)
    await asyncio.wait_for(bed.sleeper.until_due(), BOUND)
    assert bed.sky.looks == 1


async def test_a_promise_is_taken_back_only_by_who_goes_on_finding_something():
    bed = Bed(a_look())
    await bed.looks(1)
    await bed.sleeper.stay_awake()
    assert None not in bed.sky.asked
    for _ in range(3):
        await bed.sleeper.stay_awake()
    assert bed.sky.asked.count(None) == 1


async def test_what_claims_have_passed_by_is_claimed_from_there_and_again_at_growing_intervals():
    """Somebody has it locked: it turns round at full speed until that is over, without the pauses."""
    bed, late = Bed(a_look(NOW - timedelta(hours=1))), NOW - timedelta(hours=1)
    pauses = []
    for _ in range(5):
        bed.lanes.claimed(bed.lanes.walk(), Claimed([], [], NOW, [], 0), 10, 10)
        assert bed.lanes.walk().lows[0] == NOW - TRAIL
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(bed.sleeper.until_due(), BOUND)
        pauses.append(asyncio.get_running_loop().time() - began)
        assert bed.lanes.walk().lows[0] == late
    assert pauses[4] > 0.1
    await bed.sleeper.stay_awake()
    assert bed.sleeper._unseen < 0.1


async def test_who_was_called_and_found_nothing_looks_below_where_claims_go():
    bed = Bed(a_look())
    bed.sleeper._beat = 500.0
    await bed.sleeper.look(15)
    bed.lanes.claimed(bed.lanes.walk(), Claimed([], [], NOW, [], 0), 10, 10)
    bed.lanes.readied(bed.lanes.walk_ready(), Readied([], [], NOW), 10, 10)
    await bed.sleeper.look(15)
    assert bed.sky.asked[-1][0] == NOW - TRAIL
    asyncio.get_running_loop().call_later(0.05, bed.wake.set)
    await asyncio.wait_for(bed.sleeper.until_due(), BOUND)
    await bed.sleeper.look(15)
    assert bed.sky.asked[-1][0] == START


@pytest.mark.parametrize("listening", [True, False])
async def test_who_hears_nothing_looks_from_the_start_more_often(listening):
    bed = Bed(a_look(), listening=listening)
    await bed.sleeper.look()
    assert (bed.sleeper._next_whole - bed.sleeper.last < 10) is not listening


async def test_who_begins_to_listen_looks_from_the_start():
    bed = Bed(
        a_look(), a_look(at=NOW + timedelta(seconds=2), number=12), a_look(at=NOW + timedelta(seconds=4), number=14)
    )
    for _ in range(3):
        bed.sleeper._called = True
        await bed.sleeper.look()
    assert bed.lanes.walk().lows[0] > START
    bed.wakeup.missed = True
    await bed.sleeper.look()
    assert bed.sky.asked[-1][0] == START
    assert not bed.wakeup.missed


async def test_a_look_tells_of_new_queues_and_of_partitions_that_are_not_shared_evenly():
    bed = Bed(a_look(queues=(("mail", 9), ("slow", 9))), a_look(schedulers=(1, 2)))
    await bed.sleeper.look()
    assert (len(bed.lanes), bed.wake.is_set(), bed.unfair) == (128, True, [])
    bed.wake.clear()
    await bed.sleeper.look()
    assert (len(bed.lanes), bed.wake.is_set(), bed.unfair) == (64, False, [1])


def test_a_call_tells_a_queue_and_a_time_or_is_none():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert from_call(f"!from {int(at.timestamp())} my queue") == ("my queue", at)
    for note in (
        "",
        "mail",
        "!share",
        "!from",
        "!from x mail",
        "12 mail",
        "!cancel 1 2",
        "!from 99999999999999999 mail",
    ):
        assert from_call(note) is None
