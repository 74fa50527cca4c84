"""A scheduler that sleeps misses nothing: what was stored, unlocked or set ready so that nobody could tell it in time.

The pipeline's own loop against a real store; the broker confirms at once. Whole looks, which find everything in the end, come
only at the start.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from rota.sched.broker.messages import Publish
from rota.sched.control import from_call
from rota.sched.edits import Note, edit
from rota.sched.message import decode
from rota.sched.scheduler import lanes as low
from rota.sched.scheduler import sleep
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import Dispatcher
from rota.sched.scheduler.lanes import TRAIL, LaneBook
from rota.sched.scheduler.service import Scheduler
from rota.sched.scheduler.sleep import Sleeper
from rota.sched.scheduler.wakeup import Wakeup
from rota.sched.stats import Stats
from rota.sched.store.postgres.link import drive
from rota.sched.store.values import NewMember
from rota.sched.when import Once

from tests.conftest import BOUND
from tests.store.conftest import heard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE = BOUND
"""Seconds that a test waits; without what it is about it would wait for ever."""
LATE = TRAIL.total_seconds() + 1
RETURNED_SECONDS = 1.0


class Watch:
    """A scheduler at work. `found` has the jobs that it has dispatched."""

    up, blocked = True, False

    def __init__(self, house: Any, store_url: str) -> None:
        self.house = house
        self.url = store_url
        self.found: list[str] = []
        self.news = asyncio.Event()
        self.lanes, self.wake = LaneBook(), asyncio.Event()
        self.returned = 0
        """How many of the next messages come back, RETURNED_SECONDS later."""

    async def declare_work_queue(self, queue: str) -> None:
        return None

    def publish(self, message: Any, done: Any) -> None:
        self.found.append(decode(message.body).job_id)
        self.news.set()
        loop = asyncio.get_running_loop()
        if self.returned:
            self.returned -= 1
            loop.call_later(RETURNED_SECONDS, done, Publish.RETURNED)
        else:
            loop.call_soon(done, Publish.CONFIRMED)

    async def until_found(self, job_id: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.found.count(job_id) < times:
                self.news.clear()
                await self.news.wait()

    async def until_asleep(self) -> None:
        """It has looked behind its promise."""
        asleep = "select count(*) from rota.member where wakes_at > clock_timestamp() + interval '1.2 s'"
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                while self.house.sql(asleep) == [(0,)]:  # noqa: ASYNC110 - the store tells
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.1)

    async def others_go_through(self, seconds: float) -> None:
        """So that low watermarks move on."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            job = self.house.job()
            self.house.submit(job)
            await self.until_found(job.id)
            await asyncio.sleep(0.1)


@asynccontextmanager
async def watching(house: Any, store_url: str) -> AsyncIterator[Watch]:
    watch = Watch(house, store_url)
    link, settings = house.store.async_link("test"), {"batch": 500, "window": 2000, "wake": watch.wake}
    member = await link.run(house.store.join(NewMember("scheduler", "h", 1, "0")))
    parts = await link.run(house.store.partitions(member))
    depths = Depths()
    depths.know(await link.run(house.store.queues()))
    watch.lanes.set(parts, depths.open)
    hears = SimpleNamespace(_lanes=watch.lanes, _wake=watch.wake, _free=asyncio.Event(), _parts=frozenset())
    wakeup = Wakeup(house.store, lambda note: Scheduler._heard(hears, note))
    dispatcher = Dispatcher(
        house.store, link, watch, member, SimpleNamespace(held=True), watch.lanes, depths, Stats(), **settings
    )
    sleeper = Sleeper(house.store, link, member, watch.lanes, depths, wakeup, watch.wake, hears._free.set, beat=1.0)
    tasks = [asyncio.ensure_future(wakeup.run()), asyncio.ensure_future(Scheduler._dispatch(dispatcher, sleeper))]
    try:
        async with asyncio.timeout(PATIENCE):
            while not wakeup.listening:  # noqa: ASYNC110 - it is an attribute
                await asyncio.sleep(0.01)
        yield watch
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.close()


@pytest.fixture(autouse=True)
def no_whole_looks(monkeypatch):
    monkeypatch.setattr(sleep, "WHOLE_SECONDS", 3600.0)
    monkeypatch.setattr(sleep, "WHOLE_LONGEST", 3600.0)


@pytest.fixture
def unheard(monkeypatch):
    """Times that come with a call are not listened to."""
    monkeypatch.setattr(LaneBook, "lower", lambda *_: None)


@pytest.fixture
def shallow(monkeypatch):
    """No look goes deeper than a claim, as it is with what was written very long ago."""
    monkeypatch.setattr(low, "DEEPEST", TRAIL / 100)
    monkeypatch.setattr(low, "MARKS_APART", TRAIL / 100)


@pytest.fixture
def other(store_url):
    """Another connection, inside a transaction."""
    with closing(psycopg.connect(store_url)) as connection:
        yield connection


async def test_a_submit_that_read_that_nobody_sleeps_and_commits_when_somebody_does_is_found(house, store_url, other):
    """It sends no NOTIFY. Without `oldest` in `until_due` (sched/scheduler/sleep.py) it waits for the next look."""
    house.submit()
    job = house.job()
    drive(other, house.store.submit([job]).steps())
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        assert job.id not in watch.found
        other.commit()
        await watch.until_found(job.id)


async def test_a_submit_behind_the_promise_is_told(house, store_url, monkeypatch):
    """With looks that never come again."""
    house.submit()
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        monkeypatch.setattr(Sleeper, "period", 1000.0)
        await asyncio.sleep(1.5)
        for _ in range(3):
            job = house.job()
            house.submit(job)
            await watch.until_found(job.id)
        at = house.job(when=Once(after=0.5))
        house.submit(at)
        await watch.until_found(at.id)


async def test_who_has_lost_the_connection_it_listens_on_listens_again_and_looks_at_everything(house, store_url):
    """A row that nobody told of, and that is due since long ago, is found by the whole look. Without `missed` (wakeup.py) it is not."""
    house.submit()
    job = house.job(when=Once(after=3600))
    house.submit(job)
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        await watch.others_go_through(LATE)
        house.sql("update rota.job set next_run_at = now() - interval '1 hour' where id = %s", job.id)
        house.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'rota listen'"
        )
        await watch.until_found(job.id)
        await watch.others_go_through(1)


@pytest.mark.parametrize("how", ["unheard", "shallow"])
async def test_a_submit_in_a_transaction_that_was_open_for_long_is_found(how, house, store_url, other, request):
    """It is due since long before its commit. Its call tells from when on to look; the look that locks nothing finds it, too.

    Without either (`lower`, and `Depth.SEEN`) it lies below the low watermark until the next whole look.
    """
    request.getfixturevalue(how)
    house.submit()
    job = house.job()
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        drive(other, house.store.submit([job], own_transaction=False).steps())
        await watch.others_go_through(LATE)
        assert job.id not in watch.found
        other.commit()
        await watch.until_found(job.id)


async def test_a_job_whose_row_was_locked_while_it_was_due_is_found(house, store_url, other):
    """Claims pass it by, and their low watermarks, too. Without `first` in `looked` (sched/scheduler/lanes.py) it stays there."""
    job = house.job(when=Once(after=0.5))
    house.submit(house.job(), job)
    other.execute("select from rota.job where id = %s for update", [job.id])
    async with watching(house, store_url) as watch:
        await watch.others_go_through(LATE)
        assert job.id not in watch.found
        other.commit()
        await watch.until_found(job.id)


def test_who_changes_what_is_late_tells_from_when_on_to_look(house, store_url):
    """Claims have passed it by while it was locked. Without _LATE in WAKE (changing.py) who is awake hears nothing."""
    job, paused = house.job(when=Once(after=0.1)), house.job(when=Once(after=0.1))
    house.submit(job, paused)
    house.run(house.store.pause(paused.id, Note("me@here")))
    house.run(house.store.partitions(house.join()))
    house.bed.pass_time(10)
    ((since,),) = house.sql("select floor(extract(epoch from next_run_at))::int from rota.job where id = %s", job.id)
    with psycopg.connect(store_url, autocommit=True) as ear:
        ear.execute(f"listen {house.store.wake_channel}")
        for each in (job, paused):
            house.run(house.store.update(each.id, edit("me@here", None, {"n": 2}, {})))
        (told,) = heard(ear, house)
        queue, at = from_call(told)
        assert (queue, int(at.timestamp())) == ("mail", since)


@pytest.mark.parametrize("how", ["unheard", "shallow"])
async def test_a_job_that_was_resumed_long_before_the_commit_is_found(how, house, store_url, other, request):
    """Its due time was past when it was resumed."""
    request.getfixturevalue(how)
    job = house.job(when=Once(after=0.1))
    house.submit(house.job(), job)
    house.run(house.store.pause(job.id, Note("me@here")))
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        await watch.others_go_through(1)
        drive(other, house.store.resume(job.id, Note("me@here")).steps())
        if how == "unheard":
            await watch.others_go_through(LATE)
        other.commit()
        await watch.until_found(job.id)


async def test_a_run_that_was_set_ready_long_before_the_commit_is_found(house, store_url, other):
    """As recovery of very many does it, and nobody tells."""
    job = house.job()
    house.submit(job)
    async with watching(house, store_url) as watch:
        await watch.until_found(job.id)
        other.execute("update rota.run set ready_at = clock_timestamp() where job_id = %s", [job.id])
        await watch.others_go_through(LATE)
        assert watch.found.count(job.id) == 1
        other.commit()
        await watch.until_found(job.id, times=2)


async def test_what_the_broker_gives_back_wakes_its_scheduler(house, store_url):
    """It comes back when the scheduler is asleep again, and nothing else is due. Without `self._wake.set()` in `_stir`
    (sched/scheduler/dispatch.py) it lies there until something else is.
    """
    async with watching(house, store_url) as watch:
        await watch.until_asleep()
        watch.returned = 1
        job = house.job()
        house.submit(job)
        await watch.until_found(job.id, 2)
