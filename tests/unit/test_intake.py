"""What becomes of deliveries that the ledger does not give."""

import asyncio
from types import SimpleNamespace

import pytest
from rota.sched.errors import Superseded, Unreachable
from rota.sched.stats import Stats
from rota.sched.store.values import Begun, Standing
from rota.workers.intake import DOUBT_SECONDS, Intake
from rota.workers.service import Worker
from rota.workers.settle import Settler

from tests.conftest import BOUND
from tests.unit.conftest import AnyStore, RecordingConsumer, ScriptedLink, SilentPublisher, a_delivered_attempt


class Bench:
    """An intake with one delivery in it, of a run that has lost two workers."""

    def __init__(self, state="waiting", seconds=0.0, age=0.0, policy=None):
        self.job = a_delivered_attempt().job
        self.policy = policy
        self.publisher = SilentPublisher()
        self.alone, self.started = [], []
        self.link = ScriptedLink(
            look={self.job.key: Standing(self.job.key, state, 1, losses=2, age=age, seconds=seconds)}
        )
        self.link.answers["begin"] = lambda *_: []
        consumer = self.consumer = RecordingConsumer()
        handler = SimpleNamespace(is_async=False)
        self.intake = Intake(
            self,
            self.link,
            consumer,
            self.publisher,
            {"work": handler},
            member=1,
            trust=SimpleNamespace(held=True),
            concurrency=4,
            unknown_after=3600.0,
            started=lambda attempts, _: self.started.extend(attempts),
        )
        self.settler = Settler(
            AnyStore(),
            self.link,
            self.publisher,
            consumer,
            lease=15.0,
            again=self.intake.put,
            over=self.intake.over,
            stats=Stats(),
        )
        self.intake.put(self.job)

    def begin(self, *args, alone):
        """The store's: what has lost two workers is begun alone."""
        self.alone.append(alone)
        if alone:
            begun = Begun(self.job.key, 7, 1, 2, 0, "{}", 0.0, 0.0, self.policy)
            self.link.answers["begin"] = lambda *_: [begun]
        return "begin", args

    def __getattr__(self, name):
        return lambda *args: (name, args)


@pytest.mark.parametrize(("state", "seconds"), [("waiting", 0.0), ("retrying", 0.0), ("retrying", -90.0)])
async def test_a_run_that_lost_two_workers_is_begun_alone_also_as_a_retry(state, seconds):
    bench = Bench(state, seconds)
    await bench.intake._round(bench.settler)
    await bench.intake._round(bench.settler)
    assert bench.alone == [False, True]
    assert [attempt.job for attempt in bench.started] == [bench.job]


async def test_one_whose_retry_is_not_due_waits_for_it():
    bench = Bench("retrying", 30.0)
    await bench.intake._round(bench.settler)
    assert bench.intake.waiting == 0
    assert bench.started == []
    assert len(bench.publisher.published) == 1


@pytest.mark.parametrize(("age", "patience"), [(0.0, 3.0), (600.0, 60.0)])
async def test_a_run_to_be_begun_alone_holds_its_neighbours_back_for_a_while_only(monkeypatch, age, patience):
    """What runs may take hours. In the end it finds a worker idle: it may hold back for a tenth of what it has waited."""
    bench, now = Bench(age=age), 1000.0
    monkeypatch.setattr("rota.workers.intake.time", SimpleNamespace(monotonic=lambda: now))
    busy = a_delivered_attempt()
    bench.intake.running[busy.job.key, busy.fence] = busy
    await bench.intake._round(bench.settler)
    assert not bench.intake._let_go(bench.settler)
    now += patience - 0.1
    assert bench.intake.room() == 0
    assert not bench.intake._let_go(bench.settler)
    now += 0.2
    assert bench.intake._let_go(bench.settler)
    assert bench.intake.room() == 3
    (message,) = bench.publisher.published
    assert message.routing_key.endswith("rota.q.mail")


async def test_in_the_rest_that_follows_nothing_is_held_back_again_but_an_idle_worker_begins_it(monkeypatch):
    bench, now = Bench(), 1000.0
    monkeypatch.setattr("rota.workers.intake.time", SimpleNamespace(monotonic=lambda: now))
    busy = a_delivered_attempt()
    bench.intake.running[busy.job.key, busy.fence] = busy
    await bench.intake._round(bench.settler)
    assert not bench.intake._let_go(bench.settler)
    now += 3.1
    assert bench.intake._let_go(bench.settler)
    now += 3.0
    bench.intake.put(bench.job)
    await bench.intake._round(bench.settler)
    assert bench.intake._let_go(bench.settler), "it is the neighbours' turn"
    assert len(bench.publisher.published) == 2
    bench.intake.put(bench.job)
    bench.intake.over(busy)
    await bench.intake._round(bench.settler)
    assert not bench.intake._let_go(bench.settler)
    await bench.intake._round(bench.settler)
    assert [attempt.job for attempt in bench.started] == [bench.job]


async def test_it_is_begun_when_the_others_have_ended_by_then():
    bench = Bench()
    busy = a_delivered_attempt()
    bench.intake.running[busy.job.key, busy.fence] = busy
    await bench.intake._round(bench.settler)
    assert not bench.intake._let_go(bench.settler)
    bench.intake.over(busy)
    assert not bench.intake._let_go(bench.settler)
    await bench.intake._round(bench.settler)
    assert [attempt.job for attempt in bench.started] == [bench.job]
    assert bench.publisher.published == []


@pytest.mark.parametrize("error", [Unreachable("away"), Superseded("taken for dead"), asyncio.CancelledError()])
async def test_what_was_being_begun_when_something_ended_it_is_not_forgotten(error):
    """The end of a membership gives back what is here. A message that is not stays with a channel that lives on."""
    bench = Bench()
    bench.link.answers["begin"] = error
    with pytest.raises(type(error)):
        await bench.intake._round(bench.settler)
    assert bench.intake.waiting == 1
    bench.intake.give_back()
    assert bench.consumer.settled == ["nack"]


async def test_a_begin_that_is_under_way_when_a_drain_comes_is_waited_for():
    """Its runs would else have lost a worker that is alive. Without the shield in `_begin` nobody here knows of them."""
    bench = Bench()
    begun = Begun(bench.job.key, 7, 1, 0, 0, "{}", 0.0, 0.0, None)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def run(_):
        asked.set()
        await answer.wait()
        return [begun]

    bench.link.run = run
    task = asyncio.create_task(bench.intake._round(bench.settler))
    await asked.wait()
    task.cancel()
    await asyncio.sleep(0)
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [attempt.job for attempt in bench.started] == [bench.job]
    assert bench.intake.waiting == 0


async def test_what_has_begun_is_not_begun_again_because_the_rest_could_not_be_looked_at():
    bench = Bench(state="running")
    begun = Begun(bench.job.key, 7, 1, 0, 0, "{}", 0.0, 0.0, None)
    bench.link.answers |= {"begin": [begun], "look": Unreachable("away")}
    other = a_delivered_attempt().job
    other.key = other.key._replace(job_id="another")
    bench.intake.put(other)
    with pytest.raises(Unreachable):
        await bench.intake._round(bench.settler)
    assert list(bench.intake._inbox) == [other]


@pytest.mark.parametrize(
    ("stored", "seconds"), [({"timeout": 7.0}, 7.0), ({"timeout": 7.0, "word of tomorrow": 1}, None)]
)
async def test_a_policy_that_only_a_newer_rota_knows_stops_no_worker(stored, seconds):
    bench = Bench(policy=stored)
    await bench.intake._round(bench.settler)
    await bench.intake._round(bench.settler)
    (attempt,) = bench.started
    assert attempt.policy.timeout == seconds


async def test_of_a_queue_that_is_to_be_narrow_again_what_came_last_goes_back():
    bench = Bench()
    more = [a_delivered_attempt().job for _ in range(5)]
    for job in more:
        bench.intake.put(job)
    gone = []
    bench.consumer.nack = gone.append
    bench.intake.give_back_surplus("other", 0)
    assert gone == []
    bench.intake.give_back_surplus(bench.job.queue, 2)
    assert gone == [job.delivery for job in more[1:]]
    assert bench.intake.waiting == 2


def test_slots_that_are_lost_begin_nothing_and_who_has_none_is_not_able():
    bench = Bench()
    bench.intake.lost = 3
    assert (bench.intake.room(), bench.intake.able) == (1, True)
    bench.intake.lost = 4
    assert (bench.intake.room(), bench.intake.able) == (0, False)


async def test_slots_are_lost_to_what_the_executor_could_not_end():
    """And it is looked again and again until they are back, though nothing runs. Without `intake.lost = ...` in `_overdue`
    (workers/service.py) a worker would take messages for slots that it does not have.
    """
    bench, worker = Bench(), object.__new__(Worker)
    worker._executor = SimpleNamespace(lost=2, give_up_overdue=lambda: None)
    await worker._overdue(bench.intake)
    assert bench.intake.lost == 2


async def test_a_handler_that_is_not_here_is_told_of_for_as_long_as_its_messages_come(monkeypatch, caplog):
    bench, now = Bench(), 1000.0
    monkeypatch.setattr("rota.workers.intake.time", SimpleNamespace(monotonic=lambda: now))
    bench.job.work = bench.job.work._replace(handler="gone")
    bench.link.answers["set_aside"] = []
    for _ in range(3):
        bench.intake.put(bench.job)
        await bench.intake._round(bench.settler)
        assert bench.intake.unknown == {"gone"}
        now += 60.0
    assert caplog.text.count("no handler 'gone'") == 1
    now += 60.1
    assert bench.intake.unknown == set()


async def test_what_a_begin_without_an_answer_asked_for_is_suspected_for_a_while(monkeypatch):
    """It may be given as long as its statement may run. What was refused was not given."""
    bench, now = Bench(), 1000.0
    monkeypatch.setattr("rota.workers.intake.time", SimpleNamespace(monotonic=lambda: now))
    for error, suspects in ((Superseded("taken for dead"), set()), (Unreachable("away"), {bench.job.key})):
        bench.link.answers["begin"] = error
        with pytest.raises(type(error)):
            await bench.intake._begin([bench.job], alone=False)
        assert bench.intake.suspects() == suspects
    now += DOUBT_SECONDS + 1
    assert bench.intake.suspects() == set()
    mine = a_delivered_attempt()
    bench.intake.running[mine.job.key, mine.fence] = mine
    assert bench.intake.suspects() == {mine.job.key}


async def test_what_was_being_begun_when_the_lease_ended_goes_back_too():
    """It comes back when its statement is given up, long after what had only been waiting. Without `or intake.waiting` in
    `_consume_while` (workers/service.py) this worker keeps it until it can reach the store again.
    """
    bench, worker = Bench(), object.__new__(Worker)
    gone, returned = [], asyncio.Event()
    bench.consumer.nack = lambda delivery: (gone.append(delivery), returned.set())
    trust = SimpleNamespace(held=False, left=0.0)
    bench.intake._trust = trust
    worker._settings, worker._queues = SimpleNamespace(beat=0.01), []

    async def cancel():
        """Nothing is consumed."""

    worker._consumer = SimpleNamespace(cancel=cancel)
    task = asyncio.create_task(worker._consume_while(trust, bench.intake))
    await asyncio.wait_for(returned.wait(), BOUND)
    task.cancel()
    assert (gone, bench.intake.waiting) == ([bench.job.delivery], 0)
