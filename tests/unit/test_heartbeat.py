"""A member trusts its lease no longer than others do."""

from types import SimpleNamespace

import pytest
from rota.sched import heartbeat as module
from rota.sched.errors import Unreachable
from rota.sched.heartbeat import Heartbeat, Trust, join
from rota.sched.stats import Stats

from tests.unit.conftest import AnyStore, ScriptedLink


@pytest.fixture
def clock(monkeypatch):
    """What `now` gives, to be moved."""
    made = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(module, "now", lambda: made.at)
    return made


def taking(clock, seconds, answer):
    """What a store answers that takes its time."""

    def slow(*_):
        clock.at += seconds
        return answer

    return slow


class BlockingLink(ScriptedLink):
    """As the heartbeat's thread has it."""

    def run(self, txn):
        name, args = txn
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer(*args) if callable(answer) else answer

    def close(self):
        pass


def a_heart(trust, stats, beat):
    store = AnyStore()
    store.link = lambda _: BlockingLink(beat=beat)
    return Heartbeat(store, 1, trust, stats, beat=0.001, figures=lambda: (stats.to_json(), None))


def test_a_lease_is_trusted_for_less_than_it_lasts_and_not_before_the_first_renewal(clock):
    trust = Trust(10)
    assert not trust.held
    trust.renewed(clock.at)
    clock.at += 8.9
    assert trust.held
    clock.at += 0.2
    assert not trust.held


async def test_a_lease_counts_from_when_its_renewal_was_sent(clock):
    """The store dates it later, and others count from then: an answer that took long must not make it longer."""
    member, trust = await join(AnyStore(), ScriptedLink(join=taking(clock, 5, 7)), "worker", 10)
    assert member == 7
    clock.at += 4.1
    assert not trust.held

    heart = a_heart(trust, Stats(), taking(clock, 5, "2026-11-30"))
    assert heart.beat()
    clock.at += 3.9
    assert trust.held
    clock.at += 0.2
    assert not trust.held


async def test_a_beat_that_fails_renews_nothing(clock):
    trust, stats = Trust(10), Stats()
    trust.renewed(clock.at)
    clock.at += 8
    heart = a_heart(trust, stats, Unreachable("away"))
    with pytest.raises(Unreachable):
        heart.beat()
    clock.at += 2
    assert not trust.held


async def test_the_heart_of_the_dead_stops_tells_and_counts():
    stats = Stats()
    heart = a_heart(Trust(10), stats, None)
    heart.start()
    await heart.lost.wait()
    heart.stop()
    assert not heart.is_alive()
    assert stats.to_json()["superseded"] == {"heartbeat": 1}


async def test_a_fault_in_what_it_is_to_tell_does_not_stop_a_heart():
    faults = [RuntimeError("a fault"), None]
    stats = Stats()
    heart = a_heart(Trust(10), stats, None)

    def figures():
        if (fault := faults.pop(0)) is not None:
            raise fault
        return {}, None

    heart._figures = figures
    heart.start()
    await heart.lost.wait()
    heart.stop()
    assert faults == []


class Ended(BaseException):
    """What the process's end is to a test."""


def a_heart_of_a_loop(monkeypatch):
    """A heart whose thread is the test, and its loop's calls, which the test makes or not."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(module, "end_at_once", end)
    told = []
    heart = a_heart(Trust(3), Stats(), lambda _, figures, __: told.append(figures.get("degraded", [])) or "2026-11-30")
    calls = []
    heart._loop = SimpleNamespace(call_soon_threadsafe=calls.append)
    return heart, calls, told


async def test_a_loop_that_stands_still_is_told_of_and_ends_its_process_after_four_leases(monkeypatch, caplog):
    heart, calls, told = a_heart_of_a_loop(monkeypatch)
    for _ in range(13):
        heart._ask_loop(1.0)
        heart.beat()
    assert told == [[]] * 5 + [["stuck_loop"]] * 8
    assert len(calls) == 1
    assert "in test_a_loop_that_stands_still" in caplog.text
    with pytest.raises(Ended):
        heart._ask_loop(1.0)


async def test_a_loop_that_goes_on_is_told_of_no_more(monkeypatch):
    heart, calls, told = a_heart_of_a_loop(monkeypatch)
    for _ in range(9):
        heart._ask_loop(1.0)
    calls.pop()()
    for _ in range(2):
        heart._ask_loop(1.0)
        heart.beat()
    assert told == [[], []]
