"""Runs Alembic: the schema's steps are in `sched/store/migrations`."""

from __future__ import annotations

import io
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from rota.sched.store import migrations
from rota.sched.store.postgres.link import translate


def upgrade(engine_url: str) -> str:
    """Brings the schema up to date in one transaction under a lock; returns the version it has then."""
    engine = sa.create_engine(engine_url, poolclass=sa.NullPool)
    try:
        with engine.begin() as connection:
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            return str(connection.execute(sa.text("select version_num from rota.migration")).scalar_one())
    except sa.exc.DBAPIError as error:
        raise translate(error.orig if isinstance(error.orig, Exception) else error) from None
    finally:
        engine.dispose()


def upgrade_sql() -> str:
    """The statements that `upgrade` would run on an empty database."""
    text = io.StringIO()
    command.upgrade(_config(text), "head", sql=True)
    return text.getvalue()


def _config(output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    return config
