"""One model of the corpus: its files, and inputs that it is known to take."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs and the outputs that the model's authors state for them."""

    inputs: Tensors
    outputs: Tensors
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Hint:
    """Values that one input takes: floats in `low`..`high` or integers below `high`, in one of `shapes` by turns.

    Without shapes the model's own are used, with small sizes for open dimensions.
    """

    low: float = 0.0
    high: float = 1.0
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A model as its source ships it. `files`: content by name in the model's folder, which the gateway gets bare."""

    source: str
    name: str
    runtime: str
    files: Mapping[str, Path | bytes]
    cases: tuple[Case, ...] = ()
    hints: Mapping[str, Hint] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name in the model directory."""
        return re.sub(r"[^A-Za-z0-9._-]", "_", f"{self.source}.{self.name}")[-128:].lstrip("._-")

    @property
    def main_file(self) -> str:
        """Name of the file that a runtime opens."""
        return next(name for name in self.files if name.startswith("model."))

    def write(self, root: Path) -> Path:
        """Lay the files out bare under `root`. Return the path of the main file."""
        folder = root / self.model
        folder.mkdir(parents=True)
        for name, content in self.files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, folder / name)
            else:
                (folder / name).write_bytes(content)
        return folder / self.main_file
