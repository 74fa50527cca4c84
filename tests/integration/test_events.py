"""Who listens to `rota.events` is told of deaths."""

import json
from contextlib import closing

import pika
from app import broken, slow_effect
from rota import Client
from rota.sched import schemas

from tests.conftest import BOUND


class Listener:
    """A service that is told what dies."""

    def __init__(self, broker):
        self.connection = pika.BlockingConnection(pika.URLParameters(broker))
        self.channel = self.connection.channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, "rota.events", "run.dead.#")

    def next(self, bound=BOUND):
        for method, properties, body in self.channel.consume(self.queue, auto_ack=True, inactivity_timeout=bound):
            assert method is not None, f"no event within {bound} s"
            event = json.loads(body)
            schemas.check("event", event)
            assert properties.message_id == event["id"]
            return method.routing_key, event["data"]
        raise AssertionError

    def close(self):
        self.connection.close()


def test_a_death_is_told_to_those_who_listen(party):
    party.until_connected()
    with closing(Listener(party.env["ROTA_BROKER"])) as listener, Client.open(party.store) as client:
        ref = client.submit(broken.call(key="k"), queue="demo")
        key, data = listener.next()
        assert key == "run.dead.demo.broken"
        assert (data["job_id"], data["attempts"]) == (ref.id, 2)
        (dead,) = client.get(ref.id).dead
        assert (data["reason"], data["scheduled_for"]) == (dead["reason"], dead["scheduled_for"])


def test_a_poisoned_run_is_told_by_the_scheduler(party):
    party.until_connected()
    with closing(Listener(party.env["ROTA_BROKER"])) as listener, Client.open(party.store) as client:
        ref = client.submit(slow_effect.call(key="k", hold=60, pause=60))
        worker = party.members[1]
        party.until("the run to begin", lambda: party.running_on(worker) == 1)
        party.db.execute("update rota.run set losses = 2")
        worker.kill()
        party.until_dead(worker)
        key, data = listener.next()
        assert key == "run.dead.demo.slow_effect"
        assert (data["job_id"], data["reason"]) == (ref.id, "poison: 3 workers were lost while they ran it")
