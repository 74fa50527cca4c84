import pytest
from plan import QUEUES_OLD, USUAL, draw


def test_the_same_seed_draws_the_same_and_another_one_another():
    assert draw(7, 120, 500, USUAL) == draw(7, 120, 500, USUAL)
    assert draw(7, 120, 500, USUAL).batches != draw(8, 120, 500, USUAL).batches
    assert draw(7, 120, 500, USUAL).faults != draw(8, 120, 500, USUAL).faults


@pytest.mark.parametrize("seed", range(5))
def test_two_minutes_have_sixty_faults_of_every_kind(seed):
    faults = draw(seed, 120, 500, USUAL).faults
    assert len(faults) >= 60
    assert {fault.kind for fault in faults} == set(USUAL)
    assert sum(fault.kind == "broker" for fault in faults) >= 2


def test_a_short_run_has_every_kind_too():
    assert {fault.kind for fault in draw(1, 20, 500, USUAL).faults} == set(USUAL)


def test_leaving_a_kind_out_changes_nothing_else():
    whole, less = draw(3, 60, 200, USUAL), draw(3, 60, 200, ("cut", "broker"))
    assert less.batches == whole.batches
    assert less.faults == tuple(fault for fault in whole.faults if fault.kind in {"cut", "broker"})


def test_no_broker_is_killed_while_its_queues_are_new():
    assert all(f.at >= QUEUES_OLD for seed in range(20) for f in draw(seed, 20, 10, ("broker",)).faults)


def test_jobs_are_as_many_as_asked_for_and_their_keys_name_one_each():
    plan = draw(5, 60, 321, USUAL)
    jobs = [job for batch in plan.batches for job in batch.jobs if job.handler != "poison"]
    baits = [job for fault in plan.faults for job in fault.bait.jobs]
    assert len(jobs) == 321
    keys = [job.key for job in jobs + baits]
    assert len(set(keys)) == len(keys)


def test_some_jobs_are_cancelled_may_expire_or_kill_their_workers():
    jobs = [job for batch in draw(5, 120, 1000, USUAL).batches for job in batch.jobs]
    assert sum(job.cancel is not None for job in jobs) > 20
    assert sum(job.expires is not None for job in jobs) > 10
    assert sum(job.handler == "poison" for job in jobs) == 2
