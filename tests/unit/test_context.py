"""What a handler is told by its context without a store."""

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from rota.sched.app import App
from rota.sched.heartbeat import Trust, now
from rota.workers import context as module
from rota.workers.context import RunContext

from tests.unit.conftest import a_delivered_attempt

app = App("tests")


@app.handler(timeout=60)
def work() -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("step", "passed", "cancelled"), [(3600, 0, False), (-3600, 0, False), (0, 61, True), (-3600, 61, True)]
)
def test_a_clock_of_the_host_that_steps_cancels_nothing(monkeypatch, step, passed, cancelled):
    """Without the monotonic clock in `cancelled` a step of an hour would spend an attempt of each run with a timeout."""
    attempt = a_delivered_attempt()
    attempt.handler = work
    trust = Trust(15)
    trust.renewed(now())
    ctx = RunContext(attempt, None, trust)
    assert ctx.deadline > datetime.now(UTC)

    class Stepped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=step + passed)

    monkeypatch.setattr(module, "datetime", Stepped)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    assert ctx.cancelled == cancelled
