"""The walk along the dead: what it asks for, and when it waits."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from rota.sched.dead import redriving
from rota.sched.ids import RunKey
from rota.sched.store.values import DeadBatch, DeadFilter, DeadPlace, DeadSurvey, Redrive

from tests.unit.conftest import AnyStore

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def pauses(rate, *, dry_run=False):
    """The seconds that a redrive of two portions of 500 and one of 100 waits."""
    plan = redriving(AnyStore(), [], DeadFilter(queue="mail"), Redrive("ann@here", per_second=rate), dry_run=dry_run)
    sizes, waited = [500, 500, 100], []
    order = next(plan)
    with suppress(StopIteration):
        while True:
            if isinstance(order, float):
                waited.append(order)
                order = plan.send(None)
            elif order[0] == "survey_dead":
                order = plan.send(DeadSurvey(NOW, {"work": 1100}))
            else:
                taken = [RunKey(f"job-{n}", "tick") for n in range(sizes.pop(0))]
                order = plan.send(DeadBatch(taken=taken, last=DeadPlace(NOW, taken[-1]) if sizes else None))
    assert not sizes
    return waited


@pytest.mark.parametrize(("rate", "seconds"), [(None, []), (10_000.0, [0.025, 0.025]), (10.0, [0.25, 0.25])])
def test_a_redrive_at_a_rate_waits_between_its_portions_but_never_long(rate, seconds):
    assert pauses(rate) == pytest.approx(seconds)


def test_a_dry_run_waits_for_nothing():
    assert pauses(10.0, dry_run=True) == []
