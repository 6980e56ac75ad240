"""Jetson, Rockchip and Qualcomm: accelerators that a board's device tree names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.hardware.chips import BOARDS, CHIPS, chip_by_fact
from gateway.serving.hardware.probe import probe
from gateway.serving.hardware.settings import HardwareSettings
from tests.devices.asking import Only, Probed, rung
from tests.devices.build import Link, Node, arm_cpuinfo, build
from tests.devices.catalogue import RK3588, TREES


@pytest.mark.parametrize(
    ("tree", "words", "device"),
    [
        ("jetson-nano", "Jetson Nano or TX1 GPU (Maxwell), JetPack 4, L4T 32.7.6", "/dev/nvhost-ctrl-gpu"),
        ("jetson-tx2", "Jetson TX2 GPU (Pascal), JetPack 4, L4T 32.7.1", "17000000.gp10b"),
        ("jetson-xavier", "Jetson Xavier GPU (Volta), JetPack 5, L4T 35.4.1", "17000000.gv11b"),
        ("jetson-orin", "Jetson Orin GPU (Ampere), JetPack 6, L4T 36.3.0", "/dev/nvgpu/igpu0/ctrl"),
        ("jetson-thor", "Jetson Thor GPU (Blackwell), JetPack 7, L4T 38.2.0", "/dev/nvidia0"),
        ("jetson-in-a-container", "Jetson GPU, JetPack 6, L4T 36.4.7", ""),
    ],
)
def test_jetsons_by_chip_and_release(only: Only, tree: str, words: str, device: str) -> None:
    jetson = only(tree)
    assert (jetson.kind, jetson.name, jetson.device) == ("nvidia-jetson-gpu", f"NVIDIA {words}", device)
    assert jetson.usable


def test_a_jetson_on_a_plain_kernel_has_no_driver(only: Only) -> None:
    jetson = only("jetson-plain-kernel")
    assert [found.name for found in jetson.rungs if found.ok is False] == ["driver", "node"]
    assert "nvgpu" in rung(jetson, "driver")[2]


def test_an_unknown_tegra_with_a_release_is_a_jetson_all_the_same(only: Only) -> None:
    entries = {
        "/proc/device-tree/compatible": "nvidia,next\0nvidia,tegra999\0",
        "/etc/nv_tegra_release": "# R40 (release), REVISION: 1.0, GCID: 0\n",
    }
    assert only(entries).name == "NVIDIA Jetson GPU, L4T 40.1.0"


@pytest.mark.parametrize("text", ["", "R36", "# R36 (release)", "# R9999999 (release), REVISION: 1", "\0\0\0"])
def test_garbage_in_the_release_is_no_jetson(probed: Probed, text: str) -> None:
    assert probed({"/etc/nv_tegra_release": text}).accelerators == ()


def test_the_device_tree_is_read_from_sys_as_well(only: Only) -> None:
    entries = {"/sys/firmware/devicetree/base/compatible": "nvidia,board\0nvidia,tegra194\0"}
    assert "Xavier" in only(entries).name


def test_rockchip_vendor_driver(only: Only) -> None:
    npu = only("rk3588-vendor")
    assert (npu.kind, npu.device) == ("rockchip-npu", "/dev/dri/renderD129")
    assert npu.name == "Rockchip RK3588 NPU (vendor driver v0.9.3)"
    assert npu.broken is not None
    assert npu.broken.name == "runtime"


def test_rockchip_vendor_driver_without_debugfs(only: Only) -> None:
    entries = dict(TREES["rk3588-vendor"])
    del entries["/sys/kernel/debug/rknpu/version"]
    assert rung(only(entries), "driver")[:2] == (True, "vendor driver, version readable by root only")


def test_rockchip_mainline_driver_owns_the_accel_node(only: Only) -> None:
    npu = only("rk3588-mainline")
    assert (npu.device, rung(npu, "driver")[1]) == ("/dev/accel/accel0", "mainline driver rocket")


def test_the_last_render_node_is_the_npus_where_sys_is_silent(only: Only) -> None:
    entries = RK3588 | {
        "/sys/class/devfreq/fdab0000.npu/cur_freq": "1",
        "/dev/dri/renderD128": Node(),
        "/dev/dri/renderD129": Node(),
    }
    assert only(entries).device == "/dev/dri/renderD129"


def test_the_vendor_drivers_own_node(only: Only) -> None:
    assert only(RK3588 | {"/sys/module/rknpu/version": "0.8.2", "/dev/rknpu": Node()}).device == "/dev/rknpu"


def test_rockchip_without_any_driver(only: Only) -> None:
    npu = only("rk3568-without-driver")
    assert npu.broken is not None
    assert npu.broken.name == "driver"
    assert "rocket" in npu.broken.remedy


def test_a_rockchip_without_npu(probed: Probed) -> None:
    assert probed("rk3399").accelerators == ()


def test_qualcomm_running(only: Only) -> None:
    dsp = only("qcs6490")
    assert (dsp.kind, dsp.device, rung(dsp, "firmware")[0]) == ("qualcomm-dsp", "/dev/fastrpc-cdsp", True)
    assert rung(dsp, "runtime")[0] is None, "a plugin of ONNX Runtime may list it"


def test_an_openable_node_proves_nothing_while_the_dsp_is_off(only: Only) -> None:
    dsp = only("qcs6490-dsp-off")
    assert rung(dsp, "permission")[0] is True
    assert dsp.broken is not None
    assert (dsp.broken.name, dsp.broken.detail) == ("firmware", "remoteproc2 (cdsp) is offline")
    assert "/sys/class/remoteproc/remoteproc2/state" in dsp.broken.remedy


def test_the_audio_dsp_is_not_for_models(probed: Probed) -> None:
    assert probed("qcs6490-audio-dsp-only").accelerators == ()


def test_a_state_that_cannot_be_read_is_unknown(only: Only) -> None:
    entries = dict(TREES["qcs6490"])
    del entries["/sys/class/remoteproc/remoteproc2/state"]
    assert rung(only(entries), "firmware")[0] is None


def test_a_dsp_without_its_kernel_driver(only: Only) -> None:
    entries = {path: entry for path, entry in TREES["qcs6490"].items() if not path.startswith("/dev")}
    silent = only(entries)
    assert (silent.device, rung(silent, "driver")[0], rung(silent, "node")[0]) == ("remoteproc2", None, None)


def test_a_dsp_whose_node_is_missing(only: Only) -> None:
    dsp = only({path: entry for path, entry in TREES["qcs6490"].items() if path != "/dev/fastrpc-cdsp"})
    assert dsp.broken is not None
    assert (dsp.broken.name, "in a container pass it" in dsp.broken.remedy) == ("node", True)


def test_a_dsp_without_any_node_has_no_driver(only: Only) -> None:
    dsp = only(
        {path: entry for path, entry in TREES["qcs6490"].items() if "fastrpc" not in path} | {"/dev/null": Node()}
    )
    assert dsp.broken is not None
    assert (dsp.broken.name, dsp.broken.remedy.startswith("sudo modprobe fastrpc")) == ("driver", True)


def test_a_dsp_known_only_by_its_node(only: Only) -> None:
    entries = {path: entry for path, entry in TREES["qcs6490"].items() if "remoteproc" not in path}
    assert rung(only(entries), "firmware")[0] is None


@pytest.mark.parametrize(
    ("board", "compatible"), [("jetson-orin", "nvidia,tegra234"), ("rockchip,rk3588", "rockchip,rk3588")]
)
def test_a_named_board_precedes_what_is_found(tmp_path: Path, board: str, compatible: str) -> None:
    found = probe(build(tmp_path, TREES["pi5"]), settings=HardwareSettings(board=board))
    assert found.board.compatible == (compatible,)
    assert [accelerator.rungs[0].detail for accelerator in found.accelerators] == [f"settings: {compatible}"]


@pytest.mark.parametrize("board", ["pi5", ",", "a,\x1b[31mb", "rockchip,rk3588\n", "a," + "b" * 10_000])
def test_an_unknown_board_is_refused(board: str) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown board '.* here or in EDGE_GATEWAY_BOARD; name a string of"):
        HardwareSettings(board=board)


@pytest.mark.parametrize("sign", ["/dev/nvgpu/igpu0/ctrl", "/dev/nvhost-gpu", "/sys/module/nvgpu/refcnt"])
def test_a_jetsons_driver_implies_a_jetson(only: Only, sign: str) -> None:
    jetson = only({sign: ""})
    assert (jetson.name, jetson.kind) == ("NVIDIA Jetson GPU", "nvidia-jetson-gpu")
    assert jetson.rungs[0].detail.endswith("an unknown Jetson")


def test_the_vendors_driver_implies_an_npu_of_rockchip(only: Only) -> None:
    npu = only({"/sys/module/rknpu/version": "0.9.8\n"})
    assert npu.name.startswith("Rockchip NPU (vendor driver")
    assert npu.rungs[0].detail == "the vendor driver, on an unknown chip"


def test_a_hidden_board_without_a_sign_is_told(probed: Probed) -> None:
    hidden = {"/proc/device-tree": Link("/sys/firmware/devicetree/base")}
    notes = probed(hidden | arm_cpuinfo("0xd03", features="fp asimd")).notes
    assert "no sign shows which board this is" in notes[0]
    assert "EDGE_GATEWAY_BOARD" in notes[0]


@pytest.mark.parametrize("chip", BOARDS.values())
def test_each_sign_is_of_one_chip(chip: str) -> None:
    assert {chip_by_fact(sign) for sign in CHIPS[chip][1:]} == {chip}
