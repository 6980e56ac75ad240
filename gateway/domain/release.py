"""A model version as found on disk, before anything of it is loaded; and how a bare model file becomes a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gateway.domain.manifest import Artifact, ModelManifest, Variant
from gateway.domain.model_files import MODEL_SUFFIXES
from gateway.domain.triton_config import TritonConfig
from gateway.domain.triton_manifest import described
from gateway.domain.verdict import Signature

NO_VERSION = "-"
"""Version of what is no version of a model at all: a file or folder that is not served. No folder can be called so."""

_BARE_ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "onnx": ("cpu", "nvidia-gpu", "nvidia-jetson-gpu"),
    "litert": ("cpu",),
    "openvino": ("cpu", "intel-gpu", "intel-npu"),
}


@dataclass(frozen=True, slots=True)
class Release:
    """`folder` is what artifact paths are relative to. `digest` changes with anything that would be served.

    `manifest` is None for a bare model (its `bare` variant is completed by asking the runtime, and by `config` and
    `labels` where Triton's configuration lies with it) and for a refused one, whose `problem` says what is wrong and
    where. The `name` of what is no model at all is its path in the model directory, its version `NO_VERSION`.
    `signed`: its owner's signatures were verified, and it is committed on this device (or staged to be); else it was
    given by hand.
    """

    name: str
    version: str
    folder: Path
    digest: str = ""
    manifest: ModelManifest | None = None
    bare: Variant | None = None
    config: TritonConfig | None = None
    labels: tuple[str, ...] = ()
    problem: str = ""
    signed: bool = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on what is served otherwise than the files lead to expect, each with a remedy."""
        return self.config.remarks if self.config else ()


def bare_variant(file_name: str, artifacts: tuple[Artifact, ...]) -> Variant:
    """Return the only variant of a bare model. Its precision is not known; fp32 is what every ladder takes."""
    runtime = MODEL_SUFFIXES[PurePosixPath(file_name).suffix]
    return Variant(runtime, runtime, "fp32", artifacts, accelerators=_BARE_ACCELERATORS[runtime])


def complete(release: Release, variant: Variant, signature: Signature) -> ModelManifest:
    """Return the manifest of a bare model: what its runtime says of it, and what the configuration next to it says.

    Raises VariantError where the two contradict each other.
    """
    manifest = ModelManifest(release.name, release.version, signature.inputs, signature.outputs, (variant,))
    return described(manifest, release.config, release.labels) if release.config else manifest
