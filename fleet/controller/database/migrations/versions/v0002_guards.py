"""Triggers by which the database refuses changes of what is final: audit log, facts, assignment versions."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

GROWING = "assignments"
"""Devices refuse what is older than what they have: a version never falls, not even by an operator's hand."""
APPEND_ONLY = ("audit", "facts")


def upgrade() -> None:
    """Create the triggers."""
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    else:
        _guard_postgresql()


def downgrade() -> None:
    """Drop the triggers."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION edge_fleet_refuse CASCADE")
        return
    for table in APPEND_ONLY:
        op.execute(f"DROP TRIGGER {table}_unchanged")
        op.execute(f"DROP TRIGGER {table}_kept")
    op.execute(f"DROP TRIGGER {GROWING}_grow")
    op.execute(f"DROP TRIGGER {GROWING}_kept")


def _guard_sqlite() -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, '%s'); END"
    for table in APPEND_ONLY:
        said = refuse % f"{table} is append-only"
        op.execute(f"CREATE TRIGGER {table}_unchanged BEFORE UPDATE ON {table} {said}")
        op.execute(f"CREATE TRIGGER {table}_kept BEFORE DELETE ON {table} {said}")
    grows = refuse % "versions of assignments only grow"
    when = f"WHEN NEW.version <= OLD.version OR NEW.device <> OLD.device {grows}"
    op.execute(f"CREATE TRIGGER {GROWING}_grow BEFORE UPDATE ON {GROWING} {when}")
    op.execute(f"CREATE TRIGGER {GROWING}_kept BEFORE DELETE ON {GROWING} {grows}")


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION edge_fleet_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION '%: %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for table in APPEND_ONLY:
        refuse = "EXECUTE FUNCTION edge_fleet_refuse('it is append-only')"
        op.execute(f"CREATE TRIGGER {table}_unchanged BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW {refuse}")
        op.execute(f"CREATE TRIGGER {table}_kept BEFORE TRUNCATE ON {table} FOR EACH STATEMENT {refuse}")
    refuse = "EXECUTE FUNCTION edge_fleet_refuse('versions only grow')"
    when = "FOR EACH ROW WHEN (NEW.version <= OLD.version OR NEW.device <> OLD.device)"
    op.execute(f"CREATE TRIGGER {GROWING}_grow BEFORE UPDATE ON {GROWING} {when} {refuse}")
    op.execute(f"CREATE TRIGGER {GROWING}_kept BEFORE DELETE ON {GROWING} FOR EACH ROW {refuse}")
    op.execute(f"CREATE TRIGGER {GROWING}_all_kept BEFORE TRUNCATE ON {GROWING} FOR EACH STATEMENT {refuse}")
