"""Each outcome and each way into it, on real servers: the right row, reason and attempts, and no message left behind."""

import re
import time
from contextlib import closing
from pathlib import Path

import pika
import psycopg
import pytest
from rota import Client, after
from rota.sched.app import Call

from tests.conftest import BOUND
from tests.integration.conftest import Party

HERE = Path(__file__).parent
KILLED = -9

# handler or what happens: (outcome or dead, a pattern of the reason, attempts spent)
ENDS = {
    "returns": ("succeeded", None, 1),
    "raises": ("dead", r"2 attempts failed, the last with RuntimeError: no luck at amqp://me:\*\*\*@broker/", 2),
    "recovers": ("succeeded", None, 2),
    "gives_up": ("dead", "the customer is gone", 1),
    "is_choosy": ("dead", "its handler does not retry KeyError: 'city'", 1),
    "has_a_window": (
        "dead",
        r"later than 1 s after it was due; the last of \d failed with RuntimeError: still not",
        None,
    ),
    "is_not_needed": ("cancelled", "there is nothing to do", 1),
    "snoozes": ("succeeded", None, 1),
    "asks_for_a_pause": ("succeeded", None, 2),
    "hangs": ("dead", r"1 attempts failed, the last with TimeoutError: .* timeout of 0.3 s", 1),
    "hangs_in_a_thread": ("dead", r"1 attempts failed, the last with TimeoutError: .* timeout of 0.3 s", 1),
    "notices": ("dead", "noticed in time", 1),
    "waits": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "waits_in_a_thread": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "cancelled while it retries": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "cancelled before it is due": ("cancelled", "cancelled by client@.*: wrong customer", 0),
    "cancelled while it waits": ("cancelled", "cancelled by client@.*: wrong customer", 0),
    "expires in its queue": ("expired", "within 1 s of its due time", 0),
    "expires while it retries": ("expired", "within 3 s of its due time", 1),
    "timeout of its own": ("dead", "TimeoutError", 2),
    "attempts of its own": ("dead", "4 attempts failed", 4),
    "unknown handler": ("dead", "no worker of queue outcomes has had handler nobody for 3 s", 0),
    "kills_its_worker": ("dead", "poison: 3 workers were lost while they ran it", 0),
    "needs_a_lost_workers_checkpoint": ("succeeded", None, 1),
    "delivery limit": ("succeeded", None, 1),
}


class Outcomes(Party):
    def __init__(self, store, broker, logs):
        super().__init__(store, broker, logs)
        self.env |= {"ROTA_APP": "outcomes_app:app", "PYTHONPATH": str(HERE), "ROTA_UNKNOWN_AFTER": "3"}
        self.ids = {}
        self.client = Client.open(store)

    def close(self):
        self.client.close()
        super().close()

    def submit(self, name, handler=None, queue="outcomes", when=None, **options):
        ref = self.client.submit(Call(handler or name, {}, queue), *([when] if when else []), **options)
        self.ids[name] = ref.id

    def state(self, name):
        return self.value("select state from rota.run where job_id = %s", self.ids[name])

    def end_of(self, name):
        """(outcome, reason, attempts) of a job's run, None while it is alive."""
        return self.db.execute(
            "select outcome, reason, attempt from rota.history where job_id = %(id)s union all "
            "select 'dead', reason, attempt from rota.dead where job_id = %(id)s",
            {"id": self.ids[name]},
        ).fetchone()


@pytest.fixture
def outcomes(store_url, broker_url, tmp_path):
    with closing(Outcomes(store_url, broker_url, tmp_path)) as found:
        found.start("scheduler")
        found.start("worker", "--queue", "outcomes", "--queue", "limited")
        found.until_working()
        yield found


def queues_with_messages(management, broker_url):
    """Every queue of the vhost that holds anything, unacknowledged and not yet dead-lettered included."""
    vhost = broker_url.rpartition("/")[2]
    found = {}
    for queue in management.request("GET", f"/api/queues/{vhost}"):
        number = queue.get("messages", 0) + queue.get("messages_dlx", 0)
        if number:
            found[queue["name"]] = number
    return found


@pytest.mark.rabbitmq4
def test_every_way_to_an_end_leaves_its_row_and_no_message(outcomes, management, broker_url):
    for name in (
        *("returns", "raises", "recovers", "gives_up", "is_choosy", "has_a_window", "is_not_needed", "snoozes"),
        *("asks_for_a_pause", "hangs", "hangs_in_a_thread", "notices", "waits", "waits_in_a_thread"),
    ):
        outcomes.submit(name)
    outcomes.until("the first end", lambda: outcomes.end_of("returns"))  # from now on nothing expires that should begin
    outcomes.submit("cancelled while it retries", "will_be_tried_again")
    outcomes.submit("cancelled before it is due", "returns", when=after(3600))
    outcomes.submit("cancelled while it waits", "comes_late", "late")
    outcomes.submit("expires in its queue", "comes_late", "late", expires=1)
    outcomes.submit("expires while it retries", "will_be_tried_again", expires=3)
    outcomes.submit("timeout of its own", "waits", timeout=0.3, retry={"attempts": 2, "base": 0.2})
    outcomes.submit("attempts of its own", "raises", retry={"attempts": 4, "base": 0.1, "cap": 0.1})
    outcomes.submit("unknown handler", "nobody")

    outcomes.until("both to run", lambda: {outcomes.state(n) for n in ("waits", "waits_in_a_thread")} == {"running"})
    outcomes.until("a retry", lambda: outcomes.state("cancelled while it retries") == "retrying")
    outcomes.until("one to wait", lambda: outcomes.state("cancelled while it waits") == "waiting")
    progress = "select progress->>'note' from rota.run where job_id = %s"
    outcomes.until("progress", lambda: outcomes.value(progress, outcomes.ids["waits"]) == "half-way")
    for name in (
        name for name, (outcome, reason, _) in ENDS.items() if outcome == "cancelled" and "wrong customer" in reason
    ):
        outcomes.client.cancel(outcomes.ids[name], running=True, reason="wrong customer")

    # Three workers are lost one after the other, each to a run that its own queue has.
    outcomes.submit("kills_its_worker", queue="poison")
    outcomes.submit("needs_a_lost_workers_checkpoint", queue="poison2")
    for _ in range(3):
        assert outcomes.start("worker", "--queue", "poison").wait(BOUND) == KILLED
    assert outcomes.start("worker", "--queue", "poison2").wait(BOUND) == KILLED
    outcomes.start("worker", "--queue", "poison2", "--queue", "late", "--queue", "poison")

    for name, expected in ENDS.items():
        if name != "delivery limit":
            outcomes.until(name, lambda name=name: outcomes.end_of(name))
            outcome, reason, attempts = outcomes.end_of(name)
            assert outcome == expected[0], (name, outcome, reason)
            assert reason is None if expected[1] is None else re.search(expected[1], reason), (name, reason)
            assert attempts == expected[2] or expected[2] is None, (name, attempts)
    assert outcomes.value("select count(*) from rota.run") == 0
    assert "hush" not in str(outcomes.db.execute("select reason, errors from rota.dead").fetchall())

    outcomes.until("all queues to be empty", lambda: not queues_with_messages(management, broker_url))


@pytest.mark.rabbitmq4
def test_a_delivery_limit_is_no_verdict(outcomes, management, broker_url):
    """An operator's policy sets one, and somebody returns the message until the broker has had enough."""
    vhost = broker_url.rpartition("/")[2]
    policy = {"pattern": "^rota[.]q[.]tried$", "definition": {"delivery-limit": 1}, "apply-to": "queues"}
    management.request("PUT", f"/api/policies/{vhost}/limit", policy)
    outcomes.submit("delivery limit", "returns", "tried")
    outcomes.until("it to wait", lambda: outcomes.state("delivery limit") == "waiting")
    first = outcomes.value("select dispatch from rota.run where job_id = %s", outcomes.ids["delivery limit"])
    with closing(pika.BlockingConnection(pika.URLParameters(broker_url))) as connection:
        channel = connection.channel()
        end = time.monotonic() + 60
        while (
            outcomes.value("select dispatch from rota.run where job_id = %s", outcomes.ids["delivery limit"]) == first
        ):
            assert time.monotonic() < end, outcomes.tail()
            method, *_ = channel.basic_get("rota.q.tried")
            if method:
                channel.basic_reject(method.delivery_tag, requeue=True)
            connection.sleep(0.05)
    outcomes.start("worker", "--queue", "tried")
    outcomes.until("its end", lambda: outcomes.end_of("delivery limit"))
    assert outcomes.end_of("delivery limit") == ENDS["delivery limit"]
    outcomes.until("all queues to be empty", lambda: not queues_with_messages(management, broker_url))
    with psycopg.connect(outcomes.store) as db:
        assert db.execute("select count(*) from rota.dead").fetchone() == (0,)
