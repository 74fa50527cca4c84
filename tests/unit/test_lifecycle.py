import asyncio

import pytest
from rota.sched.lifecycle import set_within


async def test_an_event_in_time_is_told_from_one_that_is_not():
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    event.set()
    assert await set_within(event, 0.01)


async def test_a_cancel_that_comes_together_with_the_event_is_not_swallowed():
    """Else a worker that was asked to end while a delivery came in went on until it was killed."""
    event = asyncio.Event()
    waiting = asyncio.create_task(set_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
