"""Record of the fleet's device CA."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; the first replica that starts writes the record."""
    op.create_table(
        "authority",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_authority"),
    )


def downgrade() -> None:
    """Drop it with what it holds."""
    op.drop_table("authority")
