"""Inventory of a machine from its files alone. Nothing is executed, so a copied root gives the same result."""

from __future__ import annotations

from pathlib import Path

from gateway.domain.inventory import Inventory
from gateway.hardware.board import read_board, read_memory_bytes
from gateway.hardware.expectations import remarks
from gateway.hardware.families import FAMILIES
from gateway.hardware.processor import read_arch, read_cpu
from gateway.hardware.settings import HardwareSettings
from gateway.hardware.tree import Tree


def probe(root: Path = Path("/"), *, settings: HardwareSettings | None = None) -> Inventory:
    """Read /sys, /proc, /dev and /etc under `root`. Never raises for their contents; unknown is None.

    Rungs from `library` on are null, except a `runtime` that this product does not have.
    """
    tree = Tree(root, settings)
    cpu, accelerators = read_cpu(tree), tuple(found for family in FAMILIES for found in family(tree))
    return Inventory(
        arch=read_arch(tree),
        board=read_board(tree),
        cpu=cpu,
        memory_bytes=read_memory_bytes(tree),
        accelerators=accelerators,
        remarks=remarks(tree, cpu, accelerators),
    )
