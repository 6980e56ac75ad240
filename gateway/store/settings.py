"""Bounds of what is read from disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """`[library]`: how much of a model directory is looked at."""

    manifest_limit_bytes: int = 1_048_576  # a manifest larger than this is refused
    models_limit: int = 1000  # folders looked at in one model directory
    versions_limit: int = 100  # version folders looked at per model


@dataclass(frozen=True, slots=True)
class StateSettings:
    """`[state]`: the SQLite file that keeps verdicts between restarts."""

    verdicts_limit: int = 10_000  # rows kept; the oldest go first
    busy_timeout_ms: int = 5_000  # how long to wait for another process that shares the file
