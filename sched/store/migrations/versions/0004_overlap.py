"""Overlap policies that have ticks wait, jobs that end after a number of runs, and what runs are told of missed ticks.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("alter table rota.job drop column runs_left, drop column missed")
    op.execute("alter table rota.run drop column followed, drop column catchup, drop column missed")
    op.execute("alter table rota.dead drop column catchup, drop column missed")
