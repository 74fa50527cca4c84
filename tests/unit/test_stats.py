"""Figures of members: counters of a day, and percentiles from histograms that can be added."""

import json
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched import stats as module
from rota.sched.stats import LAGS, Stats, bucket, percentiles, upper

LAG = st.floats(0, 1e7)


@given(LAG)
def test_a_bucket_ends_at_most_a_fifth_above_its_lag(seconds):
    number = bucket(seconds)
    assert upper(number) >= seconds * (1 - 1e-9)
    assert number == 0 or upper(number) <= seconds * 1.2 * (1 + 1e-9)


@given(LAG, LAG)
def test_longer_lags_are_in_no_lower_bucket(one, other):
    assert (bucket(one) <= bucket(other)) or one > other


@given(st.lists(LAG, min_size=1, max_size=200), st.integers(1, 4))
def test_percentiles_of_several_members_are_those_of_all_their_lags(lags, members):
    figures = [Stats() for _ in range(members)]
    for n, lag in enumerate(lags):
        figures[n % members].observe("run", [lag])
    found = percentiles([json.loads(json.dumps(f.to_json())) for f in figures], "run")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        exact = sorted(lags)[max(0, -(-int(share * 100) * len(lags) // 100) - 1)]
        assert found[name] == pytest.approx(upper(bucket(exact)), abs=1e-6)


def test_without_lags_there_are_no_percentiles():
    assert percentiles([], "run") == {"p50": None, "p99": None}
    assert percentiles([{}, Stats().to_json()], "queue") == {"p50": None, "p99": None}


def test_figures_are_json_with_counters_lags_and_values():
    stats = Stats()
    stats.ended("succeeded")
    stats.ended("succeeded", 2)
    stats.ended("dead", 0)
    stats.set("held", [1, 2])
    shown = json.loads(json.dumps(stats.to_json()))
    assert shown["ended"] == {"succeeded": 3}
    assert set(shown["lag"]) == set(LAGS)
    assert shown["held"] == [1, 2]


def test_counters_begin_anew_with_the_stores_day():
    stats = Stats()
    stats.ended("succeeded", 5)
    before = stats.to_json()
    assert "day" not in before
    stats.told(before, "2026-11-30")
    stats.ended("succeeded")
    stats.told(stats.to_json(), "2026-11-30")
    assert stats.to_json()["ended"] == {"succeeded": 6}
    last = stats.to_json()
    stats.ended("succeeded", 2)
    stats.told(last, "2026-12-01")
    assert stats.to_json()["ended"] == {"succeeded": 2}
    assert stats.to_json()["day"] == "2026-12-01"


def test_a_process_that_joins_anew_counts_nothing_twice_and_forgets_nothing():
    stats = Stats()
    stats.superseded("finish")
    stats.told(stats.to_json(), "2026-11-30")
    stats.superseded("retry")
    stats.rejoin()
    assert stats.to_json()["superseded"] == {"retry": 1}


def test_lags_are_forgotten_after_two_windows(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    stats = Stats()
    stats.observe("run", [1.0])
    seen = []
    for _ in range(3):
        seen.append(percentiles([stats.to_json()], "run")["p50"] is not None)
        clock[0] += module.WINDOW + 1
    assert seen == [True, True, False]


def test_threads_lose_no_counts():
    stats = Stats()

    def work():
        for _ in range(2000):
            stats.ended("succeeded")
            stats.observe("run", [0.1])

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = stats.to_json()
    assert shown["ended"] == {"succeeded": 8000}
    assert sum(shown["lag"]["run"].values()) == 8000
