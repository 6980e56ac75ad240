"""Removals that devices are ordered to carry out; until now a slot that an assignment left out was one."""

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
    """Remove it; devices of that time take a slot that is left out for a removal."""
    op.drop_table("removals")
