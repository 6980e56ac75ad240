"""GPU of an NVIDIA Jetson, which is not on PCI: recognised by its board, /etc/nv_tegra_release or its driver alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.board import DEVFREQ, compatible, identify, tegra_sign
from gateway.serving.hardware.rungs import Needs, NodeAccess, node_rung, permission_rung, ten
from gateway.serving.hardware.tree import Tree

CHIPS = {
    "tegra210": "Jetson Nano or TX1 GPU (Maxwell)",
    "tegra186": "Jetson TX2 GPU (Pascal)",
    "tegra194": "Jetson Xavier GPU (Volta)",
    "tegra234": "Jetson Orin GPU (Ampere)",
    "tegra264": "Jetson Thor GPU (Blackwell)",
}
JETPACKS = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}
"""JetPack by the major release of Linux for Tegra."""

GPU_NODE_NAMES = ("gpu", "gm20b", "gp10b", "gv11b", "ga10b", "gb10b")
NODES = ("/dev/nvgpu/igpu0/ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvhost-gpu", "/dev/nvidia0")
"""Nodes of the GPU: JetPack 5.1 and 6, JetPack 4 and 5, Thor."""
MODULES = ("nvgpu", "nvidia")
ACCESS = NodeAccess("video", 'KERNEL=="nvhost-*|nvmap|nvgpu*", GROUP="video", MODE="0660"')

NEEDS = {
    "nvidia-jetson-gpu": Needs(
        libraries=(("libcuda.so.1",),),
        library_remedy="install the driver's CUDA library: sudo apt install nvidia-l4t-cuda; in a container start it "
        "with --runtime nvidia",
        runtime_remedy="JetPack 6 and later: take NVIDIA's onnxruntime-gpu wheel for this JetPack and Python: "
        f"{HERE.preferring('WHEEL', 'onnxruntime')}. JetPack 5 and older: the gateway uses the CPU, because NVIDIA's "
        "wheels are for Python 3.8 there",
    )
}


@dataclass(frozen=True, slots=True)
class TegraRelease:
    """Release of Linux for Tegra: `major` "36", `revision` "4.7"; both "" if unknown."""

    major: str = ""
    revision: str = ""

    @property
    def words(self) -> str:
        """Return "JetPack 6, L4T 36.4.7", or "" if unknown."""
        if not self.major:
            return ""
        jetpack = JETPACKS.get(self.major)
        return f"{f'JetPack {jetpack}, ' if jetpack else ''}L4T {self.major}.{self.revision}"


def chip_of(tree: Tree) -> str | None:
    """Return "tegra234" for a Jetson Orin; "" for a Jetson with an unknown chip, None for any other board."""
    names = (text.removeprefix("nvidia,") for text in compatible(tree) if text.startswith("nvidia,tegra"))
    chip = next((name for name in names if name in CHIPS), None)
    if chip is None and (release_of(tree).major or tegra_sign(tree)):
        return ""
    return chip


def release_of(tree: Tree) -> TegraRelease:
    """Return the release from "# R36 (release), REVISION: 4.7, …"."""
    text = tree.read_text("/etc/nv_tegra_release") or ""
    found = re.search(r"^# R([0-9]{1,3}) \(release\), REVISION: ([0-9]{1,3}(?:\.[0-9]{1,3})?)", text)
    return TegraRelease(found.group(1), found.group(2)) if found else TegraRelease()


def gpus(tree: Tree) -> tuple[Accelerator, ...]:
    """Return the Jetson's own GPU, or nothing on other boards."""
    chip = chip_of(tree)
    if chip is None:
        return ()
    release, devfreq = release_of(tree), _devfreq(tree)
    node = next((path for path in NODES if tree.exists(path)), None)
    sign = "/etc/nv_tegra_release" if release.major else tegra_sign(tree)
    rungs = ten(
        Rung("bus", True, f"{identify(tree)[1]}: nvidia,{chip}" if chip else f"{sign}: an unknown Jetson"),
        _driver(tree, devfreq),
        node_rung(
            tree,
            node,
            " or ".join(NODES),
            "read dmesg | grep -i nvgpu; in a container start it with --runtime nvidia",
        ),
        permission_rung(tree, node, ACCESS),
    )
    words = f", {release.words}" if release.words else ""
    name = f"NVIDIA {CHIPS.get(chip, 'Jetson GPU')}{words}"
    facts = {"chip": chip, "driver": release.words, "l4t": f"{release.major}.{release.revision}".strip(".")}
    return (Accelerator("nvidia-jetson-gpu", name, node or devfreq or "", rungs, facts),)


def _devfreq(tree: Tree) -> str | None:
    """Return the GPU's platform device, such as "17000000.gpu".

    Its number differs by chip, and the name of its node by JetPack.
    """
    for entry in tree.names(DEVFREQ):
        name = (tree.line(f"{DEVFREQ}/{entry}/device/of_node/name") or "").strip()
        if name in GPU_NODE_NAMES or entry.endswith((".gpu", *(f".{known}" for known in GPU_NODE_NAMES))):
            return entry
    return None


def _driver(tree: Tree, devfreq: str | None) -> Rung:
    module = next((name for name in MODULES if tree.exists(f"/sys/module/{name}")), None)
    if devfreq or module:
        return Rung("driver", True, f"devfreq {devfreq}" if devfreq else f"module {module} is loaded")
    if not tree.names("/sys/class"):
        return Rung("driver", None, "there is no /sys to look into")
    return Rung(
        "driver",
        False,
        "neither nvgpu nor nvidia drives the GPU",
        "start NVIDIA's own kernel, then sudo modprobe nvgpu",
    )
