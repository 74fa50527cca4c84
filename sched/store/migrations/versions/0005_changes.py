"""Changes of stored jobs: their version, who changed, paused or triggered them, and pauses of queues.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute(
        "alter table rota.job drop column version, drop column changes, drop column paused_by, drop column paused_at"
    )
    op.execute("alter table rota.queue drop column paused_by, drop column paused_reason, drop column paused_at")
