"""Releases of verified activations: their files are checked against what is signed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.pipeline import PIPELINE, Pipeline
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.signed_release import (
    RELEASE_LIMIT_BYTES,
    SignedRelease,
    declared,
    disagreement,
    read_release,
)
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError
from gateway.common.store.plain import open_plain
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.references import check_references
from gateway.serving.store.releases import changed_file

REMEDY = "run edge-agent sync to fetch it again"


def planned_release(activation: Activation, store: Path, library: LibrarySettings) -> Release:
    """Return a release whose manifest is here, and no variant, under its slot's name. Raise VariantError."""
    _, manifest, pipeline, folder = _manifest(activation, store, library)
    return _release(activation, manifest, pipeline, folder)


def signed_release(activation: Activation, store: Path, library: LibrarySettings) -> Release:
    """Return a release with the activation's variants; every file is checked by its digest. Raise VariantError."""
    _, manifest, pipeline, folder = _manifest(activation, store, library)
    variants = tuple(_variant(manifest, name) for name in activation.variants)
    if not variants:
        raise VariantError("no variant of it was installed", remedy=REMEDY)
    for variant in variants:
        if (changed := changed_file(manifest, variant, folder)) is not None:
            raise VariantError(f"{changed} is missing, or is not what was signed", remedy=REMEDY)
    try:
        check_references(variants, folder)
    except (ConfigurationError, OSError) as error:
        raise VariantError(str(error), remedy="its owner must publish it again, with every file") from error
    return _release(activation, replace(manifest, variants=variants), pipeline, folder)


def refused_release(activation: Activation, store: Path, problem: str) -> Release:
    """Return the index entry of a release that may not serve."""
    folder = store / "releases" / activation.release
    return Release(activation.slot, activation.version, folder, problem=problem, signed=True)


def _manifest(
    activation: Activation, store: Path, library: LibrarySettings
) -> tuple[SignedRelease, ModelManifest, Pipeline | None, Path]:
    folder = store / "releases" / activation.release
    try:
        release = read_release(LocalBlobs(store / "blobs").read(activation.release, RELEASE_LIMIT_BYTES))
        text = _text(folder, release, library.manifest_limit_bytes)
        file = str(folder / release.manifest.path)
        manifest = declared(release, text, file)
        pipeline = read_pipeline(text, file) if release.manifest.path == PIPELINE else None
    except (StoreError, ConfigurationError, ValueError) as error:
        raise VariantError(str(error)) from error
    if problem := disagreement(release, manifest):
        raise VariantError(f"{folder}: {problem}", remedy="its owner must publish it again")
    return release, manifest, pipeline, folder


def _text(folder: Path, release: SignedRelease, limit_bytes: int) -> str:
    file = folder / release.manifest.path
    try:
        with open_plain(file) as stream:
            content = stream.read(limit_bytes + 1)
    except OSError as error:
        raise VariantError(f"{file} cannot be read: {error.strerror}", remedy=REMEDY) from error
    if hashlib.sha256(content).hexdigest() != release.manifest.sha256:
        raise VariantError(f"{file} is not what was signed", remedy=REMEDY)
    return content.decode("utf-8")


def _variant(manifest: ModelManifest, name: str) -> Variant:
    variant = manifest.variant(name)
    if variant is None:
        raise VariantError(f"variant {name:.100} is no variant of this release", remedy=REMEDY)
    return variant


def _release(activation: Activation, manifest: ModelManifest, pipeline: Pipeline | None, folder: Path) -> Release:
    """Return the release under its slot's name."""
    slot, version = activation.slot, activation.version
    facts = f"{folder}\0{activation.release}\0{[variant.name for variant in manifest.variants]}"
    digest = hashlib.sha256(facts.encode()).hexdigest()
    if pipeline is not None:
        return Release(slot, version, folder, digest, signed=True, pipeline=replace(pipeline, name=slot))
    return Release(slot, version, folder, digest, manifest=replace(manifest, name=slot), signed=True)
