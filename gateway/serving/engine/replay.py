"""Replay of a golden set on a staged version while no requests come, as evidence for a probation without traffic.

The rows run on the worker's thread once the device's threads are free, as those of a shadow do.
"""

from __future__ import annotations

import asyncio
import hashlib

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Tolerance
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Tensor, Tensors
from gateway.serving.domain.golden import GoldenSet, compare_golden, first_rows, joined, portions, read_golden
from gateway.serving.domain.ports import Replayed
from gateway.serving.engine.run import Ran
from gateway.serving.engine.target import ModelTarget

ROWS_LIMIT = 8
"""Most rows of one replay: it repeats with each check of a probation."""


def read_rows(release: Release) -> GoldenSet | None:
    """Read the first rows of a release's golden set; None if it has none. Raises VariantError, OSError."""
    manifest = release.manifest
    if manifest is None or manifest.golden is None:
        return None
    file = release.folder / manifest.golden.file
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest.golden.sha256:
        raise VariantError(f"{file} changed since it was read", remedy="run edge-agent sync to repair the store")
    return first_rows(read_golden(content, manifest, str(file)), manifest, ROWS_LIMIT)


async def replay(servable: ModelTarget, golden: GoldenSet) -> Replayed:
    """Compare the version's answers with its golden set. Nothing is replayed while requests come."""
    manifest = servable.declared if servable.manifest.sequence else servable.manifest  # with states and controls
    types, parts = {spec.name: spec.datatype for spec in manifest.inputs}, list[Tensors]()
    for inputs in portions(manifest, golden, 1):
        ended: asyncio.Future[Ran | None] = asyncio.get_running_loop().create_future()
        tensors = {name: Tensor(types[name], array) for name, array in inputs.items()}
        ran = await ended if servable.ask_beside(tensors, None, ended.set_result) else None
        if ran is None:
            return Replayed(0, True, "requests came meanwhile")
        if ran.failure:
            return Replayed(len(parts) + 1, False, f"a run of its golden set failed: {ran.failure}")
        parts.append(ran.outputs)
    found = compare_golden(golden, joined(manifest, golden, parts), _tolerance(servable))
    word = "answers" if found.passed else "fails"
    return Replayed(len(parts), found.passed, f"it {word} its golden set: {found.reason}")


def _tolerance(servable: ModelTarget) -> Tolerance:
    manifest = servable.manifest
    variant = manifest.variant(servable.placement.variant)
    by_runtime = manifest.golden.tolerance if manifest.golden else {}
    return by_runtime.get(variant.runtime, Tolerance()) if variant else Tolerance()
