"""What the product's own statements cost, by name, from pg_stat_statements.

The server tells a statement's text with its constants replaced. The product's texts, which are constants of the modules
below, are reduced in the same way and so give it a name; what is none of these goes by its first words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rota.sched.store.postgres import duties, link, members, reading, scheduling, submission, turns, working

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

_MODULES = (scheduling, working, submission, duties, members, turns, reading, link)
_CONSTANT = re.compile(r"-?(%\(\w+\)s|%s|\$\d+|'[^']*'|\b\d+(\.\d+)?\b|\b(null|true|false)\b)", re.IGNORECASE)
_EXTRACT = re.compile(r"extract\((\w+|\$\d+)(?=\s)")
_COUNTED = """
select query, calls, rows, total_exec_time, shared_blks_hit + shared_blks_read, wal_bytes, wal_records, wal_fpi
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and query not like '%%pg_stat_statements%%' and toplevel
"""
_COUNTS = "select count(*)::int from (select from rota."
FRAME = "begin, set, commit"
"""What surrounds a transaction."""
RECOVERY = (
    *(
        "glance",
        "mark_dead",
        "unsettled",
        "orphans",
        "hold",
        "cancel",
        "poison",
        "requeue",
        "strays",
        "adopt",
        "settle",
    ),
    *("stranded", "free", "expire", "again"),
)
"""The statements of one round of recovery, by name."""


class Counted(NamedTuple):
    """Of all calls of a statement, or of several together."""

    calls: int = 0
    rows: int = 0
    ms: float = 0.0
    """Execution on the server."""
    buffers: int = 0
    """Shared buffers touched, found in memory or not."""
    wal_bytes: int = 0
    wal_records: int = 0
    wal_full_pages: int = 0

    def __add__(self, other: object) -> Counted:
        """Both together."""
        assert isinstance(other, Counted)
        return Counted._make(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: Counted) -> Counted:
        """What came after `other`."""
        return Counted._make(a - b for a, b in zip(self, other, strict=True))


class Statements:
    """The counters of one database."""

    def __init__(self, db: psycopg.Connection) -> None:
        self._db = db
        self._names = {
            _reduced(text): name.lower().removesuffix("_unfollowed")
            for module in _MODULES
            for name, text in vars(module).items()
            if name.isupper() and isinstance(text, str)
        }
        db.execute("create extension if not exists pg_stat_statements")

    def reset(self) -> None:
        """From now on."""
        self._db.execute("select pg_stat_statements_reset()")

    def read(self) -> dict[str, Counted]:
        """Since the last reset, by name."""
        found: dict[str, Counted] = {}
        for text, calls, rows, ms, *rest in self._db.execute(_COUNTED):
            name = self._name(text)
            found[name] = found.get(name, Counted()) + Counted(calls, rows, ms, *map(int, rest))
        return found

    def _name(self, text: str) -> str:
        if text.split(maxsplit=1)[0].lower() in {"begin", "set", "commit", "rollback"}:
            return FRAME
        return self._names.get(_reduced(text)) or " ".join(text.split())[:60]


def total(found: Mapping[str, Counted], names: Iterable[str]) -> Counted:
    """Several together; those that were not called count nothing."""
    return sum((found.get(name, Counted()) for name in names), Counted())


def since(before: Mapping[str, Counted], after: Mapping[str, Counted]) -> dict[str, Counted]:
    """What was counted between two readings."""
    return {name: counted - before.get(name, Counted()) for name, counted in after.items()}


def of_status(found: Mapping[str, Counted]) -> Counted:
    """All statements of `rota status`; its calls are those of the picture."""
    names = [name for name in found if name.startswith(("status_", _COUNTS))]
    return total(found, names)._replace(calls=found.get("status_members", Counted()).calls)


def _reduced(text: str) -> str:
    """Without constants and white space. What `extract` extracts is a constant for the server."""
    without = _CONSTANT.sub("?", _EXTRACT.sub("extract('x'", text.replace("%%", "%")))
    return re.sub(r"\s+", "", without).lower()
