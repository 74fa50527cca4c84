"""Job ids, partitions and run names."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.errors import UsageError
from rota.sched.ids import PARTITIONS, RunKey, check_name, id_range, new_job_id, partition_of, short, split_run


def test_a_job_id_is_a_uuid_of_version_7_and_no_two_are_alike():
    ids = [new_job_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {(7, uuid.RFC_4122)}


def test_new_ids_fall_into_every_partition():
    assert {partition_of(new_job_id()) for _ in range(3000)} == set(range(PARTITIONS))


@given(st.uuids())
def test_the_partition_is_the_last_byte_modulo_their_number(job):
    assert partition_of(str(job)) == job.bytes[-1] % PARTITIONS


@given(st.uuids(), st.integers(4, 32))
def test_every_prefix_of_an_id_has_a_range_with_the_id_in_it(job, length):
    found = id_range(job.hex[:length])
    assert found is not None
    assert found.low <= str(job) <= found.high
    assert uuid.UUID(found.high).int - uuid.UUID(found.low).int == 16 ** (32 - length) - 1


def test_the_printed_form_is_a_prefix_of_sixteen_digits():
    job = new_job_id()
    assert len(short(job).replace("-", "")) == 16
    assert id_range(short(job).upper()) == id_range(short(job))


@pytest.mark.parametrize("text", ["", "abc", "xyzw", "0" * 33, "nightly-refresh"])
def test_what_is_no_prefix_has_no_range(text):
    assert id_range(text) is None


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "x" * 101, "a\n"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="queue"):
        check_name(name, "queue")


def test_a_run_is_named_by_job_and_tick():
    tick = "2026-11-30T02:00:00.000000Z"
    assert split_run(str(RunKey("abcd", tick))) == ("abcd", tick)
    assert split_run("abcd@2026-11-30T03:00:00+01:00") == ("abcd", tick)
    assert split_run("abcd") == ("abcd", None)
    with pytest.raises(UsageError, match="offset"):
        split_run("abcd@2026-11-30T02:00:00")
