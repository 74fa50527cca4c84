"""The words of a schedule's policies (docs/time.md, docs/schedules.md)."""

from __future__ import annotations

from typing import Literal

DstGap = Literal["run_after", "shift", "skip"]
"""A tick that falls into a gap of local time: run right after it, shifted by its length, or not at all."""
DstOverlap = Literal["first", "last", "both", "skip"]
"""A tick whose local time comes twice."""
Misfire = Literal["run_latest", "run_earliest", "run_all", "skip"]
"""Ticks that were missed (nothing was there to claim them): which of them run late."""
Overlap = Literal["allow", "skip", "buffer_one", "buffer_all", "cancel_other"]
"""A tick that is due while a run of the same job is still alive: runs beside it, not at all, or after it; the last one has
that run cancelled."""
