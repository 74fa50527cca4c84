"""Each outcome and each way into it, on real servers: the right row, reason and attempts, and no message left behind."""

import re
import time
from contextlib import closing
from pathlib import Path

import pika
import psycopg
import pytest
from rota import Client, after, every
from rota.sched.app import Call
from rota.sched.durations import rfc3339
from rota.sched.message import encode
from rota.sched.model import Dispatch

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
    "hangs_in_a_process": (
        "dead",
        "1 attempts failed, the last with TimeoutError: .* timeout of 1 s: its process was killed",
        1,
    ),
    "dies_in_its_process": (
        "dead",
        r"1 attempts failed, the last with ProcessDied: .* died with signal 9 \(SIGKILL\)",
        1,
    ),
    "notices": ("dead", "noticed in time", 1),
    "waits": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "waits_in_a_thread": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "waits_in_a_process": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "cancelled, then its worker is lost": (
        "cancelled",
        r"cancelled by client@.*: wrong customer \(its worker was lost meanwhile\)",
        1,
    ),
    "cancelled, then its worker drains": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "cancelled while it retries": ("cancelled", "cancelled by client@.*: wrong customer", 1),
    "cancelled before it is due": ("cancelled", "cancelled by client@.*: wrong customer", 0),
    "cancelled while it waits": ("cancelled", "cancelled by client@.*: wrong customer", 0),
    "cancelled while it is buffered": ("cancelled", "cancelled by client@.*: wrong customer", 0),
    "expires while it is buffered": ("expired", "within 12 s of its due time", 0),
    "holds up one": ("cancelled", "cancelled by client@.*: it has held it up", 1),
    "holds up the other": ("cancelled", "cancelled by client@.*: it has held it up", 1),
    "expires in its queue": ("expired", "within 1 s of its due time", 0),
    "expires while it retries": ("expired", "within 12 s of its due time", 1),
    "timeout of its own": ("dead", "TimeoutError", 2),
    "attempts of its own": ("dead", "4 attempts failed", 4),
    "unknown handler": ("dead", "no worker of queue outcomes has had handler nobody for 3 s", 0),
    "comes_with_the_next_deploy": ("succeeded", None, 1),
    "discarded": ("discarded", "discarded by client@.*: nobody needs it", 1),
    "kills_its_worker": ("dead", "poison: 3 workers were lost while they ran it", 0),
    "needs_a_lost_workers_checkpoint": ("succeeded", None, 1),
    "delivery limit": ("succeeded", None, 1),
    "delivery limit while it retries": ("succeeded", None, 2),
}


class Outcomes(Party):
    def __init__(self, store, broker, logs):
        super().__init__(store, broker, logs)
        self.env |= {"ROTA_APP": "outcomes_app:app", "PYTHONPATH": str(HERE), "ROTA_UNKNOWN_AFTER": "3"}
        self.ids = {}
        self.ticks = {}
        self.client = Client.open(store)

    def close(self):
        self.client.close()
        super().close()

    def submit(self, name, handler=None, queue="outcomes", when=None, **options):
        ref = self.client.submit(Call(handler or name, {}, queue), *([when] if when else []), **options)
        self.ids[name] = ref.id

    def name_ticks(self, *names):
        """The ticks of the schedule `names[0]` get names, in order."""
        job = self.ids[names[0]]
        self.until("all to be there", lambda: len(self.client.get(job).runs) == len(names))
        ticks = sorted(run["scheduled_for"] for run in self.client.get(job).runs)
        for name, tick in zip(names, ticks, strict=True):
            self.ids[name], self.ticks[name] = job, tick

    def cancel(self, name, reason="wrong customer"):
        target = f"{self.ids[name]}@{self.ticks[name]}" if name in self.ticks else self.ids[name]
        self.client.cancel(target, running=True, reason=reason)

    def state(self, name):
        return self.value("select state from rota.run where job_id = %s", self.ids[name])

    def dispatch(self, name):
        """What a run's message is made of."""
        columns = "dispatch, job_id::text, scheduled_for, queue, handler, tenant, args::text"
        (row,) = self.db.execute(f"select {columns} from rota.run where job_id = %s", [self.ids[name]])
        found = Dispatch(*row)
        return found._replace(scheduled_for=rfc3339(found.scheduled_for))

    def end_of(self, name):
        """(outcome, reason, attempts) of a run, None while it is alive."""
        mine = "job_id = %(id)s and (%(tick)s::timestamptz is null or scheduled_for = %(tick)s)"
        return self.db.execute(
            f"select outcome, reason, attempt from rota.history where {mine} union all "
            f"select 'dead', reason, attempt from rota.dead where {mine}",
            {"id": self.ids[name], "tick": self.ticks.get(name)},
        ).fetchone()


@pytest.fixture
def outcomes(store_url, broker_url, tmp_path):
    with closing(Outcomes(store_url, broker_url, tmp_path)) as found:
        found.start("scheduler")
        found.worker = found.start("worker", "--queue", "outcomes", "--drain-timeout", "6s")
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


def lose_workers(outcomes):
    """Three workers one after the other, each to a run that its own queue has, and meanwhile another one with three runs."""
    outcomes.submit("cancelled, then its worker is lost", "does_not_listen", "poison2")
    outcomes.submit("comes_with_the_next_deploy", queue="poison2")
    outcomes.submit("kills_its_worker", queue="poison")
    outcomes.env["ROTA_UNKNOWN_AFTER"] = "60"
    doomed = outcomes.start("worker", "--queue", "poison2")
    for _ in range(3):
        victim = outcomes.start("worker", "--queue", "poison")
        outcomes.until("it to be killed", lambda: victim.poll() is not None)  # noqa: B023 - called in this turn
        assert victim.returncode == KILLED
    outcomes.until("it to run", lambda: outcomes.state("cancelled, then its worker is lost") == "running")
    outcomes.cancel("cancelled, then its worker is lost")
    outcomes.until("it to be set aside", lambda: "'comes_with_the_next_deploy'" in outcomes.log_of(doomed))
    outcomes.submit("needs_a_lost_workers_checkpoint", queue="poison2")
    outcomes.until("it to be killed", lambda: doomed.poll() is not None)
    assert doomed.returncode == KILLED


def assert_end(name, found, expected):
    outcome, reason, attempts = found
    assert outcome == expected[0], (name, outcome, reason)
    assert reason is None if expected[1] is None else re.search(expected[1], reason), (name, reason)
    assert attempts == expected[2] or expected[2] is None, (name, attempts)


def test_every_way_to_an_end_leaves_its_row_and_no_message(outcomes, management, broker_url):
    for name in (
        *("returns", "raises", "recovers", "gives_up", "is_choosy", "has_a_window", "is_not_needed", "snoozes"),
        *("asks_for_a_pause", "hangs", "hangs_in_a_thread", "notices", "waits", "waits_in_a_thread"),
        *("hangs_in_a_process", "dies_in_its_process", "waits_in_a_process"),
    ):
        outcomes.submit(name)
    outcomes.until("the first end", lambda: outcomes.end_of("returns"))  # from now on nothing expires that should begin
    outcomes.submit("cancelled while it retries", "will_be_tried_again")
    outcomes.submit("cancelled before it is due", "returns", when=after(3600))
    outcomes.submit("cancelled while it waits", "comes_late", "late")
    outcomes.submit("expires in its queue", "comes_late", "late", expires=1)
    outcomes.submit("expires while it retries", "will_be_tried_again", expires=12)
    outcomes.submit("timeout of its own", "waits", timeout=0.3, retry={"attempts": 2, "base": 0.2})
    outcomes.submit("attempts of its own", "raises", retry={"attempts": 4, "base": 0.1, "cap": 0.1})
    outcomes.submit("unknown handler", "nobody")
    outcomes.submit("cancelled, then its worker drains", "does_not_listen")
    outcomes.until("a retry", lambda: outcomes.state("cancelled while it retries") == "retrying")
    outcomes.cancel("cancelled while it retries")
    outcomes.until("a word about it", lambda: "unknown_handler" in outcomes.status()["degraded"])
    outcomes.submit("discarded", "gives_up")
    line = every(1, overlap="buffer_all", max_runs=2)
    outcomes.submit("holds up one", "waits", when=line)
    outcomes.submit("holds up the other", "waits", when=line, expires=12)
    outcomes.name_ticks("holds up one", "cancelled while it is buffered")
    outcomes.name_ticks("holds up the other", "expires while it is buffered")

    waiting = ("waits", "waits_in_a_thread", "waits_in_a_process", "cancelled, then its worker drains")
    outcomes.until("them to run", lambda: {outcomes.state(n) for n in waiting} == {"running"})
    outcomes.until("one to wait", lambda: outcomes.state("cancelled while it waits") == "waiting")
    progress = "select progress->>'note' from rota.run where job_id = %s"
    for name in ("waits", "waits_in_a_process"):
        outcomes.until("progress", lambda name=name: outcomes.value(progress, outcomes.ids[name]) == "half-way")
    for name in (*waiting, "cancelled before it is due", "cancelled while it waits"):
        outcomes.cancel(name)
    outcomes.cancel("cancelled while it is buffered")

    lose_workers(outcomes)
    outcomes.env["OUTCOMES_DEPLOYED"] = "1"
    outcomes.start("worker", "--queue", "poison2", "--queue", "late", "--queue", "poison", "--queue", "outcomes")

    outcomes.until("a tick that waited to expire", lambda: outcomes.end_of("expires while it is buffered"))
    for name in ("holds up one", "holds up the other"):
        outcomes.cancel(name, "it has held it up")
    outcomes.until("its death", lambda: outcomes.end_of("discarded"))
    (died,) = outcomes.client.get(outcomes.ids["discarded"]).dead
    outcomes.client.discard(f"{died['job_id']}@{died['scheduled_for']}", reason="nobody needs it")
    here = {name: end for name, end in ENDS.items() if not name.startswith("delivery limit")}
    for name in set(here) - {"cancelled, then its worker drains"}:
        outcomes.until(name, lambda name=name: outcomes.end_of(name))
    outcomes.worker.terminate()
    assert outcomes.worker.wait(BOUND) == 0
    for name, expected in here.items():
        assert_end(name, outcomes.end_of(name), expected)
    assert outcomes.value("select count(*) from rota.run") == 0
    assert "hush" not in str(outcomes.db.execute("select reason, errors from rota.dead").fetchall())

    outcomes.until("all queues to be empty", lambda: not queues_with_messages(management, broker_url))


def until_set_ready(outcomes, channel, name):
    """Returns the first message of queue `tried` until the broker has had enough."""
    first = outcomes.dispatch(name).dispatch
    ready = "select dispatch > %s or ready_at is not null from rota.run where job_id = %s"
    end = time.monotonic() + BOUND
    while not outcomes.value(ready, first, outcomes.ids[name]):
        assert time.monotonic() < end, outcomes.tail()
        method, *_ = channel.basic_get("rota.q.tried")
        if method:
            channel.basic_reject(method.delivery_tag, requeue=True)
        channel.connection.sleep(0.05)


def test_a_delivery_limit_is_no_verdict(outcomes, management, broker_url):
    """An operator's policy sets one, and somebody returns the message until the broker has had enough."""
    vhost = broker_url.rpartition("/")[2]
    policy = {"pattern": "^rota[.]q[.]tried$", "definition": {"delivery-limit": 1}, "apply-to": "queues"}
    management.request("PUT", f"/api/policies/{vhost}/limit", policy)
    outcomes.submit("delivery limit", "returns", "tried")
    outcomes.until("it to wait", lambda: outcomes.state("delivery limit") == "waiting")
    with closing(pika.BlockingConnection(pika.URLParameters(broker_url))) as connection:
        channel = connection.channel()
        until_set_ready(outcomes, channel, "delivery limit")
        # Of what retries a copy is thrown away: its own message is in the ladder.
        outcomes.submit("delivery limit while it retries", "recovers", retry={"base": 10, "cap": 10})
        outcomes.until("a retry", lambda: outcomes.state("delivery limit while it retries") == "retrying")
        channel.basic_publish("", "rota.q.tried", encode(outcomes.dispatch("delivery limit while it retries")))
        until_set_ready(outcomes, channel, "delivery limit while it retries")
    outcomes.start("worker", "--queue", "tried")
    for name in ("delivery limit", "delivery limit while it retries"):
        outcomes.until("its end", lambda name=name: outcomes.end_of(name))
        assert outcomes.end_of(name) == ENDS[name]
    outcomes.until("all queues to be empty", lambda: not queues_with_messages(management, broker_url))
    with psycopg.connect(outcomes.store) as db:
        assert db.execute("select count(*) from rota.dead").fetchone() == (0,)
