"""Model versions as found on disk, before they are loaded; bare model files as releases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.pipeline import Pipeline
from gateway.common.domain.runtimes import BY_SUFFIX, RUNTIMES
from gateway.common.domain.triton_config import TritonConfig
from gateway.common.domain.triton_manifest import described
from gateway.common.domain.verdict import Signature

NO_VERSION = "-"
"""Version of an entry that is no model version: a file or folder not served. No folder can have that name."""


@dataclass(frozen=True, slots=True)
class Release:
    """A model version on disk.

    Artifact paths are relative to `folder`. `digest` changes with anything that would be served.

    `manifest` is None for a bare model: its `bare` variant is completed by asking the runtime, and by `config` and
    `labels` if Triton's configuration is next to it, and for a `pipeline`, which is completed by the manifests of its
    models. `manifest` is also None for a refused one, whose `problem` says
    what is wrong and where. An entry that is no model at all has its path in the model directory as `name`, and the
    version `NO_VERSION`. `signed`: its owner's signatures were verified, and it is committed on this device (or staged
    to be); otherwise it was added by hand.
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
    pipeline: Pipeline | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return remarks on parts that are served differently from what the files suggest, each with a remedy."""
        return self.config.remarks if self.config else ()


def bare_variant(file_name: str, artifacts: tuple[Artifact, ...]) -> Variant:
    """Return the only variant of a bare model. Its precision is unknown; every ladder accepts fp32."""
    runtime = BY_SUFFIX[PurePosixPath(file_name).suffix]
    return Variant(runtime, runtime, "fp32", artifacts, accelerators=RUNTIMES[runtime].accelerators)


def complete(release: Release, variant: Variant, signature: Signature) -> ModelManifest:
    """Return the manifest of a bare model from the `signature` of its runtime and the configuration next to it.

    Raises VariantError if the two contradict each other.
    """
    manifest = ModelManifest(release.name, release.version, signature.inputs, signature.outputs, (variant,))
    return described(manifest, release.config, release.labels, signature.optional) if release.config else manifest
