"""`edge-gateway` on hardware that is not here: `python simulated.py KIND FOLDER ARGUMENT…`.

Everything is real but what the gateway finds when it looks for its board: that comes from a tree of the files that
such a board has (tests/devices). Models run on this machine's CPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.cli import main
from gateway.serving import assembly
from tests.devices.build import build
from tests.devices.catalogue import TREES


def pretend(kind: str, folder: Path) -> None:
    """Let what is probed from now on be a board of this kind; memory and cores stay those that models really get."""
    tree, real = build(folder, TREES[kind]), assembly.probe

    def probe(root: Path, **settings: Any) -> Any:
        here, there = real(root, **settings), real(tree, **settings)
        return replace(there, memory_bytes=here.memory_bytes, cpu=replace(there.cpu, cores=here.cpu.cores))

    assembly.probe = probe


if __name__ == "__main__":
    pretend(sys.argv[1], Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
