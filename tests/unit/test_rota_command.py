"""The handler that runs commands: as cron runs them, with nothing of the worker's environment and bounded output."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from rota import App, NoRetry
from rota.commands import KEPT, rota_command

ME = pwd.getpwuid(os.getuid()).pw_name


def context(**fields):
    defaults = {"job_id": "j", "scheduled_for": datetime(2027, 1, 1, tzinfo=UTC), "attempt": 1, "idempotency_key": "k"}
    return SimpleNamespace(**{**defaults, "cancelled": False, **fields})


def test_it_is_in_no_app_and_can_be_put_into_one():
    app = App("jobs")
    assert "rota_command" not in app.handlers
    handler = app.handler(queue="cron")(rota_command)
    assert handler.call(command="date").args == {"command": "date"}


def test_a_command_has_its_input_and_its_output_is_the_result():
    done = rota_command(context(), "cat; echo err >&2", stdin="Dear root\n", user=ME)
    assert done == {"exit": 0, "output": "Dear root\nerr\n"}


def test_the_workers_environment_is_not_the_commands(monkeypatch):
    monkeypatch.setenv("ROTA_STORE", "postgresql://secret")
    told = rota_command(context(), "env", env={"PATH": "/usr/bin:/bin:/opt", "X": "1"})["output"]
    assert "secret" not in told
    lines = told.splitlines()
    assert {"X=1", "PATH=/usr/bin:/bin:/opt", f"USER={ME}", "ROTA_IDEMPOTENCY_KEY=k"} <= set(lines)


def test_of_much_output_the_end_is_kept():
    told = rota_command(context(), "yes 0123456789 | head -c 1000000; echo end")["output"]
    assert (len(told), told[-4:]) == (KEPT, "end\n")


def test_another_exit_status_than_0_is_an_error_with_the_end_of_the_output():
    with pytest.raises(RuntimeError, match=r"exit status 3 of 'echo why; exit 3': why"):
        rota_command(context(), "echo why; exit 3")


def test_a_command_of_another_user_is_not_run():
    with pytest.raises(NoRetry, match="runs as"):
        rota_command(context(), "touch /nowhere", user="nobody-there")


def test_a_command_that_is_cancelled_is_stopped_with_what_it_started():
    with pytest.raises(RuntimeError, match=r"SIGTERM of 'sleep 100 \| sleep 100'"):
        rota_command(context(cancelled=True), "sleep 100 | sleep 100")


def test_what_a_command_leaves_in_the_background_is_not_waited_for():
    done = rota_command(context(), "echo now; sleep 2 & ")
    assert done["output"] == "now\n"
