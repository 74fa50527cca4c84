"""What is asked of the broker: everything now and then, and every second what is in use."""

from types import SimpleNamespace

from rota.sched.scheduler.depths import Depths


class Broker:
    def __init__(self, **ready):
        self.ready = ready
        self.asked = []

    async def depths(self, queues):
        self.asked.append([queue.rpartition(".")[2] for queue in queues])
        return [SimpleNamespace(messages=self.ready.get(queue, 0), consumers=1) for queue in self.asked[-1]]


async def test_only_what_is_in_use_is_asked_every_second():
    depths, broker = Depths(), Broker(slow=3, parked=1)
    depths.know([("mail", 9), ("slow", 9)])
    assert depths.stirred.is_set()
    await depths.ask(broker)
    assert (depths.parked, depths.empty, depths.quiet) == (1, ["mail"], False)
    broker.ready.clear()
    await depths.ask(broker, quiet=False)
    assert depths.quiet
    await depths.ask(broker, quiet=False)
    depths.published("mail")
    assert depths.stirred.is_set()
    assert (depths.quiet, depths.empty) == (False, ["slow"])
    await depths.ask(broker, quiet=False)
    assert depths.quiet
    assert not depths.stirred.is_set()
    assert broker.asked == [["mail", "slow", "parked"], ["slow"], ["mail"]]


async def test_what_is_published_while_the_broker_is_asked_counts_until_the_next_answer():
    depths = Depths()
    depths.know([("mail", 2)])

    class Slow(Broker):
        async def depths(self, queues):
            depths.published("mail")
            return await super().depths(queues)

    depths.published("mail")
    await depths.ask(Slow(mail=1))
    assert depths.open == []
    assert depths.empty == []
