"""Releases: from a model's folder to the document that its owner signs, and the resulting floor.

Only `read_model` reads files; the rest is pure. What holds for releases of every kind is here, too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from tuf.api.metadata import TargetFile, Targets

from fleet.disk import file_digest, read_bounded
from fleet.publisher.drafts import Draft
from fleet.publisher.roles import owner_role
from fleet.publisher.settings import FleetSettings
from fleet.publisher.signing import Drafting, add_targets
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, ModelManifest
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.pipeline import PIPELINE, pipeline_manifest
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release_paths import ReleasePath, parse_path, release_prefix
from gateway.common.domain.routing import newest_version, version_order
from gateway.common.domain.signed_release import SignedRelease, SignedVariant, read_release, release_bytes
from gateway.common.trust.targets import WITHDRAWN, Withdrawal, read_withdrawal

MANIFEST = "manifest.toml"
Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Model:
    """A model's folder as read: its manifest, the manifest file, and the golden set's file or None."""

    folder: Path
    manifest: ModelManifest
    file: Artifact
    golden: Artifact | None


def read_model(folder: Path, settings: FleetSettings) -> Model:
    """Read the manifest or pipeline in `folder` (…/<name>/<version>) and file sizes. Raise ConfigurationError."""
    path = folder / (PIPELINE if (folder / PIPELINE).is_file() else MANIFEST)
    if not path.is_file():
        problem = f"holds no {MANIFEST} and no {PIPELINE}; name the folder of one version, as models/NAME/VERSION"
        raise ConfigurationError(problem, file=str(folder))
    content = read_bounded(path, settings.document_limit_bytes)
    try:
        if path.name == PIPELINE:
            pipeline = read_pipeline(content.decode(), str(path))
            files = tuple(_artifact(folder, name) for name in pipeline.files)
            manifest = pipeline_manifest(pipeline, files)
        else:
            manifest = read_manifest(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start})", file=str(path)) from None
    golden = manifest.golden
    return Model(folder, manifest, _artifact(folder, path.name), _artifact(folder, golden.file) if golden else None)


@dataclass(frozen=True, slots=True)
class Terms:
    """The owner's terms in addition to the manifest. `floor` None: unchanged; the others as in SignedRelease."""

    floor: str | None = None
    slots: tuple[str, ...] = ()
    changes_signature: bool = False


def build_release(model: Model, owner: str, terms: Terms, floor: str, now: datetime) -> SignedRelease:
    """Return the document of a release from its manifest and its owner's terms. `floor`: the chosen floor."""
    manifest = model.manifest
    variants = tuple(
        SignedVariant(v.name, v.runtime, v.precision, v.accelerators, v.artifacts) for v in manifest.variants
    )
    at = now.replace(microsecond=0)
    return SignedRelease(
        owner,
        manifest.name,
        manifest.version,
        floor,
        at,
        model.file,
        model.golden,
        variants,
        terms.slots,
        terms.changes_signature,
    )


def model_files(release: SignedRelease) -> tuple[Artifact, ...]:
    """Return every file of all variants of a release, each digest once."""
    every = release.files([variant.name for variant in release.variants])
    return tuple({artifact.sha256: artifact for artifact in every}.values())


def release_target(release: SignedRelease) -> tuple[TargetFile, bytes]:
    """Return the signed target of a release, with the floor as TUF's custom part, and the document itself."""
    content = release_bytes(release)
    read_release(content)
    return target_of(release.target, content, {"floor": release.floor}), content


def target_of(path: str, content: bytes, custom: Mapping[str, Any] | None = None) -> TargetFile:
    """Return a target with its length and SHA-256."""
    target = TargetFile.from_data(path, content, ["sha256"])
    if custom is not None:
        target.unrecognized_fields["custom"] = dict(custom)
    return target


def model_floor(targets: Targets | None, owner: str, model: str, *, but: str = "") -> str | None:
    """Return the oldest version that the owner still allows: the greatest floor of the model's targets, or None.

    The target `but` does not count. For owners as "@software", `model` is the name of the program or of the settings.
    """
    prefix = release_prefix(owner, model)
    every = (targets.targets if targets else {}).items()
    floors = (signed_floor(target) for path, target in every if path.startswith(prefix) and path != but)
    return newest_version(floor for floor in floors if floor)


def signed_floor(target: TargetFile) -> str:
    """Return the floor in a target's custom part, or ""."""
    return str(target.custom.get("floor", "")) if isinstance(target.custom, dict) else ""


def choose_floor(wanted: str | None, standing: str | None, version: str) -> str:
    """Return the floor of a new release. Raise ConfigurationError if devices could not apply it.

    Without `wanted` it does not change; the first release of a model is its own floor.
    """
    floor = wanted or standing or version
    if version_order(floor) > version_order(version):
        raise ConfigurationError(
            f"version {version} is below the floor {floor}: devices would refuse it; "
            "release it under a higher version" + (", or name a lower --floor" if wanted else "")
        )
    if standing and version_order(floor) < version_order(standing):
        raise ConfigurationError(f"the floor is {standing} already and never falls; name that or a later one")
    return floor


def next_floor(drafting: Drafting, path: ReleasePath, wanted: str | None, remedy: str) -> str:
    """Return the floor of a new release at `path`. Raise ConfigurationError as `choose_floor`, or if it is published.

    `remedy`: how to change its version.
    """
    if drafting.published.target(path.path):
        raise ConfigurationError(f"{path.path} is published already and never changes; {remedy}")
    targets = newest_targets(drafting, owner_role(path.owner))
    return choose_floor(wanted, model_floor(targets, path.owner, path.model, but=path.path), path.version)


def newest_targets(drafting: Drafting, role: str) -> Targets | None:
    """Return what a role has drafted, or else published; None if that is nothing."""
    newest = drafting.newest(role)
    return newest.signed if newest and isinstance(newest.signed, Targets) else None


@dataclass(frozen=True, slots=True)
class Planned(Generic[Document]):
    """A planned release: its document, the target that names it, and the owner's draft with the target."""

    release: Document
    target: TargetFile
    content: bytes
    draft: Draft


def plan_release(drafting: Drafting, model: Model, owner: str, terms: Terms) -> Planned[SignedRelease]:
    """Return the owner's next release of a model.

    Raise ConfigurationError for a release that is published already, an unknown owner, or a floor that devices could
    not apply.
    """
    role, path = owner_role(owner), ReleasePath(owner, model.manifest.name, model.manifest.version)
    chosen = next_floor(drafting, path, terms.floor, f"raise the version in its {MANIFEST}")
    release = build_release(model, owner, terms, chosen, drafting.now)
    target, content = release_target(release)
    return Planned(release, target, content, add_targets(drafting, role, [(target, content)]))


def plan_withdrawal(drafting: Drafting, path: str, withdrawal: Withdrawal) -> Draft:
    """Return the owner's next document, in which a published release is withdrawn.

    Raise ConfigurationError if the release is not published, or is withdrawn like that already.
    """
    role = owner_role(parse_path(path).owner)
    newest = drafting.newest(role)
    signed = copy.deepcopy(newest.signed) if newest else None
    target = signed.targets.get(path) if isinstance(signed, Targets) else None
    if signed is None or target is None:
        raise ConfigurationError(f"{path!r:.300} is not published; edge-fleet status lists what is")
    if read_withdrawal(target) in {withdrawal, Withdrawal.REMOVE}:
        raise ConfigurationError(f"{path} is withdrawn already; edge-fleet status shows drafts that wait")
    target.unrecognized_fields["custom"] = {**(target.custom or {}), WITHDRAWN: withdrawal.value}
    return drafting.draft(role, signed)


def _artifact(folder: Path, name: str) -> Artifact:
    path = folder / name
    try:
        return Artifact(name, file_digest(path), path.stat().st_size)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
