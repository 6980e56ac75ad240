"""All tables, and the triggers that keep rows which must not change.

A change here needs a migration for the databases in use (`migrations/versions/`); a test compares both.
"""

from __future__ import annotations

from sqlalchemy import DDL, CheckConstraint, Column, ForeignKey, Index, MetaData, Table, UniqueConstraint, event, text

from fleet.controller.database.columns import BinaryColumn, JsonColumn, Moment, RowNumber, Whole, Words

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
NAME_BYTES = 560  # names by people and devices: 140 characters of up to four bytes
PATH_BYTES = 1_024  # of a target in the repository
REASON_BYTES = 4_096
DIGEST_BYTES = 64
CERTIFICATE_BYTES = 16_384
TAGS_BYTES = 16_384
INVENTORY_BYTES = 262_144
HEALTH_BYTES = 16_384
RELEASE_BYTES = 1_048_576
SPEC_BYTES = 262_144
FACT_BYTES = 65_536
ROW_BYTES = 1_048_576  # of a telemetry row; the setting row_limit_bytes is lower
ASSIGNMENT_BYTES = 1_048_576
ANSWER_BYTES = 1_048_576

metadata = MetaData(naming_convention=NAMES)


def _device(*, primary_key: bool = False, index: bool = False) -> Column[str]:
    return Column(
        "device", Words(NAME_BYTES), ForeignKey("devices.id"), nullable=False, primary_key=primary_key, index=index
    )


devices = Table(
    "devices",
    metadata,
    Column("id", Words(NAME_BYTES), primary_key=True),
    Column("state", Words(NAME_BYTES), nullable=False),
    Column("serial", Words(NAME_BYTES), unique=True),
    Column("profile", Words(NAME_BYTES), nullable=False, index=True),
    Column("accelerators", JsonColumn(TAGS_BYTES), nullable=False),
    Column("site", Words(NAME_BYTES), nullable=False, index=True),
    Column("inventory", JsonColumn(INVENTORY_BYTES), nullable=False),
    Column("health", Words(NAME_BYTES), nullable=False),
    Column("health_details", JsonColumn(HEALTH_BYTES), nullable=False),
    Column("registered", Moment, nullable=False),
    Column("enrolled", Moment),
    Column("revoked", Moment),
    Column("revoked_because", Words(REASON_BYTES), nullable=False),
    Column("removed", Moment),  # the device is removed; the row keeps what must outlive it (`removal.py`)
    Column("machine", JsonColumn(TAGS_BYTES), nullable=False, server_default="{}"),  # `control/identity_use.py`
    Column("used_twice", Moment, index=True),
    Column("suspended", Moment),  # set only while `state` is enrolled: `devices.STATE` reads both
    Column("suspended_because", Words(REASON_BYTES), nullable=False, server_default=text("''")),
    CheckConstraint("state IN ('pre-registered', 'enrolled', 'revoked')", name="state"),
)
device_tags = Table(
    "device_tags",
    metadata,
    _device(primary_key=True),
    Column("tag", Words(NAME_BYTES), primary_key=True),
    Index(None, "tag", "device"),
)
device_seen = Table(  # apart from devices: it is written often, and its rows are small
    "device_seen",
    metadata,
    _device(primary_key=True),
    Column("seen", Moment, nullable=False),
)
device_running = Table(
    "device_running",
    metadata,
    _device(primary_key=True),
    Column("slot", Words(NAME_BYTES), primary_key=True),
    Column("target", Words(PATH_BYTES), nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
    Column("variant", Words(NAME_BYTES), nullable=False),
    Column("accelerator", Words(NAME_BYTES), nullable=False),
    Column("state", Words(NAME_BYTES), nullable=False),
    Column("at", Moment, nullable=False),
    Index(None, "target"),
)
enrolment_tokens = Table(
    "enrolment_tokens",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("digest", Words(DIGEST_BYTES), nullable=False, unique=True),
    Column("prefix", Words(NAME_BYTES), nullable=False),
    Column("device", Words(NAME_BYTES), nullable=False),
    Column("tags", JsonColumn(TAGS_BYTES), nullable=False),
    Column("site", Words(NAME_BYTES), nullable=False),
    Column("created", Moment, nullable=False),
    Column("created_by", Words(NAME_BYTES), nullable=False),
    Column("expires", Moment, nullable=False),
    Column("used", Moment),
    Column("used_by", Words(NAME_BYTES), nullable=False),
)
certificates = Table(
    "certificates",
    metadata,
    Column("serial", Words(NAME_BYTES), primary_key=True),
    _device(index=True),
    Column("issued", Moment, nullable=False),
    Column("expires", Moment, nullable=False),
    Column("revoked", Moment, index=True),
    Column("revoked_because", Words(REASON_BYTES), nullable=False),
    Column("key_digest", Words(DIGEST_BYTES), nullable=False, server_default=text("''")),
)
releases = Table(
    "releases",
    metadata,
    Column("target", Words(PATH_BYTES), primary_key=True),
    Column("owner", Words(NAME_BYTES), nullable=False),
    Column("model", Words(NAME_BYTES), nullable=False),
    Column("version", Words(NAME_BYTES), nullable=False),
    Column("floor", Words(NAME_BYTES), nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
    Column("size_bytes", Whole, nullable=False),
    Column("released", Moment, nullable=False),
    Column("document", JsonColumn(RELEASE_BYTES), nullable=False),
    Column("first_read", Moment, nullable=False),
    Column("withdrawn", Moment),
    Index(None, "owner", "model"),
)
rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Words(NAME_BYTES), primary_key=True),
    Column("name", Words(NAME_BYTES), nullable=False),
    Column("slot", Words(NAME_BYTES), nullable=False),
    Column("target", Words(PATH_BYTES), nullable=False),
    Column("state", Words(NAME_BYTES), nullable=False, index=True),
    Column("spec", JsonColumn(SPEC_BYTES), nullable=False),
    Column("created", Moment, nullable=False),
    Column("created_by", Words(NAME_BYTES), nullable=False),
    Column("sequence", Whole, nullable=False),
    Column("revised_by", Words(NAME_BYTES), nullable=False, server_default=text("''")),
    Column("archived", Moment),
)
facts = Table(
    "facts",
    metadata,
    Column("rollout", Words(NAME_BYTES), ForeignKey("rollouts.id"), primary_key=True),
    Column("sequence", Whole, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("kind", Words(NAME_BYTES), nullable=False),
    Column("device", Words(NAME_BYTES), nullable=False),
    Column("document", JsonColumn(FACT_BYTES), nullable=False),
    Index(None, "device", "rollout"),
)
desired = Table(
    "desired",
    metadata,
    _device(primary_key=True),
    Column("slot", Words(NAME_BYTES), primary_key=True),
    Column("target", Words(PATH_BYTES), nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
    Column("size_bytes", Whole, nullable=False),
    Column("rollout", Words(NAME_BYTES), nullable=False),
    Column("at", Moment, nullable=False),
    Column("attempt", Whole, nullable=False, server_default="0"),
    Column("signed", Whole, nullable=False, server_default="0"),
    Index(None, "target"),
)
desired_before = Table(  # what a slot held before a rollout's offer; an empty target: nothing
    "desired_before",
    metadata,
    Column("rollout", Words(NAME_BYTES), ForeignKey("rollouts.id"), primary_key=True),
    _device(primary_key=True, index=True),
    Column("target", Words(PATH_BYTES), nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
    Column("size_bytes", Whole, nullable=False),
    Column("because", Words(NAME_BYTES), nullable=False),
    Column("attempt", Whole, nullable=False),
)
removals = Table(  # slots that a device is ordered to empty
    "removals",
    metadata,
    _device(primary_key=True),
    Column("slot", Words(NAME_BYTES), primary_key=True),
)
desired_revisions = Table(  # grows with every change of a device's rows in `desired`
    "desired_revisions",
    metadata,
    _device(primary_key=True),
    Column("revision", Whole, nullable=False),
)
assignments = Table(
    "assignments",
    metadata,
    _device(primary_key=True),
    Column("version", Whole, nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
    Column("content", BinaryColumn(ASSIGNMENT_BYTES), nullable=False),
    Column("issued", Moment, nullable=False),
    Column("expires", Moment, nullable=False),
    Column("revision", Whole, nullable=False),
    Column("basis", Words(DIGEST_BYTES), nullable=False, server_default=text("''")),
)
numbers = Table(  # single numbers, by name
    "numbers",
    metadata,
    Column("name", Words(NAME_BYTES), primary_key=True),
    Column("value", Whole, nullable=False),
)
authority = Table(  # the device CA of the fleet: one row at most
    "authority",
    metadata,
    Column("name", Words(NAME_BYTES), primary_key=True),
    Column("certificate", Words(CERTIFICATE_BYTES), nullable=False),
    Column("since", Moment, nullable=False),
    Column("by", Words(NAME_BYTES), nullable=False),
)
telemetry_sources = Table(
    "telemetry_sources",
    metadata,
    Column("id", RowNumber, primary_key=True),
    _device(),
    Column("stream", Words(NAME_BYTES), nullable=False),
    Column("boot_epoch", Whole, nullable=False),
    Column("contiguous", Whole, nullable=False),
    Column("spans", JsonColumn(SPEC_BYTES), nullable=False),
    Column("lost", Whole, nullable=False),
    Column("rows", Whole, nullable=False),
    Column("bytes", Whole, nullable=False),
    UniqueConstraint("device", "stream", "boot_epoch"),
)
telemetry = Table(
    "telemetry",
    metadata,
    Column("source", RowNumber, ForeignKey("telemetry_sources.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Whole, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("received", Moment, nullable=False, index=True),
    Column("kind", Words(NAME_BYTES), nullable=False),
    Column("bytes", Whole, nullable=False),
    Column("document", JsonColumn(ROW_BYTES), nullable=False),
    sqlite_with_rowid=False,
)
events = Table(
    "events",
    metadata,
    Column("id", RowNumber, primary_key=True),
    _device(),
    Column("key", Words(NAME_BYTES), nullable=False),
    Column("at", Moment, nullable=False),
    Column("received", Moment, nullable=False, index=True),
    Column("kind", Words(NAME_BYTES), nullable=False),
    Column("slot", Words(NAME_BYTES), nullable=False),
    Column("target", Words(PATH_BYTES), nullable=False),
    Column("rollout", Words(NAME_BYTES), nullable=False),
    Column("document", JsonColumn(FACT_BYTES), nullable=False),
    UniqueConstraint("device", "key"),
    Index(None, "kind", "id"),
)
alerts = Table(
    "alerts",
    metadata,
    Column("key", Words(NAME_BYTES), primary_key=True),
    Column("rule", Words(NAME_BYTES), nullable=False),
    Column("device", Words(NAME_BYTES), nullable=False),  # "" if it is not about one device
    Column("subject", Words(PATH_BYTES), nullable=False),
    Column("state", Words(NAME_BYTES), nullable=False),
    Column("since", Moment, nullable=False),
    Column("heard", Moment, nullable=False),
    Column("calm", Moment),
    Column("opened", Moment),
    Column("closed", Moment),
    Column("summary", Words(REASON_BYTES), nullable=False),
    Column("evidence", JsonColumn(FACT_BYTES), nullable=False),
    Column("changes", Whole, nullable=False),
    Column("told", Whole, nullable=False),
    CheckConstraint("state IN ('pending', 'open', 'closed')", name="state"),
    Index(None, "state", "rule"),
    Index(None, "device"),
)
changes = Table(  # the order in which events, alerts and facts of rollouts were recorded
    "changes",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("kind", Words(NAME_BYTES), nullable=False),
    Column("subject", Words(NAME_BYTES), nullable=False),
    Column("first", Whole, nullable=False),
    Column("last", Whole, nullable=False),
)
diagnostics = Table(
    "diagnostics",
    metadata,
    Column("id", RowNumber, primary_key=True),
    _device(index=True),
    Column("wanted", JsonColumn(TAGS_BYTES), nullable=False),
    Column("asked", Moment, nullable=False),
    Column("asked_by", Words(NAME_BYTES), nullable=False),
    Column("expires", Moment, nullable=False),
    Column("answered", Moment),
    Column("answer", JsonColumn(ANSWER_BYTES), nullable=False),
)
api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("digest", Words(DIGEST_BYTES), nullable=False, unique=True),
    Column("prefix", Words(NAME_BYTES), nullable=False),
    Column("name", Words(NAME_BYTES), nullable=False),
    Column("role", Words(NAME_BYTES), nullable=False),
    Column("tags", JsonColumn(TAGS_BYTES), nullable=False),
    Column("created", Moment, nullable=False),
    Column("created_by", Words(NAME_BYTES), nullable=False),
    Column("expires", Moment, nullable=False),
    Column("revoked", Moment),
    CheckConstraint("role IN ('viewer', 'operator', 'publisher', 'admin')", name="role"),
)
idempotency_keys = Table(  # answers to requests that may be repeated; sealed by the caller's API token
    "idempotency_keys",
    metadata,
    Column("token", RowNumber, ForeignKey("api_tokens.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("key", Words(DIGEST_BYTES), primary_key=True),
    Column("request", Words(DIGEST_BYTES), nullable=False),
    Column("answer", BinaryColumn(ANSWER_BYTES), nullable=False),
    Column("at", Moment, nullable=False, index=True),
    Index(None, "token", "at"),
)
audit = Table(
    "audit",
    metadata,
    Column("sequence", Whole, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("actor", Words(NAME_BYTES), nullable=False),
    Column("action", Words(NAME_BYTES), nullable=False),
    Column("subject", Words(PATH_BYTES), nullable=False),
    Column("details", JsonColumn(FACT_BYTES), nullable=False),
    Column("previous", Words(DIGEST_BYTES), nullable=False),
    Column("digest", Words(DIGEST_BYTES), nullable=False),
)
leadership = Table(
    "leadership",
    metadata,
    Column("office", Words(NAME_BYTES), primary_key=True),
    Column("fence", Whole, nullable=False),
    Column("holder", Words(NAME_BYTES), nullable=False),
    Column("until", Moment),
)


def _at(target: MetaData | Table, moment: str, dialect: str, statement: str) -> None:
    ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
    event.listen(target, moment, ddl.execute_if(dialect=dialect))


def _refuse_on_sqlite(table: Table, name: str, when: str, problem: str) -> None:
    body = f"BEGIN SELECT RAISE(ABORT, '{problem}'); END"
    _at(table, "after_create", "sqlite", f"CREATE TRIGGER {table.name}_{name} BEFORE {when} {body}")


def _refuse_on_postgresql(table: Table, name: str, when: str, problem: str) -> None:
    body = f"EXECUTE FUNCTION edge_fleet_refuse('{problem}')"
    _at(table, "after_create", "postgresql", f"CREATE TRIGGER {table.name}_{name} BEFORE {when} {body}")


_at(
    metadata,
    "before_create",
    "postgresql",
    "CREATE FUNCTION edge_fleet_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "RAISE EXCEPTION '%: %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$",
)
_at(metadata, "after_drop", "postgresql", "DROP FUNCTION edge_fleet_refuse")
for _table in (audit, facts):
    _name = _table.name
    _refuse_on_sqlite(_table, "unchanged", f"UPDATE ON {_name}", f"{_name} is append-only")
    _refuse_on_sqlite(_table, "kept", f"DELETE ON {_name}", f"{_name} is append-only")
    _refuse_on_postgresql(_table, "unchanged", f"UPDATE OR DELETE ON {_name} FOR EACH ROW", "it is append-only")
    _refuse_on_postgresql(_table, "kept", f"TRUNCATE ON {_name} FOR EACH STATEMENT", "it is append-only")
# devices refuse an assignment that is older than what they have: a version never falls, not even by an operator's hand
_FALLS = "NEW.version <= OLD.version OR NEW.device <> OLD.device"
_refuse_on_sqlite(assignments, "grow", f"UPDATE ON assignments WHEN {_FALLS}", "versions of assignments only grow")
_refuse_on_sqlite(assignments, "kept", "DELETE ON assignments", "versions of assignments only grow")
for _name, _when in (
    ("grow", f"UPDATE ON assignments FOR EACH ROW WHEN ({_FALLS})"),
    ("kept", "DELETE ON assignments FOR EACH ROW"),
    ("all_kept", "TRUNCATE ON assignments FOR EACH STATEMENT"),
):
    _refuse_on_postgresql(assignments, _name, _when, "versions only grow")
