"""Intel Movidius sticks: reported, never loaded, because OpenVINO dropped them after 2022.3."""

from __future__ import annotations

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.bus import UsbDevice, usb_devices
from gateway.serving.hardware.rungs import Needs, NodeAccess, permission_rung, ten, usb_node_rung
from gateway.serving.hardware.tree import Tree

STICKS = {
    "03e7:2150": ("movidius-myriad-2", "Intel Neural Compute Stick (Myriad 2)"),
    "03e7:2485": ("movidius-myriad-x", "Intel Neural Compute Stick 2 (Myriad X), not booted"),
    "03e7:f63b": ("movidius-myriad-x", "Intel Neural Compute Stick 2 (Myriad X), running"),
}
LAST_OPENVINO = {
    "movidius-myriad-2": "needs OpenVINO 2022.3 or older (for the Myriad 2: 2020.3); no release since supports it",
    "movidius-myriad-x": "needs OpenVINO 2022.3; no release since supports it",
}
ACCESS = NodeAccess("users", 'SUBSYSTEM=="usb", ATTRS{idVendor}=="03e7", GROUP="users", MODE="0660"')

NEEDS = {kind: Needs() for kind in LAST_OPENVINO}


def sticks(tree: Tree) -> tuple[Accelerator, ...]:
    """Return every stick on the USB bus, before and after its firmware was loaded."""
    return tuple(_stick(tree, device) for device in usb_devices(tree, tuple(STICKS)))


def _stick(tree: Tree, device: UsbDevice) -> Accelerator:
    kind, name = STICKS[device.usb_id]
    node = usb_node_rung(tree, device.node)
    rungs = ten(
        Rung("bus", True, f"USB {device.usb_id} at {device.address}"),
        node,
        permission_rung(tree, device.node, ACCESS),
        Rung(
            "runtime",
            False,
            f"found, {LAST_OPENVINO[kind]}",
            "this stick needs OpenVINO 2022.3, which this product does not load: "
            "nothing to do, models run on the other accelerators and on the CPU",
        ),
    )
    path = device.node if node.ok and device.node else device.address
    return Accelerator(kind, name, path, rungs, {"usb_id": device.usb_id})
