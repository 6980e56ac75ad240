"""Inventory of a machine from its files alone. Nothing is executed, so a copied root gives the same result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.common.domain.inventory import Accelerator, Cpu, Inventory, Remark, Rung
from gateway.common.domain.runtimes import RUNTIMES
from gateway.serving.hardware.board import identify, read_board, read_memory_bytes
from gateway.serving.hardware.families import FAMILIES
from gateway.serving.hardware.processor import read_arch, read_cpu
from gateway.serving.hardware.settings import HardwareSettings
from gateway.serving.hardware.tree import Tree

PCI = "/sys/bus/pci"
PROCESSORS = {
    "intel-npu": re.compile(r"Core\(TM\) Ultra"),
    "amd-npu": re.compile(r"Ryzen AI|Ryzen [3579] (?:PRO )?[78][689]4[05](?:U|HS?)\b", re.IGNORECASE),
}
"""Kind of accelerator by the name of the processor that has it."""
MODULES = {
    "intel_vpu": ("intel-npu",),
    "amdxdna": ("amd-npu",),
    "apex": ("coral-pcie",),
    "hailo_pci": ("hailo-8", "hailo-10h"),
    "hailo1x_pci": ("hailo-10h", "hailo-8"),
    "nvidia": ("nvidia-gpu", "nvidia-jetson-gpu"),
    "rocket": ("rockchip-npu",),
}
"""Kinds of accelerators by the module that drives them: a loaded one implies one of them."""
IN_A_VM = "in a virtual machine pass the host's device through"
IN_WSL = "WSL2 passes on only GPUs"
SWITCH_ON = "switch it on in the firmware set-up (BIOS), and update that"
CHECK_CARD = "check card and cable, and that the slot has PCIe, not only SATA (Raspberry Pi 5: dtparam=pciex1)"
NOTHING = "none is expected: the buses show none, and neither processor, board nor a loaded module implies one"
HIDDEN = (
    "the device tree is hidden, as in a container, and {}: [hardware] board or EDGE_GATEWAY_BOARD overrides that, and "
    "--security-opt systempaths=unconfined shows the tree (librknnrt.so of Rockchip needs it)"
)


def remarks(tree: Tree, cpu: Cpu, accelerators: Sequence[Accelerator]) -> tuple[Remark, ...]:
    """Return what is expected and absent, what is hidden, or else that nothing is expected."""
    missing, wsl = [], tree.exists("/dev/dxg") or "microsoft" in (tree.line("/proc/sys/kernel/osrelease") or "").lower()
    signs = _signs(tree, cpu, {found.kind for found in accelerators}) if tree.is_directory(PCI) or wsl else {}
    for kind, why in signs.items():
        remedy = f"{SWITCH_ON if kind in PROCESSORS else CHECK_CARD}; {IN_A_VM}"
        detail = f"expected, because {' and '.join(why)}, but none is on the bus"
        missing.append(Remark(kind, detail, f"{IN_WSL}; run Linux itself to use this one" if wsl else remedy))
    board, origin = identify(tree)
    if origin.startswith("/"):
        missing.append(Remark("board", HIDDEN.format(f"{origin} shows {board[0]}")))
    elif not origin and tree.link_name("/proc/device-tree"):
        missing.append(Remark("board", HIDDEN.format("no sign shows which board this is")))
    if wsl:
        missing.append(Remark("WSL2", f"{IN_WSL}, as /dev/dxg, of which NVIDIA's are used"))
    if not accelerators and not signs:
        missing.append(Remark("accelerators", f"{NOTHING}; {IN_A_VM}" if "hypervisor" in cpu.features else NOTHING))
    return tuple(missing)


def _signs(tree: Tree, cpu: Cpu, present: set[str]) -> dict[str, list[str]]:
    """Return the signs of each kind that is expected, but not present."""
    signs: dict[str, list[str]] = {}
    for kind, pattern in PROCESSORS.items():
        if kind not in present and pattern.search(cpu.model or ""):
            signs.setdefault(kind, []).append(f"{cpu.model} has one")
    for module, kinds in MODULES.items():
        if present.isdisjoint(kinds) and tree.exists(f"/sys/module/{module}"):
            signs.setdefault(kinds[0], []).append(f"module {module} is loaded")
    return signs


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
