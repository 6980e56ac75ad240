"""Removals that devices are ordered to carry out; before, a slot left out of an assignment was a removal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "removals",
        sa.Column("device", sa.Text(), sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("slot", sa.Text(), primary_key=True),
    )


def downgrade() -> None:
    """Drop it; devices of that time treat a slot that is left out as a removal."""
    op.drop_table("removals")
