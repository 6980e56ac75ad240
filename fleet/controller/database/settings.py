"""Bounds of the controller's database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gateway.common.domain.settings import VAST, check_above_zero


@dataclass(frozen=True, slots=True)
class TelemetryStorageSettings:
    """`[database.telemetry]`: bounds of devices' telemetry."""

    age_limit_d: float = 30.0  # older rows are deleted
    device_limit_bytes: int = 16_777_216  # 16 MiB: of one device; its oldest rows go first
    total_limit_bytes: int = field(default=17_179_869_184, metadata=VAST)  # 16 GiB: of all devices; likewise
    batch_limit_rows: ClassVar[int] = 1_000  # rows of one request; more are refused
    row_limit_bytes: ClassVar[int] = 16_384  # of one row's document
    streams_limit: ClassVar[int] = 16  # streams of one device; rows of further ones are refused
    boots_limit: ClassVar[int] = 16  # boots of one stream that are kept; those silent longest go with their rows
    window_rows: ClassVar[int] = 100_000  # how far beyond the acknowledged row others are accepted
    spans_limit: ClassVar[int] = 64  # separate runs of rows beyond the acknowledged one; rows for more are left out
    sweep_rows: ClassVar[int] = 5_000  # rows that one transaction of the sweep deletes

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "database.telemetry", "age_limit_d")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`[database]`: location, timeouts and bounds."""

    url: str = field(default="", repr=False)  # postgresql://user@host/name; empty: fleet.sqlite in the folder
    connections: int = 8  # open connections of one replica: SQLite for reading, PostgreSQL for all
    connect_timeout_s: int = 5  # for a connection to PostgreSQL
    events_limit_rows: int = 1_000_000  # events kept; the oldest go first
    changes_age_limit_d: float = 7.0  # older changes are deleted: a stream of them is resumed within that time
    dump_timeout_s: float = 3_600.0  # for pg_dump and pg_restore
    telemetry: TelemetryStorageSettings = field(default_factory=TelemetryStorageSettings)
    connection_wait_s: ClassVar[float] = 10.0  # how long to wait for a free one
    silence_s: ClassVar[int] = 15  # a PostgreSQL server whose machine is silent for that long is away
    busy_timeout_ms: ClassVar[int] = 10_000  # wait for other writers: of the SQLite file, of a row in PostgreSQL
    statement_timeout_ms: ClassVar[int] = 30_000  # PostgreSQL ends a statement that takes longer
    retry_after_s: ClassVar[float] = 5.0  # Retry-After for callers while the database is away
    migration_wait_s: ClassVar[float] = 60.0  # how long to wait for another replica that migrates
    page_limit_rows: ClassVar[int] = 1_000  # rows of one answer
    bulk_limit_devices: ClassVar[int] = 50_000  # devices whose tags one request changes, all in one transaction
    seen_every_s: ClassVar[float] = 60.0  # how exact `last seen` is: written at most that often per device
    seen_limit_devices: ClassVar[int] = 100_000  # devices that wait to be written; beyond that they are written at once
    lease_s: ClassVar[float] = 15.0  # how long a dead leader stays the leader, at most
    facts_limit_rows: ClassVar[int] = 10_000  # facts recorded at once
    releases_limit: ClassVar[int] = 10_000  # releases read from the published repository
    device_events_limit_rows: ClassVar[int] = 1_000  # events of one device kept; the oldest go first
    changes_limit_rows: ClassVar[int] = 1_000_000  # changes kept; the oldest go first
    diagnostics_open_limit: ClassVar[int] = 4  # requests to one device that wait for its answer
    diagnostics_limit: ClassVar[int] = 16  # requests to one device kept; the oldest go first
    tokens_limit: ClassVar[int] = 1_000  # API tokens that are valid at one time
    enrolments_limit: ClassVar[int] = 100_000  # unused enrolment tokens
    restore_leap: ClassVar[int] = 1_000_000  # added to assignment versions by a restore: devices refuse what they saw

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError. SQLAlchemy takes 0 connections as unlimited."""
        bounds = ("connections", "events_limit_rows", "changes_age_limit_d", "dump_timeout_s")
        check_above_zero(self, "database", *bounds)
