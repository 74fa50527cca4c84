"""All benches one after the other, in sizes that take about twenty minutes on two cores. `make bench` is this.

One that fails is told and does not keep the others from running; the exit status is 1 then.

    make bench                    the short sizes
    make bench BENCH=--quick      very small: does everything work?
    make bench BENCH=--full       the sizes of docs/performance.md, an hour and more
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from common import ROOT, show

BENCHES = ("pipeline", "cost", "idle", "lateness", "stored", "churn", "history", "redrive")


def main() -> int:
    """Runs each as a process of its own and shows what all have told in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_const", const=["--quick"], dest="size", default=["--short"])
    sizes.add_argument("--full", action="store_const", const=[], dest="size")
    options = parser.parse_args()
    rows, failed = [], []
    for name in BENCHES:
        command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), *options.size]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            failed.append(name)
    show(rows)
    if failed:
        print(f"bench: {', '.join(failed)} failed, see above", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
