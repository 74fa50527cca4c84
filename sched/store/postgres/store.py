"""PostgresStore: the statements under one roof, its links, and its migrations."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import errors
from rota.sched.errors import UsageError
from rota.sched.store.postgres.changing import ChangingStatements
from rota.sched.store.postgres.dead import DeadStatements
from rota.sched.store.postgres.duties import DutyStatements
from rota.sched.store.postgres.health import HealthStatements
from rota.sched.store.postgres.link import AsyncLink, Link, connect_options, drive, drive_async
from rota.sched.store.postgres.members import MemberStatements
from rota.sched.store.postgres.reading import ReadingStatements
from rota.sched.store.postgres.retention import RetentionStatements
from rota.sched.store.postgres.scheduling import SchedulingStatements
from rota.sched.store.postgres.session import BACKEND, pooled
from rota.sched.store.postgres.submission import SubmissionStatements
from rota.sched.store.postgres.text import WAKE_CHANNEL
from rota.sched.store.postgres.working import WorkingStatements
from rota.sched.urls import mask

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rota.sched.store.transaction import Transaction
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")


class PostgresStore(
    SubmissionStatements,
    ChangingStatements,
    DeadStatements,
    SchedulingStatements,
    WorkingStatements,
    MemberStatements,
    DutyStatements,
    RetentionStatements,
    ReadingStatements,
    HealthStatements,
):
    """The store on PostgreSQL. Everything lives in the schema `rota` of the URL's database."""

    wake_channel = WAKE_CHANNEL

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            bad = not parts.path.strip("/") or parts.port == 0
        except ValueError:
            bad = True
        if bad:
            raise UsageError(f"store URL {mask(url)!r}: expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
        scheme, _, rest = url.partition("://")
        self.url = f"postgresql://{rest}"
        self._engine_url = f"postgresql+psycopg://{rest}"
        self.masked_url = f"{scheme}://{mask(url).partition('://')[2]}"

    def link(self, purpose: str) -> Link:
        """A synchronous connection, opened at first use."""
        return Link(self.url, purpose)

    def async_link(self, purpose: str) -> AsyncLink:
        """An asyncio connection, opened at first use."""
        return AsyncLink(self.url, purpose)

    def engine(self, purpose: str, size: int) -> sa.Engine:
        """A pool of `size` connections for handlers' transactions."""
        import sqlalchemy as sa  # noqa: PLC0415 - only workers' handlers need it, and it takes a quarter of a second

        engine = sa.create_engine(self._engine_url, **self._pool(purpose, size))
        sa.event.listen(engine, "connect", _spare_poolers)
        sa.event.listen(engine, "handle_error", _leave_standbys)
        return engine

    def async_engine(self, purpose: str, size: int) -> AsyncEngine:
        """The asyncio twin of `engine`."""
        import sqlalchemy as sa  # noqa: PLC0415 - as above
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        engine = create_async_engine(self._engine_url, **self._pool(purpose, size))
        sa.event.listen(engine.sync_engine, "connect", _spare_poolers)
        sa.event.listen(engine.sync_engine, "handle_error", _leave_standbys)
        return engine

    @staticmethod
    def drive(connection: sa.Connection, txn: Transaction[T]) -> T:
        """Runs a transaction's statements as a part of the one that is open on `connection`."""
        if not connection.in_transaction():
            connection.begin()
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        try:
            return drive(driver, txn.steps())
        except errors.ReadOnlySqlTransaction:
            connection.invalidate()
            raise

    @staticmethod
    async def adrive(connection: AsyncConnection, txn: Transaction[T]) -> T:
        """The asyncio twin of `drive`."""
        if not connection.in_transaction():
            await connection.begin()
        raw = await connection.get_raw_connection()
        driver = raw.driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        try:
            return await drive_async(driver, txn.steps())
        except errors.ReadOnlySqlTransaction:
            await connection.invalidate()
            raise

    @staticmethod
    def _pool(purpose: str, size: int) -> dict[str, Any]:
        options = connect_options(purpose)
        del options["autocommit"]
        return {
            "pool_size": size,
            "max_overflow": 0,
            "pool_timeout": 30,
            "pool_pre_ping": True,
            "connect_args": options,
        }

    def migrate(self) -> str:
        """Brings the schema up to date under a lock; idempotent. Returns the version it has then."""
        from rota.sched.store.postgres.migrate import upgrade  # noqa: PLC0415 - as above

        version = upgrade(self._engine_url)
        with closing(self.link("migrate")) as link:
            link.run(self.make_history())
        return version

    @staticmethod
    def migration_sql() -> str:
        """The statements that `migrate` would run on an empty database."""
        from rota.sched.store.postgres.migrate import upgrade_sql  # noqa: PLC0415 - as above

        return upgrade_sql()

    def close(self) -> None:
        """Nothing to close: links and engines belong to who opened them."""


def _spare_poolers(connection: Any, _record: object) -> None:
    """For each new connection of an engine, what a link does for its own."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(BACKEND)
        ((backend,),) = cursor.fetchall()
    connection.rollback()
    pooled(getattr(connection, "driver_connection", connection), backend)


def _leave_standbys(context: sa.ExceptionContext) -> None:
    """A connection that may only read is not put back into its pool, nor are those that were opened before it."""
    if isinstance(context.original_exception, errors.ReadOnlySqlTransaction):
        context.is_disconnect = True
