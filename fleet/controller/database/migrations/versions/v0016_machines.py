"""Machine that uses a device's identity, and when two machines last did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. The next report of a device is the first that is known."""
    op.add_column("devices", sa.Column("machine", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("devices", sa.Column("used_twice", sa.BigInteger(), nullable=True))
    op.create_index("ix_devices_used_twice", "devices", ["used_twice"])


def downgrade() -> None:
    """Remove them."""
    op.drop_index("ix_devices_used_twice", "devices")
    op.drop_column("devices", "used_twice")
    op.drop_column("devices", "machine")
