"""Golden set of a release that is quantized: an author's own, or the held-out samples with the reference's answers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from pathlib import Path

import numpy as np

from gateway.domain.golden import GoldenSet, first_rows
from gateway.domain.manifest import Golden, ModelManifest
from gateway.domain.tensor import Array
from gateway.workshop.settings import CalibrationSettings

GOLDEN = "golden.npz"


def author_golden(manifest: ModelManifest, made: Collection[str]) -> Golden | None:
    """Return the golden set of the author; None if there is none, or if it is one of those that were `made` before."""
    golden = manifest.golden
    return golden if golden is not None and golden.sha256 not in made else None


def write_golden(golden: GoldenSet, manifest: ModelManifest, folder: Path, settings: CalibrationSettings) -> Golden:
    """Write the first rows of a golden set to `folder`. Raises OSError."""
    rows = golden_rows(golden, settings)
    part = first_rows(golden, manifest, rows)
    content = io.BytesIO()
    arrays: dict[str, Array] = {f"input.{name}": array for name, array in part.inputs.items()}
    arrays |= {f"output.{name}": array for name, array in part.outputs.items()}
    arrays |= {} if golden.label is None else {"label": golden.label[:rows]}
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    (folder / GOLDEN).write_bytes(content.getvalue())
    return Golden(GOLDEN, hashlib.sha256(content.getvalue()).hexdigest())


def golden_rows(golden: GoldenSet, settings: CalibrationSettings) -> int:
    """Return how many rows a golden set keeps: by their number, and by their size."""
    arrays = [*golden.inputs.values(), *golden.outputs.values()]
    row_bytes = sum(array.nbytes // max(1, len(array)) for array in arrays)
    rows = min(settings.golden_rows, settings.golden_bytes // max(1, row_bytes), len(arrays[0]))
    return max(1, rows)
