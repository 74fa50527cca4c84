"""Dead letters: redriven once by whoever asks however often, and kept until somebody decides."""

from __future__ import annotations

import json
import random
import subprocess
import time
from urllib.parse import quote, unquote, urlsplit

from field_app import fails, mends
from rota import Client

from tests.conftest import BOUND
from tests.integration.conftest import ROTA

REDRIVING = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'rota client' and state = 'active'"
# Long enough to be killed in: half a second for a portion.
SLOW = """
create function rota.slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.001); return old; end';
create trigger slow before delete on rota.dead for each row execute function rota.slow();
"""


def press(field):
    return subprocess.Popen(
        [ROTA, "redrive", "--queue", "field", "--json"],
        env=field.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def counts(process):
    out, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def dead(field):
    return field.value("select count(*) from rota.dead")


def test_dlq_07_a_redrive_that_is_killed_and_pressed_twice_doubles_nothing(field):
    """Twenty times it is killed in the middle, two at a time; then two go to the end together.

    Without `gone` of REDRIVE (sched/store/postgres/dead.py) what was redriven stays dead, and is redriven again.
    """
    number, dice = 1500, random.Random(7)
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit_many([mends.call(key=f"k{n}") for n in range(number)])
    field.until("all to die", lambda: dead(field) == number)
    field.open("mended")
    field.db.execute(SLOW)
    killed = 0
    while killed < 20:
        pair = [press(field), press(field)]
        field.until("them to redrive", lambda: field.value(REDRIVING) or None not in [p.poll() for p in pair])  # noqa: B023
        for process in pair:
            time.sleep(dice.uniform(0, 0.4))
            killed += process.poll() is None
            process.kill()
            process.communicate()
        field.until("the store to let go", lambda: not field.value(REDRIVING))
        if not dead(field):
            break  # killed after its commit, each time: nothing is left to be killed in
    left = dead(field)
    done = [counts(process) for process in (press(field), press(field))]
    # What one of the two is taking the other passes by, and says so.
    assert sum(each["redriven"] for each in done) == left
    assert dead(field) == 0
    field.until("all to end", lambda: field.value("select count(*) from rota.history") == number)
    assert field.value("select count(*) from field_effect") == number
    assert field.value("select count(distinct key) from field_effect") == number
    assert field.value("select count(*) from rota.history where jsonb_array_length(lineage) = 1") == number
    assert killed >= 4


def test_dlq_08_poison_that_is_redriven_again_and_again_is_counted_and_left_alone(field):
    """Ten times everything is redriven, with one that always fails among a hundred.

    Without `coalesce(i.lineage, '[]') ||` in REDRIVE (sched/store/postgres/dead.py) it is never left alone.
    """
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store, "the test") as client:
        client.submit_many([mends.call(key=f"k{n}") for n in range(99)])
        poison = client.submit(fails.call(key="poison"))
        field.until("all to die", lambda: dead(field) == 100)
        field.open("mended")
        for n in range(10):
            assert len(client.redrive(everything=True)) == (100 if n == 0 else 1)
            field.until("the poison to die again", lambda n=n: field.executions("poison") == 2 * (n + 2))
            field.until(
                "the dead to be only it", lambda: dead(field) == 1 and not field.value("select count(*) from rota.run")
            )
        (row,) = client.get(poison.id).dead
        # Each life has its own two attempts; of all 22 errors the first and the latest are kept.
        assert (row["redrives"], row["attempt"], len(row["errors"])) == (10, 2, 20)
        assert {each["by"] for each in row["lineage"]} == {"the test"}
        done = client.redrive(everything=True, max_redrives=10)
        assert (len(done), len(done.spared)) == (0, 1)
    assert "10, by the test" in field.rota("dead")
    assert "1 left alone" in field.rota("redrive", "--all", "--max-redrives", "10")
    assert field.value("select count(distinct key) from field_effect") == 99
    assert field.value("select count(*) from field_effect") == 99


def test_dlq_10_the_dead_outlive_every_message_and_all_of_history(field, management, broker_url):
    """No time and no length bounds what is dead: neither the queue of dead letters nor the table.

    With an `x-message-ttl` for DEAD in `_base` (sched/broker/topology.py), or with a `delete from rota.dead` in `retain`
    (sched/store/postgres/retention.py), it fails.
    """
    field.env |= {"ROTA_HISTORY_KEEP": "1d"}
    field.start("scheduler")
    worker = field.start("worker")
    field.until_working()
    field.rota("submit", "mends", "--args", '{"key": "k"}')
    field.until("it to die", lambda: dead(field) == 1)
    vhost = quote(unquote(urlsplit(broker_url).path[1:]), safe="")
    queue = management.request("GET", f"/api/queues/{vhost}/rota.dead")
    assert not {"x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes"} & set(queue["arguments"])
    # It died a year ago; retention runs, and the broker forgets everything.
    field.db.execute("update rota.dead set died_at = died_at - interval '1 year'")
    field.db.execute(
        "create table rota.history_20200101 partition of rota.history for values from ('2020-01-01') to ('2020-01-02')"
    )
    field.db.execute("update rota.duty set due_at = to_timestamp(0) where name = 'retention'")
    field.start("scheduler")
    field.until("retention", lambda: not field.value("select to_regclass('rota.history_20200101')"))
    for name in ("rota.dead", "rota.q.field"):
        management.request("DELETE", f"/api/queues/{vhost}/{name}")
    worker.kill()
    field.start("worker")
    row = json.loads(field.rota("dead", "--json"))
    field.open("mended")
    field.rota("redrive", f"{row['job_id']}@{row['scheduled_for']}")
    field.until("its effect", lambda: field.value("select count(*) from field_effect") == 1)
    refused = field.rota("redrive", f"{row['job_id']}@{row['scheduled_for']}", code=1)
    assert "it is not dead" in refused
