"""Policies of single jobs, expiry, checkpoints, reasons of cancels and the lineage of redrives.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("drop index rota.run_ready")
    op.execute("create index run_ready on rota.run (part, ready_at) where ready_at is not null")
    op.execute("alter table rota.job drop column policy")
    op.execute(
        "alter table rota.run drop column policy, drop column expires_at, drop column checkpoint, drop column progress, "
        "drop column unknown_since, drop column cancel_reason, drop column lineage"
    )
    op.execute("alter table rota.dead drop column policy, drop column lineage")
    op.execute("alter table rota.history drop column lineage")
    op.execute("alter table rota.handler drop column options")
