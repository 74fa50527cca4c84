"""Threads that pull: who waits is begun, whoever else is busy, and who is to end ends."""

import asyncio
import threading
from types import SimpleNamespace

from rota.workers.executor import Executor

THREADS = 4


class Attempt:
    """What the executor knows of one."""

    handler = SimpleNamespace(is_async=False, isolate=False)
    cancelled = given_up = False
    timeout = started = None

    def __init__(self, call):
        self.call = call


class Bench:
    """An executor whose attempts are their own contexts, and what has ended."""

    async def __aenter__(self):
        self.ends = []
        self.executor = Executor(THREADS, lambda attempt: attempt, self.ends.extend, isolated=None)
        return self

    async def __aexit__(self, *_):
        self.executor.close()
        self.executor.join(20)
        assert not self.executor.busy

    async def ended(self, number):
        async with asyncio.timeout(20):
            while len(self.ends) < number:  # noqa: ASYNC110 - threads set no event of the loop
                await asyncio.sleep(0.001)


async def test_as_many_run_at_once_as_there_are_threads():
    """Without `_spread` each thread would run what came with it, one after the other."""
    async with Bench() as bench:
        together = threading.Barrier(THREADS, timeout=20)
        bench.executor.submit([Attempt(together.wait) for _ in range(THREADS)])
        await bench.ended(THREADS)
        assert [error for _, _, error in bench.ends] == [None] * THREADS


async def test_one_that_comes_while_others_take_their_time_is_not_kept_waiting():
    async with Bench() as bench:
        gate = threading.Event()
        bench.executor.submit([Attempt(lambda: gate.wait(20)) for _ in range(THREADS - 1)])
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
        first = [Attempt(lambda: gate.wait(20)) for _ in range(THREADS)]
        bench.executor.submit(first)
        async with asyncio.timeout(20):
            while any(attempt.started is None for attempt in first):  # noqa: ASYNC110 - set by threads
                await asyncio.sleep(0.001)
        more = [Attempt(lambda: None) for _ in range(3)]
        bench.executor.submit(more)
        assert bench.executor.unstarted() == more
        gate.set()
        await bench.ended(THREADS)
        assert len(bench.ends) == THREADS
