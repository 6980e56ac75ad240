"""Qualcomm's compute DSP (Hexagon). An accessible node does not prove that it works."""

from __future__ import annotations

from gateway.common.domain.inventory import Accelerator, Rung
from gateway.serving.hardware.board import identify
from gateway.serving.hardware.rungs import Needs, NodeAccess, node_rung, permission_rung, ten
from gateway.serving.hardware.tree import Tree

REMOTEPROC = "/sys/class/remoteproc"
NODES = ("/dev/fastrpc-cdsp", "/dev/fastrpc-cdsp-secure")
ACCESS = NodeAccess("fastrpc", 'KERNEL=="fastrpc-*", GROUP="fastrpc", MODE="0660"')

NEEDS = {
    "qualcomm-dsp": Needs(
        libraries=(("libcdsprpc.so.1", "libcdsprpc.so", "libQnnHtp.so"),),  # the package onnxruntime-qnn brings QNN's
        library_remedy="install FastRPC's library (package libfastrpc1, or the board maker's fastrpc)",
    )
}


def dsps(tree: Tree) -> tuple[Accelerator, ...]:
    """Return the compute DSP of a Qualcomm board. The audio DSP does not run models."""
    names, origin = identify(tree)
    chip = next((text.removeprefix("qcom,") for text in reversed(names) if text.startswith("qcom,")), None)
    remote = _remoteproc(tree)
    node = next((path for path in NODES if tree.exists(path)), None)
    if chip is None or (remote is None and node is None):
        return ()
    rungs = ten(
        Rung("bus", True, f"{origin}: qcom,{chip}" + (f"; {remote}" if remote else "")),
        _driver(tree, node),
        _firmware(tree, remote),
        node_rung(tree, node, " or ".join(NODES), "read dmesg | grep fastrpc"),
        permission_rung(tree, node, ACCESS),
    )
    name = f"Qualcomm {chip.upper()} compute DSP"
    return (Accelerator("qualcomm-dsp", name, node or remote or "", rungs, {"chip": chip}),)


def _remoteproc(tree: Tree) -> str | None:
    for name in tree.names(REMOTEPROC):
        if (tree.line(f"{REMOTEPROC}/{name}/name") or "").startswith("cdsp"):
            return name
    return None


def _driver(tree: Tree, node: str | None) -> Rung:
    if node or tree.exists("/sys/module/fastrpc") or any(name.startswith("fastrpc-") for name in tree.names("/dev")):
        return Rung("driver", True, "fastrpc")
    if not tree.is_directory("/dev"):
        return Rung("driver", None, "there is no /dev to look into")
    return Rung("driver", False, "fastrpc is not loaded", "sudo modprobe fastrpc (CONFIG_QCOM_FASTRPC)")


def _firmware(tree: Tree, remote: str | None) -> Rung:
    if remote is None:
        return Rung("firmware", None, f"no cdsp under {REMOTEPROC}")
    state = tree.line(f"{REMOTEPROC}/{remote}/state")
    if state is None:
        return Rung("firmware", None, f"{REMOTEPROC}/{remote}/state cannot be read")
    if state == "running":
        return Rung("firmware", True, f"{remote} (cdsp) is running")
    return Rung(
        "firmware",
        False,
        f"{remote} (cdsp) is {state}",
        f"install the chip's firmware (package firmware-qcom-soc or linux-firmware), then: "
        f"echo start | sudo tee {REMOTEPROC}/{remote}/state, and read dmesg | grep remoteproc",
    )
