"""Bounds of detection: nothing under a root is trusted to be small, finite or quick."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """Every bound of this room, with its unit."""

    attribute_bytes: int = 4096
    """Largest sysfs attribute read: one page, which is the kernel's own limit."""
    table_bytes: int = 4 * 1024 * 1024
    """Largest table read (cpuinfo, meminfo): 512 x86 threads take about 1 MB."""
    entries_max: int = 4096
    """Directory entries, and places of PCI devices, looked at; the rest is ignored."""
    link_hops_max: int = 40
    """Symbolic links followed for one path, as Linux does (MAXSYMLINKS)."""
    text_chars: int = 200
    """Longest piece of a machine's own text that is reported."""
    child_deadline_s: float = 5.0
    """How long the child that loads one set of vendor libraries may take."""
    child_output_bytes: int = 64 * 1024
    """How much of that child's output is read."""
