"""Limits of the tools for authors, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkshopSettings:
    """Limits of `edge-gateway models new`."""

    labels_limit_bytes: int = 4_194_304  # a file of labels larger than this is refused
    labels_limit: int = 100_000  # most labels of one model
    label_limit_chars: int = 256  # longest label
    zip_entries_limit: int = 1_000  # most files in the archive at the end of a TFLite file
    xml_limit_bytes: int = 268_435_456  # largest .xml of an OpenVINO model whose weights are counted
