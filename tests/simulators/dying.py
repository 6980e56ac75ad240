"""Child process that dies at a chosen point of a database transaction: before a statement or a commit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from sqlalchemy import event

from fleet.controller.database.engine import Database


def die_at(database: Database, number: int) -> None:
    """Kill this process at a point, counted from 1."""
    passed = 0

    def point(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "commit"):
        event.listen(database.writes, name, point)


def died(work: Callable[[], None]) -> bool:
    """Run `work` in a child; return whether it was killed. Raise RuntimeError if it fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 a child reports any error, and never continues as its parent
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError("the child failed; what it says stands above")
    return False
