"""Pin of the root of trust for new versions of these programs, made by a child that stays root.

`bootstrap` and `enrol` become the store's owner before they read or write anything. The installer runs as root and must
not trust a file that this owner can replace. So `edge-software trust` makes the pin, and is started before the change
of user.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from gateway.common.domain.python310 import SAFE_PATH
from gateway.device.agent.cli.common import USER, complain
from gateway.device.agent.update.software import own_environment

COMMAND = (sys.executable, SAFE_PATH, "-m", "gateway.device.installer", "trust", "-")
TIMEOUT_S = 30.0


class Pinning:
    """Context whose `keep` passes the root of trust to the child. Active if root runs it for the installed agent."""

    def __init__(self, folder: Path) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0 and own_environment() and _is_home(folder):
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(COMMAND, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, cwd="/")

    def __enter__(self) -> Pinning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child and self._child.returncode is None:
            self._child.kill()
            self._child.communicate()

    def keep(self, root: bytes) -> None:
        """Let the child pin `root`. Print a warning if it fails; models are updated nevertheless."""
        if self._child is None:
            return
        _, output = self._child.communicate(root, TIMEOUT_S)
        if self._child.returncode:
            words = " ".join(output.decode("utf-8", "replace").split())[-500:]
            complain(f"new versions of these programs will not be installed by the fleet: {words}")


def _is_home(folder: Path) -> bool:
    try:
        return folder == Path(pwd.getpwnam(USER).pw_dir)
    except KeyError:
        return False
