"""Transactions inside the caller's own: on a connection of psycopg or SQLAlchemy that somebody else commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from rota.sched.errors import RotaError, UsageError
from rota.sched.store.postgres.link import drive, drive_async, translate
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

if TYPE_CHECKING:
    from rota.sched.store.transaction import Transaction

T = TypeVar("T")

_SAVE, _UNDO, _KEEP = "savepoint rota_step", "rollback to savepoint rota_step", "release savepoint rota_step"


def run_on(connection: object, txn: Transaction[T]) -> T:
    """Runs a transaction's steps on the caller's connection and commits nothing.

    `connection`: a `psycopg.Connection`, or SQLAlchemy's `Connection` or `Session` over psycopg. UsageError for
    anything else, and for a connection that commits each statement by itself. Whatever is raised, the caller's
    transaction is as
    it was before and can go on.
    """
    mine = _PlainRows(_driver(connection))
    try:
        mine.execute(_SAVE)
        try:
            value = drive(cast("psycopg.Connection[Any]", mine), txn.steps())
        except (RotaError, psycopg.Error):
            mine.execute(_UNDO)
            raise
        mine.execute(_KEEP)
    except psycopg.Error as error:
        raise translate(error) from error
    return value


async def run_on_async(connection: object, txn: Transaction[T]) -> T:
    """The asyncio twin of `run_on`: `psycopg.AsyncConnection`, SQLAlchemy's `AsyncConnection` or `AsyncSession`."""
    mine = _AsyncPlainRows(await _async_driver(connection))
    try:
        await mine.execute(_SAVE)
        try:
            value = await drive_async(cast("psycopg.AsyncConnection[Any]", mine), txn.steps())
        except (RotaError, psycopg.Error):
            await mine.execute(_UNDO)
            raise
        await mine.execute(_KEEP)
    except psycopg.Error as error:
        raise translate(error) from error
    return value


class _PlainRows:
    """The caller's connection, with rows as tuples whatever its row factory is."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: Any, params: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.cursor(row_factory=tuple_row).execute(sql, params)


class _AsyncPlainRows:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, sql: Any, params: Any = None) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        return await self._connection.cursor(row_factory=tuple_row).execute(sql, params)


def _driver(connection: object) -> psycopg.Connection[Any]:
    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if isinstance(connection, sa.Connection):
        if not connection.in_transaction():
            connection.begin()  # else SQLAlchemy would not know that there is something to commit
        connection = connection.connection.driver_connection
    if not isinstance(connection, psycopg.Connection):
        raise _wrong(connection, "a psycopg.Connection, or SQLAlchemy's Connection or Session over psycopg 3")
    _check_transaction(connection)
    return connection


async def _async_driver(connection: object) -> psycopg.AsyncConnection[Any]:
    if isinstance(connection, AsyncSession):
        connection = await connection.connection()
    if isinstance(connection, AsyncConnection):
        if not connection.in_transaction():
            await connection.begin()
        connection = (await connection.get_raw_connection()).driver_connection
    if not isinstance(connection, psycopg.AsyncConnection):
        wanted = "a psycopg.AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession over psycopg 3"
        raise _wrong(connection, wanted)
    _check_transaction(connection)
    return connection


def _wrong(connection: object, wanted: str) -> UsageError:
    return UsageError(f"connection is a {type(connection).__module__}.{type(connection).__qualname__}: give {wanted}")


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise UsageError(
            "connection is in autocommit mode and outside a transaction, so there is nothing to take part in: "
            "open one (`with connection.transaction():`), or leave `connection` out"
        )
