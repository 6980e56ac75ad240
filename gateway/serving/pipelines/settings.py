"""Settings of pipelines: `[pipelines]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """`[pipelines]`: what pipelines may do."""

    python: bool = False  # whether pipelines may run Python code of their releases, each step in a sandbox of its own


DEFAULTS = PipelineSettings()
