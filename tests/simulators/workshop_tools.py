"""The tools that quantize models, which `make` installs apart, and commands that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.manifest_toml import read_manifest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv" / "workshop"
COMMAND = (sys.executable, "-m", "gateway", "models")


def environment() -> Mapping[str, str]:
    """Return our environment with the tools behind the packages of the tests."""
    return {**os.environ, "PYTHONPATH": str(FOLDER)}


def models(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run an action of `edge-gateway models` that may use the tools."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def new(library: Path, *files: Path, labels: tuple[str, ...] = (), name: str = "m") -> Path:
    """Make a version of a model, and return its folder."""
    options: list[object] = ["--models", library, "--name", name, "--version", "1"]
    if labels:
        (library.parent / "labels.txt").write_text("\n".join(labels))
        options += ["--labels", library.parent / "labels.txt"]
    done = models("new", *files, *options)
    assert done.returncode == 0, done.stderr
    return library / name / "1"


def quantized(folder: Path, data: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """Quantize, and return what the command told."""
    done = models("quantize", folder, "--calibration", data, "--json", *options)
    assert done.returncode == code, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def manifest_of(folder: Path) -> ModelManifest:
    """Return the manifest of a version."""
    return read_manifest((folder / "manifest.toml").read_text(), str(folder))


def by_name(told: dict[str, Any]) -> dict[str, Any]:
    """Return what was told of each variant."""
    return {variant["name"]: variant for variant in told["variants"]}
