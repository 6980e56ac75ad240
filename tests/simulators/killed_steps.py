"""`edge-fleet serve` that is killed once at each of its steps.

`python -m tests.simulators.killed_steps FILE PART serve …`: a step is a write transaction's commit (before it, and
after it), or a file of the publisher's folder that is renamed or removed, with the functions that lead to it and the
actions in the audit log. Alerts and deletions by age are left out. FILE lists the steps at which earlier processes
died, one per line; PART 3 kills at every third kind of step.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import Pool

from fleet.cli import main

WRITES = ("INSERT", "UPDATE", "DELETE")
FILES = ("os.rename", "os.remove")
SPARED = ("controller/control/maintenance", "controller/monitoring")
ACTION = re.compile(r"[a-z_]+\.[a-z_]+")


def kill(file: Path, part: int, folder: str) -> None:
    """Kill this process (SIGKILL) at the next step that is not in `file`, after adding it."""
    seen = set(file.read_text().splitlines()) if file.exists() else set()

    def step(what: str) -> None:
        path = _path()
        line = f"{what} in {path}"
        if line in seen or zlib.crc32(line.encode()) % part or any(one in path for one in SPARED):
            return
        with file.open("a") as log:
            log.write(f"{line}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def before(connection: Any) -> None:
        if connection.info.get("wrote"):
            step(f"before the commit of {_words(connection.info)}")

    def after(_connection: Any, record: Any) -> None:
        if record and record.info.get("wrote"):
            words = _words(record.info)
            record.info.clear()
            step(f"after the commit of {words}")

    def audited(name: str, arguments: tuple[Any, ...]) -> None:
        if name in FILES and any(str(one).startswith(folder) for one in arguments):
            step(f"{name} {Path(str(arguments[0])).parent.name}")

    event.listen(Engine, "after_cursor_execute", _noted)
    event.listen(Engine, "rollback", lambda connection: connection.info.pop("wrote", None))
    event.listen(Engine, "commit", before)
    event.listen(Pool, "checkin", after)
    sys.addaudithook(audited)


def _noted(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: object) -> None:
    verb, *rest = statement.split(maxsplit=3)
    if verb in WRITES:
        table = rest[0] if verb == "UPDATE" else rest[1]
        wrote = connection.info.setdefault("wrote", set())
        wrote.add(f"{verb} {table}")
        if table == "audit":
            values = parameters.values() if isinstance(parameters, dict) else parameters
            wrote.update(one for one in values if isinstance(one, str) and ACTION.fullmatch(one))


def _words(info: dict[str, Any]) -> str:
    return ", ".join(sorted(info["wrote"]))


def _path() -> str:
    """Return the functions of the controller and the publisher that are running in this thread."""
    found, frame = [], sys._getframe(2)
    while frame:
        place = frame.f_code.co_filename.rpartition("/fleet/")[2]
        if place.startswith(("controller/", "publisher/")) and not place.startswith("controller/database/engine"):
            found.append(f"{place.removesuffix('.py')}.{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


if __name__ == "__main__":
    kill(Path(sys.argv.pop(1)), int(sys.argv.pop(1)), sys.argv[sys.argv.index("--dir") + 1])
    sys.exit(main())
