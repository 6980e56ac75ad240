"""AMD GPUs, driven by amdgpu, whose compute needs /dev/kfd, and XDNA NPUs of Ryzen AI: reported, no runtime yet."""

from __future__ import annotations

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.bus import ACCELERATOR_CLASS, DISPLAY_CLASSES, PciDevice, class_node, pci_devices
from gateway.serving.hardware.rungs import (
    ACCEL,
    RENDER,
    Needs,
    driver_rung,
    firmware_rung,
    node_rung,
    permission_rung,
    ten,
)
from gateway.serving.hardware.tree import Tree

VENDOR = "1002"
COMPUTE_NODE = "/dev/kfd"
NPU_VENDOR, NPU_DRIVER = "1022", "amdxdna"
NPU_GENERATIONS = {"1502": "XDNA, Phoenix or Hawk Point", "17f0": "XDNA 2, Strix, Strix Halo or Krackan"}
"""PCI device ids of the driver `amdxdna`."""

NEEDS = {
    "amd-gpu": Needs(
        libraries=(("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),),
        library_remedy="install AMD's ROCm runtime: package rocm-hip-runtime (or libamdhip64 of your distribution)",
        runtime_remedy="install AMD's build of ONNX Runtime with MIGraphX in place of the plain wheel",
    ),
    "amd-npu": Needs(),
}


def gpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every AMD display or processing device on the PCI bus."""
    kinds = (*DISPLAY_CLASSES, ACCELERATOR_CLASS)
    return tuple(_gpu(tree, device) for device in pci_devices(tree, VENDOR) if device.kind in kinds)


def npus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every NPU by its PCI id, or by its driver if the id is newer than this table."""
    found = pci_devices(tree, NPU_VENDOR)
    return tuple(_npu(tree, one) for one in found if one.device in NPU_GENERATIONS or one.driver == NPU_DRIVER)


def _npu(tree: Tree, device: PciDevice) -> Accelerator:
    accel = class_node(tree, device, "accel", "accel")
    node = f"/dev/accel/{accel}" if accel else None
    firmware = firmware_rung(tree, ("/lib/firmware/amdnpu",), "install linux-firmware, then restart")
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(tree, device.driver, (NPU_DRIVER,), "load amdxdna: sudo modprobe amdxdna (Linux 6.14)", firmware),
        firmware,
        node_rung(tree, node, "/dev/accel/accel*", "read dmesg | grep amdxdna"),
        permission_rung(tree, node, ACCEL),
    )
    name = f"AMD NPU ({NPU_GENERATIONS.get(device.device, device.pci_id)})"
    return Accelerator("amd-npu", name, node or device.address, rungs, {"pci_id": device.pci_id})


def _gpu(tree: Tree, device: PciDevice) -> Accelerator:
    render = class_node(tree, device, "drm", "renderD")
    node = f"/dev/dri/{render}" if render else None
    permission = permission_rung(tree, node, RENDER)
    if permission.ok and tree.exists(COMPUTE_NODE):
        permission = permission_rung(tree, COMPUTE_NODE, RENDER)
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(tree, device.driver, ("amdgpu",), "load it: sudo modprobe amdgpu (needs linux-firmware)"),
        _node(tree, node),
        permission,
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator("amd-gpu", f"AMD GPU {device.pci_id}", node or device.address, rungs, facts)


def _node(tree: Tree, render: str | None) -> Rung:
    rung = node_rung(tree, render, "/dev/dri/renderD*", "start without the kernel option nomodeset")
    if not rung.ok or tree.exists(COMPUTE_NODE):
        return rung
    kernel = "in a container pass --device /dev/kfd; else start a kernel with CONFIG_HSA_AMD that supports this GPU"
    return Rung("node", False, f"there is no {COMPUTE_NODE}: no compute", kernel)
