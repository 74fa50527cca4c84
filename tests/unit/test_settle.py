"""A message is acknowledged after what it asks for is stored, and never because a write found nothing."""

import asyncio

import pytest
from rota.sched.broker.messages import Publish
from rota.sched.broker.topology import MAX_DELAY, delay_route
from rota.sched.errors import Unreachable
from rota.sched.stats import Stats
from rota.sched.store.values import Standing
from rota.workers.attempt import Verdict
from rota.workers.settle import Settler

from tests.unit.conftest import AnyStore, RecordingConsumer, ScriptedLink, SilentPublisher, a_delivered_attempt

RETRY = Verdict("retry", error="{}", seconds=5.0)


class Bench:
    """A settler around an attempt, and what it did."""

    def __init__(self, **answers):
        self.attempt = a_delivered_attempt()
        self.publisher, self.consumer = SilentPublisher(), RecordingConsumer()
        self.again, self.stats = [], Stats()
        self.link = ScriptedLink(**{"finish_unfollowed": set(), **answers})
        self.settler = Settler(
            AnyStore(),
            self.link,
            self.publisher,
            self.consumer,
            lease=15.0,
            again=self.again.append,
            over=lambda _: None,
            stats=self.stats,
        )

    async def flush(self, verdict):
        await self.settler.flush([(self.attempt, verdict)])

    def stands(self, state, **more):
        """The row that is found by looking."""
        key = self.attempt.job.key
        self.link.answers["look"] = {key: Standing(key, state, **{"dispatch": 1, **more})}

    @property
    def written(self):
        return {self.attempt.job.key}


@pytest.mark.parametrize("finish", ["finish", "finish_unfollowed"])
async def test_an_end_is_acknowledged_when_it_is_written(finish):
    """What nothing waits for by one statement, and the rest by another."""
    bench = Bench()
    bench.link.answers[finish] = bench.written
    await bench.flush(Verdict("succeeded"))
    assert bench.consumer.settled == ["ack"]


async def test_nothing_is_settled_while_the_store_is_away():
    bench = Bench(finish_unfollowed=Unreachable("away"), give_back=Unreachable("away"))
    for verdict in (Verdict("succeeded"), RETRY):
        with pytest.raises(Unreachable):
            await bench.flush(verdict)
    assert bench.consumer.settled == []
    assert bench.publisher.published == []


async def test_a_retry_is_acknowledged_when_the_ladder_has_its_message():
    bench = Bench()
    bench.link.answers["give_back"] = bench.written
    await bench.flush(RETRY)
    assert (len(bench.publisher.published), bench.consumer.settled) == (1, [])
    bench.publisher.answer(Publish.CONFIRMED)
    assert bench.consumer.settled == ["ack"]


async def test_a_retry_that_is_too_far_off_for_the_ladder_is_left_to_the_store():
    bench = Bench()
    bench.link.answers["give_back"] = lambda returns: [r.from_store for r in returns] == [True] and bench.written
    await bench.flush(RETRY._replace(seconds=MAX_DELAY + 1.0))
    assert (bench.publisher.published, bench.consumer.settled) == ([], ["ack"])


async def test_the_ladders_longest_retry_goes_there():
    bench = Bench()
    bench.link.answers["give_back"] = lambda returns: [r.from_store for r in returns] == [False] and bench.written
    await bench.flush(RETRY._replace(seconds=float(MAX_DELAY)))
    (message,) = bench.publisher.published
    assert (message.exchange, message.routing_key) == delay_route(MAX_DELAY, "mail")


@pytest.mark.parametrize("outcome", [Publish.RETURNED, Publish.NACKED, Publish.UNKNOWN])
async def test_a_deferral_that_is_not_confirmed_is_no_reason_to_acknowledge(outcome):
    bench = Bench()
    bench.link.answers["give_back"] = bench.written
    await bench.flush(RETRY)
    bench.publisher.answer(outcome)
    await asyncio.sleep(0)
    assert bench.consumer.settled == []


@pytest.mark.parametrize("state", ["retrying", "running"])
async def test_a_refused_write_whose_run_lives_under_this_message_is_deferred(state):
    """The retry was written and its answer lost, say: this message is the only one."""
    bench = Bench(give_back=set())
    bench.stands(state, fence=9, seconds=5.0)
    await bench.flush(RETRY)
    assert (len(bench.publisher.published), bench.consumer.settled) == (1, [])


async def test_a_refused_write_whose_run_waits_is_begun_again():
    bench = Bench(finish=set())
    bench.stands("waiting")
    await bench.flush(Verdict("succeeded"))
    assert bench.again == [bench.attempt.job]
    assert bench.consumer.settled == []


async def test_a_handler_whose_commit_got_no_answer_has_succeeded_if_its_run_is_gone():
    """Its error asks for a retry, which finds no row: no write of somebody stale was refused."""
    bench = Bench(give_back=set())
    bench.stands(None, dispatch=0)
    bench.attempt.committing = True
    await bench.flush(RETRY)
    told = bench.stats.to_json()
    assert (told["ended"], told["superseded"]) == ({"succeeded": 1}, {})
    assert bench.consumer.settled == ["ack"]


@pytest.mark.parametrize(("state", "dispatch"), [(None, 0), ("waiting", 7)])
async def test_a_refused_write_whose_run_ended_or_has_another_message_is_dropped(state, dispatch):
    bench = Bench(finish=set())
    bench.stands(state, dispatch=dispatch)
    await bench.flush(Verdict("succeeded"))
    assert bench.consumer.settled == ["ack"]


async def test_a_failure_of_what_shall_stop_is_written_as_its_cancel():
    bench = Bench(give_back=set())
    bench.stands("running", fence=bench.attempt.fence, cancel_requested=True)
    await bench.flush(RETRY)
    assert (bench.consumer.settled, bench.publisher.published) == ([], [])
    assert not bench.settler.idle


async def test_the_last_failure_rejects_its_message():
    bench = Bench()
    bench.link.answers["finish"] = bench.written
    await bench.flush(Verdict("dead", reason="no"))
    assert bench.consumer.settled == ["reject"]
    assert [m.routing_key for m in bench.publisher.published] == ["run.dead.mail.work"]


async def test_what_is_handed_back_after_a_guard_copy_took_its_message_comes_back_at_once():
    """The copy is in the ladder for minutes, and a delivery that is acknowledged cannot be given back."""
    bench = Bench()
    bench.link.answers["give_back"] = bench.written
    bench.settler.defer(bench.attempt.job, 600)
    bench.publisher.answer(Publish.CONFIRMED)
    await bench.flush(Verdict("release"))
    assert bench.consumer.settled == ["ack"]
    assert len(bench.publisher.published) == 2
