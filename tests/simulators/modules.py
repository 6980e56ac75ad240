"""List of the Python modules that a running daemon has loaded. `/proc/<pid>/maps` shows only compiled packages.

`COMMAND` runs `edge-gateway` with one addition: at SIGUSR1 it logs the names.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from tests.simulators import runtime_only

if TYPE_CHECKING:
    from tests.simulators.daemon import Daemon

COMMAND = (runtime_only.interpreter(), "-m", "tests.simulators.modules")
EVENT = "modules loaded"


def modules(daemon: Daemon) -> set[str]:
    """Return the full names of the modules that a daemon started with `COMMAND` has loaded."""
    return set(told(daemon)["names"])


def told(daemon: Daemon) -> dict[str, Any]:
    """Return the daemon's report: `names`, the number of `frozen` objects, and whether it is `collecting` garbage."""
    asked = sum(line["event"] == EVENT for line in daemon.lines()) + 1
    daemon.signal(signal.SIGUSR1)
    return daemon.wait_logged(EVENT, asked=asked)


def main() -> int:
    """Run the daemon with a handler of SIGUSR1."""
    asked = 0

    def tell(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked += 1
        facts = {"names": sorted(sys.modules), "frozen": gc.get_freeze_count(), "collecting": gc.isenabled()}
        os.write(2, (json.dumps({"event": EVENT, "asked": asked, **facts}) + "\n").encode())

    signal.signal(signal.SIGUSR1, tell)
    from gateway.cli import main as edge_gateway

    return edge_gateway(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
