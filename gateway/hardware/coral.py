"""Google Coral Edge TPUs on USB and PCIe. Only one process at a time may use one."""

from __future__ import annotations

from gateway.domain.inventory import Accelerator, Rung
from gateway.hardware.bus import PciDevice, UsbDevice, class_node, pci_devices, usb_devices
from gateway.hardware.rungs import Needs, NodeAccess, driver_rung, node_rung, permission_rung, ten
from gateway.hardware.tree import Tree

USB_FRESH, USB_RUNNING = "1a6e:089a", "18d1:9302"
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
    runtime_remedy="install LiteRT in addition to libedgetpu1-std: pip install 'edge-inference-gateway[litert]', "
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
    node = _usb_node(tree, device)
    rungs = ten(
        Rung("bus", True, f"USB {device.usb_id} at {device.address}"),
        Rung("firmware", True, "running") if running else Rung("firmware", None, "libedgetpu loads it at first use"),
        node,
        permission_rung(tree, device.node, USB_ACCESS),
    )
    path = device.node if node.ok and device.node else device.address
    return Accelerator("coral-usb", "Coral USB Accelerator", path, rungs)


def _usb_node(tree: Tree, device: UsbDevice) -> Rung:
    if device.node is None:
        return Rung("node", None, "bus and device number are unknown")
    return node_rung(tree, device.node, device.node, "in a container pass --device /dev/bus/usb")


def _pcie_tpu(tree: Tree, device: PciDevice) -> Accelerator:
    apex = class_node(tree, device, "apex", "apex_")
    node = f"/dev/{apex}" if apex else None
    rungs = ten(
        Rung("bus", True, f"PCI {device.pci_id} at {device.address or device.path}"),
        driver_rung(
            device.driver, ("apex",), "install the kernel module: sudo apt install gasket-dkms, then sudo modprobe apex"
        ),
        node_rung(
            tree, node, "/dev/apex_*", "load the module: sudo modprobe apex; in a container pass --device /dev/apex_0"
        ),
        permission_rung(tree, node, PCI_ACCESS),
    )
    facts = {"pci_id": device.pci_id, "driver": device.driver or ""}
    return Accelerator("coral-pcie", "Coral PCIe Accelerator", node or device.address, rungs, facts)
