"""Inventory as `probe --json` prints it: these keys, in this order; unknown is null."""

from __future__ import annotations

from typing import Any

from gateway.common.domain.inventory import Inventory


def inventory_json(inventory: Inventory, profile_name: str | None) -> dict[str, Any]:
    """Return plain values for `json.dumps`."""
    board, cpu = inventory.board, inventory.cpu
    return {
        "arch": inventory.arch,
        "board": {"model": board.model, "compatible": list(board.compatible) or None},
        "cpu": {"vendor": cpu.vendor, "model": cpu.model, "cores": cpu.cores, "features": list(cpu.features) or None},
        "memory_bytes": inventory.memory_bytes,
        "accelerators": [
            {
                "kind": found.kind,
                "name": found.name,
                "device": found.device or None,
                "usable": found.usable,
                "rungs": [
                    {"name": rung.name, "ok": rung.ok, "detail": rung.detail, "remedy": rung.remedy}
                    for rung in found.rungs
                ],
            }
            for found in inventory.accelerators
        ],
        "profile": profile_name,
    }
