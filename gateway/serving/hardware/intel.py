"""Intel GPUs and NPUs, found by PCI id, never by an address or by the number of a node."""

from __future__ import annotations

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.bus import DISPLAY_CLASSES, PciDevice, class_node, pci_devices
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

VENDOR = "8086"
GPU_DRIVERS = ("i915", "xe")
NPU_DRIVER = "intel_vpu"
NPU_GENERATIONS = {
    "7d1d": "Meteor Lake",
    "ad1d": "Arrow Lake",
    "643e": "Lunar Lake",
    "b03e": "Panther Lake",
    "fd3e": "Wildcat Lake",
}
"""PCI device ids of the driver `intel_vpu`."""

NPU_FIRMWARE = ("/lib/firmware/intel/vpu", "/lib/firmware/updates/intel/vpu")
NPU_RELOAD = "sudo modprobe -r intel_vpu && sudo modprobe intel_vpu"

# The GPU plugin of OpenVINO 2026.4 links libOpenCL.so.1; its wheel brings neither that nor Level Zero.
NEEDS = {
    "intel-gpu": Needs(
        libraries=(("libOpenCL.so.1",),),
        library_remedy="install the OpenCL loader and Intel's driver: "
        "sudo apt install ocl-icd-libopencl1 intel-opencl-icd",
        runtime_remedy="install Intel's compute runtime (sudo apt install intel-opencl-icd) and check that this user "
        "is in the render group; in a container pass --device /dev/dri and --group-add for that group",
    ),
    "intel-npu": Needs(
        libraries=(("libze_loader.so.1",), ("libze_intel_npu.so.1", "libze_intel_vpu.so.1")),
        library_remedy="install the Level Zero loader and Intel's NPU user-space driver: packages libze1 and "
        "intel-level-zero-npu (from Intel's linux-npu-driver releases)",
        runtime_remedy="install intel-driver-compiler-npu and intel-level-zero-npu of one linux-npu-driver release",
    ),
}


def gpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every Intel display device on the PCI bus.

    Cards without vendor and device id (simple-framebuffer) do not count.
    """
    return tuple(_gpu(tree, device) for device in pci_devices(tree, VENDOR) if device.kind in DISPLAY_CLASSES)


def npus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every NPU by its PCI id, or by its driver if the id is newer than this table."""
    return tuple(
        _npu(tree, device)
        for device in pci_devices(tree, VENDOR)
        if device.device in NPU_GENERATIONS or device.driver == NPU_DRIVER
    )


def _gpu(tree: Tree, device: PciDevice) -> Accelerator:
    render = class_node(tree, device, "drm", "renderD")
    node = f"/dev/dri/{render}" if render else None
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(tree, device.driver, GPU_DRIVERS, "load it: sudo modprobe i915 (xe on Lunar Lake and newer)"),
        node_rung(tree, node, "/dev/dri/renderD*", "start without the kernel option nomodeset"),
        permission_rung(tree, node, RENDER),
    )
    name = f"Intel GPU {device.pci_id}"
    return Accelerator("intel-gpu", name, node or device.address, rungs, _facts(tree, device))


def _npu(tree: Tree, device: PciDevice) -> Accelerator:
    accel = class_node(tree, device, "accel", "accel")
    node = f"/dev/accel/{accel}" if accel else None
    firmware = _npu_firmware(tree, device, accel)
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(tree, device.driver, (NPU_DRIVER,), "load it: sudo modprobe intel_vpu (Linux 6.6)", firmware),
        firmware,
        node_rung(tree, node, "/dev/accel/accel*", f"read dmesg | grep intel_vpu, then {NPU_RELOAD}"),
        permission_rung(tree, node, ACCEL),
    )
    name = f"Intel NPU ({NPU_GENERATIONS.get(device.device, device.pci_id)})"
    return Accelerator("intel-npu", name, node or device.address, rungs, _facts(tree, device))


def _npu_firmware(tree: Tree, device: PciDevice, accel: str | None) -> Rung:
    if device.driver == NPU_DRIVER and accel:
        return Rung("firmware", True, "booted: the driver offers a node only after that")
    install = "install the firmware: package intel-fw-npu (Intel's linux-npu-driver releases) or linux-firmware"
    return firmware_rung(tree, NPU_FIRMWARE, f"{install}, then {NPU_RELOAD}")


def _facts(tree: Tree, device: PciDevice) -> dict[str, str]:
    release = tree.line("/proc/sys/kernel/osrelease") or ""
    return {"pci_id": device.pci_id, "driver": f"{device.driver or ''} {release}".strip()}
