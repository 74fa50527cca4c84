"""Autovacuum of each table, and what the duty that keeps history tells.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("alter table rota.duty drop column told")
    op.execute(
        "alter table rota.job set (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 1); "
        "alter table rota.run set (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 1)"
    )
    for table in ("member", "partition", "duty", "key", "dead"):
        op.execute(
            f"alter table rota.{table} reset (autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor, "
            "autovacuum_vacuum_cost_delay)"
        )
    op.execute("alter table rota.duty reset (fillfactor)")
