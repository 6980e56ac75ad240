"""Operator who last revised a rollout's draft; for existing drafts as the audit log names it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and fill it."""
    op.add_column("rollouts", sa.Column("revised_by", sa.Text(), nullable=False, server_default=sa.text("''")))
    connection = op.get_bind()
    said = sa.text("SELECT actor, subject FROM audit WHERE action = 'rollouts.revise' ORDER BY sequence")
    if revised := [dict(row) for row in connection.execute(said).mappings()]:
        connection.execute(sa.text("UPDATE rollouts SET revised_by = :actor WHERE id = :subject"), revised)


def downgrade() -> None:
    """Remove it; the audit log still says so."""
    op.drop_column("rollouts", "revised_by")
