"""Hailo accelerators. Only a firmware query, which is execution, separates 8 from 8L."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.inventory import Accelerator, Rung
from gateway.hardware.bus import PciDevice, pci_devices
from gateway.hardware.rungs import Needs, NodeAccess, driver_rung, node_rung, permission_rung, ten
from gateway.hardware.tree import Tree

VENDOR = "1e60"
CLASS = "/sys/class/hailo_chardev"
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
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        _driver(tree, device, chip),
        node_rung(tree, node, "/dev/hailo* of this chip", f"read dmesg | grep hailo; {chip.remedy}"),
        permission_rung(tree, node, ACCESS),
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator(chip.kind, chip.name, node or device.address, rungs, facts)


def _driver(tree: Tree, device: PciDevice, chip: Chip) -> Rung:
    rung = driver_rung(device.driver, chip.drivers, chip.remedy)
    if device.driver is None and chip.kind == "hailo-8" and _is_loaded(tree, "hailo1x"):
        return Rung("driver", False, "hailo1x is loaded, which does not bind a Hailo-8", chip.remedy)
    return rung


def _is_loaded(tree: Tree, driver: str) -> bool:
    return any(tree.exists(f"{folder}/{driver}") for folder in ("/sys/module", "/sys/bus/pci/drivers"))


def _node(tree: Tree, device: PciDevice, index: int) -> str | None:
    """Return the chip's node from /sys/class/hailo_chardev; if that is empty, the nodes are in bus order."""
    owners = {tree.resolve(f"{CLASS}/{name}/device"): f"/dev/{name}" for name in tree.names(CLASS)}
    if any(owners):
        return owners.get(device.path)
    nodes = [name for name in tree.names("/dev") if name.startswith("hailo")]
    return f"/dev/{nodes[index]}" if index < len(nodes) else None
