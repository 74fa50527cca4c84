"""One system's part of bench/peers.py, run by the Python that has it: `peer.py MODULE VERB ...`.

The verbs are `prepare`, `enqueue N`, `schedule N AT` and `workers`.

MODULE is one of the modules beside this file, all of the same make: `prepare()` makes queue or schema, `enqueue(jobs)`
and `schedule(jobs, at)` return when all jobs are stored durably (confirmed or committed), `WORKERS` are the command
lines of its own worker, of the programs beside this Python, `ENVIRONMENT` (where it has one) is for them,
`SETTLED` (where it has a store) gives how many jobs were completed there and when the last was.
Prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main() -> None:
    """Runs the verb."""
    name, verb, *numbers = sys.argv[1:]
    module = importlib.import_module(name)
    begun = time.time()
    if verb == "workers":
        names = ("WORKERS", "ENVIRONMENT", "SETTLED")
        print(json.dumps({name.lower(): getattr(module, name, None) for name in names}))
        return
    if verb == "prepare":
        module.prepare()
    elif verb == "enqueue":
        module.enqueue(int(numbers[0]))
    elif verb == "schedule":
        module.schedule(int(numbers[0]), float(numbers[1]))
    else:
        raise SystemExit(f"peer.py: {verb!r} is none of workers, prepare, enqueue, schedule")
    print(json.dumps({"begun": begun, "ended": time.time()}))


if __name__ == "__main__":
    main()
