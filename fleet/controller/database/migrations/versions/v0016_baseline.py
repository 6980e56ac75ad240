"""Oldest revision that this program goes on from."""

from __future__ import annotations

revision = "0016"
down_revision: str | None = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: an empty database is made from `tables.py`, whole."""
