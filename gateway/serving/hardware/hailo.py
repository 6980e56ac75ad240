"""Hailo accelerators. Only a firmware query, which is execution, separates 8 from 8L."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.board import PAGE_BYTES, page_bytes
from gateway.serving.hardware.bus import PciDevice, pci_devices
from gateway.serving.hardware.rungs import (
    Needs,
    NodeAccess,
    driver_rung,
    firmware_rung,
    loaded_module,
    node_rung,
    permission_rung,
    ten,
    versions_rung,
)
from gateway.serving.hardware.tree import Tree

VENDOR = "1e60"
CLASS = "/sys/class/hailo_chardev"
FIRMWARE = "/lib/firmware/hailo"
PAGES = "force_desc_page_size"
ACCESS = NodeAccess("hailo", 'SUBSYSTEM=="hailo_chardev", GROUP="hailo", MODE="0660"')


@dataclass(frozen=True, slots=True)
class Chip:
    """Chip by PCI id. The driver of one generation does not bind the other's chips."""

    kind: str
    name: str
    drivers: tuple[str, ...]
    remedy: str


CHIPS = {
    "2864": Chip(
        "hailo-8",
        "Hailo-8 or Hailo-8L (told apart only by a firmware query)",
        ("hailo", "hailo_pci"),
        "hailo1x does not bind this chip: install the driver of HailoRT 4 (package hailort-pcie-driver 4.x; "
        "on Raspberry Pi OS: sudo apt install hailo-all)",
    ),
    "45c4": Chip(
        "hailo-10h",
        "Hailo-10H",
        ("hailo1x", "hailo1x_pci"),
        "install the driver of HailoRT 5 (package hailort-pcie-driver 5.x; "
        "on Raspberry Pi OS: sudo apt install hailo-h10-all)",
    ),
}

_NEEDS = Needs(
    libraries=(("libhailort.so",),), library_remedy="install HailoRT of the driver's own version: package hailort"
)
NEEDS = {"hailo-8": _NEEDS, "hailo-10h": _NEEDS}


def chips(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every Hailo chip on the PCI bus."""
    found = [device for device in pci_devices(tree, VENDOR) if device.device in CHIPS]
    return tuple(_chip(tree, device, index) for index, device in enumerate(found))


def _chip(tree: Tree, device: PciDevice, index: int) -> Accelerator:
    chip = CHIPS[device.device]
    node = _node(tree, device, index) if device.driver in chip.drivers else None
    module = loaded_module(tree, chip.drivers[::-1])
    version = (tree.line(f"/sys/module/{module}/version") if module and device.driver in chip.drivers else None) or ""
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        _driver(tree, device, chip, version),
        _firmware(tree, chip, version),
        node_rung(tree, node, "/dev/hailo* of this chip", f"read dmesg | grep hailo; {chip.remedy}"),
        permission_rung(tree, node, ACCESS),
        versions_rung(tree, version, "libhailort.so", f"install HailoRT {version}, the driver's own version"),
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator(chip.kind, chip.name, node or device.address, rungs, facts)


def _driver(tree: Tree, device: PciDevice, chip: Chip, version: str) -> Rung:
    rung = driver_rung(tree, device.driver, chip.drivers, chip.remedy)
    if device.driver is None and chip.kind == "hailo-8" and loaded_module(tree, CHIPS["45c4"].drivers):
        return Rung("driver", False, "hailo1x is loaded, which does not bind a Hailo-8", chip.remedy)
    option = tree.read_text("/etc/modprobe.d/hailo_pci.conf") or ""
    forced = tree.line(f"/sys/module/hailo_pci/parameters/{PAGES}") == str(PAGE_BYTES) or PAGES in option
    if not rung.ok or chip.kind != "hailo-8" or forced or (pages := page_bytes(tree)) == PAGE_BYTES:
        return replace(rung, detail=f"{rung.detail}, version {version}") if version else rung
    detail = f"{rung.detail}; with this kernel's pages of {pages // 1024} KiB HailoRT may refuse max_desc_page_size"
    return replace(rung, detail=detail, remedy=f"options hailo_pci {PAGES}=4096 in /etc/modprobe.d/hailo_pci.conf")


def _firmware(tree: Tree, chip: Chip, version: str) -> Rung:
    """Return the rung by the files that the driver loads; nothing in /sys shows the version that runs."""
    rung = firmware_rung(tree, (FIRMWARE,), f"install the firmware {version} (package hailofw), then restart")
    if rung.ok is False or not version:
        return rung
    names = (*tree.names(FIRMWARE), tree.link_name(f"{FIRMWARE}/hailo8_fw.bin") or "")
    found = {match.group(1) for name in names if (match := re.search(r"8_fw\.([0-9.]+)\.bin$", name))}
    if chip.kind == "hailo-8" and found and version not in found:
        detail = f"the driver is {version}, the firmware in {FIRMWARE} is {', '.join(sorted(found))}"
        return Rung("firmware", False, detail, f"install the firmware {version}, then restart")
    unseen = f"which version runs could not be checked: it must be the driver's, {version}; a restart loads it again"
    return Rung("firmware", None, f"{unseen}, hailortcli fw-control identify shows it")


def _node(tree: Tree, device: PciDevice, index: int) -> str | None:
    """Return the chip's node from /sys/class/hailo_chardev; if that is empty, the nodes are in bus order."""
    owners = {tree.resolve(f"{CLASS}/{name}/device"): f"/dev/{name}" for name in tree.names(CLASS)}
    if any(owners):
        return owners.get(device.path)
    nodes = [name for name in tree.names("/dev") if name.startswith("hailo")]
    return f"/dev/{nodes[index]}" if index < len(nodes) else None
