from __future__ import annotations

import pytest

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Inventory, RuntimeListing
from gateway.serving.hardware.library import LibraryAnswer
from gateway.serving.hardware.library_diagnosis import climb, library_sets
from tests.devices.asking import Probed, rung

LOADS = LibraryAnswer(True)
ZE = {"libze_loader.so.1": LOADS}
OPENVINO = {"openvino": RuntimeListing(True, "2026.1", ("CPU", "GPU.0", "NPU"))}


def climbed(found: Inventory, libraries: dict[str, LibraryAnswer], runtimes: dict[str, RuntimeListing]) -> Inventory:
    return climb(found, libraries, runtimes)


def test_the_libraries_to_ask_are_those_of_the_kinds_found(probed: Probed) -> None:
    assert library_sets(probed("intel-npu-and-gpu")) == (
        ("libze_loader.so.1", "libze_intel_npu.so.1", "libze_intel_vpu.so.1"),
        ("libOpenCL.so.1",),
    )


def test_nothing_is_asked_for_a_stick_that_is_never_loaded(probed: Probed) -> None:
    assert library_sets(probed("ncs2-running")) == ()


def test_nothing_asked_leaves_all_as_it_was(probed: Probed) -> None:
    found = probed("intel-npu-and-gpu")
    assert climb(found, {}, {}) == found


def test_one_library_of_each_group_is_enough(probed: Probed) -> None:
    answers = ZE | {
        "libze_intel_npu.so.1": LibraryAnswer(False, "libze_intel_npu.so.1: no such file"),
        "libze_intel_vpu.so.1": LOADS,
    }
    npu = climb(probed("intel-npu-of-tomorrow"), answers, {}).accelerators[0]
    assert rung(npu, "library") == (True, "libze_loader.so.1, libze_intel_vpu.so.1", "")


def test_a_group_without_any_breaks_the_rung_with_reasons_and_remedy(probed: Probed) -> None:
    answers = ZE | {
        "libze_intel_npu.so.1": LibraryAnswer(False, "libze_intel_npu.so.1 died by SIGSEGV"),
        "libze_intel_vpu.so.1": LibraryAnswer(None, "libze_intel_vpu.so.1: not asked"),
    }
    npu = climb(probed("intel-npu-of-tomorrow"), answers, {}).accelerators[0]
    ok, detail, remedy = rung(npu, "library")
    assert (ok, detail) == (False, "libze_intel_npu.so.1 died by SIGSEGV")
    assert "intel-level-zero-npu" in remedy
    assert not npu.usable


def test_a_group_that_was_not_asked_leaves_the_rung_null(probed: Probed) -> None:
    npu = climb(probed("intel-npu-of-tomorrow"), ZE, {}).accelerators[0]
    assert rung(npu, "library")[0] is None


def test_devices_of_a_runtime_count_with_and_without_a_number(probed: Probed) -> None:
    npu, gpu = climb(probed("intel-npu-and-gpu"), {}, OPENVINO).accelerators
    assert rung(npu, "runtime")[:2] == (True, "openvino 2026.1 lists NPU")
    assert rung(gpu, "runtime")[:2] == (True, "openvino 2026.1 lists GPU.0")


def test_a_runtime_that_does_not_list_the_device(probed: Probed) -> None:
    listing = {"openvino": RuntimeListing(True, "2026.1", ("CPU",))}
    ok, detail, remedy = rung(climb(probed("intel-gpu-only"), {}, listing).accelerators[0], "runtime")
    assert (ok, detail) == (False, "openvino 2026.1 lists CPU, not GPU")
    assert "render group" in remedy


def test_a_runtime_that_hung_or_is_absent(probed: Probed) -> None:
    listing = {"onnx": RuntimeListing(False, problem="hung for 20 s")}
    ok, detail, remedy = rung(climb(probed("nvidia-gpu"), {}, listing).accelerators[0], "runtime")
    assert (ok, detail) == (False, "onnx: hung for 20 s")
    assert HERE.adding("onnx") in remedy


@pytest.mark.parametrize("tree", ["hailo10h", "rk3588-vendor", "ncs1"])
def test_what_has_no_runtime_never_climbs(probed: Probed, tree: str) -> None:
    everything = {name: RuntimeListing(True, "1", ("CPU", "NPU")) for name in ("onnx", "openvino", "litert", "")}
    found = probed(tree)
    libraries = {name: LOADS for names in library_sets(found) for name in names}
    (accelerator,) = climb(found, libraries, everything).accelerators
    assert rung(accelerator, "runtime") == rung(found.accelerators[0], "runtime")
    assert not accelerator.usable


def test_a_plugin_that_offers_the_accelerator_is_a_runtime_for_it(probed: Probed) -> None:
    named = "qualcomm-dsp by QNNExecutionProvider 2.7.0"
    found = probed("qcs6490")
    listing = {"onnx": RuntimeListing(True, "1.31.1", ("CPUExecutionProvider", named))}
    assert rung(climbed(found, {}, listing).accelerators[0], "runtime")[:2] == (True, f"onnx 1.31.1 lists {named}")
    without = {"onnx": RuntimeListing(True, "1.31.1", ("CPUExecutionProvider",))}
    ok, detail, remedy = rung(climbed(found, {}, without).accelerators[0], "runtime")
    assert (ok, remedy) == (False, f"{HERE.pip} install onnxruntime-qnn (EG-408)")
    assert detail == "onnx 1.31.1 lists CPUExecutionProvider, not qualcomm-dsp"


def test_one_runtime_that_lists_the_device_is_enough(probed: Probed) -> None:
    plugin = RuntimeListing(True, "1.31.1", ("CPUExecutionProvider", "intel-gpu by OpenVINOExecutionProvider 1.8.1"))
    absent = RuntimeListing(False, problem="the Python package openvino is not installed")
    found = probed("intel-gpu-only")
    gpu = climbed(found, {}, {"onnx": plugin, "openvino": absent}).accelerators[0]
    assert rung(gpu, "runtime")[0] is True
    plain = RuntimeListing(True, "1.31.1", ("CPUExecutionProvider",))
    gpu = climbed(found, {}, {"onnx": plain, "openvino": absent}).accelerators[0]
    assert rung(gpu, "runtime")[:2] == (False, "openvino: the Python package openvino is not installed")


def test_climbing_twice_is_climbing_once(probed: Probed) -> None:
    found = probed("intel-npu-and-gpu")
    once = climb(found, ZE, OPENVINO)
    assert climb(once, ZE, OPENVINO) == once
