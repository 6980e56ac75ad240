"""A child that dies at a chosen point of what it does to a database: before a statement, or before a commit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from sqlalchemy import event

from fleet.database.engine import Database


def die_at(database: Database, number: int) -> None:
    """This process, at that point from now on, counted from 1."""
    passed = 0

    def point(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "commit"):
        event.listen(database.writes, name, point)


def died(work: Callable[[], None]) -> bool:
    """Whether a child that does this work is killed on its way. Raises RuntimeError where it fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 a child says what happened, and never goes on as its parent
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError("the child failed; what it says stands above")
    return False
