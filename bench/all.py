"""All benches one after the other, in sizes that take about twenty minutes on two cores. `make bench` is this.

One that fails, or that takes longer than it may, is told and does not keep the others from running; the exit status is 1 then.

    make bench                    the short sizes
    make bench BENCH=--quick      very small: does everything work?
    make bench BENCH=--full       the sizes of docs/performance.md, an hour and more
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from common import ROOT, end, ends_by_exception, show

BENCHES = ("pipeline", "cost", "idle", "lateness", "stored", "churn", "history", "redrive", "peers")
MINUTES = 30.0
"""That one of them may take."""


def run(name: str, size: list[str]) -> tuple[list[dict[str, object]], str]:
    """What a bench has told, and why that is not all. What it left running when it failed is killed."""
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), *size]
    why = ""
    # A file, not a pipe, which a process that was left behind would keep open.
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(command, stdout=told, start_new_session=True)
        try:
            if process.wait(MINUTES * 60):
                why = f"{name} failed"
        except subprocess.TimeoutExpired:
            why = f"{name} took longer than {MINUTES:.0f} minutes"
        finally:
            end(process)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        told.seek(0)
        return [json.loads(line) for line in told if line.startswith("{")], why


def main() -> int:
    """Runs each as a process of its own and shows what all have told in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_const", const=["--quick"], dest="size", default=["--short"])
    sizes.add_argument("--full", action="store_const", const=[], dest="size")
    options = parser.parse_args()
    ends_by_exception()
    rows, failed = [], []
    for name in BENCHES:
        told, why = run(name, options.size)
        rows += told
        if why:
            failed.append(why)
    show(rows)
    if failed:
        print(f"bench: {', '.join(failed)}: see above", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
