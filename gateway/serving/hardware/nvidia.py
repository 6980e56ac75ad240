"""NVIDIA GPUs on the PCI bus. The GPU of a Jetson is in `jetson`."""

from __future__ import annotations

import re

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.bus import DISPLAY_CLASSES, PciDevice, pci_devices
from gateway.serving.hardware.jetson import chip_of
from gateway.serving.hardware.rungs import (
    Needs,
    NodeAccess,
    driver_rung,
    node_rung,
    permission_rung,
    ten,
    versions_rung,
)
from gateway.serving.hardware.tree import Tree

VENDOR = "10de"
GPUS = "/proc/driver/nvidia/gpus"
INTEGRATED_ON_PCI = "tegra264"
WSL_NODE, WSL_LIBRARY = "/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1"
ACCESS = NodeAccess("video", 'KERNEL=="nvidia*", GROUP="video", MODE="0666"')

NEEDS = {
    "nvidia-gpu": Needs(
        libraries=(("libcuda.so.1",),),
        library_remedy="install the driver's CUDA library: package libcuda1 (Debian) or libnvidia-compute of the "
        "driver's version (Ubuntu); in a container start it with --gpus all",
        runtime_remedy="install the CUDA build, which brings CUDA and cuDNN, in place of the plain one: "
        + HERE.replacing("onnxruntime", "onnx-cuda"),
    )
}


def gpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every NVIDIA display device on the PCI bus, else that of Windows. Only `jetson` reports Thor's own GPU."""
    if chip_of(tree) == INTEGRATED_ON_PCI:
        return ()
    found = [device for device in pci_devices(tree, VENDOR) if device.kind in DISPLAY_CLASSES]
    return tuple(_gpu(tree, device, index) for index, device in enumerate(found)) or _of_windows(tree)


def _gpu(tree: Tree, device: PciDevice, index: int) -> Accelerator:
    details = tree.read_text(f"{GPUS}/{device.address}/information") or ""
    node = f"/dev/nvidia{_minor(details, index)}" if device.driver == "nvidia" else None
    found = re.search(r"Kernel Module[^\n]*?\s([0-9]+\.[0-9.]+)\s", tree.read_text("/proc/driver/nvidia/version") or "")
    present, version = node is not None and tree.exists(node), (f"nvidia {found.group(1)}" if found else "")
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(
            tree,
            device.driver,
            ("nvidia",),
            "install NVIDIA's driver (Debian: sudo apt install nvidia-driver; Ubuntu: sudo ubuntu-drivers install) "
            "and restart; nouveau and nova have no CUDA: list them in /etc/modprobe.d as blacklisted",
        ),
        node_rung(
            tree, node, "/dev/nvidia*", "create the nodes: sudo nvidia-modprobe -u -c=0; in a container --gpus all"
        ),
        permission_rung(tree, node, ACCESS),
        versions_rung(tree, version.removeprefix("nvidia "), "libcuda.so", "restart, so that one version is loaded"),
    )
    facts = {"pci_id": device.pci_id, "driver": version}
    return Accelerator("nvidia-gpu", _name(device, details), node if present and node else device.address, rungs, facts)


def _of_windows(tree: Tree) -> tuple[Accelerator, ...]:
    if not (tree.exists(WSL_NODE) and tree.exists(WSL_LIBRARY)):
        return ()
    rungs = ten(Rung("bus", True, f"WSL2: {WSL_NODE} and {WSL_LIBRARY}"), permission_rung(tree, WSL_NODE, ACCESS))
    return (Accelerator("nvidia-gpu", "NVIDIA GPU of Windows (WSL2)", WSL_NODE, rungs, {"driver": "dxgkrnl"}),)


def _minor(details: str, index: int) -> int:
    found = re.search(r"^Device Minor:\s*([0-9]{1,4})\s*$", details, re.MULTILINE)
    return int(found.group(1)) if found else index


def _name(device: PciDevice, details: str) -> str:
    found = re.search(r"^Model:\s*([\x20-\x7e]{1,100}?)\s*$", details, re.MULTILINE)
    return found.group(1) if found and "Unknown" not in found.group(1) else f"NVIDIA GPU {device.pci_id}"
