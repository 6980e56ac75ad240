"""Inventory of a machine from its files alone. Nothing is executed, so a copied root gives the same result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.common.domain.inventory import Accelerator, Inventory, Rung
from gateway.common.domain.runtimes import RUNTIMES
from gateway.serving.hardware.board import read_board, read_memory_bytes
from gateway.serving.hardware.expectations import remarks
from gateway.serving.hardware.families import FAMILIES
from gateway.serving.hardware.processor import read_arch, read_cpu
from gateway.serving.hardware.settings import HardwareSettings
from gateway.serving.hardware.tree import Tree


def probe(root: Path = Path("/"), *, settings: HardwareSettings | None = None) -> Inventory:
    """Read /sys, /proc, /dev and /etc under `root`. Never raises for their contents; unknown is None.

    Rungs from `library` on are null, except `runtime` if no runtime of this product can use the accelerator.
    """
    tree = Tree(root, settings)
    cpu, accelerators = read_cpu(tree), tuple(_judged(found) for family in FAMILIES for found in family(tree))
    return Inventory(
        arch=read_arch(tree),
        board=read_board(tree),
        cpu=cpu,
        memory_bytes=read_memory_bytes(tree),
        accelerators=accelerators,
        remarks=remarks(tree, cpu, accelerators),
    )


def _judged(found: Accelerator) -> Accelerator:
    """Break the rung `runtime` of an accelerator that no runtime of the table can use."""
    if any(spec.lists(found.kind) for spec in RUNTIMES.values()):
        return found
    remedy = "nothing to do: models run on the other accelerators and on the CPU"
    missing = Rung("runtime", False, f"this product has no runtime for {found.kind} yet", remedy)
    rungs = tuple(missing if rung.name == "runtime" and rung.ok is None else rung for rung in found.rungs)
    return replace(found, rungs=rungs)
