"""Threads that pull: who waits is begun, whoever else is busy, and who is to end ends. What does not end is given up."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from rota.workers import executor as module
from rota.workers.executor import Executor

from tests.conftest import BOUND

THREADS = 4


async def until(done):
    async with asyncio.timeout(BOUND):
        while not done():  # noqa: ASYNC110 - threads set no event of the loop
            await asyncio.sleep(0.001)


class Attempt:
    """What the executor knows of one."""

    cancelled = given_up = False
    started = told = None
    number = 1
    job = SimpleNamespace(key="run")

    def __init__(self, call, *, is_async=False, timeout=None):
        self.call = call
        self.handler = SimpleNamespace(is_async=is_async, isolate=False)
        self.timeout = timeout


async def begun(attempts):
    await until(lambda: all(attempt.started is not None for attempt in attempts))


class Bench:
    """An executor whose attempts are their own contexts, and what has ended."""

    async def __aenter__(self):
        self.ends = []
        self.executor = Executor(THREADS, lambda attempt: attempt, self.ends.extend, isolated=None)
        return self

    async def __aexit__(self, *_):
        self.executor.close()
        await until(lambda: not self.executor.busy)

    async def ended(self, number):
        await until(lambda: len(self.ends) >= number)


async def test_as_many_run_at_once_as_there_are_threads():
    """Without `_spread` each thread would run what came with it, one after the other."""
    async with Bench() as bench:
        together = threading.Barrier(THREADS, timeout=BOUND)
        bench.executor.submit([Attempt(together.wait) for _ in range(THREADS)])
        await bench.ended(THREADS)
        assert [error for _, _, error in bench.ends] == [None] * THREADS


async def test_one_that_comes_while_others_take_their_time_is_not_kept_waiting():
    async with Bench() as bench:
        gate = threading.Event()
        bench.executor.submit([Attempt(lambda: gate.wait(BOUND)) for _ in range(THREADS - 1)])
        for n in range(50):
            bench.executor.submit([Attempt(lambda: None)])
            await bench.ended(n + 1)
        gate.set()
        await bench.ended(50 + THREADS - 1)


async def test_all_of_a_crowd_end_and_what_they_raise_is_their_own():
    async with Bench() as bench:

        def raises():
            raise ValueError("no")

        bench.executor.submit([Attempt(raises if n % 2 else lambda: None) for n in range(2000)])
        await bench.ended(2000)
        assert sum(isinstance(error, ValueError) for _, _, error in bench.ends) == 1000


async def test_what_no_thread_has_started_can_be_taken_back():
    async with Bench() as bench:
        gate = threading.Event()
        first = [Attempt(lambda: gate.wait(BOUND)) for _ in range(THREADS)]
        bench.executor.submit(first)
        await begun(first)
        more = [Attempt(lambda: None) for _ in range(3)]
        bench.executor.submit(more)
        assert bench.executor.unstarted() == more
        gate.set()
        await bench.ended(THREADS)
        assert len(bench.ends) == THREADS


@pytest.fixture
def impatient(monkeypatch):
    """Nobody has time beyond what is his."""
    monkeypatch.setattr(module, "PATIENCE", -1.0)


class Stubborn:
    """Handlers that do not end before they are let go, whoever cancels them."""

    def __init__(self):
        self.gate = threading.Event()

    def attempt(self, kind):
        call = {"coroutine": self.swallow, "thread": lambda: self.gate.wait(BOUND)}[kind]
        return Attempt(call, is_async=kind == "coroutine", timeout=1.0)

    async def swallow(self):
        while not self.gate.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_is_past_its_timeout_and_does_not_end_is_given_up_and_its_later_end_is_nobodys(impatient, kind):
    """`busy` tells that the process cannot wait for it, `ending` that there is nothing to wait for."""
    async with Bench() as bench:
        stubborn = Stubborn()
        attempt = stubborn.attempt(kind)
        bench.executor.submit([attempt])
        await begun([attempt])
        bench.executor.give_up_overdue()
        bench.executor.give_up_overdue()
        ((given_up, _, error),) = bench.ends
        assert (given_up, type(error)) == (attempt, TimeoutError)
        assert (bench.executor.stuck_coroutines, bench.executor.stuck_threads) == (
            kind == "coroutine",
            kind == "thread",
        )
        assert bench.executor.busy
        assert not bench.executor.ending
        stubborn.gate.set()
        await until(lambda: not (bench.executor.stuck_coroutines or bench.executor.stuck_threads))
        assert len(bench.ends) == 1


async def test_a_coroutine_without_timeout_that_swallows_its_cancel_is_given_up_as_cancelled(impatient):
    async with Bench() as bench:
        stubborn = Stubborn()
        attempt = stubborn.attempt("coroutine")
        attempt.timeout = None
        bench.executor.submit([attempt])
        await begun([attempt])
        bench.executor.give_up_overdue()
        assert bench.ends == []
        assert bench.executor.ending
        bench.executor.abandon(attempt)
        bench.executor.give_up_overdue()
        ((_, _, error),) = bench.ends
        assert isinstance(error, asyncio.CancelledError)
        stubborn.gate.set()


@pytest.mark.parametrize(("first", "then"), [("coroutine", "thread"), ("thread", "coroutine")])
async def test_so_many_stuck_ones_are_replaced_and_each_further_one_costs_a_slot_until_it_ends(impatient, first, then):
    """Of whichever kind they are; in the end there are as many threads as in the beginning."""
    async with Bench() as bench:
        one, other = Stubborn(), Stubborn()
        for stubborn, kind, lost in ((one, first, 0), (other, then, THREADS)):
            attempts = [stubborn.attempt(kind) for _ in range(THREADS)]
            bench.executor.submit(attempts)
            await begun(attempts)
            bench.executor.give_up_overdue()
            assert bench.executor.lost == lost
        other.gate.set()
        await until(lambda: not bench.executor.lost)
        together = threading.Barrier(THREADS, timeout=BOUND)
        bench.executor.submit([Attempt(together.wait) for _ in range(THREADS)])
        await bench.ended(3 * THREADS)
        assert [error for _, _, error in bench.ends[2 * THREADS :]] == [None] * THREADS
        one.gate.set()
        await until(lambda: sum(thread.is_alive() for thread in bench.executor._threads) == THREADS)
