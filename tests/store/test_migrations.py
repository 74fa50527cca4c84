"""From each older version the schema comes to what a new store has."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from rota.sched.store import open_store
from rota.sched.store.postgres.migrate import _config

OLDER = ("0001", "0002", "0003", "0004", "0005", "0006")
COLUMNS = """
select table_name::text, column_name::text, data_type::text, is_nullable::text, column_default::text
from information_schema.columns where table_schema = 'rota' order by 1, 2
"""
DAY_OPTIONS = """
do $$ begin execute format('alter table rota.history_%s set (autovacuum_freeze_min_age = 0,
  autovacuum_vacuum_insert_threshold = 10000)', to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')); end $$
"""
OPTIONS = (
    "select relname::text, reloptions from pg_class where relnamespace = 'rota'::regnamespace and relkind in ('r', 'p')"
)


def look(url):
    with psycopg.connect(url) as connection:
        options = {name: sorted(found or []) for name, found in connection.execute(OPTIONS).fetchall()}
        return connection.execute(COLUMNS).fetchall(), options


@pytest.mark.parametrize("version", OLDER)
def test_a_store_of_an_older_version_becomes_like_a_new_one(empty_store_url, store_url, version):
    engine = sa.create_engine(empty_store_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, version)
        connection.execute(
            sa.text(
                "do $$ begin execute format('create table rota.history_%s partition of rota.history for values from (%L) to (%L)',"
                " to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD'),"
                " date_trunc('day', clock_timestamp() at time zone 'utc')::text || '+00',"
                " (date_trunc('day', clock_timestamp() at time zone 'utc') + interval '1 day')::text || '+00'); end $$"
            )
        )
        if version >= "0006":
            connection.execute(sa.text(DAY_OPTIONS))
    with closing(open_store(empty_store_url)) as store:
        store.migrate()
    assert look(empty_store_url) == look(store_url)


def test_the_latest_step_can_be_taken_back_and_forth(store_url):
    before = look(store_url)
    engine = sa.create_engine(store_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    for step, where in ((command.downgrade, "0006"), (command.upgrade, "head")):
        with engine.begin() as connection:
            config = _config()
            config.attributes["connection"] = connection
            step(config, where)
    assert look(store_url) == before
