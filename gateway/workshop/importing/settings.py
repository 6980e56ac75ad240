"""Limits of an import: sources are files of others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """Limits for reading a source."""

    document_limit_bytes: int = 1_048_576  # a configuration or a file of labels that is larger is refused
    yaml_limit_bytes: int = 262_144  # the same for YAML, whose parser takes about 10 s for each MiB
    entries_limit: int = 10_000  # most files and folders of a source
    depth_limit: int = 12  # most folders inside each other
    models_limit: int = 200  # most model files of a source: a process opens each
