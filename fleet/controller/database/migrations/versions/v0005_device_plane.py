"""Basis of assignments, and digests of the keys of certificates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("assignments", sa.Column("basis", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("certificates", sa.Column("key_digest", sa.Text(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    """Remove them with what they hold."""
    op.drop_column("certificates", "key_digest")
    op.drop_column("assignments", "basis")
