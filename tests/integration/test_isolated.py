"""Isolated handlers: the pool with real processes first, then workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from rota import Client, Snooze
from rota.sched.app import Cancel, NoRetry, RetryAfter
from rota.sched.ids import RunKey
from rota.sched.policy import policy
from rota.sched.settings import Settings
from rota.workers import isolated
from rota.workers.attempt import Attempt, Job, Verdict, describe, judge
from rota.workers.isolated import CannotStart, Isolated, ProcessDied

from tests.conftest import BOUND
from tests.integration.conftest import COMPOSE, Party, alive

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for isolated_app, here and in the processes

import isolated_app  # noqa: E402 - found by the line above

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
KEY = RunKey("0199c1d2-7b31-7c0e-8000-000000000001", "2026-11-30T02:00:00.000000Z")


@asynccontextmanager
async def pool(store=NOWHERE, app="isolated_app:app", size=2):
    found = Isolated(Settings(store=store, app=app, concurrency=size))
    try:
        yield found
    finally:
        await found.close()


def attempt_of(name, /, begun=None, timeout=None, **args):
    key, fence, number = (KEY, 7, 1) if begun is None else (begun.key, begun.fence, begun.attempt)
    handler = isolated_app.app.handlers[name]
    return Attempt(
        Job(None, None, key, "isolated", 0.0, b""),
        fence,
        number,
        0,
        handler,
        args,
        time.monotonic(),
        policy=policy(timeout=timeout),
    )


async def result(found, name, /, **args):
    verdict = await found.run(attempt_of(name, **args))
    assert verdict.kind == "succeeded"
    return json.loads(verdict.result)


async def numbers(path):
    """The processes that a handler has told of."""
    while not path.exists() or not path.read_text():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    return [int(number) for number in path.read_text().split()]


def gone(*pids):
    return not any(alive(pid) for pid in pids)


def go(*pids):
    """Whether they are gone in a moment: a signal that kills a whole group is not there in all of it at once."""
    end = time.monotonic() + BOUND
    while not gone(*pids) and time.monotonic() < end:
        time.sleep(0.01)
    return gone(*pids)


async def test_a_value_comes_back_and_the_process_runs_the_next_attempt_in_its_main_thread():
    async with pool() as found:
        assert await result(found, "echo", value={"a": ["\u00e9\U0001f600", 1.5]}) == {"a": ["\u00e9\U0001f600", 1.5]}
        assert await result(found, "echo_later", value=[1]) == [1]
        first, second = [await result(found, "where") for _ in range(2)]
        assert first == second
        assert first["pid"] == first["group"] != os.getpid()
        assert (first["main"], first["attempt"], first["fence"]) == (True, 1, 7)
        assert (first["cancelled"], first["deadline"]) == (False, False)
    assert gone(first["pid"])


async def test_as_many_processes_as_run_at_a_time_and_no_more_than_the_concurrency():
    async with pool() as found:
        pids = {(await end)["pid"] for end in [asyncio.ensure_future(result(found, "where")) for _ in range(6)]}
        assert len(pids) <= 2


async def test_a_process_that_is_idle_for_long_ends(monkeypatch):
    monkeypatch.setattr(isolated, "IDLE_SECONDS", 0.1)
    async with pool() as found:
        pid = (await result(found, "where"))["pid"]
        while not gone(pid):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        assert (await result(found, "where"))["pid"] != pid


async def test_a_process_that_was_killed_while_it_was_idle_costs_no_attempt():
    async with pool() as found:
        pid = (await result(found, "where"))["pid"]
        os.kill(pid, signal.SIGKILL)
        while not gone(pid):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        assert (await result(found, "where"))["pid"] != pid


async def test_a_result_that_is_not_kept_is_a_success_with_the_reason():
    async with pool() as found:
        verdict = await found.run(attempt_of("large", size=70_000))
        assert (verdict.kind, verdict.result) == ("succeeded", None)
        assert verdict.reason == "the result is not kept, it has 70002 bytes of 65536"
        verdict = await found.run(attempt_of("not_json"))
        assert verdict.reason.startswith("the result is not kept, it is no JSON value: ")


async def error_of(found, what):
    attempt = attempt_of("raises", what=what)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each its own
        await found.run(attempt)
    return attempt, caught.value


async def test_what_a_handler_raises_on_purpose_keeps_its_meaning():
    async with pool() as found:
        verdicts = {}
        for what, kind in {"cancel": Cancel, "no retry": NoRetry, "snooze": Snooze, "retry after": RetryAfter}.items():
            attempt, error = await error_of(found, what)
            assert isinstance(error, kind)
            verdicts[what] = judge(attempt, None, error, 0.5)
    assert verdicts["cancel"] == Verdict("cancelled", reason="no need")
    assert (verdicts["no retry"].kind, verdicts["no retry"].reason) == ("dead", "never")
    assert (verdicts["snooze"].kind, verdicts["snooze"].seconds) == ("snooze", 7)
    assert (verdicts["retry after"].kind, verdicts["retry after"].seconds) == ("retry", 8)


async def test_an_error_that_cannot_be_pickled_keeps_its_classes_its_text_and_its_traceback():
    async with pool() as found:
        _, error = await error_of(found, "odd")
        assert isinstance(error, isolated_app.Odd)
        assert isinstance(error, LookupError)
        entry = json.loads(describe(1, error))
        assert (entry["type"], entry["message"]) == ("Odd", "odd: it is")
        assert "in raises\n    raise ERRORS[what]" in entry["traceback"]
        assert "isolated.py" not in entry["traceback"]


@pytest.mark.parametrize("what", ["exit", "cancelled", "timeout"])
async def test_errors_that_mean_something_to_a_loop_are_errors_of_the_handler(what):
    async with pool() as found:
        attempt, error = await error_of(found, what)
        assert isinstance(error, type(isolated_app.ERRORS[what]))
        assert judge(attempt, None, error, 0.5).kind == "retry"
        assert await result(found, "echo", value=1) == 1


@pytest.mark.parametrize("way", ["sleep", "python", "C", "program", "fork"])
async def test_the_timeout_kills_whatever_a_handler_does_and_what_it_has_started(tmp_path, way):
    told = tmp_path / "told"
    async with pool() as found:
        while not (told.exists() and told.read_text()):  # on a busy machine the timeout may come before it hangs
            with pytest.raises(TimeoutError, match="did not end within its timeout of 1 s: its process was killed"):
                await found.run(attempt_of("hangs", timeout=1, way=way, told=str(told)))
        assert go(*await numbers(tmp_path / "told"))
        assert await result(found, "echo", value=1) == 1


async def test_the_timeout_counts_from_when_a_process_is_there(tmp_path, monkeypatch):
    (tmp_path / "slow_app.py").write_text("import time; time.sleep(9)\nfrom isolated_app import app")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    async with pool(app="slow_app:app") as found:
        await found.run(attempt_of("echo", timeout=8, value=1))


@pytest.mark.parametrize("way", ["C", "program"])
async def test_a_cancel_kills_and_ends_when_the_process_is_gone(tmp_path, way):
    async with pool() as found:
        task = asyncio.create_task(found.run(attempt_of("hangs", way=way, told=str(tmp_path / "told"))))
        pids = await numbers(tmp_path / "told")
        assert all(alive(pid) for pid in pids)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert go(*pids)


async def test_a_cancel_during_the_start_of_a_process_leaves_none():
    async with pool() as found:
        task = asyncio.create_task(found.run(attempt_of("echo", value=1)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await result(found, "echo", value=1) == 1


@pytest.mark.parametrize(
    ("way", "text", "exitcode"),
    [
        ("signal", "died with signal 9 (SIGKILL)", -9),
        ("segfault", "died with signal 11 (SIGSEGV)", -11),
        ("exit", "ended with exit code 3", 3),
        ("fork", "died with signal 9 (SIGKILL)", -9),
        ("closed", "closed its connection to the worker, which killed it", None),
    ],
)
async def test_a_process_that_dies_by_itself_is_an_error_that_says_how(way, text, exitcode):
    async with pool() as found:
        with pytest.raises(ProcessDied) as caught:
            await found.run(attempt_of("dies", way=way))
        assert (str(caught.value), caught.value.exitcode) == (f"the process of the handler {text}", exitcode)
        assert await result(found, "echo", value=1) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "raise ValueError('broken')",
            "UsageError: app 'broken_app:app': importing module broken_app failed with ValueError: broken",
        ),
        ("import os; os._exit(4)", "while it loaded broken_app:app it ended with exit code 4"),
        ("import time; time.sleep(3600)", "it has not loaded broken_app:app within 2 s"),
    ],
)
async def test_an_app_that_cannot_be_loaded_fails_the_attempt_and_starts_have_pauses_between(
    tmp_path, monkeypatch, module, text
):
    began = time.monotonic()
    (tmp_path / "broken_app.py").write_text(module)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    async with pool(app="broken_app:app") as found:
        if "within 2 s" in text:
            monkeypatch.setattr(isolated, "START_SECONDS", 2.0)
        with pytest.raises(CannotStart) as caught:
            await found.run(attempt_of("echo", value=1))
        monkeypatch.setattr(isolated, "START_SECONDS", 60.0)
        assert text in str(caught.value)
        assert found._not_before > began
        (tmp_path / "broken_app.py").write_text("from isolated_app import app")
        assert await result(found, "echo", value=1) == 1
        assert found._not_before == 0


def effects(house):
    return house.sql("select count(*)::int from isolated_effect")[0][0]


@pytest.mark.parametrize("name", ["effect", "effect_later"])
async def test_a_transaction_in_the_process_completes_the_run_and_the_worker_knows(house, store_url, name):
    house.sql(isolated_app.TABLE)
    *_, begun = house.started()
    attempt = attempt_of(name, begun=begun, key="k")
    async with pool(store_url) as found:
        assert await found.run(attempt) == Verdict("completed")
    assert attempt.completed
    assert effects(house) == 1
    assert house.sql("select outcome from rota.history") == [("succeeded",)]


@pytest.mark.parametrize(("when", "count"), [("before the commit", 0), ("after the commit", 1)])
async def test_the_worker_knows_whether_a_process_that_died_had_committed(house, store_url, when, count):
    house.sql(isolated_app.TABLE)
    *_, begun = house.started()
    attempt = attempt_of("effect", begun=begun, key="k", dies=when)
    async with pool(store_url) as found:
        with pytest.raises(ProcessDied):
            await found.run(attempt)
    assert attempt.completed == (count == 1)
    assert effects(house) == count


async def test_a_run_that_was_completed_before_its_timeout_is_completed(house, store_url):
    house.sql(isolated_app.TABLE)
    *_, begun = house.started()
    attempt = attempt_of("effect", begun=begun, timeout=8, key="k", dies="hangs after the commit")
    async with pool(store_url) as found:
        with pytest.raises(TimeoutError) as caught:
            await found.run(attempt)
    assert judge(attempt, None, caught.value, 0.5) == Verdict("completed")


async def test_progress_and_checkpoints_outlive_the_process(house, store_url):
    *_, begun = house.started()
    attempt = attempt_of("steps", begun=begun)
    async with pool(store_url) as found:
        with pytest.raises(ProcessDied):
            await found.run(attempt)
        assert json.loads(attempt.progress) == {"fraction": 0.5, "note": "half"}
        ((kept,),) = house.sql("select checkpoint::text from rota.run")
        again = attempt_of("steps", begun=begun)
        again.checkpoint = kept
        assert json.loads((await found.run(again)).result) == {"page": 1}


async def test_who_was_superseded_says_so(house, store_url):
    house.sql(isolated_app.TABLE)
    *_, begun = house.started()
    attempt = attempt_of("effect", begun=begun._replace(fence=begun.fence + 1), key="k")
    async with pool(store_url) as found:
        with pytest.raises(Exception, match="was taken from attempt") as caught:
            await found.run(attempt)
    assert judge(attempt, None, caught.value, 0.5) == Verdict("superseded")
    assert effects(house) == 0


class IsolatedParty(Party):
    """A party that works for the app of isolated handlers."""

    def __init__(self, store, broker, folder):
        super().__init__(store, broker, folder)
        self.env |= {"ROTA_APP": "isolated_app:app", "PYTHONPATH": f"{HERE}:{COMPOSE}"}
        self.db.execute(isolated_app.TABLE)

    def submit(self, name, /, **args):
        with Client.open(self.store) as client:
            return client.submit(isolated_app.app.handlers[name].call(**args)).id

    def ended(self, job):
        return self.db.execute(
            "select outcome, attempt, result, reason from rota.history where job_id = %s", [job]
        ).fetchone()

    def pids(self, path):
        self.until("the handler to hang", lambda: path.exists() and path.read_text())
        return [int(pid) for pid in path.read_text().split()]


@pytest.fixture
def members(store_url, broker_url, tmp_path):
    """One scheduler and one worker of isolated handlers."""
    with closing(IsolatedParty(store_url, broker_url, tmp_path)) as found:
        found.start("scheduler")
        found.worker = found.start("worker", "--drain-timeout", "8s")
        found.until_working()
        yield found


def test_a_worker_runs_isolated_handlers_beside_others(members, tmp_path):
    jobs = [members.submit("echo", value=1), members.submit("echo_later", value=1), members.submit("beside")]
    printing = members.submit("where", text="printed in the process")
    effect = members.submit("effect", key="k", dies="after the commit")
    again = members.submit("effect", key="a", dies="before the commit")
    late = members.submit("late", way="C", told=str(tmp_path / "told"))
    for job in (*jobs, printing, effect, again):
        members.until("the end", lambda job=job: members.ended(job))
        assert members.ended(job)[0] == "succeeded"
    assert "printed in the process\n" in members.log_of(members.worker)
    assert members.ended(effect)[1:3] == (1, "kept")
    assert members.ended(again)[1] == 2
    assert members.value("select count(*) from isolated_effect") == 2
    members.until(
        "the death of what hangs", lambda: members.value("select count(*) from rota.dead where job_id = %s", late)
    )
    reason = "1 attempts failed, the last with TimeoutError: attempt 1 did not end within its timeout of 5 s: its process was killed"
    assert members.value("select reason from rota.dead") == reason
    assert go(*members.pids(tmp_path / "told"))


def test_what_hangs_is_gone_when_its_worker_is_killed(members, tmp_path):
    for way in ("C", "program", "sleep"):
        members.submit("hangs", way=way, told=str(tmp_path / way))
    pids = [pid for way in ("C", "program", "sleep") for pid in members.pids(tmp_path / way)]
    assert len(pids) == 4
    members.worker.kill()
    members.until("all to be gone", lambda: gone(*pids))


def test_a_cancel_of_what_runs_kills_it(members, tmp_path):
    job = members.submit("hangs", way="C", told=str(tmp_path / "told"))
    pids = members.pids(tmp_path / "told")
    members.rota("cancel", job, "--running")
    members.until("its end", lambda: members.ended(job))
    assert members.ended(job)[0] == "cancelled"
    assert go(*pids)


def test_a_drain_waits_for_what_ends_in_time_and_hands_back_what_does_not(members, tmp_path):
    ends = members.submit("waits", gate=str(tmp_path / "gate"))
    hangs = members.submit("hangs", way="program", told=str(tmp_path / "told"))
    pids = members.pids(tmp_path / "told")
    members.until("both to run", lambda: members.running_on(members.worker) == 2)
    os.kill(pids[0], signal.SIGTERM)  # a service manager asks all processes
    members.worker.terminate()
    (tmp_path / "gate").touch()
    members.until("the end of one", lambda: members.ended(ends))
    assert members.worker.wait(BOUND) == 0
    assert members.ended(ends)[:3] == ("succeeded", 1, "through")
    assert go(*pids)
    found = members.db.execute("select state, attempt, losses from rota.run where job_id = %s", [hangs]).fetchone()
    assert found == ("waiting", 0, 0)


def test_the_end_of_a_membership_kills_what_runs_in_it(members, tmp_path):
    members.submit("hangs", way="C", told=str(tmp_path / "told"))
    pids = members.pids(tmp_path / "told")
    members.freeze(members.worker)
    members.worker.send_signal(signal.SIGCONT)
    members.until("it to be gone", lambda: gone(*pids))
    assert members.worker.poll() is None
