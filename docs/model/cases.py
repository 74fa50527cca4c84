"""Named cases of the model: the protocol as the code has it, and the same with a rule left out.

cases.py [NAME...]   runs the named cases, or those of SHORT; exits with 1 unless each ends as it says
cases.py --list      names them all
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import NamedTuple

from explore import Result, explore, tell
from protocol import ALL, Rules

WORKER = (
    "worker crashes",
    "worker pauses",
    "begin lost",
    "begin late",
    "finish lost",
    "finish late",
    "fail lost",
    "fail late",
    "cut",
    "duplicate",
    "release",
)
SCHEDULER = ("scheduler crashes", "scheduler pauses", "claim lost", "ready lost", "confirm lost")


class Case(NamedTuple):
    """Rules, and how the violation begins that they must lead to; None for none."""

    rules: Rules
    violates: str | None = None


HOLDS = {
    "code": Case(Rules(faults=ALL)),
    "worker": Case(Rules(faults=("worker pauses", "fail lost"), at_once=2, schedulers=1)),
    "scheduler": Case(Rules(faults=SCHEDULER, at_once=2, workers=1)),
    "users": Case(Rules(faults=("worker pauses", "finish lost"), cancels=1, redrives=1, schedulers=1)),
    "poison": Case(Rules(faults=("worker crashes",), at_once=2, poison=2, schedulers=1)),
    "reconciler": Case(Rules(faults=("worker crashes", "message lost"), suspicions=1, schedulers=1)),
    "prefetch": Case(Rules(faults=("worker pauses", "cut", "fail lost"), prefetch=2, schedulers=1)),
    "guard": Case(Rules(faults=("worker pauses", "fail lost"), guard_copies=True, schedulers=1, workers=1)),
    "ticks": Case(Rules(faults=("claim lost",), ticks=2, workers=1)),
}
LONG = {
    "code-2": Case(Rules(faults=ALL, at_once=2)),
    "worker-2": Case(Rules(faults=WORKER, at_once=2, schedulers=1)),
    "users-all": Case(Rules(faults=ALL, cancels=1, redrives=1)),
    "reconciler-all": Case(Rules(faults=(*ALL, "message lost"), suspicions=1)),
    "prefetch-2": Case(Rules(faults=WORKER, prefetch=2, schedulers=1)),
    "guard-1": Case(Rules(faults=("worker crashes", "worker pauses", "fail lost"), guard_copies=True, schedulers=1)),
    "ticks-1": Case(Rules(faults=SCHEDULER, ticks=2, workers=1)),
    "revived": Case(Rules(faults=WORKER, late_beat="revives", schedulers=1)),
    "no-dispatch-number": Case(Rules(faults=ALL, begin_asks_dispatch=False, redrives=1)),
}
WITHOUT = {
    "stopped-and-handed-back": Case(
        Rules(faults=("worker pauses", "release", "begin lost"), cancels=1, schedulers=1, handed_back="goes on"), "S8"
    ),
    "1-state-and-recovery-fence": Case(
        Rules(faults=WORKER, ask_state=False, recovery_fence="keep", schedulers=1), "S2"
    ),
    "1-state-and-retry-fence": Case(Rules(faults=WORKER, ask_state=False, retry_fence="keep", schedulers=1), "S2"),
    "1-fence": Case(Rules(faults=("worker pauses",), ask_fence=False), "S2"),
    "1-effect": Case(Rules(faults=("worker pauses",), effect="before it"), "S1"),
    "2-refused": Case(Rules(faults=("fail lost",), refused="ack", schedulers=1), "S3"),
    "3-disown": Case(Rules(faults=("begin lost",), disown=False, schedulers=1), "S3"),
    "4-adoption": Case(Rules(faults=("scheduler crashes",), adoption="once", live_claim=False, workers=1), "S3"),
    "5-one-claim": Case(
        Rules(faults=("scheduler crashes",), one_claim=False, ticks=2, recurring=False, workers=1, messages=3), "S3"
    ),
    "5-claim-lost": Case(Rules(faults=("claim lost",), claim_lost="go on"), "S3"),
    "5-watermark": Case(Rules(faults=("scheduler crashes",), at_once=2, watermark="sequence"), "S3"),
    "6-waiting": Case(
        Rules(faults=("dead letter", "scheduler crashes"), at_once=2, dispatched_anew="as it was", workers=1), "S3"
    ),
    "7-reconciler": Case(Rules(reconciler="hasty", messages=3, workers=1, schedulers=1), "S3"),
    "8-verdict": Case(Rules(collector="verdict", redrives=1), "S7"),
    "8-drops": Case(Rules(faults=("dead letter",), collector="drops"), "S3"),
    "9-returned": Case(Rules(faults=("returned", "scheduler crashes"), at_once=2, returned="confirmed"), "S3"),
    "9-deferral": Case(Rules(faults=("cut", "deferral lost"), at_once=2, deferral="trusted", schedulers=1), "S3"),
    "10-one-number": Case(Rules(fence_column=False), "S3"),
    "11-recovery": Case(Rules(faults=("worker pauses",), recovery="once", live_begin=False, schedulers=1), "S3"),
    "no-recovery": Case(Rules(faults=("worker crashes",), recovery="none"), "S3"),
}
# The reconciler would find, minutes later, much of what is lost where another rule is left out: it is off, unless it is the one.
WITHOUT = {
    name: case._replace(rules=replace(case.rules, reconciler="off")) if case.rules.reconciler == "checked" else case
    for name, case in WITHOUT.items()
}
CASES = HOLDS | WITHOUT | LONG
SHORT = [*HOLDS, *WITHOUT]


def main(names: list[str]) -> int:
    """Runs cases; 1 if one of them does not end as it says."""
    if names == ["--list"]:
        print("\n".join(CASES))
        return 0
    wrong = 0
    for name in names:
        case = CASES[name]
        result = explore(case.rules)
        print(tell(name, result), flush=True)
        wrong += not as_told(case, result)
    return min(wrong, 1)


def as_told(case: Case, result: Result) -> bool:
    """Whether the violation is there, or none is."""
    if case.violates is None:
        return not result.violations
    return any(what.startswith(case.violates) for what in result.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or SHORT))
