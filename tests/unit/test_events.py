"""Events are CloudEvents, told to whoever listens and waited for by nobody."""

import json

import pytest
from rota.sched import events, schemas
from rota.sched.errors import UsageError
from rota.sched.ids import RunKey, new_job_id
from rota.sched.store.values import Death

from tests.unit.conftest import TICK, SilentPublisher


def a_death(**more):
    given = {"queue": "mail", "handler": "send", "tenant": None, "reason": "no", "attempt": 3, "fence": 7}
    return Death(RunKey(new_job_id(), TICK), **{**given, **more})


def test_a_death_is_a_cloud_event_under_its_queue_and_handler():
    death = a_death()
    event = events.run_dead(death)
    body = json.loads(event.body)
    schemas.check("event", body)
    assert (event.exchange, event.routing_key, event.mandatory) == ("rota.events", "run.dead.mail.send", False)
    assert (body["type"], body["subject"], event.message_id) == ("run.dead", str(death.key), body["id"])
    assert body["data"] == {
        "job_id": death.key.job_id,
        "scheduled_for": TICK,
        "queue": "mail",
        "handler": "send",
        "tenant": None,
        "reason": "no",
        "attempts": 3,
    }


def test_the_same_death_told_twice_has_one_id_and_the_next_another():
    death = a_death()
    later = Death(death.key, "mail", "send", None, "no", 3, fence=9)
    assert events.run_dead(death).message_id == events.run_dead(death).message_id != events.run_dead(later).message_id


def test_names_and_reasons_of_any_length_fit():
    event = events.run_dead(a_death(queue="q" * 100, handler="h" * 100, reason="é" * 100_000))
    assert len(event.routing_key) <= 255
    assert len(event.body) < 10_000


@pytest.mark.parametrize(("up", "blocked", "told"), [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_an_event_is_told_only_while_the_broker_takes_something(up, blocked, told):
    publisher = SilentPublisher()
    publisher.up, publisher.blocked = up, blocked
    events.tell(publisher, events.run_dead(a_death()))
    assert len(publisher.published) == told


def test_an_event_that_cannot_be_sent_hurts_nobody():
    class Refusing(SilentPublisher):
        def publish(self, message, outcome):
            raise UsageError("too large")

    events.tell(Refusing(), events.run_dead(a_death()))
