"""Settings are checked where they come in, and passwords stay out of what is shown."""

import pytest
from rota.sched.errors import UsageError
from rota.sched.settings import Settings


def test_the_environment_is_read_by_name_and_what_is_empty_is_not_set():
    found = Settings.from_env(
        {"ROTA_STORE": "postgresql://h/d", "ROTA_LEASE": "1m", "ROTA_CONCURRENCY": "4", "ROTA_APP": "", "HOME": "/"}
    )
    assert (found.store, found.lease, found.concurrency, found.app) == ("postgresql://h/d", 60.0, 4, "")


def test_options_go_over_the_environment_unless_they_are_none():
    found = Settings.from_env({"ROTA_CONCURRENCY": "4", "ROTA_BATCH": "7"}, concurrency=8, batch=None)
    assert (found.concurrency, found.batch) == (8, 7)


@pytest.mark.parametrize("text", ["mail,slow", "mail slow", " mail, slow ,"])
def test_queues_are_a_list_of_names(text):
    assert Settings.from_env({"ROTA_QUEUES": text}).queues == ("mail", "slow")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROTA_CONCURRENCY", "many"),
        ("ROTA_CONCURRENCY", "0"),
        ("ROTA_CONCURRENCY", "1.5"),
        ("ROTA_PREFETCH", "65536"),
        ("ROTA_HISTORY_KEEP", "59m"),
        ("ROTA_LEASE", "soon"),
        ("ROTA_BEAT", "0"),
        ("ROTA_DRAIN_TIMEOUT", "-1"),
        ("ROTA_RECONCILE_AFTER", "0"),
        ("ROTA_ACK_TIMEOUT", "5"),
        ("ROTA_LOG_LEVEL", "loud"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_the_variables_name(name, value):
    with pytest.raises(UsageError, match=name):
        Settings.from_env({name: value})


@pytest.mark.parametrize(("lease", "beat"), [("15", "8"), ("15", "7.5"), ("9", "5"), ("3", "3"), ("10", "30")])
def test_lse_07_a_heart_that_beats_less_than_twice_in_a_lease_is_refused_at_the_start(lease, beat):
    """By `if not 0 < self.beat < self.lease / 2` in sched/settings.py."""
    with pytest.raises(UsageError, match="ROTA_BEAT"):
        Settings.from_env({"ROTA_LEASE": lease, "ROTA_BEAT": beat})
    assert Settings().beat <= Settings().lease / 3


def test_a_queue_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match=r"queue 'a\.b'"):
        Settings.from_env({"ROTA_QUEUES": "mail,a.b"})


def test_what_is_needed_and_not_set_is_told_with_an_example():
    with pytest.raises(UsageError, match=r"ROTA_BROKER.*amqp://"):
        Settings(store="postgresql://h/d").need("store", "broker")
    complete = Settings(store="postgresql://h/d")
    assert complete.need("store") is complete


def test_passwords_are_masked_in_what_is_shown():
    shown = Settings(store="postgresql://rota:s3cret@h/d", broker="amqp://rota:s3cret@h/").to_json()
    assert "s3cret" not in str(shown)
    assert "rota" in shown["store"]
    assert Settings().to_json()["store"] is None
