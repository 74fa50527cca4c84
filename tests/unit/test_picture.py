"""The status as text: what has died is seen at once, and no line is wider than a terminal."""

import pytest
from rota.cli.picture import picture
from rota.sched.ids import new_job_id
from rota.sched.store.views import StatusView

from tests.unit.conftest import TICK

LAGS = {"p50": 0.0, "p99": 0.0}


def a_view(**more):
    given = {
        "now": TICK,
        "members": [],
        "partitions": {"owned": 64, "unowned": 0},
        "jobs": {"scheduled": 0, "paused": 0, "due": 0},
        "runs": {"waiting": 0},
        "ended": {},
        "dead": 0,
        "queues": [],
        "lag": {"oldest_due_s": 0.0, "oldest_running_s": 0.0, "schedule": LAGS, "queue": LAGS, "run": LAGS},
        "degraded": [],
    }
    return StatusView(**{**given, **more})


def lines(view):
    return [line.plain for line in picture(view)]


def a_death(**more):
    given = {"job_id": new_job_id(), "handler": "send", "queue": "mail", "reason": "no", "age_s": 12.0}
    return {**given, **more}


def test_where_nothing_has_died_nothing_is_said_of_it():
    assert not any(line.startswith("died") for line in lines(a_view()))


@pytest.mark.parametrize("death", [a_death(), a_death(handler="h" * 100, queue="q" * 100, reason="a\nb" * 1000)])
def test_the_last_death_is_one_line_that_fits(death):
    (line,) = (line for line in lines(a_view(last_death=death)) if line.startswith("died"))
    assert line.startswith(f"died    12.0 s ago   {death['job_id'][:18]}   {death['handler'][:20]}")
    assert len(line) <= 98
    assert "\n" not in line


def test_queues_have_their_dead_and_say_where_there_are_more():
    queue = {"name": "mail", "ready": 1, "consumers": 2, "cap": 20_000, "capped": False, "paused": False, "dead": 1000}
    other = {**queue, "name": "other", "dead": 3}
    *_, mail, third = lines(a_view(queues=[queue, other], estimated=["queues.mail.dead"]))
    assert mail.split() == ["mail", "1", "2", "20000", "1000+"]
    assert third.split() == ["other", "1", "2", "20000", "3"]
