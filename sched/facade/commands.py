"""A handler that runs shell commands, as cron does: what `rota import crontab` submits jobs for.

It is in no app unless somebody puts it there, because whoever may submit jobs of it may run anything on its workers:

    from rota.commands import rota_command

    app.handler(queue="cron")(rota_command)

The command runs by `sh -c` as the worker's user, in that user's home folder, with cron's small environment and none of the
worker's variables, which may hold passwords. Its output, both streams in one, is kept as the run's result, the end of it.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING

from rota.sched.app import NoRetry

if TYPE_CHECKING:
    from rota.sched.context import Context

KEPT = 8_000
"""Characters of a command's output that are kept: the last ones."""
GRACE = 5.0
"""Seconds that a command which is to stop has between SIGTERM and SIGKILL."""
_LOOK = 0.2
"""Seconds between two looks at whether it is to stop."""
_CHUNK = 65_536


def rota_command(
    ctx: Context, command: str, stdin: str = "", env: dict[str, str] | None = None, user: str | None = None
) -> dict[str, int | str]:
    """Runs one command; `{"exit": 0, "output": "..."}`. An exit status other than 0 is an error of the run.

    With `user`, only if the worker runs as that user: it can become no other. Stopped (SIGTERM to its process group,
    SIGKILL `GRACE` later) when the run is cancelled, handed back or past its timeout.
    """
    me = pwd.getpwuid(os.getuid())
    if user is not None and user != me.pw_name:
        raise NoRetry(
            f"the command is {user}'s and this worker runs as {me.pw_name}: run a worker of its queue as {user}"
        )
    variables = {
        "HOME": me.pw_dir,
        "LOGNAME": me.pw_name,
        "USER": me.pw_name,
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/sh",
    }
    variables |= {"ROTA_JOB_ID": ctx.job_id, "ROTA_SCHEDULED_FOR": ctx.scheduled_for.isoformat()}
    variables |= {"ROTA_ATTEMPT": str(ctx.attempt), "ROTA_IDEMPOTENCY_KEY": ctx.idempotency_key, **(env or {})}
    with tempfile.TemporaryFile() as source:
        source.write(stdin.encode())
        source.seek(0)
        process = subprocess.Popen(  # noqa: S603 - to run it is what the user asked for
            [variables["SHELL"], "-c", command],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=variables["HOME"],
            env=variables,
            start_new_session=True,
        )
    assert process.stdout is not None
    output = _Tail(process.stdout)
    status = _wait(ctx, process)
    told = output.text()
    if status != 0:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise RuntimeError(f"{how} of {command!r:.200}: {told[-2_000:]}")
    return {"exit": 0, "output": told}


def _wait(ctx: Context, process: subprocess.Popen[bytes]) -> int:
    """The exit status, of a command that is stopped if it is to stop."""
    asked: float | None = None
    while True:
        try:
            return process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            if asked is None and ctx.cancelled:
                asked = time.monotonic()
                os.killpg(process.pid, signal.SIGTERM)
            elif asked is not None and time.monotonic() - asked > GRACE:
                os.killpg(process.pid, signal.SIGKILL)


class _Tail:
    """Reads a stream to its end in a thread of its own, so that nothing blocks its writer, and keeps the last of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                self._kept = (self._kept + chunk)[-4 * KEPT :]

    def text(self) -> str:
        """What was kept. What a process that was left in the background writes later is not waited for."""
        self._thread.join(_LOOK)
        return self._kept.decode(errors="replace")[-KEPT:].replace("\0", "\ufffd")
