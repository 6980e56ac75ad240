"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

TABLES = (
    "api_tokens",
    "audit",
    "devices",
    "enrolment_tokens",
    "leadership",
    "numbers",
    "releases",
    "rollouts",
    "assignments",
    "certificates",
    "desired",
    "desired_revisions",
    "device_running",
    "device_seen",
    "device_tags",
    "diagnostics",
    "events",
    "facts",
    "telemetry_sources",
    "telemetry",
)
"""Tables in the order of creation; they are dropped in reverse."""
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _api_tokens()
    _audit()
    _devices()
    _enrolment_tokens()
    _leadership()
    _numbers()
    _releases()
    _rollouts()
    _assignments()
    _certificates()
    _desired()
    _desired_revisions()
    _device_running()
    _device_seen()
    _device_tags()
    _diagnostics()
    _events()
    _facts()
    _telemetry_sources()
    _telemetry()


def downgrade() -> None:
    """Drop all tables with what they hold."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _api_tokens() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'publisher', 'admin')", name=op.f("ck_api_tokens_role")),
        sa.PrimaryKeyConstraint("id", name="pk_api_tokens"),
        sa.UniqueConstraint("digest", name="uq_api_tokens_digest"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )


def _devices() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("serial", sa.Text(), nullable=True),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("accelerators", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("health_details", sa.Text(), nullable=False),
        sa.Column("registered", sa.BigInteger(), nullable=False),
        sa.Column("enrolled", sa.BigInteger(), nullable=True),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.Column("revoked_because", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('pre-registered', 'enrolled', 'revoked')", name=op.f("ck_devices_state")),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("serial", name="uq_devices_serial"),
    )
    op.create_index("ix_devices_profile", "devices", ["profile"], unique=False)
    op.create_index("ix_devices_site", "devices", ["site"], unique=False)


def _enrolment_tokens() -> None:
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=True),
        sa.Column("used_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_enrolment_tokens"),
        sa.UniqueConstraint("digest", name="uq_enrolment_tokens_digest"),
    )


def _leadership() -> None:
    op.create_table(
        "leadership",
        sa.Column("office", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("office", name="pk_leadership"),
    )


def _numbers() -> None:
    op.create_table(
        "numbers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_numbers"),
    )


def _releases() -> None:
    op.create_table(
        "releases",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("floor", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("released", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("first_read", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("target", name="pk_releases"),
    )
    op.create_index("ix_releases_owner_model", "releases", ["owner", "model"], unique=False)


def _rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
    )
    op.create_index("ix_rollouts_state", "rollouts", ["state"], unique=False)


def _assignments() -> None:
    op.create_table(
        "assignments",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_assignments_device"),
        sa.PrimaryKeyConstraint("device", name="pk_assignments"),
    )


def _certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("issued", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.Column("revoked_because", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_certificates_device"),
        sa.PrimaryKeyConstraint("serial", name="pk_certificates"),
    )
    op.create_index("ix_certificates_device", "certificates", ["device"], unique=False)
    op.create_index("ix_certificates_revoked", "certificates", ["revoked"], unique=False)


def _desired() -> None:
    op.create_table(
        "desired",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rollout", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_desired_device"),
        sa.PrimaryKeyConstraint("device", "slot", name="pk_desired"),
    )
    op.create_index("ix_desired_target", "desired", ["target"], unique=False)


def _desired_revisions() -> None:
    op.create_table(
        "desired_revisions",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_desired_revisions_device"),
        sa.PrimaryKeyConstraint("device", name="pk_desired_revisions"),
    )


def _device_running() -> None:
    op.create_table(
        "device_running",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("accelerator", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_device_running_device"),
        sa.PrimaryKeyConstraint("device", "slot", name="pk_device_running"),
    )
    op.create_index("ix_device_running_target", "device_running", ["target"], unique=False)


def _device_seen() -> None:
    op.create_table(
        "device_seen",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_device_seen_device"),
        sa.PrimaryKeyConstraint("device", name="pk_device_seen"),
    )


def _device_tags() -> None:
    op.create_table(
        "device_tags",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_device_tags_device"),
        sa.PrimaryKeyConstraint("device", "tag", name="pk_device_tags"),
    )
    op.create_index("ix_device_tags_tag_device", "device_tags", ["tag", "device"], unique=False)


def _diagnostics() -> None:
    op.create_table(
        "diagnostics",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("asked", sa.BigInteger(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("answered", sa.BigInteger(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_diagnostics_device"),
        sa.PrimaryKeyConstraint("id", name="pk_diagnostics"),
    )
    op.create_index("ix_diagnostics_device", "diagnostics", ["device"], unique=False)


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("rollout", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_events_device"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("device", "key", name="uq_events_device_key"),
    )
    op.create_index("ix_events_kind_id", "events", ["kind", "id"], unique=False)
    op.create_index("ix_events_received", "events", ["received"], unique=False)


def _facts() -> None:
    op.create_table(
        "facts",
        sa.Column("rollout", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["rollout"], ["rollouts.id"], name="fk_facts_rollout"),
        sa.PrimaryKeyConstraint("rollout", "sequence", name="pk_facts"),
    )
    op.create_index("ix_facts_device_rollout", "facts", ["device", "rollout"], unique=False)


def _telemetry_sources() -> None:
    op.create_table(
        "telemetry_sources",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("boot_epoch", sa.BigInteger(), nullable=False),
        sa.Column("contiguous", sa.BigInteger(), nullable=False),
        sa.Column("spans", sa.Text(), nullable=False),
        sa.Column("lost", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="fk_telemetry_sources_device"),
        sa.PrimaryKeyConstraint("id", name="pk_telemetry_sources"),
        sa.UniqueConstraint("device", "stream", "boot_epoch", name="uq_telemetry_sources_device_stream_boot_epoch"),
    )


def _telemetry() -> None:
    op.create_table(
        "telemetry",
        sa.Column("source", NUMBER, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["telemetry_sources.id"], name="fk_telemetry_source", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("source", "seq", name="pk_telemetry"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_telemetry_received", "telemetry", ["received"], unique=False)
