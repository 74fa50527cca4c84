"""Errors on their way from the process of a handler."""

import json
import sys
import types

import pytest
from rota.sched.app import Cancel, NoRetry, RetryAfter, Snooze
from rota.sched.errors import Superseded
from rota.sched.policy import Retry
from rota.workers.attempt import describe
from rota.workers.carried import Carried, carry, restore


class Late(OSError):  # noqa: N818
    """One of an app."""

    def __init__(self, what, *, seconds):
        super().__init__(what)
        self.seconds = seconds

    def __str__(self):
        return f"{self.args[0]} after {self.seconds} s"


def sent(error):
    """Through JSON and back."""
    return restore(json.loads(json.dumps(carry(error, describe(1, error)))))


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_name_text_and_classes_of_an_error_are_kept():
    error = sent(Late("it", seconds=3))
    assert (type(error).__name__, str(error), error.seconds) == ("Late", "it after 3 s", 3)
    assert isinstance(error, Late)
    assert isinstance(error, (ValueError, OSError))
    assert not isinstance(error, ValueError)


def test_the_ledger_gets_the_same_entry():
    error = raised(Late("it", seconds=3))
    assert describe(4, sent(error)) == describe(4, error)


def test_it_can_be_raised_and_caught():
    with pytest.raises(Carried, match="it after"):
        raise sent(Late("it", seconds=3))


@pytest.mark.parametrize(
    "error",
    [Cancel("why"), NoRetry("why"), Snooze(2), RetryAfter("1m"), Superseded("taken"), KeyError("k"), SystemExit(3)],
)
def test_signals_keep_what_a_worker_reads_of_them(error):
    found = sent(error)
    assert isinstance(found, type(error))
    assert str(found) == str(error)
    for name in ("seconds", "reason"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_a_policy_decides_by_the_classes_that_it_names():
    policy = Retry(on=OSError, never=Late)
    assert policy.wants(sent(OSError("gone")))
    assert not policy.wants(sent(Late("it", seconds=3)))
    assert not policy.wants(sent(ValueError("no")))


def test_of_classes_that_only_the_other_process_has_the_nearest_known_one_counts(monkeypatch):
    module = types.ModuleType("far_away")
    exec("class Far(LookupError): pass", vars(module))
    monkeypatch.setitem(sys.modules, "far_away", module)
    told = carry(module.Far("off"), describe(1, module.Far("off")))
    monkeypatch.delitem(sys.modules, "far_away")
    error = restore(told)
    assert type(error).__name__ == "Far"
    assert isinstance(error, LookupError)
    assert "far_away" not in sys.modules


def test_a_class_inside_of_a_function_and_a_name_that_is_no_class_are_passed_by():
    class Local(ValueError):  # noqa: N818
        pass

    assert isinstance(sent(Local("x")), ValueError)
    error = restore(
        {"name": "X", "message": "m", "traceback": "", "read": {}, "classes": [["sys", "path"], ["sys", "no"]]}
    )
    assert isinstance(error, Exception)


def test_an_error_whose_text_raises_is_still_one():
    class Mute(Exception):  # noqa: N818
        def __str__(self):
            raise RuntimeError

    assert str(sent(Mute())) == "(its text raised RuntimeError)"
