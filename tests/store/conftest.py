"""The conformance suite's testbed on Postgres, and SQL for what only Postgres has."""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

pytest.register_assert_rewrite("rota.sched.store.conformance")

from rota.sched.store import open_store  # noqa: E402 - after the line above
from rota.sched.store.conformance import House  # noqa: E402

from tests.conftest import BOUND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = """
select table_name, array_agg(column_name::text) from information_schema.columns
where table_schema = 'rota' and data_type = 'timestamp with time zone' and table_name !~ '^(member|history)'
  and (table_name, column_name) not in (('run', 'scheduled_for'), ('dead', 'scheduled_for'))
group by table_name
"""


class PostgresTestbed:
    """A clean, migrated database. Time passes in its rows."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def sql(self, text: Any, *params: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(text, params or None)
        return list(cursor.fetchall()) if cursor.description else []

    @cached_property
    def _times(self) -> list[tuple[Any, ...]]:
        return self.sql(TIMES)

    def pass_time(self, seconds: float) -> None:
        for table, columns in self._times:
            older = [
                sql.SQL("{0} = {0} - make_interval(secs => {1})").format(sql.Identifier(c), seconds) for c in columns
            ]
            self.sql(sql.SQL("update rota.{} set {}").format(sql.Identifier(table), sql.SQL(", ").join(older)))

    def silence(self, member: int) -> None:
        self.sql("update rota.member set beat_at = beat_at - interval '1 hour' where id = %s", member)


class PostgresHouse(House):
    """With SQL, for tests of what only Postgres has."""

    bed: PostgresTestbed

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.bed.sql(text, *params)

    def look_at_all(self) -> None:
        """The next round of recovery is a full one."""
        self.sql("update rota.duty set full_at = clock_timestamp() where name = 'recovery'")


def heard(ear: psycopg.Connection[Any], house: PostgresHouse) -> list[str]:
    """What `ear` was told by the store until now: notifications come in the order of the commits, then a mark of our own."""
    house.sql(f"notify {house.store.wake_channel}, 'mark'")
    return list(
        itertools.takewhile(lambda told: told != "mark", (note.payload for note in ear.notifies(timeout=BOUND)))
    )


@pytest.fixture
def house(store_url: str) -> Iterator[PostgresHouse]:
    with closing(PostgresTestbed(store_url)) as bed, closing(PostgresHouse(bed)) as house:
        yield house
