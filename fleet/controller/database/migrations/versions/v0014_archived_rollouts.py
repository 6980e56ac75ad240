"""Time at which a rollout was archived: lists leave it out from then on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no rollout is archived."""
    op.add_column("rollouts", sa.Column("archived", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Remove it: lists show every rollout again."""
    op.drop_column("rollouts", "archived")
