"""Machine that uses a device's identity, and when two machines last did; suspension of a device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. The next report of a device is the first that is known, and no device is suspended."""
    op.add_column("devices", sa.Column("machine", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("devices", sa.Column("used_twice", sa.BigInteger(), nullable=True))
    op.create_index("ix_devices_used_twice", "devices", ["used_twice"])
    op.add_column("devices", sa.Column("suspended", sa.BigInteger()))
    op.add_column("devices", sa.Column("suspended_because", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Remove them: suspended devices are accepted again."""
    op.drop_index("ix_devices_used_twice", "devices")
    for name in ("suspended_because", "suspended", "used_twice", "machine"):
        op.drop_column("devices", name)
