"""Time and reason of the suspension of a device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no device is suspended."""
    op.add_column("devices", sa.Column("suspended", sa.BigInteger()))
    op.add_column("devices", sa.Column("suspended_because", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Remove them: suspended devices are accepted again."""
    op.drop_column("devices", "suspended_because")
    op.drop_column("devices", "suspended")
