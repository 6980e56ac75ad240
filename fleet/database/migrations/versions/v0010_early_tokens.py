"""Enrolment tokens that were made before there was a device of their name are void, as they are from now on."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Remove them; they were refused, and would not be any more."""
    op.execute(
        "DELETE FROM enrolment_tokens WHERE used IS NULL AND EXISTS (SELECT 1 FROM devices "
        "WHERE devices.id = enrolment_tokens.device AND devices.registered > enrolment_tokens.created)"
    )


def downgrade() -> None:
    """They opened nothing."""
