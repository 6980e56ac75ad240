"""What the control API tells of the process and of the device, beside what it serves."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.domain.vitals import Vitals

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class About:
    """`inventory` as `edge-gateway probe --json` prints it; `vitals` is asked on a thread: sensors take milliseconds.

    `restart` says what waits for a restart of this process ("": nothing). `problem` says why what is committed could
    not be read, and why the state cannot be written ("": neither is so). `instance` is another after each start.
    """

    profile: str
    inventory: Mapping[str, Any]
    vitals: Callable[[], Vitals]
    restart: Callable[[], str]
    problem: Callable[[], str]
    instance: str = field(default_factory=lambda: secrets.token_hex(8))


def resident_bytes() -> int:
    """Memory of this process: the second figure of /proc/self/statm, in pages (proc(5)); 0 where there is none."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
