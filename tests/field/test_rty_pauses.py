"""Retries: how long a run waits for its next attempt."""

import random
from collections import Counter

import pytest
from field_app import fails
from rota import Client, Retry, after
from rota.sched.broker.topology import delay_seconds
from rota.sched.store.values import Return


@pytest.mark.parametrize("attempt", [16, 17, 40, 46, 47, 63, 64, 1024, 1025, 1999])
def test_rty_01_rty_02_a_pause_is_clamped_before_it_is_multiplied_and_the_run_stays_valid(house, attempt):
    """Without `min(max(failures, 1) - 1, _LARGEST_EXPONENT)` (sched/policy.py) the power overflows."""
    *_, begun = house.started()
    house.sql("update rota.run set attempt = %s", attempt)
    policy = Retry(attempts=2000, base=5, cap="1h")
    seconds = policy.delay(attempt, 1 - 2**-53)
    assert 3599 < seconds <= 3600
    assert house.run(house.store.give_back([Return(begun.key, begun.fence, "retry", seconds)])) == {begun.key}
    standing = house.standing(begun.key)
    assert standing.state == "retrying"
    assert 3590 < standing.seconds <= 3600


def test_rty_08_a_retry_waits_for_its_own_pause_and_not_for_the_jobs_delay_again(field):
    """The message of each attempt is a new one. Without `self.defer(job, verdict.seconds)` in `_settle` (workers/settle.py) there
    is none, and the run waits for the reconciler.
    """
    field.start("scheduler")
    field.start("worker")
    field.until_working()
    with Client.open(field.store) as client:
        client.submit(fails.call(key="k"), after("10m"))
    field.db.execute("update rota.job set next_run_at = clock_timestamp()")  # as if they were over
    field.until("both attempts", lambda: field.executions("k") == 2)
    gap = field.value("select extract(epoch from max(time) - min(time))::float8 from field_seen")
    assert 0.05 <= gap < 100


def test_rty_10_runs_that_fail_together_come_again_apart():
    """Without `(0.5 + random / 2)` (sched/policy.py) they all come at once. In whole seconds, as the ladder gives them."""
    draw = random.Random(10)
    policy = Retry(base=30)
    starts = Counter(delay_seconds(policy.delay(1, draw.random())) for _ in range(1000))
    assert max(starts.values()) < 200
    assert min(starts) >= 15
