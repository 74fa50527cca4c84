"""What standing duties go by instead of reading all runs.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("alter table rota.run set (fillfactor = 60)")
    op.execute("drop index rota.run_claimed")
    op.execute("alter table rota.duty drop column full_at, drop column low, drop column looked_at, drop column horizon")
    op.execute("alter table rota.member drop column settled")
