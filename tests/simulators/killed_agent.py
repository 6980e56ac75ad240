"""`python -m tests.simulators.killed_agent STEP CALLS -- VERB …`: edge-agent, killed with SIGKILL in STEP.

The step ends when the log reports the next one. The process is killed CALLS changing system calls after the log
reported STEP, or before the next log line. Exit code 0: it was killed there; 1: it ended before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

from gateway.device.agent import events
from gateway.device.agent.cli import main as edge_agent
from tests.simulators.syscalls import Traced


def main() -> int:
    """Run the command that the module describes."""
    step, calls = sys.argv[1], int(sys.argv[2])
    with tempfile.NamedTemporaryFile() as log:

        def work() -> None:
            os.dup2(log.fileno(), 2)
            edge_agent(sys.argv[4:])

        traced, seen = Traced(work), 0
        for name in traced:
            told = _steps(Path(log.name))
            seen += bool(told) and told[-1] == step
            if seen > calls or (seen and name == "write" and step in told[:-1]):
                traced.kill()
                return 0
    return 1


def _steps(log: Path) -> list[str]:
    found = []
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if document["event"] == events.UPDATE_STEP_BEGUN:
                found.append(document["step"])
    return found


if __name__ == "__main__":
    sys.exit(main())
