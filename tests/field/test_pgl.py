"""Locks in Postgres: order, waiting, and writes that come too late. That nobody waits for an advisory lock: test_sgl.py."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
from rota.sched.ids import RunKey
from rota.sched.store.values import End, Return

from tests.conftest import BOUND
from tests.field.conftest import at_once

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
ALIVE = "select count(*) from pg_stat_activity where application_name = 'rota field' and datname = current_database()"


def test_pgl_01_writers_of_the_same_rows_lock_them_in_one_order(house):
    """Four begin and give back the same 300 runs, each in an order of its own.

    Without `sorted` in `begin` and `give_back` (sched/store/postgres/working.py) they lock each other out.
    """
    scheduler = house.join()
    house.submit(*(house.job() for _ in range(300)))
    refs = [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False) for d in house.claim(scheduler).dispatches]
    workers = [house.join("worker") for _ in range(4)]

    def work(link, n):
        for _ in range(10):
            mine = random.sample(refs, 200)
            begun = link.run(house.store.begin(workers[n], mine))
            back = [Return(b.key, b.fence, "release") for b in begun]
            random.shuffle(back)
            link.run(house.store.give_back(back))
            link.run(house.store.give_back([Return(key, 1, "release") for key, _, _ in mine]))

    at_once(house, 4, work)
    while house.sql(ALIVE) != [(0,)]:
        pass  # what a session has counted is seen when it ends
    assert house.sql(DEADLOCKS) == [(0,)]
    assert house.sql("select state, count(*) from rota.run group by state") == [("waiting", 300)]


def test_pgl_01_a_deadlock_with_a_stranger_is_tried_again(house, store_url):
    """Without the repetition (`_again` in sched/store/postgres/link.py) the end of both runs is an error."""
    scheduler, worker = house.join(), house.join("worker")
    house.submit(house.job(), house.job())
    begun = sorted(house.begin(worker, *house.claim(scheduler).dispatches), key=lambda b: b.key)
    lock = "select from rota.run where job_id = %s for update"
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    ends = house.store.finish([End(b.key, b.fence, "succeeded") for b in begun])
    with (
        ThreadPoolExecutor(1) as pool,
        closing(house.store.link("field")) as link,
        psycopg.connect(store_url, options="-c deadlock_timeout=1min") as stranger,
    ):
        # Who has waited for so long looks once for a deadlock; it has to be there by then.
        link.connection().execute("set deadlock_timeout = '10s'")
        stranger.execute(lock, [begun[1].key.job_id])
        written = pool.submit(link.run, ends)
        while house.sql(waits) == [(0,)]:
            pass
        stranger.execute(lock, [begun[0].key.job_id])  # it has waited longer: the server ends its transaction
        stranger.commit()
        assert written.result(BOUND) == {b.key for b in begun}


def test_pgl_03_a_confirm_that_comes_after_the_end_takes_nothing_back(house):
    """One run has ended and one is running before their messages are confirmed; then their scheduler is lost.

    Without `o.state = 'waiting'` in ADOPT (sched/store/postgres/duties.py) the running one is dispatched again.
    """
    old, other, worker = house.join(), house.join(), house.join("worker")
    house.submit(house.job(), house.job())
    dispatches = house.claim(old).dispatches
    done, running = house.begin(worker, *dispatches)
    house.run(house.store.finish([End(done.key, done.fence, "succeeded")]))
    assert house.lose(other, old).adopted == 0
    assert house.ready(other) == []
    assert house.run(house.store.beat(old, {}, dispatches[-1].dispatch)) is None
    assert house.outcomes(done.key.job_id) == ["succeeded"]
    assert house.standing(running.key).fence == running.fence
