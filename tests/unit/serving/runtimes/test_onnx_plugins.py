"""Plugins of ONNX Runtime: their devices, their options, and refusals. A fake module of ONNX Runtime registers them."""

import json
import sys
from types import SimpleNamespace

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes import onnx_plugins

OPENVINO, QNN, WEBGPU = "OpenVINOExecutionProvider", "QNNExecutionProvider", "WebGpuExecutionProvider"
INTEL, NVIDIA = 0x8086, 0x10DE


def device(provider, kind, vendor=INTEL):
    return SimpleNamespace(ep_name=provider, device=SimpleNamespace(type=SimpleNamespace(name=kind), vendor_id=vendor))


class Ort:
    """An onnxruntime module as far as its plugins go."""

    __version__ = "1.99"
    InferenceSession = SimpleNamespace(get_provider_graph_assignment_info=None)

    def __init__(self, *devices):
        self.devices, self.registered = devices, []

    def register_execution_provider_library(self, name, library):
        self.registered.append((name, library))

    def get_ep_devices(self):
        return list(self.devices)


class Options:
    """Session options that remember what was added."""

    def __init__(self):
        self.entries, self.added = [], []

    def add_session_config_entry(self, *entry):
        self.entries.append(entry)

    def add_provider_for_devices(self, devices, options):
        self.added.append((devices, options))


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    for module in ("onnxruntime_ep_openvino", "onnxruntime_qnn", "onnxruntime_ep_webgpu"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(get_library_path=lambda: "lib.so"))


@pytest.mark.parametrize(
    ("provider", "devices", "kinds"),
    [
        (OPENVINO, [], ()),
        (OPENVINO, [device("CPUExecutionProvider", "CPU")], ()),
        (OPENVINO, [device(OPENVINO, "CPU"), device(OPENVINO, "NPU")], ("cpu", "intel-npu")),
        (OPENVINO, [device(f"{OPENVINO}.AUTO", "GPU")], ()),
        (QNN, [device(QNN, "CPU", 0x41)], ("qualcomm-dsp",)),
        (WEBGPU, [device(WEBGPU, "GPU", NVIDIA)], ("nvidia-gpu",)),
    ],
)
def test_the_devices_of_a_plugin_are_kinds_of_accelerators(provider, devices, kinds):
    ort = Ort(*devices)
    assert onnx_plugins.offered(ort, provider) == kinds
    assert ort.registered == [(provider, "lib.so")], "once in a process"


@pytest.mark.parametrize(
    ("accelerator", "precision", "settings"),
    [
        ("cpu", "int8", {"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "2"}}),
        ("intel-gpu", "int8", {"GPU": {"INFERENCE_PRECISION_HINT": "f16"}}),
    ],
)
def test_openvino_computes_in_the_precision_of_the_variant(accelerator, precision, settings):
    ort, options = Ort(device(OPENVINO, "CPU"), device(OPENVINO, "GPU")), Options()
    onnx_plugins.add_plugin(ort, options, SessionBudget(2, accelerator, provider=OPENVINO), precision)
    ((chosen, given),) = options.added
    assert json.loads(given["load_config"]) == settings
    assert [each.device.type.name for each in chosen] == [next(iter(settings))]
    assert options.entries == [onnx_plugins.RECORD]


def test_openvinos_npu_has_no_fp32():
    with pytest.raises(VariantError, match="NPU has no fp32"):
        onnx_plugins.add_plugin(
            Ort(device(OPENVINO, "NPU")), Options(), SessionBudget(1, "intel-npu", provider=OPENVINO), "fp32"
        )


def test_a_plugin_without_the_device_says_so():
    with pytest.raises(
        VariantError, match="offers no intel-gpu on this device; see edge-gateway doctor, or remove the"
    ):
        onnx_plugins.add_plugin(
            Ort(device(OPENVINO, "CPU")), Options(), SessionBudget(1, "intel-gpu", provider=OPENVINO), "fp16"
        )


def test_a_plugin_that_cannot_be_registered_says_what_to_do(monkeypatch):
    def lost():
        raise FileNotFoundError("no such library")

    monkeypatch.setitem(sys.modules, "onnxruntime_ep_openvino", SimpleNamespace(get_library_path=lost))
    with pytest.raises(VariantError) as refused:
        onnx_plugins.offered(Ort(), OPENVINO)
    assert "cannot be registered with ONNX Runtime 1.99: no such library" in refused.value.reason
    assert refused.value.remedy.endswith("-m pip uninstall onnxruntime-ep-openvino")


def test_an_old_onnx_runtime_has_no_plugins():
    class Old:
        __version__ = "1.21.0"

    with pytest.raises(VariantError, match=r"cannot be registered with ONNX Runtime 1\.21\.0"):
        onnx_plugins.offered(Old, OPENVINO)


def test_a_session_without_a_node_on_the_plugin_is_refused():
    def session(**nodes):
        parts = [SimpleNamespace(ep_name=name, get_nodes=lambda n=count: [None] * n) for name, count in nodes.items()]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)

    remark = onnx_plugins.plugin_remark(session(**{OPENVINO: 7, "CPUExecutionProvider": 2}), OPENVINO)
    assert remark == f"{OPENVINO} runs 7 of 9 nodes"
    with pytest.raises(VariantError, match="fell back to the CPU"):
        onnx_plugins.plugin_remark(session(CPUExecutionProvider=9), OPENVINO)
