"""Half a minute of everything that `make chaos` does: nothing lost, nothing twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plan import USUAL
from servers import process as processes

RUN = Path(__file__).parent / "run.py"
ROOT = RUN.parents[2]
SEED = 1
pytestmark = pytest.mark.xdist_group("chaos")  # one after the other: each counts what the other leaves
BOUND = 600  # seconds: about 50 on an idle machine of two cores


@pytest.fixture
def chaos():
    """Runs chaos; asked to end, not killed, when it takes too long, so that nothing is left running."""
    started = []

    def start(*options):
        process = subprocess.Popen(
            [sys.executable, RUN, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate()


def test_half_a_minute_of_chaos_loses_nothing_and_does_nothing_twice(chaos):
    process = chaos("--seconds", "30", "--seed", str(SEED))
    told, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 0, told
    figures = json.loads(told.splitlines()[-1])
    assert (figures["lost"], figures["duplicate_effects"], figures["bad_exits"]) == (0, 0, 0)
    assert figures["seed"] == SEED
    assert figures["effects"] >= figures["submitted"] > 300
    assert figures["ticks"] > 50
    assert figures["guard_copies"] > 0
    assert set(figures["faults"]) >= {kind for kind in USUAL if not kind.startswith("clock")}  # which need a library
    assert sum(kind["in_flight"] for kind in figures["faults"].values()) >= 5  # on a slow machine; mostly most of them


def test_chaos_that_is_asked_to_end_leaves_nothing_behind(chaos):
    process = chaos("--seconds", "60")
    for line in process.stdout:
        if "submitted" in line:
            break
    started = processes.tree(process.pid)
    members = (ROOT / ".rota" / "chaos").glob("*/log/*.pid")
    (folder,) = {pid.parents[1] for pid in members if int(pid.stem) in started}
    assert len(started) > 6  # the servers and the members
    process.terminate()
    told, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 128 + 15, told
    assert not folder.exists()
    assert [pid for pid in started if processes.started_at(pid)] == []


def test_faults_that_are_not_known_are_refused(chaos):
    process = chaos("--faults", "cut,earthquake")
    told, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 2
    assert "earthquake" in told
