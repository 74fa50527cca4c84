"""Connections that run transactions: the asyncio and the synchronous one.

Both do the same in the same order: begin (as session.py has it), drive the steps, commit; what is one statement runs by
itself, which saves two round trips. A deadlock or serialization failure starts anew, a bounded number of
times; a missing day of history is made. A lost connection is Unreachable, and then the outcome is unknown: whoever
calls decides what a repetition means.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors
from rota.sched.errors import NotMigrated, RotaError, StoreFault, Unreachable, UsageError
from rota.sched.store.postgres.days import make_days
from rota.sched.store.postgres.session import BACKEND, STATEMENT_SECONDS, Session

if TYPE_CHECKING:
    from psycopg import sql
    from rota.sched.store.transaction import Query, Rows, Steps, Transaction

T = TypeVar("T")

_TRIES = 6
# A session that may only read is one with a standby, or with a primary of yesterday: another connection finds today's.
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction, OSError, TimeoutError)
_PASSING = {"08", "25", "40", "53", "55", "57", "58"}
"""Classes of SQLSTATE that pass: lost connections, standbys, lack of resources, shutdowns, timeouts."""


def connect_options(purpose: str) -> dict[str, Any]:
    """How every connection is made: bounded waits, dead peers noticed, its purpose visible in pg_stat_activity."""
    return {
        "autocommit": True,
        "application_name": f"rota {purpose}",
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }


def translate(error: Exception) -> RotaError:
    """A driver's error as one of ours, with the remedy."""
    if isinstance(error, (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn)):
        return NotMigrated(
            f"the store has no schema for this version of Rota ({_first_line(error)}): run `rota migrate`"
        )
    if isinstance(error, (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)):
        return Unreachable(f"the store refuses: {_first_line(error)}; check ROTA_STORE")
    if isinstance(error, errors.InsufficientPrivilege):
        return Unreachable(f"the store's user may not do this: {_first_line(error)}")
    if isinstance(error, psycopg.DataError):
        return UsageError(f"the store refuses a value: {_first_line(error)}")
    state = getattr(error, "sqlstate", None)
    if state is not None and state[:2] not in _PASSING:
        return StoreFault(f"the store refuses: {type(error).__name__}: {_first_line(error)}; see its log")
    standby = isinstance(error, errors.ReadOnlySqlTransaction)
    hint = "does ROTA_STORE lead to a standby?" if standby else "is Postgres up, is ROTA_STORE right?"
    return Unreachable(f"the store cannot be {'written' if standby else 'reached'}: {_first_line(error)}; {hint}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _again(error: Exception, tries: int) -> bool:
    """Whether a transaction is worth another try at once."""
    return tries < _TRIES and isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure))


def _day_is_missing(error: Exception) -> bool:
    return isinstance(error, errors.CheckViolation) and "no partition of relation" in str(error)


def _missing_days() -> Steps[None]:
    yield from make_days(-1, 2)


class AsyncLink:
    """One asyncio connection for one purpose. It opens itself when it is needed and closes on any doubt."""

    def __init__(self, url: str, purpose: str) -> None:
        self._url = url
        self._purpose = purpose
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._session: Session | None = None
        self._lock = asyncio.Lock()

    @property
    def pooled(self) -> bool:
        """Whether the connection in use goes through a pooler."""
        return self._session is not None and self._session.pooled

    async def run(self, txn: Transaction[T]) -> T:
        """Runs one transaction; Unreachable means that its outcome is unknown."""
        async with self._lock:
            for tries in range(1, _TRIES + 1):
                try:
                    async with asyncio.timeout(STATEMENT_SECONDS + 10):
                        return await self._once(txn)
                except asyncio.CancelledError:
                    await self._drop()
                    raise
                except (psycopg.Error, OSError, TimeoutError) as error:
                    if _again(error, tries):
                        await self._rollback()
                    elif _day_is_missing(error) and tries < _TRIES:
                        await self._rollback()
                        await drive_async(await self.connection(), _missing_days())
                    else:
                        await self._settle(error)
                        raise translate(error) from error
                except BaseException:
                    await self._rollback()
                    raise
        raise AssertionError("unreachable")

    async def _once(self, txn: Transaction[T]) -> T:
        connection = await self.connection()
        assert self._session is not None
        if self._session.alone(txn):
            if (choices := self._session.switch(txn)) is not None:
                await connection.execute(choices, prepare=False)
            return await drive_async(connection, txn.steps())
        connection = await self._begin(txn)
        value = await drive_async(connection, txn.steps())
        await connection.execute("commit", prepare=False)
        return value

    async def _begin(self, txn: Transaction[Any]) -> psycopg.AsyncConnection[Any]:
        """Begins on the kept connection, or on another one if that was lost since it was used: nothing is in doubt yet."""
        kept = self._connection is not None and not self._connection.closed
        connection = await self.connection()
        try:
            await connection.execute(self._how(txn), prepare=False)
        except psycopg.OperationalError:
            if not kept:
                raise
            await self._drop()
            connection = await self.connection()
            await connection.execute(self._how(txn), prepare=False)
        return connection

    def _how(self, txn: Transaction[Any]) -> sql.SQL:
        assert self._session is not None
        return self._session.begin(txn)

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """The open connection."""
        if self._connection is None or self._connection.closed:
            try:
                self._connection = await psycopg.AsyncConnection.connect(self._url, **connect_options(self._purpose))
                cursor = await self._connection.execute(BACKEND, prepare=False)
                self._session = Session(self._connection, (await cursor.fetchall())[0][0])
                if (greeting := self._session.greeting()) is not None:
                    await self._connection.execute(greeting, prepare=False)
            except psycopg.Error as error:
                await self._drop()
                raise translate(error) from error
        return self._connection

    async def _rollback(self) -> None:
        try:
            if self._connection is not None and not self._connection.closed:
                await self._connection.execute("rollback", prepare=False)
        except (psycopg.Error, OSError):
            await self._drop()

    async def _settle(self, error: Exception) -> None:
        if isinstance(error, _LOST):
            await self._drop()
        else:
            await self._rollback()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Closes the connection; the link may be used again."""
        await self._drop()


class Link:
    """The synchronous twin: for heartbeat threads and the client."""

    def __init__(self, url: str, purpose: str) -> None:
        self._url = url
        self._purpose = purpose
        self._connection: psycopg.Connection[Any] | None = None
        self._session: Session | None = None

    def run(self, txn: Transaction[T]) -> T:
        """Runs one transaction; Unreachable means that its outcome is unknown."""
        for tries in range(1, _TRIES + 1):
            try:
                return self._once(txn)
            except (psycopg.Error, OSError) as error:
                if _again(error, tries):
                    self._rollback()
                elif _day_is_missing(error) and tries < _TRIES:
                    self._rollback()
                    drive(self.connection(), _missing_days())
                else:
                    self._settle(error)
                    raise translate(error) from error
            except BaseException:
                self._rollback()
                raise
        raise AssertionError("unreachable")

    def _once(self, txn: Transaction[T]) -> T:
        connection = self.connection()
        assert self._session is not None
        if self._session.alone(txn):
            if (choices := self._session.switch(txn)) is not None:
                connection.execute(choices, prepare=False)
            return drive(connection, txn.steps())
        connection = self._begin(txn)
        value = drive(connection, txn.steps())
        connection.execute("commit", prepare=False)
        return value

    def _begin(self, txn: Transaction[Any]) -> psycopg.Connection[Any]:
        """Begins on the kept connection, or on another one if that was lost since it was used: nothing is in doubt yet."""
        kept = self._connection is not None and not self._connection.closed
        connection = self.connection()
        try:
            connection.execute(self._how(txn), prepare=False)
        except psycopg.OperationalError:
            if not kept:
                raise
            self.close()
            connection = self.connection()
            connection.execute(self._how(txn), prepare=False)
        return connection

    def _how(self, txn: Transaction[Any]) -> sql.SQL:
        assert self._session is not None
        return self._session.begin(txn)

    def connection(self) -> psycopg.Connection[Any]:
        """The open connection."""
        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.Connection.connect(self._url, **connect_options(self._purpose))
                cursor = self._connection.execute(BACKEND, prepare=False)
                self._session = Session(self._connection, cursor.fetchall()[0][0])
                if (greeting := self._session.greeting()) is not None:
                    self._connection.execute(greeting, prepare=False)
            except psycopg.Error as error:
                self.close()
                raise translate(error) from error
        return self._connection

    def _rollback(self) -> None:
        try:
            if self._connection is not None and not self._connection.closed:
                self._connection.execute("rollback", prepare=False)
        except (psycopg.Error, OSError):
            self.close()

    def _settle(self, error: Exception) -> None:
        if isinstance(error, _LOST):
            self.close()
        else:
            self._rollback()

    def close(self) -> None:
        """Closes the connection; the link may be used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def drive(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Runs steps on a connection whose transaction is the caller's business."""
    rows: Rows | None = None
    try:
        query: Query = next(steps)
        while True:
            cursor = connection.execute(query.sql, query.params)
            rows = cursor.fetchall() if cursor.description else []
            query = steps.send(rows)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()


async def drive_async(connection: psycopg.AsyncConnection[Any], steps: Steps[T]) -> T:
    """The asyncio twin of `drive`."""
    try:
        query: Query = next(steps)
        while True:
            cursor = await connection.execute(query.sql, query.params)
            query = steps.send(await cursor.fetchall() if cursor.description else [])
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()
