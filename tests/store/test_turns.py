"""Ends, claims and redrives of one job at the same time: nothing is left buffered that nobody releases."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from rota.sched import edits
from rota.sched.ids import RunKey
from rota.sched.store.postgres.changing import STANDING
from rota.sched.store.values import DeadFilter, End, Redrive
from rota.sched.when import Schedule

from tests.conftest import BOUND
from tests.store.conftest import heard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.sched.store.transaction import Transaction

    from tests.store.conftest import PostgresHouse

BLOCKED = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'rota other' and wait_event_type = 'Lock'"


class Meanwhile:
    """A transaction on a connection of its own, in a thread: begun while another one is open."""

    def __init__(self, house: PostgresHouse, txn: Transaction[Any]) -> None:
        self._house = house
        self._txn = txn
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._house.store.link("other")) as link:
            self.answer = link.run(self._txn)

    def waits(self) -> None:
        """Until it waits for a lock."""
        end = time.monotonic() + BOUND
        while self._house.sql(BLOCKED) != [(1,)]:
            assert time.monotonic() < end, "nothing waits"
            assert self._thread.is_alive(), f"it did not wait, and gave {self.answer}"
            time.sleep(0.01)

    def result(self) -> Any:
        self._thread.join(BOUND)
        assert not self._thread.is_alive(), "it still waits"
        return self.answer


@contextmanager
def opened(house: PostgresHouse, txn: Transaction[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has done everything but its commit."""
    engine = house.store.engine("open", 1)
    try:
        with engine.connect() as connection:
            house.store.drive(connection, txn)
            yield connection
    finally:
        engine.dispose()


class Line:
    """A job whose first tick runs, and the second is due."""

    def __init__(self, house: PostgresHouse, overlap: str = "buffer_one") -> None:
        self.house = house
        self.scheduler, self.worker = house.join(), house.join("worker")
        self.job = house.job(when=Schedule(every=60, overlap=overlap))
        house.submit(self.job)
        self.due()
        self.first = self.begin(*house.claim(self.scheduler).dispatches)
        self.due()

    def due(self) -> None:
        self.house.bed.pass_time(60.5)

    def begin(self, *dispatches):
        (begun,) = self.house.begin(self.worker, *dispatches)
        return begun

    def claim(self):
        return self.house.store.claim(self.scheduler, self.house.lanes(), 500, 100)

    def end(self, begun, outcome="succeeded"):
        return self.house.store.finish([End(begun.key, begun.fence, outcome)])

    def states(self):
        return [state for (state,) in self.house.sql("select state from rota.run order by claimed_at, scheduled_for")]


def test_an_end_that_comes_while_a_tick_is_buffered_lets_it_go(house):
    """The end began before the tick was there to be seen. Without `marked` in ADVANCE it would not look for one."""
    line = Line(house)
    with opened(house, line.claim()) as claim:
        end = Meanwhile(house, line.end(line.first))
        end.waits()
        claim.commit()
    assert end.result() == {line.first.key}
    assert line.states() == ["waiting"]
    assert len(house.ready(line.scheduler)) == 1


def test_a_change_lets_go_what_it_buffers_behind_a_run_that_ends_meanwhile(house):
    """It has seen that the run is alive. Without `line_up` in `_settle` (sched/store/postgres/changing.py) its tick waits for ever."""
    line = Line(house)
    edit = edits.edit("me@here", Schedule(every=30, overlap="buffer_one"), None, {})
    steps = house.store.update(line.job.id, edit).steps()
    with psycopg.connect(house.bed.url) as connection, suppress(StopIteration):
        query = next(steps)
        while True:
            cursor = connection.execute(query.sql, query.params)
            if query.sql == STANDING:
                house.run(line.end(line.first))
            query = steps.send(cursor.fetchall() if cursor.description else [])
    assert line.states() == ["waiting"]


def test_a_tick_is_not_buffered_behind_a_run_that_is_about_to_end(house):
    """Its end has looked already. The tick stays due, and nobody waits for anybody."""
    line = Line(house)
    with opened(house, line.end(line.first)) as end:
        claimed = house.claim(line.scheduler)
        assert (claimed.dispatches, claimed.buffered) == ([], 0)
        assert line.states() == ["running"]
        ((later,),) = house.sql("select next_run_at > %s from rota.job", claimed.claimed_at)
        assert later, "no scheduler looks at it again and again"
        end.commit()
    house.bed.pass_time(0.1)
    assert len(house.claim(line.scheduler).dispatches) == 1
    assert line.states() == ["waiting"]


def test_an_end_that_is_not_committed_lets_nothing_go(house):
    line = Line(house)
    house.claim(line.scheduler)
    with opened(house, line.end(line.first)) as end:
        assert line.states() == ["running", "buffered"]
        end.rollback()
    assert line.states() == ["running", "buffered"]
    house.run(line.end(line.first))
    assert line.states() == ["waiting"]


@pytest.mark.parametrize("way", ["begin", "checkpoint"])
def test_a_tick_whose_predecessor_is_being_changed_comes_a_moment_later(house, store_url, way):
    line = Line(house)
    statement = "update rota.run set checkpoint = '1'" if way == "checkpoint" else "update rota.run set state = state"
    with psycopg.connect(store_url) as other:
        other.execute(statement)
        assert house.claim(line.scheduler).buffered == 0
    house.bed.pass_time(0.1)
    assert house.claim(line.scheduler).buffered == 1


def test_of_two_runs_that_end_at_the_same_time_one_lets_the_next_go(house):
    line = Line(house, "allow")
    second = line.begin(*house.claim(line.scheduler).dispatches)
    house.sql("""update rota.job set schedule = schedule || '{"overlap": "buffer_one"}'""")
    line.due()
    assert house.claim(line.scheduler).buffered == 1
    with opened(house, line.end(line.first)) as end:
        other = Meanwhile(house, line.end(second))
        other.waits()
        end.commit()
    assert other.result() == {second.key}
    assert line.states() == ["waiting"]


def dead_and_running(house, overlap="buffer_one"):
    """A line whose first run is dead, and whose second runs."""
    line = Line(house, overlap)
    house.run(line.end(line.first, "dead"))
    line.second = line.begin(*house.claim(line.scheduler).dispatches)
    return line, house.store.redrive(DeadFilter(keys=[line.first.key]), Redrive("ann@here"))


def test_an_end_that_comes_during_a_redrive_lets_it_go(house):
    line, redrive = dead_and_running(house)
    with opened(house, redrive) as open_:
        end = Meanwhile(house, line.end(line.second))
        end.waits()
        open_.commit()
    end.result()
    assert line.states() == ["waiting"]


def test_a_redrive_during_an_end_waits_for_it_and_runs(house):
    line, redrive = dead_and_running(house)
    with opened(house, line.end(line.second)) as end:
        again = Meanwhile(house, redrive)
        again.waits()
        end.commit()
    assert again.result().taken == [line.first.key]
    assert line.states() == ["waiting"]


def test_a_redrive_and_a_claim_at_the_same_time_make_no_two_that_are_alive(house):
    line, redrive = dead_and_running(house)
    house.run(line.end(line.second))
    line.due()
    with opened(house, redrive) as open_:
        assert house.claim(line.scheduler).rows == 0
        open_.commit()
    assert house.claim(line.scheduler).buffered == 1
    assert line.states() == ["waiting", "buffered"]


def test_with_cancel_other_a_claim_does_not_wait_for_a_run_that_is_about_to_end(house):
    line = Line(house, "cancel_other")
    with opened(house, line.end(line.first)) as end:
        assert house.claim(line.scheduler).rows == 1
        end.commit()
    house.bed.pass_time(0.1)
    assert len(house.claim(line.scheduler).dispatches) == 1
    assert house.outcomes(line.job.id) == ["succeeded"]


def test_a_cancel_of_all_and_an_end_at_the_same_time_wait_for_each_other_in_one_order(house):
    line = Line(house)
    house.claim(line.scheduler)
    with opened(house, line.end(line.first)) as end:
        cancel = Meanwhile(house, house.store.cancel(line.job.id, None, running=True, reason="asked to"))
        cancel.waits()
        end.commit()
    assert cancel.result().job
    assert line.states() == []
    assert sorted(house.outcomes(line.job.id)) == ["cancelled", "cancelled", "succeeded"]


def test_what_somebody_else_has_ended_is_found_by_recovery(house):
    """As a worker of a version that knows nothing of turns would do it. Without STRANDED the tick would wait for ever."""
    line = Line(house)
    house.claim(line.scheduler)
    house.sql("delete from rota.run where state = 'running'")
    house.look_at_all()
    assert house.recover(line.scheduler).stranded == 1
    assert line.states() == ["waiting"]
    assert house.recover(line.scheduler).stranded == 0


def test_and_by_the_next_claim(house):
    line = Line(house, "buffer_all")
    house.claim(line.scheduler)
    house.sql("delete from rota.run where state = 'running'")
    line.due()
    assert house.claim(line.scheduler).buffered == 1
    assert line.states() == ["waiting", "buffered"]


def test_what_is_released_wakes_a_sleeping_scheduler(house, store_url):
    line = Line(house)
    house.claim(line.scheduler)
    house.run(house.store.partitions(line.scheduler))
    house.run(house.store.sleep(line.scheduler, house.lanes(), 60))
    with psycopg.connect(store_url, autocommit=True) as ear:
        ear.execute(f"listen {house.store.wake_channel}")
        house.run(line.end(line.first))
        assert heard(ear, house) == ["mail"]


def test_ends_without_anything_behind_them_ask_for_nothing_more(house):
    """What overlap costs everybody else: a boolean in the answer."""
    line = Line(house, "allow")
    asked = line.end(line.first).steps()
    next(asked)
    with pytest.raises(StopIteration):
        asked.send([(1, False)])


def test_many_claims_ends_and_redrives_at_once_leave_nothing_behind(house):
    """Threads do what they like for two seconds or more: at no time are two alive, and in the end nothing waits."""
    scheduler, worker = house.join(), house.join("worker")
    jobs = [
        house.job(when=Schedule(every=0.1, overlap=o)) for o in ("buffer_one", "buffer_all", "cancel_other", "skip")
    ]
    house.submit(*jobs)
    stop, bound, errors, seen = time.monotonic() + 2, time.monotonic() + BOUND / 2, [], []
    much = "select count(*) > 40 from rota.history where outcome <> 'skipped'"
    two = "select job_id from rota.run where state <> 'buffered' group by job_id having count(*) > 1"
    running = """select job_id::text, to_char(scheduled_for at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), fence
        from rota.run where state = 'running' order by random() limit 1"""

    def work(n: int) -> None:
        try:
            with closing(house.store.link("stress")) as link, psycopg.connect(house.bed.url, autocommit=True) as eye:
                while (now := time.monotonic()) < stop or (now < bound and eye.execute(much).fetchone() != (True,)):
                    dispatches = link.run(house.store.claim(scheduler, house.lanes(), 100, 100)).dispatches
                    dispatches += link.run(house.store.ready(scheduler, house.lanes(), 100)).dispatches
                    refs = [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False) for d in dispatches]
                    link.run(house.store.begin(worker, refs))
                    ends = [
                        End(RunKey(job, at), fence, "dead" if n else "succeeded")
                        for job, at, fence in eye.execute(running)
                    ]
                    link.run(house.store.finish(ends))
                    if n == 2:
                        link.run(house.store.redrive(DeadFilter(queue="mail", limit=1), Redrive("ann@here")))
                    seen.extend(eye.execute(two).fetchall())
        except Exception as error:  # noqa: BLE001 - told by the assertion
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert (errors, seen) == ([], [])
    house.look_at_all()
    assert house.recover(scheduler).stranded == 0
    for job in jobs:
        assert house.run(house.store.cancel(job.id, None, running=False, reason="over")).job
    for key, fence in [(RunKey(job, at), fence) for job, at, fence in house.sql(running.replace("limit 1", ""))]:
        house.run(house.store.finish([End(key, fence, "succeeded")]))
    assert house.sql("select state from rota.run") == []
    assert house.sql(much) == [(True,)]
