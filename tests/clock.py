"""A store whose time the test sets: for what takes weeks, and for clocks that step.

Postgres looks up an unqualified now() or clock_timestamp() along the search path. A schema with two functions of these
names, put before pg_catalog by the connection's options, is another time under all of Rota's statements, and none of them
knows.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = """
create schema clock;
create table clock.time (at timestamptz not null, runs boolean not null);
insert into clock.time values (%s, false);
create function clock.clock_timestamp() returns timestamptz volatile language sql as $$
  select case when runs then at + (pg_catalog.clock_timestamp() - 'epoch'::timestamptz) else at end from clock.time $$;
create function clock.now() returns timestamptz stable language sql as $$
  select case when runs then at + (pg_catalog.now() - 'epoch'::timestamptz) else at end from clock.time $$;
"""
PATH = 'clock,pg_catalog,"$user",public'
DEFAULTS = """
select table_name, column_name from information_schema.columns
where table_schema = 'rota' and column_default = 'clock_timestamp()'
"""


class Clock:
    """The time of one database. It stands still, or runs from where it is set."""

    def __init__(self, store: str, at: datetime) -> None:
        self._db = psycopg.connect(store, autocommit=True)
        with psycopg.ClientCursor(self._db) as cursor:
            cursor.execute(SCHEMA, [at])
        for table, column in self._db.execute(DEFAULTS).fetchall():  # defaults are bound to the real function
            self._db.execute(
                sql.SQL("alter table rota.{} alter column {} set default clock.clock_timestamp()").format(
                    sql.Identifier(table), sql.Identifier(column)
                )
            )
        self.url = f"{store}?options={quote(f'-c search_path={PATH}')}"

    def close(self) -> None:
        self._db.close()

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """In the real time."""
        cursor = self._db.execute(text, params or None)
        return list(cursor.fetchall()) if cursor.description else []

    @property
    def now(self) -> datetime:
        ((now,),) = self.sql("select clock.clock_timestamp()")
        assert isinstance(now, datetime)
        return now.astimezone(UTC)

    def set(self, at: datetime) -> None:
        """It is that time now, and stays so if it stands still."""
        offset = "case when runs then %s - (pg_catalog.clock_timestamp() - 'epoch'::timestamptz) else %s end"
        self.sql(f"update clock.time set at = {offset}", at, at)

    def step(self, by: timedelta) -> None:
        """It is so much later, or earlier, all at once."""
        self.sql("update clock.time set at = at + %s", by)

    def run(self) -> None:
        """From now on it runs like any other."""
        self.sql(
            "update clock.time set runs = true, at = at - (pg_catalog.clock_timestamp() - 'epoch'::timestamptz) "
            "where not runs"
        )


def clock_of(store: str, at: datetime) -> Iterator[Clock]:
    """For fixtures: the clock of a migrated database."""
    with closing(Clock(store, at)) as found:
        yield found
