"""Databases of one's own on a Postgres server. Needs psycopg, so the virtual environment."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


def create_database(server: str, name: str, template: str = "template1") -> str:
    """Make a database, unless it is there, as a copy of `template`; returns its URL. `server` is any database's URL."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(server, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            # A copy is refused while anybody, autovacuum too, is connected to the template.
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [template])
            connection.execute(statement)
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def drop_database(server: str, name: str) -> None:
    """Drop a database, whoever is connected to it; none of that name is fine."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
