"""Bounds of the controller's database."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.common.domain.settings import VAST, check_above_zero


@dataclass(frozen=True, slots=True)
class TelemetryStorageSettings:
    """`[database.telemetry]`: bounds of devices' telemetry."""

    batch_limit_rows: int = 1_000  # rows of one request; more are refused
    row_limit_bytes: int = 16_384  # of one row's document
    streams_limit: int = 16  # streams of one device; rows of further ones are refused
    boots_limit: int = 16  # boots of one stream that are kept; those silent longest go with their rows
    window_rows: int = 100_000  # how far beyond the acknowledged row others are accepted
    spans_limit: int = 64  # separate runs of rows beyond the acknowledged one; rows that would make more are left out
    age_limit_d: float = 30.0  # older rows are deleted
    device_limit_bytes: int = 16_777_216  # 16 MiB: of one device; its oldest rows go first
    total_limit_bytes: int = field(default=17_179_869_184, metadata=VAST)  # 16 GiB: of all devices; likewise
    sweep_rows: int = 5_000  # rows that one transaction of the sweep deletes

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        bounds = ("batch_limit_rows", "row_limit_bytes", "streams_limit", "boots_limit", "window_rows", "spans_limit")
        check_above_zero(self, "database.telemetry", *bounds, "age_limit_d", "sweep_rows")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`[database]`: location, timeouts and bounds."""

    url: str = field(default="", repr=False)  # postgresql://user@host/name; empty: fleet.sqlite in the folder
    connections: int = 8  # open connections of one replica: SQLite for reading, PostgreSQL for all
    connection_wait_s: float = 10.0  # how long to wait for a free one
    connect_timeout_s: int = 5  # for a connection to PostgreSQL
    silence_s: int = 15  # a PostgreSQL server whose machine is silent for that long is away
    busy_timeout_ms: int = 10_000  # how long to wait for other writers: of the SQLite file, of a row in PostgreSQL
    statement_timeout_ms: int = 30_000  # PostgreSQL ends a statement that takes longer
    retry_after_s: float = 5.0  # Retry-After for callers while the database is away
    migration_wait_s: float = 60.0  # how long to wait for another replica that migrates
    page_limit_rows: int = 1_000  # rows of one answer
    bulk_limit_devices: int = 50_000  # devices whose tags one request changes, all in one transaction
    seen_every_s: float = 60.0  # how exact `last seen` is: written at most that often per device
    seen_limit_devices: int = 100_000  # devices that wait to be written; beyond that they are written at once
    lease_s: float = 15.0  # how long a dead leader stays the leader, at most
    facts_limit_rows: int = 10_000  # facts recorded at once
    releases_limit: int = 10_000  # releases read from the published repository
    events_limit_rows: int = 1_000_000  # events kept; the oldest go first
    device_events_limit_rows: int = 1_000  # events of one device kept; the oldest go first
    changes_age_limit_d: float = 7.0  # older changes are deleted: a stream of them is resumed within that time
    changes_limit_rows: int = 1_000_000  # changes kept; the oldest go first
    diagnostics_open_limit: int = 4  # requests to one device that wait for its answer
    diagnostics_limit: int = 16  # requests to one device kept; the oldest go first
    tokens_limit: int = 1_000  # API tokens that are valid at one time
    enrolments_limit: int = 100_000  # unused enrolment tokens
    dump_timeout_s: float = 3_600.0  # for pg_dump and pg_restore
    restore_leap: int = 1_000_000  # added to assignment versions by a restore: devices refuse what they saw before
    telemetry: TelemetryStorageSettings = field(default_factory=TelemetryStorageSettings)

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError. SQLAlchemy takes 0 connections as unlimited."""
        bounds = ("connections", "page_limit_rows", "facts_limit_rows", "releases_limit", "events_limit_rows")
        check_above_zero(self, "database", *bounds, "diagnostics_open_limit", "diagnostics_limit", "tokens_limit")
        check_above_zero(self, "database", "changes_age_limit_d", "changes_limit_rows")
        check_above_zero(self, "database", "bulk_limit_devices", "enrolments_limit", "lease_s", "dump_timeout_s")
