"""Board, from the settings, the device tree, what a container leaves visible, or DMI on x86; memory and pages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache

from gateway.common.domain.inventory import Board
from gateway.serving.hardware.chips import BOARDS, chip_by_fact
from gateway.serving.hardware.tree import Tree

DEVICE_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
SOC = "/sys/devices/soc0"
DEVFREQ = "/sys/class/devfreq"
NVIDIA_NODES = ("nvgpu", "nvhost-", "nvmap")
ROCKCHIP_SIGNS = ("/dev/mpp_service", "/dev/rknpu", "/sys/module/rknpu")
PAGE_BYTES = 4096
DMI = "/sys/class/dmi/id"
PLACEHOLDERS = (
    "to be filled",
    "default string",
    "system product name",
    "system manufacturer",
    "not specified",
    "o.e.m.",
)
"""Placeholders that board makers leave in DMI fields."""


@lru_cache(maxsize=1)  # each family asks, and the kernel takes milliseconds to write /proc/cpuinfo
def identify(tree: Tree) -> tuple[tuple[str, ...], str]:
    """Return the board's `compatible` strings, most specific first, and their origin; () and "" if unknown.

    Origins: "settings", "device tree", or the path of a sign that is left where the device tree is hidden.
    """
    if named := tree.settings.board:
        return (BOARDS.get(named, named),), "settings"
    if found := next((found for path in DEVICE_TREES if (found := tree.strings(f"{path}/compatible"))), ()):
        return found, "device tree"
    signs = (((chip,), path) for fact, path in _facts(tree) if (chip := chip_by_fact(fact.lower())))
    return next(signs, ((), ""))


def compatible(tree: Tree) -> tuple[str, ...]:
    """Return the board's `compatible` strings, most specific first; () if unknown."""
    return identify(tree)[0]


def read_board(tree: Tree) -> Board:
    """Return the board's model and compatible strings."""
    models = (tree.strings(f"{path}/model") for path in DEVICE_TREES)
    model = next((found[0] for found in models if found), None)
    return Board(model or tree.line(f"{SOC}/machine") or _cpuinfo_model(tree) or _dmi(tree), compatible(tree))


def tegra_sign(tree: Tree) -> str | None:
    """Return a path that only the driver of a Jetson's GPU makes, or None."""
    nodes = (f"/dev/{name}" for name in tree.names("/dev") if name.startswith(NVIDIA_NODES))
    return next(nodes, "/sys/module/nvgpu" if tree.exists("/sys/module/nvgpu") else None)


def page_bytes(tree: Tree) -> int:
    """Return the kernel's page size; of a copied tree from smaps, else the kernel's name, else 4096."""
    if tree.live:
        return os.sysconf("SC_PAGE_SIZE")
    smaps = tree.read_text("/proc/self/smaps", tree.settings.table_bytes) or ""
    if found := re.search(r"^KernelPageSize:\s*([0-9]{1,5}) kB", smaps, re.MULTILINE):
        return int(found.group(1)) * 1024
    release = tree.line("/proc/sys/kernel/osrelease") or ""
    return 4 * PAGE_BYTES if release.endswith("rpi-2712") or "16k" in release else PAGE_BYTES


def read_memory_bytes(tree: Tree, field: str = "MemTotal") -> int | None:
    """Return a field of /proc/meminfo in bytes; None if it is absent."""
    text = tree.read_text("/proc/meminfo", tree.settings.table_bytes) or ""
    found = re.search(rf"^{field}:\s*([0-9]{{1,15}}) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _facts(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield facts of which some name the chip, and their paths, the surest first."""
    yield f"{tree.line(f'{SOC}/family')} {tree.line(f'{SOC}/soc_id')}", SOC
    yield tree.line(f"{SOC}/machine") or "", SOC
    yield _cpuinfo_model(tree) or "", "/proc/cpuinfo"
    for path in (f"{folder}/{name}" for folder in (DEVFREQ, "/sys/class/accel") for name in tree.names(folder)):
        uevent = tree.read_text(f"{path}/device/uevent") or ""
        for found in (*re.findall(r"^OF_COMPATIBLE_[0-9]+=(\S+)$", uevent, re.MULTILINE), path.rpartition("/")[2]):
            yield found, path
    cpuinfo = tree.read_text("/proc/cpuinfo", tree.settings.table_bytes) or ""
    parts = "+".join(sorted(set(re.findall(r"^CPU part\s*: 0x([0-9a-f]{3})$", cpuinfo, re.MULTILINE))))
    for maker, signs in (("nvidia", [tegra_sign(tree)]), ("rockchip", filter(tree.exists, ROCKCHIP_SIGNS))):
        yield from ((f"{maker} {parts}", sign) for sign in signs if sign)


def _cpuinfo_model(tree: Tree) -> str | None:
    cpuinfo = tree.read_text("/proc/cpuinfo", tree.settings.table_bytes) or ""
    found = re.search(r"^Model\s*: ([\x20-\x7e]{1,100}?)\s*$", cpuinfo, re.MULTILINE)
    return found.group(1) if found else None


def _dmi(tree: Tree) -> str | None:
    for vendor_key, product_key in (("sys_vendor", "product_name"), ("board_vendor", "board_name")):
        if product := _filled(tree.line(f"{DMI}/{product_key}")):
            vendor = _filled(tree.line(f"{DMI}/{vendor_key}"))
            return f"{vendor} {product}" if vendor and not product.startswith(vendor) else product
    return None


def _filled(text: str | None) -> str | None:
    return None if text is None or any(word in text.lower() for word in PLACEHOLDERS) else text
