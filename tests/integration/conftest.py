"""Members as real processes on a database and a vhost of their own, working for the demo app."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from rota import Client
from rota.sched.control import SHARE_CALL
from rota.sched.store.postgres.text import WAKE_CHANNEL

from tests.conftest import BOUND
from tests.store.conftest import house  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
ROTA = str(Path(sys.executable).parent / "rota")
SILENT = f"""
with silent as (
  update rota.member set beat_at = beat_at - interval '1 day'
  where pid = any(%s) and state = 'live' and beat_at > clock_timestamp() - interval '12 hours'
),
due as (update rota.duty set due_at = to_timestamp(0) where name = 'recovery')
select pg_notify('{WAKE_CHANNEL}', '{SHARE_CALL}')
"""


def alive(pid: int) -> bool:
    """Whether there is such a process; who has ended and was not waited for is none."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


class Party:
    """Schedulers and workers of one test.

    Leases are long, so that nobody is taken for dead because the machine stands still for some seconds. Those of members that
    have no process any more are over at once, by the store's rows: `until` sees to it, and nobody waits for a lease.
    """

    def __init__(self, store: str, broker: str, logs: Path) -> None:
        self.store = store
        self.logs = logs
        self.env = {
            **os.environ,
            "ROTA_STORE": store,
            "ROTA_BROKER": broker,
            "ROTA_APP": "app:app",
            "ROTA_LEASE": "60",
            "ROTA_BEAT": "1",
            "PYTHONPATH": str(COMPOSE),
        }
        self.members: list[subprocess.Popen[bytes]] = []
        self._log_paths: dict[int, Path] = {}
        self.db = psycopg.connect(store, autocommit=True)

    def start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        path = self.logs / f"{kind}-{len(self.members)}.log"
        with path.open("wb") as log:
            member = subprocess.Popen([ROTA, kind, *options], env=self.env, stdout=log, stderr=log)
        self.members.append(member)
        self._log_paths[member.pid] = path
        return member

    def log_of(self, member: subprocess.Popen[bytes]) -> str:
        """What a member has logged."""
        return self._log_paths[member.pid].read_text(errors="replace")

    def freeze(self, member: subprocess.Popen[bytes]) -> None:
        """The member stands still until its membership is over."""
        member.send_signal(signal.SIGSTOP)
        self.until_dead(member)

    def until_dead(self, member: subprocess.Popen[bytes]) -> None:
        """Recovery finds that a member that cannot beat has not done so for long."""
        mine = "select count(*) from rota.member where pid = %s and state = 'live'"
        self.until("its death", lambda: not (self._silence([member.pid]) or self.value(mine, member.pid)))

    def _silence(self, pids: list[int]) -> None:
        """Their last heartbeat was long ago, and recovery looks now."""
        self.db.execute(SILENT, [pids])

    def _bury(self) -> None:
        """Who has no process any more has been silent for long."""
        with suppress(psycopg.Error):  # the store may be away
            members = self.db.execute("select pid from rota.member where state = 'live'").fetchall()
            if gone := [pid for (pid,) in members if not alive(pid)]:
                self._silence(gone)

    def rota(self, *args: str, code: int = 0) -> str:
        done = subprocess.run([ROTA, *args], env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{args}: {done.returncode}, {done.stdout} {done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def status(self) -> dict[str, Any]:
        """As `rota status --json` tells it, without a process for each look."""
        with Client.open(self.store) as client:
            return client.run(client.store.status()).to_json()

    def doctor(self, *options: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and the checks by name."""
        done = subprocess.run(
            [ROTA, "doctor", "--json", *options], env=self.env, capture_output=True, text=True, check=False
        )
        checks = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, {check["name"]: check for check in checks}

    def value(self, sql: str, *params: Any) -> Any:
        row = self.db.execute(sql, params or None).fetchone()
        return row[0] if row else None

    def until(self, what: str, done: Callable[[], Any], bound: float = BOUND) -> None:
        end = time.monotonic() + bound
        while not done():
            self._bury()
            assert time.monotonic() < end, f"waited {bound} s in vain for {what}: {self.tail()}"
            time.sleep(0.05)

    def until_working(self) -> None:
        self.until("a handler to be announced", lambda: self.value("select count(*) from rota.handler"))
        self.until("partitions to be owned", lambda: self.value("select count(owner) from rota.partition") == 64)

    def until_connected(self) -> None:
        """Both connections of each member that runs are up, and what they declare is there."""
        for member in [member for member in self.members if member.poll() is None]:
            self.until("links to be up", lambda member=member: self.log_of(member).count('message="broker link') >= 2)

    def effects(self, key: str) -> int:
        return int(self.value("select count(*) from demo_effect where key = %s", key))

    def running_on(self, member: subprocess.Popen[bytes]) -> int:
        return int(
            self.value(
                "select count(*) from rota.run r join rota.member m on m.id = r.owner where m.pid = %s", member.pid
            )
        )

    def tail(self) -> str:
        return "\n".join(p.name + ": " + p.read_text(errors="replace")[-1500:] for p in sorted(self.logs.glob("*.log")))

    def close(self) -> None:
        for member in self.members:
            if member.poll() is None:
                member.send_signal(signal.SIGCONT)
                member.kill()
            member.wait()
        self.db.close()


@contextmanager
def party_on(store: str, broker: str, logs: Path) -> Iterator[Party]:
    from app import prepare  # noqa: PLC0415 - compose is on the path by then

    prepare(store)
    with closing(Party(store, broker, logs)) as party:
        yield party


@contextmanager
def ready_party(store: str, broker: str, logs: Path) -> Iterator[Party]:
    """One scheduler and one worker that are ready."""
    with party_on(store, broker, logs) as found:
        found.start("scheduler")
        found.start("worker")
        found.until_working()
        yield found


@pytest.fixture
def party(store_url: str, broker_url: str, tmp_path: Path) -> Iterator[Party]:
    """One scheduler and one worker that are ready."""
    with ready_party(store_url, broker_url, tmp_path) as found:
        yield found
