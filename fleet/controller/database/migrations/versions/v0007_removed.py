"""Time of a device's removal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("devices", sa.Column("removed", sa.BigInteger()))


def downgrade() -> None:
    """Remove it: devices that were removed are shown again, as revoked ones."""
    op.drop_column("devices", "removed")
