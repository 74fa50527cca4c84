"""What a job, a run and a member are, and the one table of states, events and legal transitions.

The store's check constraint, the diagram in docs/states.md and the exhaustive test come from TRANSITIONS.
A tick is in exactly one place at a time: in `job` (the future), in `run` (the present, in one of STATES), in `dead`,
or in `history` (the past, with one of OUTCOMES).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["waiting", "running", "retrying", "buffered"]
Outcome = Literal["succeeded", "dead", "cancelled", "skipped", "expired", "discarded"]
Kind = Literal["scheduler", "worker"]
MemberState = Literal["live", "left", "dead"]

STATES: tuple[State, ...] = ("waiting", "running", "retrying", "buffered")
OUTCOMES: tuple[Outcome, ...] = ("succeeded", "dead", "cancelled", "skipped", "expired", "discarded")

LOSSES_LIMIT = 3
"""A run that has lost its worker so often is dead as poison (DESIGN P9)."""


class Transition(NamedTuple):
    """One legal move of a tick: `event` takes it from `source` to `target`, in one transaction of the store."""

    event: str
    source: str
    target: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("claim", "job", "waiting"),
    Transition("buffer", "job", "buffered"),
    Transition("buffer", "dead", "buffered"),
    Transition("skip", "job", "history:skipped"),
    Transition("cancel", "job", "history:cancelled"),
    Transition("follow", "buffered", "waiting"),
    Transition("begin", "waiting", "running"),
    Transition("begin", "retrying", "running"),
    Transition("dispatch", "waiting", "waiting"),
    Transition("dispatch", "retrying", "waiting"),
    Transition("succeed", "running", "history:succeeded"),
    Transition("fail", "running", "retrying"),
    Transition("snooze", "running", "retrying"),
    Transition("release", "running", "waiting"),
    Transition("lose", "running", "waiting"),
    Transition("exhaust", "running", "dead"),
    Transition("poison", "running", "dead"),
    Transition("cancel", "running", "history:cancelled"),
    Transition("cancel", "waiting", "history:cancelled"),
    Transition("cancel", "retrying", "history:cancelled"),
    Transition("cancel", "buffered", "history:cancelled"),
    Transition("expire", "waiting", "history:expired"),
    Transition("expire", "retrying", "history:expired"),
    Transition("expire", "buffered", "history:expired"),
    Transition("disclaim", "waiting", "dead"),
    Transition("disclaim", "retrying", "dead"),
    Transition("redrive", "dead", "waiting"),
    Transition("discard", "dead", "history:discarded"),
)


def sources(event: str) -> tuple[str, ...]:
    """Where a tick may be for `event` to move it."""
    return tuple(t.source for t in TRANSITIONS if t.event == event)


def targets(source: str) -> tuple[str, ...]:
    """Where a tick may go from `source`."""
    return tuple(sorted({t.target for t in TRANSITIONS if t.source == source}))


class Dispatch(NamedTuple):
    """A run under a dispatch number, ready to be published. Times are the store's.

    `args` is JSON text, None where it is too long for the message and comes with begin.
    """

    dispatch: int
    job_id: str
    scheduled_for: str
    queue: str
    handler: str
    tenant: str | None
    args: str | None
