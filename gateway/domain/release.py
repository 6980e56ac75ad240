"""A model version as found on disk, before anything of it is loaded; and how a bare model file becomes a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.domain.manifest import Artifact, ModelManifest, Variant
from gateway.domain.verdict import Signature

BARE_RUNTIMES: Mapping[str, str] = {"model.onnx": "onnx", "model.tflite": "litert", "model.xml": "openvino"}
"""Runtime by the file name of a bare model."""

_BARE_ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "onnx": ("cpu", "nvidia-gpu", "nvidia-jetson-gpu"),
    "litert": ("cpu",),
    "openvino": ("cpu", "intel-gpu", "intel-npu"),
}


@dataclass(frozen=True, slots=True)
class Release:
    """`folder` is what artifact paths are relative to. `digest` changes with anything that would be served.

    `manifest` is None for a bare model (its `bare` variant is completed by asking the runtime) and for a refused one,
    whose `problem` says what is wrong and where. `signed`: its owner's signatures were verified, and it is committed on
    this device (or staged to be); else it was given by hand.
    """

    name: str
    version: str
    folder: Path
    digest: str = ""
    manifest: ModelManifest | None = None
    bare: Variant | None = None
    problem: str = ""
    signed: bool = False


def bare_variant(file_name: str, artifacts: tuple[Artifact, ...]) -> Variant:
    """The only variant of a bare model. Its precision is not known; fp32 is what every ladder takes."""
    runtime = BARE_RUNTIMES[file_name]
    return Variant(runtime, runtime, "fp32", artifacts, accelerators=_BARE_ACCELERATORS[runtime])


def complete(release: Release, variant: Variant, signature: Signature) -> ModelManifest:
    """The manifest of a bare model from what its runtime says of it."""
    return ModelManifest(release.name, release.version, signature.inputs, signature.outputs, (variant,))
