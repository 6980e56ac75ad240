"""Pin of the root of trust for new versions of these programs, by a child that stays root.

`bootstrap` and `enrol` become the store's owner before they learn or write anything. The installer runs as root and
must not believe a file that this owner can replace, so the pin is made by `edge-software trust`, started before that.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.agent.cli.common import USER, complain
from gateway.agent.software import own_environment

COMMAND = (sys.executable, "-P", "-m", "gateway.software", "trust", "-")
TIMEOUT_S = 30.0


class Pinning:
    """Context in which `keep` hands the root of trust to the child, where root runs this for the installed agent."""

    def __init__(self, folder: Path) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0 and own_environment() and _is_home(folder):
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(COMMAND, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, cwd="/")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child and self._child.returncode is None:
            self._child.kill()
            self._child.communicate()

    def keep(self, root: bytes) -> None:
        """Let the child pin `root`; say so where it does not: models are updated all the same."""
        if self._child is None:
            return
        _, said = self._child.communicate(root, TIMEOUT_S)
        if self._child.returncode:
            words = " ".join(said.decode("utf-8", "replace").split())[-500:]
            complain(f"new versions of these programs will not be installed by the fleet: {words}")


def _is_home(folder: Path) -> bool:
    try:
        return folder == Path(pwd.getpwnam(USER).pw_dir)
    except KeyError:
        return False
