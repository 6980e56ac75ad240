"""Known good input: one that a model answered in its trial. It separates failing models from failing requests."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gateway.domain.errors import ConfigurationError
from gateway.domain.golden import first_row
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Tensors
from gateway.domain.verdict import Verdict
from gateway.runtimes.generate import generated, samples


def witness(manifest: ModelManifest, folder: Path, verdict: Verdict | None) -> Tensors | None:
    """Return the first row of the golden set, else the generated input that was accepted, else None.

    A golden set that cannot be read here, although the trial could, counts as none.
    """
    if manifest.golden is not None:
        try:
            with (folder / manifest.golden.file).open("rb") as stream:
                return first_row(stream, manifest)
        except (OSError, ConfigurationError):
            return None
    if verdict is None or verdict.sample is None:
        return None
    sample = next(islice(samples(manifest), verdict.sample, None), None)
    return generated(manifest, sample) if sample else None
