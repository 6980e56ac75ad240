"""Google Coral Edge TPUs on USB and PCIe. Only one process at a time may use one."""

from __future__ import annotations

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.board import PAGE_BYTES, page_bytes
from gateway.serving.hardware.bus import PciDevice, UsbDevice, class_node, pci_devices, usb_devices
from gateway.serving.hardware.rungs import (
    Needs,
    NodeAccess,
    driver_rung,
    node_rung,
    permission_rung,
    ten,
    usb_node_rung,
)
from gateway.serving.hardware.tree import Tree

USB_FRESH, USB_RUNNING = "1a6e:089a", "18d1:9302"
USB2_MBIT = 480
PCI_VENDOR, PCI_DEVICE = "1ac1", "089a"
USB_ACCESS = NodeAccess(
    "plugdev",
    'SUBSYSTEM=="usb", ATTRS{idVendor}=="1a6e", GROUP="plugdev", MODE="0660" and '
    'SUBSYSTEM=="usb", ATTRS{idVendor}=="18d1", ATTRS{idProduct}=="9302", GROUP="plugdev", MODE="0660"',
)
PCI_ACCESS = NodeAccess("apex", 'SUBSYSTEM=="apex", GROUP="apex", MODE="0660"')

_NEEDS = Needs(
    libraries=(("libedgetpu.so.1",),),
    library_remedy="install the Edge TPU library built for your LiteRT: package libedgetpu1-std",
    runtime_remedy=f"install LiteRT in addition to libedgetpu1-std: {HERE.adding('litert')}, "
    "and stop any other process that uses this TPU",
)
NEEDS = {"coral-usb": _NEEDS, "coral-pcie": _NEEDS}


def usb_tpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return USB Accelerators: 1a6e:089a until libedgetpu loaded the firmware, then 18d1:9302 with a new address."""
    return tuple(_usb_tpu(tree, device) for device in usb_devices(tree, (USB_FRESH, USB_RUNNING)))


def pcie_tpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return M.2 and mini-PCIe Accelerators."""
    return tuple(_pcie_tpu(tree, device) for device in pci_devices(tree, PCI_VENDOR) if device.device == PCI_DEVICE)


def _usb_tpu(tree: Tree, device: UsbDevice) -> Accelerator:
    running = device.usb_id == USB_RUNNING
    node = usb_node_rung(tree, device.node)
    rungs = ten(
        _usb_bus(device),
        Rung("firmware", True, "running") if running else Rung("firmware", None, "libedgetpu loads it at first use"),
        node,
        permission_rung(tree, device.node, USB_ACCESS),
    )
    path = device.node if node.ok and device.node else device.address
    return Accelerator("coral-usb", "Coral USB Accelerator", path, rungs)


def _usb_bus(device: UsbDevice) -> Rung:
    place = f"USB {device.usb_id} at {device.address}"
    if device.speed_mbit is None or device.speed_mbit > USB2_MBIT:
        return Rung("bus", True, place)
    slow = f"{place} with {device.speed_mbit} Mbit/s (USB 2): it works, several times slower than with USB 3"
    return Rung("bus", True, slow, "plug it into a USB 3 port, with its own cable and without a USB 2 hub")


def _pcie_tpu(tree: Tree, device: PciDevice) -> Accelerator:
    apex = class_node(tree, device, "apex", "apex_")
    node = f"/dev/{apex}" if apex else None
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        _pcie_driver(tree, device),
        node_rung(
            tree, node, "/dev/apex_*", "read dmesg | grep apex, then sudo modprobe -r apex gasket; sudo modprobe apex"
        ),
        permission_rung(tree, node, PCI_ACCESS),
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator("coral-pcie", "Coral PCIe Accelerator", node or device.address, rungs, facts)


def _pcie_driver(tree: Tree, device: PciDevice) -> Rung:
    rung = driver_rung(tree, device.driver, ("apex",), "sudo apt install gasket-dkms, then sudo modprobe apex")
    if not rung.ok or (pages := page_bytes(tree)) == PAGE_BYTES:
        return rung
    detail = f"apex is bound, but opening fails: this kernel has pages of {pages // 1024} KiB, apex needs 4 KiB"
    remedy = "start a kernel with 4 KiB pages; on a Raspberry Pi 5: kernel=kernel8.img in /boot/firmware/config.txt"
    return Rung("driver", False, detail, remedy)
