"""Handlers that kill their process, or hang where nothing but a kill ends them."""

from __future__ import annotations

from field_app import credit, hangs_in_c, kills, kills_itself
from rota import Client

NEIGHBOURS = 20
DEAD = "select reason, attempt, losses from rota.dead"


def submit(field, call):
    """The call, and its neighbours before and after it."""
    with Client.open(field.store) as client:
        client.submit_many([credit.call() for _ in range(NEIGHBOURS // 2)])
        client.submit(call)
        client.submit_many([credit.call() for _ in range(NEIGHBOURS // 2)])


def neighbours_have_run(field):
    return field.value("select n from field_balance") == NEIGHBOURS


def test_rty_04_who_kills_his_own_process_is_dead_after_his_attempts_and_the_worker_lives(field):
    """Each death spends an attempt. Without the line with `attempt.handler.isolate` in `Executor.submit`
    (workers/executor.py) the handler kills the worker.
    """
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    submit(field, kills_itself.call(key="k"))
    field.until("its death", lambda: field.value("select count(*) from rota.dead"))
    field.until("the neighbours", lambda: neighbours_have_run(field))
    reason = "3 attempts failed, the last with ProcessDied: the process of the handler died with signal 9 (SIGKILL)"
    assert field.db.execute(DEAD).fetchall() == [(reason, 3, 0)]
    assert field.executions("k") == 3
    assert worker.poll() is None
    assert field.value("select count(*) from rota.member where kind = 'worker'") == 1


def test_rty_04_who_kills_workers_is_dead_as_poison_after_three(field):
    """In a thread it takes its worker along, and is begun alone from the third time on. Without `losses = losses + 1` in
    REQUEUE (sched/store/postgres/duties.py) it takes worker after worker.
    """
    field.start("scheduler")
    field.start("worker", "--processes", "2")
    field.until_working()
    submit(field, kills.call(key="k"))
    field.until("its death", lambda: field.value("select count(*) from rota.dead"))
    field.until("the neighbours", lambda: neighbours_have_run(field))
    assert field.db.execute(DEAD).fetchall() == [("poison: 3 workers were lost while they ran it", 0, 3)]
    assert field.executions("k") == 3


def test_lse_19_c_code_that_hangs_in_an_isolated_handler_is_killed_at_its_timeout(field):
    """No thread of its process runs any more, the heartbeat of its worker does. Without `asyncio.timeout` in
    `Isolated._run_in` (workers/isolated.py) it goes on for ever.
    """
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit_many([hangs_in_c.call(key=str(n)) for n in range(3)])
    field.until("all to end", lambda: field.value("select count(*) from rota.history") == 3)
    assert field.value("select count(*) from rota.history where outcome = 'succeeded' and attempt >= 2") == 3
    assert worker.poll() is None
