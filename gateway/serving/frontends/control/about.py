"""Information that the control API reports about the process and the device."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.serving.domain.vitals import Vitals

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class About:
    """Sources of the process and device information.

    `inventory` is the output of `edge-gateway probe --json`. `vitals` is called on a thread: sensors take milliseconds.
    `restart` returns what waits for a restart of this process, or "". `problem` returns why the committed releases
    could not be read and why the state cannot be written, or "". `broker` returns whether MQTT is connected, or None
    without MQTT. `cameras` returns a document of each camera. `instance` differs after each start.
    """

    profile: str
    inventory: Mapping[str, Any]
    vitals: Callable[[], Vitals]
    restart: Callable[[], str]
    problem: Callable[[], str]
    broker: Callable[[], bool | None]
    cameras: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    instance: str = field(default_factory=lambda: secrets.token_hex(8))


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if /proc/self/statm cannot be read.

    It is the second number in that file, in pages (proc(5)).
    """
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
