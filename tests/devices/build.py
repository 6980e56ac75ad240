"""Materialises a root tree from a compact description: path -> text, bytes, a link, a node or a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Link:
    """A symbolic link, as sysfs is full of them."""

    target: str


@dataclass(frozen=True)
class Node:
    """A device node; a plain file stands in for it, with the mode bits of the node.

    Only root can give it its group: it stays that of the user who builds the tree otherwise.
    """

    mode: int = 0o666
    group: int = 993


@dataclass(frozen=True)
class Folder:
    """An empty folder."""


Entry = str | bytes | Link | Node | Folder
Entries = Mapping[str, Entry]


def build(root: Path, entries: Entries, *, flat_links: bool = False) -> Path:
    """Write `entries` under `root`. `flat_links`: files that hold the target, as archives without links have them."""
    for name, entry in entries.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        match entry:
            case Link(target):
                path.write_text(target) if flat_links else path.symlink_to(target)
            case Node(mode, group):
                path.touch()
                path.chmod(mode)
                if os.geteuid() == 0:
                    os.chown(path, -1, group)
            case Folder():
                path.mkdir(exist_ok=True)
            case bytes():
                path.write_bytes(entry)
            case str():
                path.write_text(entry)
    return root


def pci(
    address: str,
    pci_id: str,
    kind: str,
    driver: str | None = None,
    nodes: Mapping[str, Node] | None = None,
) -> dict[str, Entry]:
    """Return a device on the PCI bus; `nodes` are character devices by "subsystem/name" ("drm/renderD128")."""
    home = f"/sys/devices/pci0000:00/{address}"
    vendor, _, device = pci_id.partition(":")
    entries: dict[str, Entry] = {
        f"{home}/vendor": f"0x{vendor}\n",
        f"{home}/device": f"0x{device}\n",
        f"{home}/class": f"0x{kind}\n",
        f"/sys/bus/pci/devices/{address}": Link(f"../../../devices/pci0000:00/{address}"),
    }
    if driver:
        entries[f"{home}/driver"] = Link(f"../../../bus/pci/drivers/{driver}")
        entries[f"/sys/bus/pci/drivers/{driver}/{address}"] = Link(f"../../../../devices/pci0000:00/{address}")
    folders = {"drm": "/dev/dri", "accel": "/dev/accel", "apex": "/dev"}
    for name, node in (nodes or {}).items():
        subsystem, _, leaf = name.partition("/")
        entries[f"{home}/{name}/device"] = Link("../..")
        entries[f"/sys/class/{name}"] = Link(f"../../devices/pci0000:00/{address}/{name}")
        entries[f"{folders[subsystem]}/{leaf}"] = node
    return entries


def osrelease(kernel: str) -> dict[str, Entry]:
    """Return the name of the kernel that runs."""
    return {"/proc/sys/kernel/osrelease": f"{kernel}\n"}


def usb(
    address: str, vendor: str, product: str, number: tuple[int, int] | None = None, node: Node | None = None
) -> dict[str, Entry]:
    """Return a device on the USB bus; `number` is (bus, device)."""
    home = f"/sys/bus/usb/devices/{address}"
    entries: dict[str, Entry] = {
        f"{home}/idVendor": f"{vendor}\n",
        f"{home}/idProduct": f"{product}\n",
        f"/sys/bus/usb/devices/{address}:1.0/bInterfaceClass": "ff\n",
    }
    if number:
        entries |= {f"{home}/busnum": f"{number[0]}\n", f"{home}/devnum": f"{number[1]}\n"}
        if node:
            entries[f"/dev/bus/usb/{number[0]:03d}/{number[1]:03d}"] = node
    return entries


def device_tree(model: str, *compatible: str) -> dict[str, Entry]:
    """Return model and compatible, each string ended by a NUL."""
    return {
        "/proc/device-tree/model": f"{model}\0",
        "/proc/device-tree/compatible": "".join(f"{name}\0" for name in compatible),
    }


def arm_cpuinfo(*parts: str, features: str, implementer: str = "0x41") -> dict[str, Entry]:
    """Return one block per logical CPU, in the order of `parts`."""
    blocks = [
        f"processor\t: {index}\nBogoMIPS\t: 48.00\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
        for index, part in enumerate(parts)
    ]
    return {"/proc/cpuinfo": "".join(blocks)}


def x86_cpuinfo(vendor: str, model: str, cores: int, flags: str) -> dict[str, Entry]:
    """Return /proc/cpuinfo as x86 kernels print it."""
    block = "processor\t: {}\nvendor_id\t: {}\nmodel name\t: {}\nflags\t\t: fpu lm {}\nbugs\t\t:\n\n"
    return {"/proc/cpuinfo": "".join(block.format(core, vendor, model, flags) for core in range(cores))}
