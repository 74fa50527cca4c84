"""Alembic's way in: one transaction under one lock, so that many hosts may migrate at once."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import text

LOCK = 0x726F7461
"""Key of the advisory lock ("rota"); released by the transaction's end, so it works behind pgbouncer."""


def run() -> None:
    settings: dict[str, Any] = {"version_table": "migration", "version_table_schema": "rota"}
    prepare = (f"select pg_advisory_xact_lock({LOCK})", "create schema if not exists rota")
    if context.is_offline_mode():
        context.configure(dialect_name="postgresql", literal_binds=True, **settings)
        with context.begin_transaction():
            for statement in prepare:
                context.execute(statement)
            context.run_migrations()
        return
    connection = context.config.attributes["connection"]
    for statement in prepare:
        connection.execute(text(statement))
    context.configure(connection=connection, **settings)
    with context.begin_transaction():
        context.run_migrations()


run()
