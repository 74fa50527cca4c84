import asyncio
from types import SimpleNamespace

from rota.sched.broker.messages import Publish
from rota.sched.model import Dispatch
from rota.sched.scheduler.depths import Depths
from rota.sched.scheduler.dispatch import Dispatcher
from rota.sched.scheduler.lanes import LaneBook
from rota.sched.stats import Stats

RUN = Dispatch(7, "0199c1d2-7b31-7c0e-8000-000000000000", "2026-11-30T02:00:00.000000Z", "mail", "send", None, "{}")


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
    trust = SimpleNamespace(held=True)
    dispatcher = Dispatcher(None, None, broker, 1, trust, LaneBook(), Depths(), Stats(), batch=500, window=2000)
    dispatching = asyncio.create_task(dispatcher.dispatch([RUN]))
    await asyncio.sleep(0)
    dispatching.cancel()
    await asyncio.wait([dispatching])
    assert dispatcher.outstanding
    assert await dispatcher.drain(5)
    assert broker.published == ["7"]
    assert dispatcher.watermark.value >= 7
