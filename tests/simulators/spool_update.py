"""Scenario for `power`: a device stores telemetry, sends some of it, and some is acknowledged.

The boot's name is always the same, as on a device that cannot distinguish its boots. Then only the spool prevents that
a number is used twice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gateway.device.store.spool import Spool
from gateway.device.store.spool_rows import Priority, SpooledRecord, SpoolRecord

NOW = datetime(2027, 1, 1, tzinfo=timezone.utc)
BOOT = "the only one"


def prepare(folder: Path) -> None:
    """Store some telemetry."""
    run(folder, lambda _: None)


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Store vitals, then evidence, which must not be lost; send all, and acknowledge the older vitals."""
    with contextlib.closing(Spool.open(folder, BOOT, NOW)) as spool:
        for number in range(4):
            spool.append([_record("vitals", Priority.VITALS, number)], NOW)
        spool.append([_record("updates", Priority.EVIDENCE, 0)], NOW)
        claim(json.dumps({"evidence": _record("updates", Priority.EVIDENCE, 0).document}))
        claim(json.dumps({"sent": _entries(spool)}))
        spool.acknowledged("vitals", spool.epoch, 6)
        spool.append([_record("vitals", Priority.VITALS, 4)], NOW)
        claim(json.dumps({"sent": _entries(spool)}))


def inspect(folder: Path) -> dict[str, Any]:
    """Return all entries, the last number of each stream, and why the spool was renewed."""
    with contextlib.closing(Spool.open(folder, BOOT, NOW)) as spool:
        last = {row["stream"]: row["last"] for row in spool._file.ask("SELECT stream, last FROM source")}
        return {"entries": _entries(spool), "last": last, "renewed": spool.renewed}


def _record(stream: str, priority: Priority, number: int) -> SpoolRecord:
    """Return a record that is unique to this process."""
    return SpoolRecord(stream, priority, "sample", NOW, {"number": number, "by": os.getpid()})


def _entries(spool: Spool) -> list[list[Any]]:
    found = [entry for entry in spool.batch(1000, 10**6) if isinstance(entry, SpooledRecord)]
    return [[entry.stream, entry.boot_epoch, entry.seq, json.loads(entry.payload)] for entry in found]
