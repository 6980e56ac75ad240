"""Alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "alerts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("calm", sa.BigInteger(), nullable=True),
        sa.Column("opened", sa.BigInteger(), nullable=True),
        sa.Column("closed", sa.BigInteger(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'open', 'closed')", name=op.f("ck_alerts_state")),
        sa.PrimaryKeyConstraint("key", name="pk_alerts"),
    )
    op.create_index("ix_alerts_state_rule", "alerts", ["state", "rule"], unique=False)
    op.create_index("ix_alerts_device", "alerts", ["device"], unique=False)


def downgrade() -> None:
    """Drop it with what it holds."""
    op.drop_table("alerts")
