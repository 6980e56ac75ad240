"""Processor: architecture, vendor, model, cores and features, from /proc/cpuinfo."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from gateway.common.domain.inventory import Cpu
from gateway.serving.hardware.board import compatible
from gateway.serving.hardware.tree import Tree

Block = Mapping[str, str]
"""Fields of one logical CPU in cpuinfo."""

IMPLEMENTERS = {
    "41": "ARM",
    "42": "Broadcom",
    "43": "Cavium",
    "46": "Fujitsu",
    "48": "HiSilicon",
    "4e": "NVIDIA",
    "50": "APM",
    "51": "Qualcomm",
    "53": "Samsung",
    "61": "Apple",
    "c0": "Ampere",
}
"""MIDR implementer codes with the names of util-linux's lscpu."""

PARTS = {
    ("41", "c05"): "Cortex-A5",
    ("41", "c07"): "Cortex-A7",
    ("41", "c08"): "Cortex-A8",
    ("41", "c09"): "Cortex-A9",
    ("41", "c0f"): "Cortex-A15",
    ("41", "c0e"): "Cortex-A17",
    ("41", "d01"): "Cortex-A32",
    ("41", "d02"): "Cortex-A34",
    ("41", "d04"): "Cortex-A35",
    ("41", "d03"): "Cortex-A53",
    ("41", "d05"): "Cortex-A55",
    ("41", "d46"): "Cortex-A510",
    ("41", "d80"): "Cortex-A520",
    ("41", "d06"): "Cortex-A65",
    ("41", "d43"): "Cortex-A65AE",
    ("41", "d07"): "Cortex-A57",
    ("41", "d08"): "Cortex-A72",
    ("41", "d09"): "Cortex-A73",
    ("41", "d0a"): "Cortex-A75",
    ("41", "d0b"): "Cortex-A76",
    ("41", "d0e"): "Cortex-A76AE",
    ("41", "d0d"): "Cortex-A77",
    ("41", "d41"): "Cortex-A78",
    ("41", "d42"): "Cortex-A78AE",
    ("41", "d4b"): "Cortex-A78C",
    ("41", "d47"): "Cortex-A710",
    ("41", "d4d"): "Cortex-A715",
    ("41", "d81"): "Cortex-A720",
    ("41", "d87"): "Cortex-A725",
    ("41", "d44"): "Cortex-X1",
    ("41", "d4c"): "Cortex-X1C",
    ("41", "d48"): "Cortex-X2",
    ("41", "d4e"): "Cortex-X3",
    ("41", "d82"): "Cortex-X4",
    ("41", "d85"): "Cortex-X925",
    ("41", "d4a"): "Neoverse-E1",
    ("41", "d0c"): "Neoverse-N1",
    ("41", "d49"): "Neoverse-N2",
    ("41", "d8e"): "Neoverse-N3",
    ("41", "d40"): "Neoverse-V1",
    ("41", "d4f"): "Neoverse-V2",
    ("41", "d84"): "Neoverse-V3",
    ("41", "d83"): "Neoverse-V3AE",
    ("4e", "000"): "Denver",
    ("4e", "003"): "Denver 2",
    ("4e", "004"): "Carmel",
    ("51", "001"): "Oryon",
    ("51", "803"): "Kryo 385 Silver",
    ("51", "802"): "Kryo 385 Gold",
    ("51", "805"): "Kryo 485 Silver",
    ("51", "804"): "Kryo 485 Gold",
    ("c0", "ac3"): "Ampere-1",
    ("c0", "ac4"): "Ampere-1a",
}
"""MIDR part numbers, small cores before big ones: the name of a big.LITTLE processor begins with the big cores."""

ARM64_BOARDS = (
    "raspberrypi,",
    "nvidia,tegra",
    "rockchip,rk33",
    "rockchip,rk35",
    "qcom,qc",
    "qcom,sm",
    "qcom,sc",
    "qcom,sa",
)

X86 = ("x86_64", "i686", "i586", "i486", "i386")
"""Names of x86 in uname."""


def read_cpu(tree: Tree) -> Cpu:
    """Return the properties that all cores share: a feature of big cores only would crash a thread on a small one."""
    blocks = _own(_blocks(tree), read_arch(tree)) if tree.live else _blocks(tree)
    parts = {(_code(block, "CPU implementer"), _code(block, "CPU part")) for block in blocks} - {("", "")}
    first = blocks[0] if blocks else {}
    cores = len(blocks) or (os.cpu_count() if tree.live else None)
    limit = tree.settings.text_chars
    makers = sorted({IMPLEMENTERS.get(implementer, f"implementer 0x{implementer}") for implementer, _ in parts})
    vendor = first.get("vendor_id", "")[:limit] or " + ".join(makers) or None
    model = _model(parts) or first.get("model name", "")[:limit] or None
    words = [set((block.get("flags") or block.get("Features") or "").split()) for block in blocks]
    return Cpu(vendor, model, cores, tuple(sorted(set.intersection(*words))) if words else ())


def read_arch(tree: Tree) -> str | None:
    """Return uname's name of the architecture.

    On the live root it is from uname, else from cpuinfo, the device tree or nv_tegra_release.
    """
    if tree.live:
        return os.uname().machine
    return _arch_of_cpuinfo(_blocks(tree)) or _arch_of_board(tree)


def _own(blocks: Sequence[Block], machine: str | None) -> Sequence[Block]:
    """Return the blocks, or none if they are of the other architecture: qemu's user mode shows the host's cpuinfo."""
    arch = _arch_of_cpuinfo(blocks)
    foreign = arch is not None and machine is not None and (arch in X86) != (machine in X86)
    return () if foreign else blocks


def _blocks(tree: Tree) -> Sequence[Block]:
    text = tree.read_text("/proc/cpuinfo", tree.settings.table_bytes) or ""
    blocks: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key == "processor" and value.isdecimal():
            blocks.append({})
        elif colon and blocks and key.isprintable() and value.isprintable():
            blocks[-1][key] = value
    return blocks


def _code(block: Block, key: str) -> str:
    found = re.fullmatch(r"(?:0x)?([0-9a-f]{1,4})", block.get(key, "").lower())
    return found.group(1) if found else ""


def _model(parts: set[tuple[str, str]]) -> str | None:
    order = list(PARTS)
    known = sorted((part for part in parts if part in PARTS), key=order.index, reverse=True)
    unknown = sorted(f"part 0x{part}" for implementer, part in parts if (implementer, part) not in PARTS)
    return " + ".join([*(PARTS[part] for part in known), *unknown]) or None


def _arch_of_cpuinfo(blocks: Sequence[Block]) -> str | None:
    first = blocks[0] if blocks else {}
    if "flags" in first:
        return "x86_64" if "lm" in first["flags"].split() else "i686"
    if "CPU part" not in first and "Features" not in first:
        return None
    features = first.get("Features", "").split()
    if "asimd" in features or (not features and first.get("CPU architecture") == "8"):
        return "aarch64"
    return "armv7l" if "thumb" in features else None


def _arch_of_board(tree: Tree) -> str | None:
    release = tree.read_text("/etc/nv_tegra_release") or ""
    if found := re.search(r"EABI: (aarch64)", release):
        return found.group(1)
    return "aarch64" if any(text.startswith(ARM64_BOARDS) for text in compatible(tree)) else None
