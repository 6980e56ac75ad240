"""Bounds of what is read from disk."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.domain.settings import VAST


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """`[library]`: how much of a model directory is looked at."""

    manifest_limit_bytes: int = 1_048_576  # a manifest larger than this is refused
    models_limit: int = 1000  # folders looked at in one model directory
    versions_limit: int = 100  # version folders looked at per model
    entries_limit: int = 10_000  # files and folders looked at in one folder; one that has more is refused


@dataclass(frozen=True, slots=True)
class StateSettings:
    """`[state]`: the SQLite file that keeps verdicts between restarts."""

    verdicts_limit: int = 10_000  # rows kept; the oldest go first
    busy_timeout_ms: int = 5_000  # how long to wait for another process that shares the file


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """`[store]`: how much of the disk releases may take."""

    quota_bytes: int = field(default=8_589_934_592, metadata=VAST)  # 8 GiB: all blobs, also what is being fetched
    keep_free_bytes: int = field(default=67_108_864, metadata=VAST)  # left to others on the same disk, as the journal
    sync_every_bytes: int = 16_777_216  # a download that power interrupts loses at most this much
    read_chunk_bytes: int = 1_048_576  # memory used to read a file for its digest


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """`[journal]`: the SQLite file that records floors and updates."""

    busy_timeout_ms: int = 5_000  # how long to wait for another process that has the file
    finished_limit: int = 100  # updates remembered after their end; the oldest go first
    rejected_limit: int = 1_000  # rejected releases remembered; the oldest go first
    floors_limit: int = 10_000  # names that may have a floor; more are refused
    assignment_limit_bytes: int = 1_048_576  # an assignment document larger than this is not kept


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """`[spool]`: what waits to be told to the fleet."""

    bytes_limit: int = 16_777_216  # 16 MiB: all records; beyond, the least important go, the oldest first
    age_limit_d: float = 30.0  # older records go
    record_limit_bytes: int = 16_384  # of one record's document: a controller takes no more
    streams_limit: int = 16  # kinds of telemetry
    epochs_limit: int = 16  # boots of which records are kept; the oldest go, as they do in a controller
    gaps_at_once: int = 50  # gaps of one stream in a batch: a controller takes 64
    busy_timeout_ms: int = 5_000  # how long to wait for another process that has the file
