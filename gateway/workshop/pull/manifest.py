"""OCI manifests: which blobs make a release, and what each becomes. Pure.

Source: OCI image specification 1.1, "Image Manifest"; artifacts are image manifests with `artifactType`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.workshop.pull.settings import PullSettings

MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
ACCEPT = ", ".join((*MANIFESTS, *INDEXES))
"""Types that are requested. Indexes are requested too, so that the refusal can list what they hold."""
TITLE = "org.opencontainers.image.title"
"""Annotation with the name of a layer's file (image specification, "Pre-Defined Annotation Keys")."""
FILE_PATH = "org.cncf.model.filepath"
"""The same, in artifacts of the CNCF's ModelPack specification."""
UNTYPED = "application/vnd.oci.image.layer.v1.tar"
"""Type that clients give to files of no known type."""
GZIPPED = ("tar+gzip", "tar.gzip")
"""Ends of media types of gzipped tars; those of Docker have a dot."""


@dataclass(frozen=True, slots=True)
class ReleasePart:
    """One blob of a release. `name`: path of the file that it becomes. `archive`: suffix of an archive, or ""."""

    digest: str
    size_bytes: int
    name: str
    archive: str = ""


def read_parts(content: bytes, named: str, settings: PullSettings) -> tuple[ReleasePart, ...]:
    """Return the parts of a manifest. `named`: for messages. Raise ConfigurationError."""
    document = _document(content, named)
    kind = document.get("mediaType", MANIFESTS[0])
    if kind in INDEXES or "manifests" in document:
        raise ConfigurationError(f"{named} is an index of several manifests; pin one of them: {_listed(document)}")
    layers = document.get("layers")
    if kind not in MANIFESTS or not isinstance(layers, list):
        raise ConfigurationError(f"{named} is no image manifest (mediaType {kind!r:.120}); it cannot be pulled")
    if not 0 < len(layers) <= settings.layers_limit:
        raise ConfigurationError(f"{named} has {len(layers)} layers; a release has 1 to {settings.layers_limit}")
    parts = tuple(_part(layer, named) for layer in layers)
    seen: set[str] = set()
    for name in (part.name for part in parts if part.name):
        if name in seen:
            raise ConfigurationError(f"{named} has two layers for the file {name!r:.150}; push it again")
        seen.add(name)
    return parts


def _document(content: bytes, named: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("schemaVersion") != 2:
        raise ConfigurationError(f"{named} is no manifest of schema version 2; push it again with a current tool")
    return found


def _part(layer: object, named: str) -> ReleasePart:
    entry = layer if isinstance(layer, dict) else {}
    digest, size_bytes, kind = entry.get("digest"), entry.get("size"), entry.get("mediaType")
    plain = digest.removeprefix("sha256:") if isinstance(digest, str) else ""
    if not DIGEST_PATTERN.fullmatch(plain) or digest == plain:
        raise ConfigurationError(f"{named} has a layer with the digest {digest!r:.100}; only sha256 is supported")
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0 or not isinstance(kind, str):
        raise ConfigurationError(f"{named} has a layer without a size and a media type; push it again")
    archive = "" if _is_named_file(kind, entry) else _archive(kind, named)
    return ReleasePart(plain, size_bytes, "" if archive else _title(entry, plain, named), archive)


def _is_named_file(kind: str, entry: Mapping[str, Any]) -> bool:
    """Return True for a layer that is called a tar because its client has no better default (seen with oras)."""
    notes = entry.get("annotations")
    title = notes.get(TITLE) if isinstance(notes, dict) else None
    return kind == UNTYPED and isinstance(title, str) and PurePosixPath(title).suffix not in {"", ".tar"}


def _archive(kind: str, named: str) -> str:
    if kind.endswith(GZIPPED):
        return ".tar.gz"
    if kind.endswith((".tar", "+tar")):
        return ".tar"
    if kind.endswith(("+zstd", ".zstd")):
        raise ConfigurationError(f"{named} has a layer of type {kind:.120}; push it as tar+gzip")
    return ""


def _title(entry: Mapping[str, Any], digest: str, named: str) -> str:
    notes = entry.get("annotations")
    found = [notes[key] for key in (TITLE, FILE_PATH) if key in notes] if isinstance(notes, dict) else []
    if not found or not isinstance(found[0], str) or not found[0]:
        problem = f"{named} has a layer (sha256:{digest:.12}…) without the annotation {TITLE}, which names its file"
        raise ConfigurationError(f"{problem}; push it with the annotation, or as tar+gzip")
    return str(found[0])


def _listed(document: Mapping[str, Any]) -> str:
    entries = document.get("manifests")
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return ", ".join(f"{entry.get('digest')!s:.80}" for entry in found[:3]) or "it lists none"
