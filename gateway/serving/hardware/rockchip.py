"""Rockchip NPUs: one chip, two stacks (vendor driver RKNPU, mainline driver rocket)."""

from __future__ import annotations

import re

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.board import DEVFREQ, identify
from gateway.serving.hardware.bus import driver_of
from gateway.serving.hardware.rungs import ACCEL, RENDER, Needs, node_rung, permission_rung, ten
from gateway.serving.hardware.tree import Tree

WITH_NPU = re.compile(r"rockchip,(rk35(?:62|66|67|68|76|82|83|88)[a-z0-9]*)")
VERSION = "/sys/kernel/debug/rknpu/version"
VENDOR_DRIVER, MAINLINE_DRIVER = "RKNPU", "rocket"
VENDOR_SIGNS = ("/sys/module/rknpu", f"/sys/bus/platform/drivers/{VENDOR_DRIVER}")
REMEDY = (
    "start a kernel that has a driver for the NPU: the board maker's (RKNPU), or Linux 6.18 or newer "
    "with CONFIG_DRM_ACCEL_ROCKET (sudo modprobe rocket)"
)

NEEDS = {
    "rockchip-npu": Needs(
        libraries=(("librknnrt.so", "libteflon.so"),),
        library_remedy="install librknnrt.so (vendor driver) or Mesa's libteflon.so (mainline driver rocket)",
    )
}


def npus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return the NPU of an RK35xx, by its board, or by the vendor driver alone."""
    names, origin = identify(tree)
    chip = next((found.group(1) for text in names if (found := WITH_NPU.fullmatch(text))), "")
    if not chip and not any(map(tree.exists, VENDOR_SIGNS)):
        return ()
    mainline = _accel_node(tree) is not None or bool(tree.names(f"/sys/bus/platform/drivers/{MAINLINE_DRIVER}"))
    driver = Rung("driver", True, f"mainline driver {MAINLINE_DRIVER}") if mainline else _vendor_driver(tree)
    node = _accel_node(tree) if mainline else _render_node(tree) if driver.ok else None
    rungs = ten(
        Rung("bus", True, f"{origin}: rockchip,{chip}" if chip else "the vendor driver, on an unknown chip"),
        driver,
        node_rung(
            tree, node, "node of the NPU in /dev/dri or /dev/accel", f"read dmesg | grep -iE 'rknpu|rocket'; {REMEDY}"
        ),
        permission_rung(tree, node, ACCEL if mainline else RENDER),
    )
    name = f"{f'Rockchip {chip.upper()}'.strip()} NPU ({driver.detail})"
    return (
        Accelerator("rockchip-npu", name, node or _devfreq(tree) or "", rungs, {"chip": chip, "driver": driver.detail}),
    )


def _accel_node(tree: Tree) -> str | None:
    """Return the node of the driver rocket; /dev/accel may hold those of other drivers as well."""
    for name in tree.names("/sys/class/accel"):
        if driver_of(tree, f"/sys/class/accel/{name}/device") == MAINLINE_DRIVER:
            return f"/dev/accel/{name}"
    return None


def _vendor_driver(tree: Tree) -> Rung:
    """Return the driver rung of the vendor driver.

    The version is in debugfs, which only root may read. Every user sees devfreq and the module.
    """
    if version := tree.line(VERSION):
        return Rung("driver", True, f"vendor driver {version.removeprefix('RKNPU driver: ')}")
    if _devfreq(tree) or any(map(tree.exists, (*VENDOR_SIGNS, "/dev/mpp_service"))):
        return Rung("driver", True, "vendor driver, version readable by root only")
    return Rung("driver", False, "no driver", REMEDY)


def _devfreq(tree: Tree) -> str | None:
    return next((name for name in tree.names(DEVFREQ) if name.endswith(".npu")), None)


def _render_node(tree: Tree) -> str | None:
    """Return the vendor driver's render node. If /sys does not list the owners, it is the last: the GPU comes first."""
    for name in tree.names("/sys/class/drm"):
        if name.startswith("renderD") and driver_of(tree, f"/sys/class/drm/{name}/device") == VENDOR_DRIVER:
            return f"/dev/dri/{name}"
    if tree.exists("/dev/rknpu"):
        return "/dev/rknpu"
    unclaimed = [
        name
        for name in tree.names("/dev/dri")
        if name.startswith("renderD") and not tree.exists(f"/sys/class/drm/{name}/device")
    ]
    return f"/dev/dri/{unclaimed[-1]}" if unclaimed else None
