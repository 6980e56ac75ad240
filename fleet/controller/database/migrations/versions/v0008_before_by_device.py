"""Index on what a device had before a rollout's offer: found by device without a scan."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("ix_desired_before_device", "desired_before", ["device"])


def downgrade() -> None:
    """Remove it."""
    op.drop_index("ix_desired_before_device", "desired_before")
