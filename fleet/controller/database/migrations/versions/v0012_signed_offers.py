"""Version of the assignment that first carried an offer: older reports say nothing about that offer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. What was signed before counts as signed under version 1: every report is newer."""
    op.add_column("desired", sa.Column("signed", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE desired SET signed = 1")


def downgrade() -> None:
    """Remove it."""
    op.drop_column("desired", "signed")
