"""What is set on connections and transactions: bounds of every wait, and the planner's choices for hot statements.

A connection of our own is set up once, and a transaction of it has only to begin. Behind a pooler in transaction mode
the session may be another one each time: there everything is set anew in each transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg
    from rota.sched.store.transaction import Transaction

STATEMENT_SECONDS = 30
"""Bound of one statement on the server; the client waits a little longer and then drops the connection."""

IDLE_SECONDS = 10
"""A process that stands still inside a transaction loses it after this, and the locks with it."""

# To compile a statement takes longer than any of ours runs: 50 ms for the first of a connection, 10 for each more.
_BOUNDS = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
    "jit": "off",
}
# With fresh statistics on a nearly empty table the planner has chosen a scan of everything.
_CHOICES = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan")
BACKEND = "select pg_backend_pid()"


class Session:
    """The state of one connection, as far as we have set it. `backend`: what BACKEND answers on it."""

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], backend: int) -> None:
        self.pooled = pooled(connection, backend)
        self._pinned = False

    def greeting(self) -> sql.SQL | None:
        """What is to be run once on the new connection."""
        return None if self.pooled else sql.SQL(_set("set", _BOUNDS))

    def begin(self, txn: Transaction[Any]) -> sql.SQL:
        """How the transaction begins."""
        local = dict(_BOUNDS) if self.pooled else {}
        if txn.pinned != self._pinned:
            local |= _choices(txn.pinned)
        return sql.SQL(f"begin; {_set('set local', local)}" if local else "begin")

    def alone(self, txn: Transaction[Any]) -> bool:
        """Whether it can do without a transaction block: it is one statement, and all it needs is set on the session."""
        return txn.single and not self.pooled

    def switch(self, txn: Transaction[Any]) -> sql.SQL | None:
        """What is to be run before the statement of a transaction that is `alone`. Outside of any transaction."""
        if txn.pinned == self._pinned:
            return None
        self._pinned = txn.pinned
        return sql.SQL(_set("set", _choices(txn.pinned)))


def pooled(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], backend: int) -> bool:
    """Whether a pooler stands between: the server's process (the answer to BACKEND) is not the one that greeted us.

    In transaction mode each transaction may get another session: a statement prepared in one is unknown, or another
    one, in the next. So nothing is prepared on such a connection from then on.
    """
    if backend == connection.info.backend_pid:
        return False
    connection.prepare_threshold = None
    return True


def _choices(pinned: bool) -> dict[str, str]:  # noqa: FBT001 - a word of the transaction
    return dict.fromkeys(_CHOICES, "off" if pinned else "on")


def _set(how: str, values: dict[str, str]) -> str:
    return "; ".join(f"{how} {name} = '{value}'" for name, value in values.items())
