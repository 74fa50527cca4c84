"""Two schedulers and two workers in the background, on the servers of this checkout: `make up` and `make down`.

    stack.py up      start what does not run yet, print the URLs as `export ROTA_...` lines
    stack.py down    drain and stop the members, then the servers
    stack.py clean   the same at once, and remove `.rota` with all data

The members run the demo app (compose/app.py); their logs are in `.rota/log`. Exit 3 and one line on stderr when
something cannot be had or does not come up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

from servers import NotReady, Services, process, signals  # noqa: E402 - the line above makes it importable
from servers.errors import ServerError  # noqa: E402
from servers.management import Management  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servers.services import Urls

NAME = "rota_stack"  # of the database and of the vhost
MEMBERS = {"scheduler-1": "scheduler", "scheduler-2": "scheduler", "worker-1": "worker", "worker-2": "worker"}
READY_SECONDS = 60.0
DRAIN_SECONDS = 30.0


class Stack:
    """The members of the checkout at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.services = Services(root)
        self.file = root / ".rota" / "stack.json"

    def up(self) -> dict[str, str]:
        """Start what does not run and return the settings to reach it. Raises `Missing`, `NotReady`."""
        try:
            settings = self._settings(self.services.up())
            self._start({**os.environ, **settings, "PYTHONPATH": str(self.root / "compose")})
        except BaseException:
            with signals.ignored():
                self.down()
            raise
        return settings

    def _start(self, env: Mapping[str, str]) -> None:
        self._rota(env, "migrate")
        prepare = "import os, app; app.prepare(os.environ['ROTA_STORE'])"
        subprocess.run([sys.executable, "-c", prepare], env=env, check=True)
        members = self._alive()
        for name, command in MEMBERS.items():
            if name not in members:
                members[name] = self._spawn(name, command, env)
                self.file.write_text(json.dumps(members), encoding="utf-8")
        if not process.wait_until(lambda: self._ready(env), READY_SECONDS, every=0.5):
            raise NotReady(f"the members did not come up within {READY_SECONDS:.0f} s: look into {self._log('*')}")

    def down(self) -> None:
        """Drain and stop the members, then the servers unless somebody still uses them."""
        self.stop()
        if not self.services.down():
            print("the servers are in use and will stop with their last user", file=sys.stderr)

    def clean(self) -> None:
        """Stop members and servers and remove their data."""
        self.stop()
        self.services.clean()

    def stop(self) -> None:
        """Let the members drain, for half a minute at most."""
        members = self._alive()
        for pid, _ in members.values():
            os.kill(pid, signal.SIGTERM)
        for pid, mark in members.values():
            process.wait_until(lambda: not process.alive(pid, mark), DRAIN_SECONDS)  # noqa: B023 - called at once
            process.end(pid, mark, ((signal.SIGKILL, 5.0),))
        self.file.unlink(missing_ok=True)

    def _settings(self, urls: Urls) -> dict[str, str]:
        from servers.databases import create_database  # noqa: PLC0415 - psycopg is not there when `clean` is all one wants

        return {
            "ROTA_STORE": create_database(urls.store, NAME),
            "ROTA_BROKER": Management(urls.broker, urls.management).create_vhost(NAME),
            "ROTA_APP": "app:app",
        }

    def _alive(self) -> dict[str, tuple[int, str]]:
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: (pid, mark) for name, (pid, mark) in known.items() if process.alive(pid, mark)}

    def _spawn(self, name: str, command: str, env: Mapping[str, str]) -> tuple[int, str]:
        pid = process.spawn([self._program(), command], env, self._log(name))
        return pid, process.started_at(pid) or ""

    def _ready(self, env: Mapping[str, str]) -> bool:
        try:
            members = json.loads(self._rota(env, "status", "--json"))["members"]
        except (NotReady, ValueError, KeyError):
            return False
        return len([member for member in members if member["state"] == "live"]) >= len(MEMBERS)

    def _rota(self, env: Mapping[str, str], *arguments: str) -> str:
        command: Sequence[str] = [self._program(), *arguments]
        done = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
            raise NotReady(f"`rota {' '.join(arguments)}` failed: {reason}")
        return done.stdout

    def _program(self) -> str:
        return str(self.root / ".venv" / "bin" / "rota")

    def _log(self, name: str) -> Path:
        return self.root / ".rota" / "log" / f"{name}.log"


def main(verb: str) -> int:
    stack = Stack(ROOT)
    try:
        with signals.raised():
            if verb == "up":
                for key, value in stack.up().items():
                    print(f"export {key}={value}")
                print(f"export PYTHONPATH={ROOT / 'compose'}")
            else:
                {"down": stack.down, "clean": stack.clean}[verb]()
    except ServerError as error:
        print(error, file=sys.stderr)
        return 3
    except signals.Interrupted as interrupted:
        return interrupted.status
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["up"], ["down"], ["clean"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
