"""Enrolment tokens that are older than the device of their name become void, as new ones do."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete them; they were refused, and would now be accepted."""
    op.execute(
        "DELETE FROM enrolment_tokens WHERE used IS NULL AND EXISTS (SELECT 1 FROM devices "
        "WHERE devices.id = enrolment_tokens.device AND devices.registered > enrolment_tokens.created)"
    )


def downgrade() -> None:
    """Do nothing: they were never accepted."""
