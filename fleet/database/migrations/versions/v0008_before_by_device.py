"""What was remembered of a device that is removed, or turns out to have had something, is found without a scan."""

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
