"""Release document, which an owner signs: one per model version, with all variants and the floor.

It is the repository's target `models/<owner>/<model>/<version>/release`; every file that it names is a blob by digest.
Source: fleet/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.manifest import Artifact, ModelManifest
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN, read_manifest
from gateway.common.domain.pipeline import PIPELINE, pipeline_manifest
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release_form import SCHEMA, TIME_FORMAT, document_bytes, read_form, read_list, read_time

RELEASE_LIMIT_BYTES = 1_048_576
"""Largest release document that is read."""
VARIANTS_LIMIT = 100
ARTIFACTS_LIMIT = 100
"""Most artifacts of one variant."""
SLOTS_LIMIT = 100
"""Most slots that a release may be signed for."""
PATH_LIMIT_CHARS = 1024
NAME_LIMIT_CHARS = 255
"""Longest part of a path, as long as a file name may be (NAME_MAX)."""
_PATH = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*")


@dataclass(frozen=True, slots=True)
class SignedVariant:
    """Variant of a release, as its manifest describes it, with its files."""

    name: str
    runtime: str
    precision: str
    accelerators: tuple[str, ...]
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True)
class SignedRelease:
    """Content of a release document. `manifest` is its manifest.toml, or the pipeline.toml of a pipeline.

    `floor`: the oldest version of this model that its owner still allows. `slots`: the only slots that it may take (()
    if its owner names none). `changes_signature`: its tensors differ from those of other versions' releases on purpose.
    """

    owner: str
    model: str
    version: str
    floor: str
    released_at: datetime
    manifest: Artifact
    golden: Artifact | None
    variants: tuple[SignedVariant, ...]
    slots: tuple[str, ...] = ()
    changes_signature: bool = False

    @property
    def name(self) -> str:
        """Return the model with its owner, as "owner/model"."""
        return f"{self.owner}/{self.model}"

    @property
    def target(self) -> str:
        """Return the path of its document in the repository."""
        return target_path(self.owner, self.model, self.version)

    def files(self, variants: Sequence[str] = ()) -> tuple[Artifact, ...]:
        """Return manifest, golden set and the artifacts of `variants`, each path once."""
        chosen = [artifact for v in self.variants if v.name in variants for artifact in v.artifacts]
        every = [self.manifest, *([self.golden] if self.golden else []), *chosen]
        return tuple({artifact.path: artifact for artifact in every}.values())


def target_path(owner: str, model: str, version: str) -> str:
    """Return the path of a release's document in the repository."""
    return f"models/{owner}/{model}/{version}/release"


def release_bytes(release: SignedRelease) -> bytes:
    """Return the document that the owner signs, as `document_bytes` writes it."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "owner": release.owner,
        "model": release.model,
        "version": release.version,
        "floor": release.floor,
        "released_at": release.released_at.strftime(TIME_FORMAT),
        "manifest": _file_document(release.manifest),
        "golden": _file_document(release.golden) if release.golden else None,
        "variants": [
            {
                "name": variant.name,
                "runtime": variant.runtime,
                "precision": variant.precision,
                "accelerators": list(variant.accelerators),
                "artifacts": [_file_document(artifact) for artifact in variant.artifacts],
            }
            for variant in release.variants
        ],
    }
    if release.slots:
        document["slots"] = list(release.slots)
    if release.changes_signature:
        document["changes_signature"] = True
    return document_bytes(document)


def read_release(content: bytes) -> SignedRelease:
    """Parse a release document. Raise ValueError with the problem; unknown keys are ignored."""
    release = read_form(content, RELEASE_LIMIT_BYTES, "the release document", _release)
    # Check that all files fit into one folder: no path is two files, or a file and a folder.
    files = [release.manifest, *([release.golden] if release.golden else []), *_artifacts(release)]
    contents: dict[str, Artifact] = {}
    for file in files:
        if contents.setdefault(file.path, file) != file:
            raise ValueError(f"{file.path} is two different files of this release")
    for path in contents:
        inside = next((str(above) for above in PurePosixPath(path).parents if str(above) in contents), None)
        if inside is not None:
            raise ValueError(f"{path} lies in {inside}, which is a file of this release")
    return release


def _release(document: Mapping[str, Any]) -> SignedRelease:
    return SignedRelease(
        owner=_name(document["owner"]),
        model=_name(document["model"]),
        version=_name(document["version"]),
        floor=_name(document["floor"]),
        released_at=read_time(document["released_at"]),
        manifest=_file(document["manifest"]),
        golden=_file(document["golden"]) if document["golden"] else None,
        variants=tuple(_variant(entry) for entry in read_list(document["variants"], VARIANTS_LIMIT)),
        slots=tuple(_name(slot) for slot in read_list(document.get("slots", []), SLOTS_LIMIT)),
        changes_signature=_flag(document, "changes_signature"),
    )


def declared(release: SignedRelease, text: str, where: str) -> ModelManifest:
    """Return the manifest of a release, or what stands for that of a pipeline. Raises ConfigurationError."""
    if release.manifest.path != PIPELINE:
        return read_manifest(text, where)
    pipeline, signed = read_pipeline(text, where), {artifact.path: artifact for artifact in _artifacts(release)}
    return pipeline_manifest(pipeline, tuple(signed.get(path, Artifact(path, "", 0)) for path in pipeline.files))


def disagreement(release: SignedRelease, manifest: ModelManifest) -> str:
    """Return the difference between a manifest and the signed document that it belongs to, or ""."""
    if (manifest.name, manifest.version) != (release.model, release.version):
        return f"its manifest is of {manifest.name} {manifest.version}, not of {release.model} {release.version}"
    named = {v.name: (v.runtime, v.precision, v.accelerators, v.artifacts) for v in manifest.variants}
    signed = {v.name: (v.runtime, v.precision, v.accelerators, v.artifacts) for v in release.variants}
    if named != signed:
        return "its manifest lists other variants, or other files of them, than the signed document"
    golden = (manifest.golden.file, manifest.golden.sha256) if manifest.golden else None
    expected = (release.golden.path, release.golden.sha256) if release.golden else None
    return "" if golden == expected else "its manifest names another golden set than the signed document"


def _file_document(artifact: Artifact) -> dict[str, Any]:
    return {"path": artifact.path, "sha256": artifact.sha256, "bytes": artifact.size_bytes}


def _file(document: Mapping[str, Any]) -> Artifact:
    path, sha256, size = document["path"], document["sha256"], document["bytes"]
    if not (isinstance(path, str) and _PATH.fullmatch(path)):
        raise ValueError(f"{path!r:.200} is no path inside a release")
    if len(path) > PATH_LIMIT_CHARS or max(map(len, path.split("/"))) > NAME_LIMIT_CHARS:
        raise ValueError(f"{path!r:.200} is too long: {PATH_LIMIT_CHARS} characters, {NAME_LIMIT_CHARS} a part")
    if not (isinstance(sha256, str) and DIGEST_PATTERN.fullmatch(sha256)):
        raise ValueError(f"{sha256!r:.80} of {path} is no SHA-256 digest")
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r:.80} of {path} is no size in bytes")
    return Artifact(path, sha256, size)


def _variant(document: Mapping[str, Any]) -> SignedVariant:
    return SignedVariant(
        name=_name(document["name"]),
        runtime=_name(document["runtime"]),
        precision=_name(document["precision"]),
        accelerators=tuple(_name(kind) for kind in document["accelerators"]),
        artifacts=tuple(_file(entry) for entry in read_list(document["artifacts"], ARTIFACTS_LIMIT)),
    )


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if value is True or value is False:
        return value
    raise ValueError(f"{name} is {value!r:.40}, neither true nor false")


def _name(value: Any) -> str:
    if not (isinstance(value, str) and NAME_PATTERN.fullmatch(value)):
        raise ValueError(f"{value!r:.80} is no name; letters, digits, '.', '_' and '-' make one")
    return value


def _artifacts(release: SignedRelease) -> list[Artifact]:
    return [artifact for variant in release.variants for artifact in variant.artifacts]
