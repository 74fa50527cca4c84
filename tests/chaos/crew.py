"""The members of a chaos run: reserved while something is done to them, started again when they end by themselves.

Members that were started without a store end with 3, as they say they do, and a worker whose handler kills it with 9; a
supervisor would start them again, and so does the crew. Any other end that was not asked for is a failure of the run.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from members import Members
from plan import ACK_TIMEOUT, LEASE, QUEUES
from servers import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from members import Member
    from world import Database

START = (*["scheduler"] * 2, *["worker"] * 3)
SETTINGS = {
    "ROTA_LEASE": str(LEASE),
    "ROTA_BEAT": "1",
    "ROTA_ACK_TIMEOUT": str(ACK_TIMEOUT),
    "ROTA_CONCURRENCY": "12",
    "ROTA_QUEUES": " ".join(QUEUES),
}
NOT_REACHABLE = 3
"""What a member ends with that found no store at its start."""
DRAIN = 90.0
"""Seconds for a drain; a member's own patience is 30."""
UP = 150.0
"""Seconds for members to join, with servers going down meanwhile."""
PID = ".pid"
"""Files of that kind among the logs are named by a member's pid and say which process that is."""
LIVE = "select pid from rota.member where state = 'live'"


class Crew(Members):
    """Members that are looked after. `bad_exits` are the ends that should not have been: kind, pid and code."""

    def __init__(self, store: str, broker: str, log: Path, database: Database) -> None:
        super().__init__(store, broker, log, **SETTINGS)
        self.bad_exits: list[tuple[str, int, int]] = []
        self._database = database
        self._reserved: set[int] = set()
        self._free = threading.Condition()
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._look_after, daemon=True)

    def assemble(self, clocks: dict[str, dict[str, str]]) -> bool:
        """Starts everyone; `clocks` is the environment of the first of each kind. Whether all came up."""
        first = dict(clocks)
        for kind in START:
            self.start(kind, first.pop(kind, {}))
        self._watch.start()
        return self.up()

    def start(self, kind: str, env: Mapping[str, str] | None = None) -> Member:
        """One more member, noted for those who clean up after us."""
        member = super().start(kind, env)
        (self.log / f"{member.pid}{PID}").write_text(process.started_at(member.pid) or "", encoding="ascii")
        return member

    def up(self) -> bool:
        """Waits until every process is a live member; a signal before that would end it without a drain."""
        end = time.monotonic() + UP
        while not {member.pid for member in self.alive} <= {pid for (pid,) in self._database.rows(LIVE)}:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    @contextmanager
    def reserve(self, kind: str, pick: float, *, clocked: bool = False) -> Iterator[Member]:
        """One that nothing else is done to meanwhile; waits for one."""
        with self._free:
            found: list[Member] = []
            while not found:
                if self._ending.is_set():
                    raise SystemExit("the crew is ending")
                found = [m for m in self.of(kind) if m.pid not in self._reserved and (m.env or not clocked)]
                if not found:
                    self._free.wait(0.1)
            member = found[int(pick * len(found))]
            self._reserved.add(member.pid)
        try:
            yield member
        finally:
            with self._free:
                self._reserved.discard(member.pid)
                self._free.notify_all()

    def deploy(self) -> int:
        """Drains all that run, and starts as many anew; how many there were. Nothing may be reserved."""
        with self._free:
            while self._reserved:
                self._free.wait(0.1)
            self.up()
            before = list(self.alive)
            self._judge(before, self.drain(DRAIN))
            for member in before:
                self.start(member.kind, member.env)
        return len(before)

    def finish(self) -> None:
        """The last drain. Everyone has to end with 0."""
        self._ending.set()
        self._watch.join()
        self.up()
        self._judge(list(self.alive), self.stop(DRAIN))

    def end(self) -> None:
        """Ends what is left at once."""
        self._ending.set()
        if self._watch.is_alive():
            self._watch.join()
        self.stop(0.0)

    def _judge(self, members: list[Member], codes: dict[int, int]) -> None:
        """A drain ends with 0, or by a handler that still runs in it and kills its worker."""
        killed = {"worker": -signal.SIGKILL}
        found = [(m.kind, m.pid, codes.get(m.pid, 0)) for m in members]
        self.bad_exits += [each for each in found if each[2] not in {0, killed.get(each[0])}]

    @staticmethod
    def _may_end_with(member: Member) -> tuple[int, ...]:
        """How it may end by itself: without a store, and of a worker by a handler that kills it."""
        return (NOT_REACHABLE, -signal.SIGKILL) if member.kind == "worker" else (NOT_REACHABLE,)

    def _look_after(self) -> None:
        while not self._ending.wait(0.3):
            with self.lock:
                ended = [member for member in self.alive if member.process.poll() is not None]
                self.alive = [member for member in self.alive if member not in ended]
            for member in ended:
                if member.process.returncode not in self._may_end_with(member):
                    self.bad_exits.append((member.kind, member.pid, member.process.returncode))
                self.start(member.kind, member.env)


def end_left_over(log: Path) -> None:
    """Ends the members of a crew that nobody looks after any more, by its folder of logs."""
    for file in log.glob(f"*{PID}"):
        process.end(int(file.stem), file.read_text(encoding="ascii"), ((signal.SIGKILL, 5.0),))
