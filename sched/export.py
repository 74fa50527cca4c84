"""A day of history as a file: gzip'ed JSON lines, one for each ended run, with the keys of `rota runs --history --json`.

A day is read in portions, each a short transaction: memory is bounded, however many runs ended on it, and no snapshot is held
that would keep dead rows elsewhere. Rows of history never change, so a day that is over is the same bytes each time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

from rota.sched.errors import NotFound, NotMigrated, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rota.sched.client import Client
    from rota.sched.store.views import HistoryView

BLOCKS = 16
"""Blocks of the day's table that are read at once: some hundreds of runs."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `bytes` and `sha256` are the compressed file's. Not `complete`: the day is not over."""

    day: str
    rows: int
    bytes: int
    sha256: str
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """With the keys day, rows, bytes, sha256, complete."""
        return asdict(self)


def day_named(text: str, history: HistoryView) -> str:
    """The day (YYYY-MM-DD) that `text` names: itself, or `today` or `yesterday` by the store's clock, in UTC.

    Raises UsageError for other text, NotFound for a day that history does not have.
    """
    today = datetime.fromisoformat(history.now).date()
    relative = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        day = str(relative.get(text) or date.fromisoformat(text))
    except ValueError:
        raise UsageError(f"--day is {text!r}: give a day (UTC) such as 2026-11-30, or yesterday") from None
    if day not in [each.day for each in history.days]:
        past = [each.day for each in history.days if not each.open]
        there = f"from {past[0]} to {past[-1]}" if past else "of none that is over"
        raise NotFound(f"there is no history of {day}: it was dropped, or is yet to come; there is that {there}")
    return day


def export_day(client: Client, day: str, sink: BinaryIO, progress: Callable[[int, int], None]) -> Exported:
    """Writes a day (YYYY-MM-DD) to `sink`. `progress` is called with the blocks that are read and how many there are.

    Raises NotFound if the day is dropped meanwhile.
    """
    history = client.run(client.store.days())
    (found,) = [each for each in history.days if each.day == day_named(day, history)]
    counted = _Counted(sink)
    rows = 0
    try:
        blocks = client.run(client.store.extent(day)) or 0
        with gzip.GzipFile(filename="", mode="wb", fileobj=counted, mtime=0) as packed:
            for first in range(0, blocks, BLOCKS):
                last = min(first + BLOCKS, blocks)
                for row in client.run(client.store.read_day(day, first, last)):
                    packed.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                    rows += 1
                progress(last, blocks)
    except NotMigrated:
        raise NotFound(
            f"day {day} was dropped while it was exported: ROTA_HISTORY_KEEP of the schedulers was over"
        ) from None
    return Exported(day, rows, counted.bytes, counted.digest.hexdigest(), not found.open)


@contextmanager
def whole_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete and on the disk; until then it is beside it, and goes on errors.

    Raises Refused if there is one already, unless with `force`, or if it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _free(path, force=force)
        try:
            with part.open("xb") as sink:
                yield sink
                sink.flush()
                os.fsync(sink.fileno())
            _free(path, force=force)
            part.replace(path)
            _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror or error}; give another --out") from error


def _free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise Refused(f"{path} is there already: give --force to replace it, or another --out")


def _sync(folder: Path) -> None:
    """The new name is on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Counted:
    """Passes on what is written, and knows its length and hash."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        self.digest.update(data)
        return self._sink.write(data)

    def flush(self) -> None:
        self._sink.flush()
