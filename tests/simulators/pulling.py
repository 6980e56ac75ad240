"""Pulls with short waiting times, and releases to pull."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.common.transfer.connection import ConnectionPool
from gateway.workshop.pull.bucket import BucketPlace
from gateway.workshop.pull.manifest import MANIFESTS, TITLE
from gateway.workshop.pull.pull import PulledRelease, PullRequest, pull_release
from gateway.workshop.pull.reference import read_reference
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.sources import PullAccess
from tests.simulators.constants import settings_with
from tests.simulators.daemon import SHIPPED

QUICK = settings_with(
    PullSettings().fetch,
    read_timeout_s=0.5,
    minimum_rate_bytes_per_s=100,
    minimum_rate_window_s=1.0,
    document_deadline_s=5.0,
    blob_deadline_s=20.0,
    attempts=3,
    backoff_base_s=0.001,
    retry_after_limit_s=0.01,
)
SETTINGS = PullSettings(fetch=QUICK)
MODEL = (SHIPPED / "activity/1/onnx-fp32/model.onnx").read_bytes()
"""A model file of 40 KB."""


def digest(content: bytes) -> str:
    """Return a SHA-256 digest as hex."""
    return hashlib.sha256(content).hexdigest()


def release_tar(model: str = "meter-reader", top: str = "1") -> bytes:
    """Return a shipped release as tar.gz, in a folder `top`. It is the same at every call."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(SHIPPED / model / "1", arcname=top)
    return buffer.getvalue()


def manifest(*layers: tuple[bytes, str]) -> bytes:
    """Return an OCI manifest of files with these contents and names."""
    entries: list[dict[str, Any]] = [
        {
            "mediaType": "application/octet-stream",
            "digest": f"sha256:{digest(content)}",
            "size": len(content),
            "annotations": {TITLE: name},
        }
        for content, name in layers
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFESTS[0], "layers": entries}).encode()


def pull(
    text: str,
    models: Path,
    *,
    pin: str = "",
    settings: PullSettings = SETTINGS,
    environ: Mapping[str, str] | None = None,
    ca: Path | None = None,
    place: BucketPlace | None = None,
    progress: list[int] | None = None,
    **request: Any,
) -> PulledRelease:
    """Pull `text` into `models`. `pin`: hex digest. `environ`: instead of the process's. `progress`: gets bytes."""
    if ca:
        settings = replace(settings, fetch=replace(settings.fetch, ca_file=str(ca)))
    connections = ConnectionPool(settings.fetch)
    found = {"DOCKER_CONFIG": str(models / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(models / "none")}
    access = PullAccess(connections, settings, None, place or BucketPlace(), {**found, **(environ or {})})
    told = progress if progress is not None else []
    try:
        wanted = PullRequest(read_reference(text, f"sha256:{pin}" if pin else ""), models, **request)
        return pull_release(wanted, access, lambda here, _: told.append(here))
    finally:
        connections.close()
