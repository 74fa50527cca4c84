"""How much a worker holds ahead."""

import pytest
from rota.workers.prefetch import WIDE, narrow, wanted


def test_it_begins_with_what_somebody_said_or_four_for_each_slot():
    assert narrow(7, 16) == 7
    assert narrow(0, 16) == 128
    assert narrow(0, 100) == 400


@pytest.mark.parametrize(
    ("now", "rate", "then"), [(128, 1279, 128), (128, 1280, WIDE), (WIDE, 321, WIDE), (WIDE, 319, 128), (WIDE, 0, 128)]
)
def test_a_queue_is_wide_while_its_runs_are_over_at_once(now, rate, then):
    assert wanted(now, 128, rate) == then


def test_it_is_never_made_narrower_than_it_began():
    assert wanted(4000, 4000, 1e6) == 4000
