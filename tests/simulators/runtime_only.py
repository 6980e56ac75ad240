"""Environment with only `requirements/runtime.txt`, as of an installed gateway, without test packages."""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-runtime"


@functools.cache
def interpreter() -> str:
    """Return the environment's Python. `make runtime-only` creates it, again after each change of the lock file."""
    if Path(sys.prefix) == FOLDER:
        return sys.executable
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "--silent", "--no-print-directory", "runtime-only"]
        made = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    if made.returncode:
        raise RuntimeError(f"`make runtime-only` ended with exit code {made.returncode}\n{made.stdout}")
    return str(FOLDER / "bin" / "python")
