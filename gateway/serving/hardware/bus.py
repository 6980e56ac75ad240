"""Devices on the PCI and USB buses, from every place in which the kernel (or a copied tree) lists them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.serving.hardware.tree import Tree

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = "/sys/bus/pci/drivers"
USB_DEVICES = "/sys/bus/usb/devices"
CLASSES_WITH_PCI_DEVICES = ("/sys/class/drm", "/sys/class/accel", "/sys/class/apex")
DISPLAY_CLASSES = ("0300", "0302", "0380")
ACCELERATOR_CLASS = "1200"


@dataclass(frozen=True, slots=True)
class PciDevice:
    """PCI device. `path` is in /sys with links followed; `kind`: the upper 16 bits of the class ("0300").

    `driver` None: not bound.
    """

    path: str
    address: str
    vendor: str
    device: str
    kind: str
    driver: str | None

    @property
    def pci_id(self) -> str:
        """Return vendor and device id, such as "8086:7d1d"."""
        return f"{self.vendor}:{self.device}"


@dataclass(frozen=True, slots=True)
class UsbDevice:
    """USB device. `address` is sysfs' name ("1-2"); `node` is None if bus and device number are unknown.

    `speed_mbit` None: unknown.
    """

    address: str
    usb_id: str
    node: str | None
    speed_mbit: int | None


def pci_devices(tree: Tree, vendor: str) -> tuple[PciDevice, ...]:
    """Return all PCI devices of `vendor` (hexadecimal, lower case), by address.

    Devices without vendor or device id are skipped.
    """
    found: dict[str, PciDevice] = {}
    for path in _pci_paths(tree):
        if tree.hexadecimal(f"{path}/vendor") != vendor or not (device := tree.hexadecimal(f"{path}/device")):
            continue
        name = path.rpartition("/")[2]
        slot = name if PCI_ADDRESS.fullmatch(name) else _uevent(tree, path, "PCI_SLOT_NAME") or ""
        address = slot if PCI_ADDRESS.fullmatch(slot) else ""
        kind = (tree.hexadecimal(f"{path}/class") or "").zfill(6)[:4]
        entry = PciDevice(path, address, vendor, device, kind, _pci_driver(tree, path, address))
        found.setdefault(address or path, entry)
    return tuple(found[key] for key in sorted(found))


def usb_devices(tree: Tree, usb_ids: tuple[str, ...]) -> tuple[UsbDevice, ...]:
    """Return the USB devices whose "vendor:product" is among `usb_ids`, by address."""
    found = []
    for address in tree.names(USB_DEVICES):
        path = f"{USB_DEVICES}/{address}"
        usb_id = f"{tree.hexadecimal(f'{path}/idVendor')}:{tree.hexadecimal(f'{path}/idProduct')}"
        if usb_id in usb_ids:
            found.append(UsbDevice(address, usb_id, _usb_node(tree, path), tree.integer(f"{path}/speed")))
    return tuple(found)


def class_node(tree: Tree, device: PciDevice, subsystem: str, prefix: str) -> str | None:
    """Return the name of the first character device of `device` in `subsystem`.

    For example, "renderD128" in "drm"; another subsystem is "accel".
    """
    own = (name for name in tree.names(f"{device.path}/{subsystem}") if name.startswith(prefix))
    listed = (
        name
        for name in tree.names(f"/sys/class/{subsystem}")
        if name.startswith(prefix) and tree.resolve(f"/sys/class/{subsystem}/{name}/device") == device.path
    )
    return next(own, None) or next(listed, None)


def driver_of(tree: Tree, path: str) -> str | None:
    """Return the name of the driver bound to the device at `path`, from its link or its uevent."""
    return tree.link_name(f"{path}/driver") or _uevent(tree, path, "DRIVER")


def _pci_paths(tree: Tree) -> Iterator[str]:
    seen = set()
    for path in itertools.islice(_pci_places(tree), tree.settings.entries_max):
        resolved = tree.resolve(path)
        if resolved is not None and resolved not in seen:
            seen.add(resolved)
            yield resolved


def _pci_places(tree: Tree) -> Iterator[str]:
    for address in tree.names(PCI_DEVICES):
        yield f"{PCI_DEVICES}/{address}"
    for driver in tree.names(PCI_DRIVERS):
        for address in tree.names(f"{PCI_DRIVERS}/{driver}"):
            if PCI_ADDRESS.fullmatch(address):
                yield f"{PCI_DRIVERS}/{driver}/{address}"
    for folder in CLASSES_WITH_PCI_DEVICES:
        for name in tree.names(folder):
            yield f"{folder}/{name}/device"


def _pci_driver(tree: Tree, path: str, address: str) -> str | None:
    """Return the driver from the device itself.

    Only a copied tree may have lost that link; then the driver's own list is searched.
    """
    if (bound := driver_of(tree, path)) or tree.live or not address:
        return bound
    drivers = (name for name in tree.names(PCI_DRIVERS) if tree.exists(f"{PCI_DRIVERS}/{name}/{address}"))
    return next(drivers, None)


def _uevent(tree: Tree, path: str, key: str) -> str | None:
    found = re.search(rf"^{key}=([\x21-\x7e]{{1,64}})$", tree.read_text(f"{path}/uevent") or "", re.MULTILINE)
    return found.group(1) if found else None


def _usb_node(tree: Tree, path: str) -> str | None:
    bus, device = tree.integer(f"{path}/busnum"), tree.integer(f"{path}/devnum")
    return None if bus is None or device is None else f"/dev/bus/usb/{bus:03d}/{device:03d}"
