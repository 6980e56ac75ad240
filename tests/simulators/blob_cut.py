"""Scenario of `power_machine`: the controller's power fails while it stores a blob."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.blobs.settings import BlobSettings
from tests.simulators.constants import settings_with

KEPT = "kept"
OLD, NEW = (bytes([seed]) * 200_000 for seed in (1, 2))
AT_ONCE = settings_with(BlobSettings(), leftover_age_s=-1.0)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a blob."""
    return hashlib.sha256(content).hexdigest()


def prepare(folder: Path) -> None:
    """Store one blob."""
    DiskBlobs(folder / "deep" / "blobs").put(digest(OLD), io.BytesIO(OLD), len(OLD))


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Store another one."""
    DiskBlobs(folder / "deep" / "blobs").put(digest(NEW), io.BytesIO(NEW), len(NEW))
    claim(KEPT)


def inspect(folder: Path) -> dict[str, Any]:
    """Return each blob's state (absent, whole or damaged), and the files left after a start that removes leftovers."""
    blobs = DiskBlobs(folder / "deep" / "blobs", AT_ONCE)
    found = {}
    for name, content in {"old": OLD, "new": NEW}.items():
        if blobs.stat(digest(content)) is None:
            found[name] = "absent"
            continue
        with blobs.open(digest(content)) as file:
            found[name] = "whole" if file.read() == content else "damaged"
    others = [file.name for file in (folder / "deep" / "blobs").iterdir() if len(file.name) != 64]
    return {**found, "others": sorted(others)}
