"""Answers to operators' requests that carry an Idempotency-Key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "idempotency_keys",
        sa.Column("token", number, sa.ForeignKey("api_tokens.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_idempotency_keys_at", "idempotency_keys", ["at"])
    op.create_index("ix_idempotency_keys_token_at", "idempotency_keys", ["token", "at"])


def downgrade() -> None:
    """Remove it; requests that are repeated then count as new ones."""
    op.drop_table("idempotency_keys")
