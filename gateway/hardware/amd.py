"""AMD GPUs, driven by amdgpu; compute also needs /dev/kfd."""

from __future__ import annotations

from gateway.domain.inventory import Accelerator, Rung
from gateway.hardware.bus import ACCELERATOR_CLASS, DISPLAY_CLASSES, PciDevice, class_node, pci_devices
from gateway.hardware.rungs import RENDER, Needs, driver_rung, node_rung, permission_rung, ten
from gateway.hardware.tree import Tree

VENDOR = "1002"
COMPUTE_NODE = "/dev/kfd"

NEEDS = {
    "amd-gpu": Needs(
        libraries=(("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),),
        library_remedy="install AMD's ROCm runtime: package rocm-hip-runtime (or libamdhip64 of your distribution)",
        runtime_remedy="install AMD's build of ONNX Runtime with MIGraphX in place of the plain wheel",
    )
}


def gpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every AMD display or processing device on the PCI bus."""
    kinds = (*DISPLAY_CLASSES, ACCELERATOR_CLASS)
    return tuple(_gpu(tree, device) for device in pci_devices(tree, VENDOR) if device.kind in kinds)


def _gpu(tree: Tree, device: PciDevice) -> Accelerator:
    render = class_node(tree, device, "drm", "renderD")
    node = f"/dev/dri/{render}" if render else None
    compute = "" if tree.exists(COMPUTE_NODE) else f"; without {COMPUTE_NODE} no compute"
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(device.driver, ("amdgpu",), "load the kernel driver: sudo modprobe amdgpu (needs linux-firmware)"),
        node_rung(
            tree,
            node,
            "/dev/dri/renderD*",
            "start without the kernel option nomodeset; in a container pass --device /dev/dri --device /dev/kfd",
        ),
        _permission(tree, node, compute),
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator("amd-gpu", f"AMD GPU {device.pci_id}", node or device.address, rungs, facts)


def _permission(tree: Tree, node: str | None, compute: str) -> Rung:
    render = permission_rung(tree, node, RENDER)
    if render.ok and not compute:
        return permission_rung(tree, COMPUTE_NODE, RENDER)
    return Rung(render.name, render.ok, render.detail + compute, render.remedy) if render.ok else render
