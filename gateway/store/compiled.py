"""Folders for what runtimes compile from a variant and load again later, one for each content.

TensorRT names what it compiles by the graph, not by its weights: in a folder that variants share, one would be served
with the weights of another.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

KEPT = 32
"""Folders that are kept; of more, those go that were not used for the longest time."""


def make_compiled(folder: Path) -> bool:
    """Make the folder of one variant, and remove what is too much beside it. Return False if it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
        others = sorted((one for one in folder.parent.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    except OSError:
        return False
    for old in others[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return True
