"""`edge-fleet serve` that is killed around the commit of the first request with an Idempotency-Key.

`python -m tests.simulators.killed_serve before|after serve …`: before the commit, or after it and before the answer.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import Pool

from fleet.cli import main

KEPT = "INSERT INTO idempotency_keys"


def kill(when: str) -> None:
    """Kill this process (SIGKILL) once an answer was kept."""
    kept: list[bool] = []

    def noted(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith(KEPT):
            kept.append(True)

    def point(*_: object) -> None:
        if kept:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "after_cursor_execute", noted)
    event.listen(Engine, "commit", point) if when == "before" else event.listen(Pool, "checkin", point)


if __name__ == "__main__":
    kill(sys.argv.pop(1))
    sys.exit(main())
