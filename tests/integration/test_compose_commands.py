"""The commands of compose/compose.yaml, run here as they are run in the containers."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from servers import process

from tests.conftest import BOUND

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
ROTA = str(Path(sys.executable).parent / "rota")


def commands() -> dict[str, list[str]]:
    """Each service's `rota` command; a service that is an alias of another has the other's."""
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    services = text[text.index("\nservices:") : text.index("\nvolumes:")]
    found: dict[str, list[str]] = {}
    anchors: dict[str, list[str]] = {}
    for block in re.split(r"\n  (?=[a-z0-9-]+:)", services)[1:]:
        name, mark = re.match(r"([a-z0-9-]+):(?: ([&*]\w+))?", block).groups()
        command = re.search(r'command: (\["rota".*\])', block)
        if command:
            found[name] = json.loads(command[1])
            anchors[mark or ""] = found[name]
        elif mark and mark.startswith("*"):
            found[name] = anchors["&" + mark[1:]]
    return found


@contextlib.contextmanager
def running(names: list[str], env: dict[str, str], logs: Path) -> Iterator[dict[str, subprocess.Popen]]:
    with contextlib.ExitStack() as stack:
        members = {}
        for name in names:
            log = stack.enter_context((logs / f"{name}.log").open("wb"))
            command = [ROTA, *commands()[name][1:]]
            members[name] = subprocess.Popen(command, env=env, cwd=COMPOSE, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(members[name].wait)
            stack.callback(members[name].kill)
        yield members


def environment(store: str, broker: str) -> dict[str, str]:
    path = f"{Path(ROTA).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"ROTA_STORE": store, "ROTA_BROKER": broker, "ROTA_APP": "app:app"}
    return {**os.environ, **settings, "PATH": path, "PYTHONPATH": str(COMPOSE)}


def healthy(env: dict[str, str]) -> bool:
    done = subprocess.run([sys.executable, COMPOSE / "health.py"], env=env, capture_output=True, check=False)
    return done.returncode == 0


def live_members(env: dict[str, str]) -> int:
    done = subprocess.run([ROTA, "status", "--json"], env=env, capture_output=True, text=True, check=True)
    return len([member for member in json.loads(done.stdout)["members"] if member["state"] == "live"])


def test_the_file_names_two_schedulers_and_two_workers():
    found = commands()
    assert found["migrate"] == ["rota", "migrate"]
    assert [name for name, words in found.items() if words[1] == "scheduler"] == ["scheduler-1", "scheduler-2"]
    assert [name for name, words in found.items() if words[1] == "worker"] == ["worker-1", "worker-2"]


def test_members_become_healthy_and_leave_in_order_when_they_are_terminated(empty_store_url, broker_url, tmp_path):
    env = environment(empty_store_url, broker_url)
    subprocess.run([ROTA, *commands()["migrate"][1:]], env=env, cwd=COMPOSE, check=True, capture_output=True)
    assert not healthy(env)
    names = [name for name in commands() if name != "migrate"]
    with running(names, env, tmp_path) as members:
        assert process.wait_until(lambda: live_members(env) == len(names), BOUND, every=0.5)
        assert healthy(env)
        for member in members.values():
            member.send_signal(signal.SIGTERM)
        assert {name: member.wait(BOUND) for name, member in members.items()} == dict.fromkeys(names, 0)
    assert not healthy(env)
