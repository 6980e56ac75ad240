"""Folders of what runtimes compile: one folder per content of a variant, loaded again at later starts.

TensorRT names a compiled engine by its graph, not by its weights. In a shared folder, a variant could be served with
the weights of another one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

KEPT_FOLDERS = 32
"""Folders that are kept. Further ones are removed, the least recently used first."""


def make_compiled(folder: Path) -> bool:
    """Create the folder of one content and remove the least recently used others. Return False if it is not usable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
        others = [one for one in folder.parent.iterdir() if one != folder and one.is_dir()]
        others.sort(key=lambda one: one.stat().st_mtime)
    except OSError:
        return False
    for old in others[: -(KEPT_FOLDERS - 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return True
