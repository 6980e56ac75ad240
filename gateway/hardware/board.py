"""Board, from the device tree, or DMI on x86; and its memory."""

from __future__ import annotations

import re

from gateway.domain.inventory import Board
from gateway.hardware.tree import Tree

DEVICE_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
DMI = "/sys/class/dmi/id"
PLACEHOLDERS = (
    "to be filled",
    "default string",
    "system product name",
    "system manufacturer",
    "not specified",
    "o.e.m.",
)
"""Placeholders that board makers leave in DMI fields."""


def compatible(tree: Tree) -> tuple[str, ...]:
    """Return the root node's `compatible`, most specific first; () without a device tree."""
    return next((found for path in DEVICE_TREES if (found := tree.strings(f"{path}/compatible"))), ())


def read_board(tree: Tree) -> Board:
    """Return the board's model and compatible strings."""
    models = (tree.strings(f"{path}/model") for path in DEVICE_TREES)
    model = next((found[0] for found in models if found), None)
    return Board(model or _dmi(tree), compatible(tree))


def read_memory_bytes(tree: Tree, field: str = "MemTotal") -> int | None:
    """Return a field of /proc/meminfo in bytes; None if it is absent."""
    text = tree.read_text("/proc/meminfo", tree.settings.table_bytes) or ""
    found = re.search(rf"^{field}:\s*([0-9]{{1,15}}) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _dmi(tree: Tree) -> str | None:
    for vendor_key, product_key in (("sys_vendor", "product_name"), ("board_vendor", "board_name")):
        if product := _filled(tree.line(f"{DMI}/{product_key}")):
            vendor = _filled(tree.line(f"{DMI}/{vendor_key}"))
            return f"{vendor} {product}" if vendor and not product.startswith(vendor) else product
    return None


def _filled(text: str | None) -> str | None:
    return None if text is None or any(word in text.lower() for word in PLACEHOLDERS) else text
