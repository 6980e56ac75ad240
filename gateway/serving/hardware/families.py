"""Catalogue of accelerators: one line per family, and the needs of each kind above the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.common.domain.inventory import Accelerator
from gateway.serving.hardware import amd, coral, hailo, intel, jetson, movidius, nvidia, qualcomm, rockchip
from gateway.serving.hardware.rungs import Needs
from gateway.serving.hardware.tree import Tree

FAMILIES: tuple[Callable[[Tree], tuple[Accelerator, ...]], ...] = (
    intel.npus,
    intel.gpus,
    jetson.gpus,
    nvidia.gpus,
    amd.gpus,
    amd.npus,
    coral.pcie_tpus,
    coral.usb_tpus,
    hailo.chips,
    rockchip.npus,
    qualcomm.dsps,
    movidius.sticks,
)

NEEDS: Mapping[str, Needs] = {
    kind: needs
    for family in (intel, jetson, nvidia, amd, coral, hailo, rockchip, qualcomm, movidius)
    for kind, needs in family.NEEDS.items()
}
