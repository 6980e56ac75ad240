"""Settings of detection: the board, if it is named, and limits: any file under a root may be large, endless or slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.hardware.chips import BOARDS

COMPATIBLE = re.compile(r"[A-Za-z0-9._+-]{1,40},[A-Za-z0-9._+-]{1,80}")
"""Form of a board's string in a device tree: maker and model."""


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """Name of the board, and limits of this package, each with its unit."""

    board: str = ""
    """Name of the board, or `compatible` of its chip, in place of what is found; "": as found."""
    attribute_bytes: ClassVar[int] = 4096
    """Largest sysfs attribute read: one page, which is the kernel's own limit."""
    table_bytes: ClassVar[int] = 4 * 1024 * 1024
    """Largest table read (cpuinfo, meminfo): 512 x86 threads take about 1 MB."""
    entries_max: ClassVar[int] = 4096
    """Most directory entries, and places of PCI devices, that are read; the rest is ignored."""
    link_hops_max: ClassVar[int] = 40
    """Most symbolic links followed for one path, as in Linux (MAXSYMLINKS)."""
    text_chars: ClassVar[int] = 200
    """Longest text of the machine that is reported."""
    child_deadline_s: ClassVar[float] = 5.0
    """Time for the child that loads one set of vendor libraries."""
    child_output_bytes: ClassVar[int] = 64 * 1024
    """Most bytes of that child's output that are read."""

    def __post_init__(self) -> None:
        """Refuse an unknown board. Raises ConfigurationError."""
        if self.board and self.board not in BOARDS and not COMPATIBLE.fullmatch(self.board):
            known = f"a string of its device tree, such as rockchip,rk3588, or one of {', '.join(BOARDS)}"
            raise ConfigurationError(
                f"unknown board {self.board!r:.80} here or in EDGE_GATEWAY_BOARD; name {known}",
                table="hardware",
                key="board",
            )
