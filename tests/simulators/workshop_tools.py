"""The tools that quantize models, which `make` installs apart, and commands that find them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
