"""How many messages of a queue a worker holds ahead of what it runs. Pure.

What one worker holds no other can begin, so of runs that take their time it holds few. Where runs are over at once, few
would make the round trip to the broker the pace: then it holds as many as fill a batch of the ledger twice.
"""

from __future__ import annotations

WIDE = 1000
"""Messages, where runs are short."""
AHEAD = 0.1
"""Seconds: what is over within them is held too little."""
SLACK = 4
"""A queue is narrow again when its rate is so many times lower than what made it wide."""
LOOK_SECONDS = 0.1
"""How often a worker looks at its rates, while anything begins."""


def narrow(fixed: int, concurrency: int) -> int:
    """The prefetch to begin with; `fixed` is the user's word, 0 if there is none."""
    return fixed or max(128, 4 * concurrency)


def wanted(now: int, least: int, rate: float) -> int:
    """The prefetch for a queue of which so many runs a second began lately, between `least` and WIDE."""
    enough = least / AHEAD
    if rate >= enough:
        return max(least, WIDE)
    return least if rate < enough / SLACK else now
