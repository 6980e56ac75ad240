"""Limits of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gateway.common.domain.settings import VAST


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """Settings of `[library]`: the limits for reading a model directory."""

    manifest_limit_bytes: ClassVar[int] = 1_048_576  # a manifest larger than this is refused
    models_limit: ClassVar[int] = 1000  # most folders that are read in one model directory
    versions_limit: ClassVar[int] = 100  # most version folders that are read per model
    entries_limit: ClassVar[int] = 10_000  # most files and folders in one folder; one that has more is refused


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings of `[state]`: the SQLite file that keeps verdicts between restarts."""

    verdicts_limit: ClassVar[int] = 10_000  # rows kept; the oldest are removed first
    busy_timeout_ms: ClassVar[int] = 5_000  # time to wait for another process that shares the file


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of `[store]`: the disk space of releases."""

    quota_bytes: int = field(default=8_589_934_592, metadata=VAST)  # 8 GiB: all blobs, including downloads in progress
    keep_free_bytes: int = field(default=67_108_864, metadata=VAST)  # left to other files, such as the journal

    sync_every_bytes: ClassVar[int] = 16_777_216  # most bytes of a download that a power failure destroys
    read_chunk_bytes: ClassVar[int] = 1_048_576  # memory used to read a file for its digest


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings of `[journal]`: the SQLite file that records floors and updates."""

    busy_timeout_ms: ClassVar[int] = 5_000  # time to wait for another process that uses the file
    finished_limit: ClassVar[int] = 100  # updates remembered after their end; the oldest are removed first
    rejected_limit: ClassVar[int] = 1_000  # rejected releases remembered; the oldest are removed first
    floors_limit: ClassVar[int] = 10_000  # names that may have a floor; more are refused


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Settings of `[spool]`: records that wait to be sent to the fleet."""

    bytes_limit: int = 16_777_216  # 16 MiB: all records; beyond, the least important ones are dropped, oldest first
    age_limit_d: float = 30.0  # older records are dropped

    record_limit_bytes: ClassVar[int] = 16_384  # largest document of one record: a controller accepts no more
    streams_limit: ClassVar[int] = 16  # kinds of telemetry
    epochs_limit: ClassVar[int] = 16  # boots whose records are kept; the oldest are removed, as in a controller
    gaps_at_once: ClassVar[int] = 50  # gaps of one stream in a batch: a controller accepts 64
    busy_timeout_ms: ClassVar[int] = 5_000  # time to wait for another process that uses the file
