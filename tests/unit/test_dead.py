"""The walk along the dead: what it asks for, and when it waits."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from rota.sched.dead import redriving
from rota.sched.ids import RunKey
from rota.sched.store.values import DeadBatch, DeadFilter, DeadPlace, DeadSurvey, Redrive

from tests.unit.conftest import AnyStore

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ahead", "pauses"), [((0.0, 0.0, 0.0), []), ((0.4, 50.0, 100.0), [0.05]), ((9.0, 9.0, 9.0), [0.05, 0.05])]
)
def test_a_redrive_that_is_ahead_of_its_runs_waits_between_portions(ahead, pauses):
    plan = redriving(AnyStore(), [], DeadFilter(queue="mail"), Redrive("ann@here", per_second=10.0))
    left, waited = list(ahead), []
    order = next(plan)
    with suppress(StopIteration):
        while True:
            if isinstance(order, float):
                waited.append(order)
                order = plan.send(None)
            elif order[0] == "survey_dead":
                order = plan.send(DeadSurvey(NOW, {"work": 1100}))
            else:
                seconds = left.pop(0)
                key = RunKey(f"job-{len(left)}", "tick")
                order = plan.send(DeadBatch(taken=[key], last=DeadPlace(NOW, key) if left else None, ahead=seconds))
    assert not left
    assert waited == pauses


@pytest.mark.parametrize(
    ("rate", "portion"), [(None, 500), (1.0, 100), (2_000.0, 100), (4_000.0, 200), (50_000.0, 500)]
)
def test_a_redrive_with_a_rate_takes_the_store_for_less_at_a_time(rate, portion):
    """A portion is what it spreads over a pause, and no less than a hundred."""
    plan = redriving(AnyStore(), [], DeadFilter(queue="mail"), Redrive("ann@here", per_second=rate))
    assert next(plan)[0] == "survey_dead"
    name, (which, _) = plan.send(DeadSurvey(NOW, {"work": 1100}))
    assert (name, which.portion) == ("redrive", portion)
