"""Attempt numbers of offers, and what a device had before a rollout offered it something."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, create the table."""
    op.add_column("desired", sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "desired_before",
        sa.Column("rollout", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_desired_before_device"),
        sa.ForeignKeyConstraint(["rollout"], ["rollouts.id"], name="fk_desired_before_rollout"),
        sa.PrimaryKeyConstraint("rollout", "device", name="pk_desired_before"),
    )


def downgrade() -> None:
    """Drop both with what they hold."""
    op.drop_table("desired_before")
    op.drop_column("desired", "attempt")
