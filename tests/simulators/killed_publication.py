"""`edge-fleet serve` that is killed in the middle of a publication.

`python -m tests.simulators.killed_publication N serve …`: before the file that follows N others appears in `public`, or
before the first draft is removed, where there are no more files.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fleet.cli import main

_replace, _unlink = Path.replace, Path.unlink


def kill(after: int) -> None:
    """Kill this process (SIGKILL) once so many files were published."""
    left = [after]

    def replacing(self: Path, target: Any) -> Path:
        if "/public/" in str(target):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        return _replace(self, target)

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == "drafts":
            os.kill(os.getpid(), signal.SIGKILL)
        _unlink(self, missing_ok)

    Path.replace = replacing  # type: ignore[method-assign]
    Path.unlink = unlinking  # type: ignore[method-assign]


if __name__ == "__main__":
    kill(int(sys.argv.pop(1)))
    sys.exit(main())
