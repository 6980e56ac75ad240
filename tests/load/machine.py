"""Cost of a simulation on this machine: processor time of the controller and of the devices, and disk space."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError

SUFFIXES = ("", "-wal")
"""Suffixes of an SQLite database's files: the write-ahead log holds data that are not in the main file yet."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Values at one moment. `controller_s`: processor time of the controller's processes and their ended children."""

    at_s: float
    own_s: float
    controller_s: float
    controller_bytes: int
    database_bytes: int


def read(pids: Sequence[int], database: Path | None) -> MachineReading:
    """Read the values. Raise ConfigurationError if a process or file does not exist."""
    times = os.times()
    spent_s, resident = 0.0, 0
    for pid in pids:
        used_s, size = _process(pid)
        spent_s, resident = spent_s + used_s, resident + size
    size = _size(database) if database else 0
    return MachineReading(time.monotonic(), times.user + times.system, spent_s, resident, size)


def spent(
    before: MachineReading, after: MachineReading, requests: int, *, pids: bool, database: bool
) -> dict[str, Any]:
    """Return the difference of two readings in the form of `run --json`."""
    passed_s = after.at_s - before.at_s
    found: dict[str, Any] = {"simulator_busy": round((after.own_s - before.own_s) / passed_s, 3) if passed_s else 0.0}
    if pids:
        used_s = after.controller_s - before.controller_s
        found["controller"] = {
            "cpu_s": round(used_s, 2),
            "busy": round(used_s / passed_s, 3) if passed_s else 0.0,
            "cpu_ms_per_request": round(1000.0 * used_s / requests, 3) if requests else 0.0,
            "rss_bytes": after.controller_bytes,
        }
    if database:
        found["database_bytes"] = {"before": before.database_bytes, "after": after.database_bytes}
    return found


def _process(pid: int) -> tuple[float, int]:
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system, process.memory_info().rss
    except psutil.Error as error:
        raise ConfigurationError(f"--pid {pid}: {error!s:.100}") from None


def _size(file: Path) -> int:
    if not file.is_file():
        raise ConfigurationError("is no file; --database names the controller's SQLite file", file=str(file))
    parts = [file.with_name(file.name + suffix) for suffix in SUFFIXES]
    return sum(part.stat().st_size for part in parts if part.exists())
